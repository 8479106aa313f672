// What is fuzzed: each function reads one input of its kind as the program does, and says whether the program
// accepted it: a refusal is an Error. Throws Broken where something that must hold of an accepted input does
// not.
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

// A safetensors file: its tensors take each byte once, and fit their shapes.
bool safetensors(std::string_view bytes);

// A checkpoint's manifest, as it is and with its own checksum put right; a rank's list of files. An accepted
// one, written, reads back the same. Whether slices cover their tensors is found out.
bool manifest(std::string_view text);

// A schedule's CSV: proof and passes; a sound schedule of computations alone is lowered, in every way.
// Written, it reads back the same.
bool schedule(std::string_view text);

// Hugging Face's config.json: what is accepted has no number that a job would refuse.
bool hf_config(std::string_view text);

// A data file in each format: every token that it promises can be read.
bool token_file(std::string_view bytes);

// A tokenizer.json: what is accepted encodes and decodes any text, and lies in its vocabulary.
bool tokenizer(std::string_view text);

// What comes in on a TCP link, with receives posted between its pieces (frames.cpp says how): each receive
// ends with what a reader of the whole stream finds for it.
bool frames(std::string_view input);

// What a stranger says to a rank that calls or is called: nobody is let in without the key.
bool handshake(std::string_view input);

}  // namespace pptrain::fuzz
