// The fuzzers' targets. Each function reads one input of its kind as the program does, and returns whether
// the program accepted it (a refusal is an Error). Throws Broken if an accepted input violates a rule.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace pptrain::fuzz {

class Broken : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

inline void require(bool holds, const std::string& what) {
  if (!holds) throw Broken(what);
}

// A job file, without the files that it names. Lines "#set KEY=VALUE" are overrides. An accepted job, written
// as TOML, reads back the same.
bool job(std::string_view text);

// A safetensors file: its tensors cover each byte once, and fit their shapes.
bool safetensors(std::string_view bytes);

// A checkpoint's manifest, unchanged and with its checksum corrected; also a rank's list of files. An
// accepted one, written, reads back the same. Checks whether slices cover their tensors.
bool manifest(std::string_view text);

// A schedule's CSV: proof and passes. A sound schedule that has only computations is lowered in every way.
// Written, it reads back the same.
bool schedule(std::string_view text);

// Hugging Face's config.json: an accepted one has no number that a job would refuse.
bool hf_config(std::string_view text);

// A data file in each format: every token that it promises can be read.
bool token_file(std::string_view bytes);

// A tokenizer.json: an accepted one encodes and decodes any text, with ids in its vocabulary.
bool tokenizer(std::string_view text);

// The bytes of a TCP link, with receives posted between them (see frames.cpp): each receive ends with the
// message that a reader of the whole stream finds for it.
bool frames(std::string_view input);

// A stranger's messages to a rank that calls or is called: no stranger is accepted without the key.
bool handshake(std::string_view input);

}  // namespace pptrain::fuzz
