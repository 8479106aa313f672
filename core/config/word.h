// Options whose values are words, as enums: the program compares enums, files hold words.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace pptrain::config {

enum class Device { cpu, cuda };
enum class Dtype { bf16, fp32 };
// Which GEMMs of linear layers multiply numbers of 8 bits: all but weight gradients, or all.
enum class Fp8 { off, rowwise, rowwise_all };
enum class Init { random, hf };
// How context-parallel ranks divide attention: keys and values travel around a ring of ranks, or heads are
// exchanged for tokens (Ulysses).
enum class ContextKind { ring, ulysses };
enum class ReduceGradients { step, microbatch };
// Where the head's vocabulary lies: with the last stage, or a part of it on every pipeline rank.
enum class HeadPlace { last, spread, automatic };
enum class BadLines { refuse, skip };
enum class DataFormat { text, jsonl, parquet, bin, llmc, megatron, npy, random };
enum class TokenType { uint16, uint32 };
// Whose published chat template a conversation is written in; custom: the texts of [data.chat]; folder: the
// one beside the tokenizer.
enum class ChatStyle { custom, chatml, llama3, mistral, gemma, qwen, folder };
// Where a template puts a system message: in a turn of its own, before the first user's text, or nowhere.
enum class SystemMessage { turn, user, refuse };
// Which documents share a row of seq_len tokens. Longer ones come in pieces of seq_len, each a document of
// its own whose last target is the next piece's first token.
enum class Packing {
  none,        // a row is a document
  sequential,  // documents one after the other, whole; with Lengths::fixed rows are full and cut documents
  best_fit,    // those that fit best; rows are filled up
};
// How long microbatches are.
enum class Lengths {
  fixed,   // rows of seq_len each
  exact,   // as long as their documents
  padded,  // as long as the step's longest, rounded up
};
// What exact lengths are balanced for: microbatches that cost alike, or the end of the schedule.
enum class Balance { microbatches, schedule };
// checkpoint.resume: a word, or the path of a checkpoint.
enum class Resume { automatic, none, restart, named };
enum class RopeType { none, linear, llama3, dynamic, yarn, longrope };
// What a run whose data changed does: it refuses, goes on at the same sample, or begins with the first one.
enum class ChangedData { same, go_on, restart };

// The words of an enum's values, in their order.
template <class E>
inline constexpr std::array<std::string_view, 0> words{};
template <>
inline constexpr std::array words<Device> = std::to_array<std::string_view>({"cpu", "cuda"});
template <>
inline constexpr std::array words<Dtype> = std::to_array<std::string_view>({"bf16", "fp32"});
template <>
inline constexpr std::array words<Fp8> = std::to_array<std::string_view>({"off", "rowwise", "rowwise_all"});
template <>
inline constexpr std::array words<Init> = std::to_array<std::string_view>({"random", "hf"});
template <>
inline constexpr std::array words<ContextKind> = std::to_array<std::string_view>({"ring", "ulysses"});
template <>
inline constexpr std::array words<ReduceGradients> = std::to_array<std::string_view>({"step", "microbatch"});
template <>
inline constexpr std::array words<HeadPlace> = std::to_array<std::string_view>({"last", "spread", "auto"});
template <>
inline constexpr std::array words<BadLines> = std::to_array<std::string_view>({"refuse", "skip"});
template <>
inline constexpr std::array words<DataFormat> =
    std::to_array<std::string_view>({"text", "jsonl", "parquet", "bin", "llmc", "megatron", "npy", "random"});
template <>
inline constexpr std::array words<TokenType> = std::to_array<std::string_view>({"uint16", "uint32"});
template <>
inline constexpr std::array words<ChatStyle> =
    std::to_array<std::string_view>({"custom", "chatml", "llama3", "mistral", "gemma", "qwen", "folder"});
template <>
inline constexpr std::array words<SystemMessage> = std::to_array<std::string_view>({"turn", "user",
                                                                                    "refuse"});
template <>
inline constexpr std::array words<Packing> = std::to_array<std::string_view>({"none", "sequential",
                                                                              "best_fit"});
template <>
inline constexpr std::array words<Lengths> = std::to_array<std::string_view>({"fixed", "exact", "padded"});
template <>
inline constexpr std::array words<Balance> = std::to_array<std::string_view>({"microbatches", "schedule"});
template <>
inline constexpr std::array words<RopeType> =
    std::to_array<std::string_view>({"default", "linear", "llama3", "dynamic", "yarn", "longrope"});
template <>
inline constexpr std::array words<Resume> = std::to_array<std::string_view>({"auto", "none", "restart"});
template <>
inline constexpr std::array words<ChangedData> = std::to_array<std::string_view>({"same", "continue",
                                                                                  "restart"});

// How the files of a format are called that a folder stands for.
inline std::vector<std::string_view> file_endings(DataFormat format) {
  switch (format) {
    case DataFormat::text:
      return {".txt"};
    case DataFormat::jsonl:
      return {".jsonl", ".jsonl.gz", ".jsonl.zst"};
    case DataFormat::parquet:
      return {".parquet"};
    case DataFormat::npy:
      return {".npy"};
    default:
      return {".bin"};
  }
}

// A value of E that the loader reads and writes as text. `text` is always one of E's words: the loader takes
// no other.
template <class E>
struct Word {
  std::string text;

  Word(E value) : text(words<E>[static_cast<size_t>(value)]) {}
  operator E() const {
    return static_cast<E>(std::ranges::find(words<E>, std::string_view(text)) - words<E>.begin());
  }
  friend bool operator==(const Word& a, const Word& b) { return a.text == b.text; }
  friend bool operator==(const Word& a, E b) { return E(a) == b; }
};

inline Resume resume_of(std::string_view text) {
  return static_cast<Resume>(std::ranges::find(words<Resume>, text) - words<Resume>.begin());
}

template <class E>
std::vector<std::string> words_of() {
  return {words<E>.begin(), words<E>.end()};
}

}  // namespace pptrain::config
