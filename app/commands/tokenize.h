// pptrain tokenize
#pragma once

#include <CLI/App.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "core/config/word.h"

namespace pptrain::app {

struct TokenizeArguments {
  std::string tokenizer;  // tokenizer.json, or its folder
  std::string out;        // PREFIX of .bin and .idx
  std::string key;        // JSONL, Parquet
  std::string prompt_key, completion_key;
  std::string separator;  // between documents, with \n, \t and \\ for what they are in C
  std::string eos;        // a token, an id or "none"; empty: what the tokenizer's folder says
  config::Word<config::BadLines> bad_lines = config::BadLines::refuse;
  bool no_special = false;
  bool overwrite = false;
  int64_t threads = 0;  // 0: as many as there are cores
  std::vector<std::string> files;
};

// The subcommand, whose parsing fills `arguments`.
CLI::App* add_tokenize(CLI::App& cli, TokenizeArguments& arguments);
int tokenize(const TokenizeArguments& arguments);

}  // namespace pptrain::app
