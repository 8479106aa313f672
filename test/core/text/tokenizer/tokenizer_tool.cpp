// Drives a tokenizer for python_tokenizers_test.py: tokenizer_tool TOKENIZER.JSON.
//
// Standard input has requests, standard output an answer to each: a byte, then a uint32 of bytes that follow.
//   'e', 'E'  text -> int32 ids; E with the tokens around a text
//   'd', 'D'  int32 ids -> text; D without special tokens
//   's'       int32 ids -> text, by a StreamDecoder
// An answer has no first byte. `tokenizer_tool TOKENIZER.JSON --time FILE` prints seconds of encoding a
// file's documents (with NUL between them), of decoding their ids, and how many ids there are.
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "core/text/tokenizer/tokenizer.h"

using pptrain::tokenizer::StreamDecoder;
using pptrain::tokenizer::Tokenizer;

namespace {

std::string bytes_of(const std::vector<int32_t>& ids) {
  return {reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(int32_t)};
}

std::string answer(const Tokenizer& tokenizer, char request, const std::string& body) {
  if (request == 'e' || request == 'E') return bytes_of(tokenizer.encode(body, request == 'E'));
  std::vector<int32_t> ids(body.size() / sizeof(int32_t));
  std::memcpy(ids.data(), body.data(), body.size());
  if (request == 'd' || request == 'D') return tokenizer.decode(ids, request == 'D');
  StreamDecoder stream(tokenizer, false);
  std::string text;
  for (const int32_t id : ids) text += stream.put(id);
  return text + stream.finish();
}

int serve(const Tokenizer& tokenizer) {
  char request = 0;
  while (std::cin.get(request)) {
    uint32_t size = 0;
    std::cin.read(reinterpret_cast<char*>(&size), sizeof(size));
    std::string body(size, '\0');
    std::cin.read(body.data(), size);
    if (!std::cin) return 1;
    const std::string text = answer(tokenizer, request, body);
    size = static_cast<uint32_t>(text.size());
    std::cout.write(reinterpret_cast<const char*>(&size), sizeof(size));
    std::cout.write(text.data(), size);
  }
  return 0;
}

int time_file(const Tokenizer& tokenizer, const char* path) {
  using Clock = std::chrono::steady_clock;
  std::ifstream file(path, std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  std::vector<std::string_view> documents;
  for (std::string_view rest = text; !rest.empty();) {
    const size_t end = std::min(rest.find('\0'), rest.size());
    documents.push_back(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  std::vector<std::vector<int32_t>> ids;
  const auto begin = Clock::now();
  for (const std::string_view document : documents) ids.push_back(tokenizer.encode(document, false));
  const auto encoded = Clock::now();
  size_t count = 0, bytes = 0;
  for (const auto& each : ids) {
    count += each.size();
    bytes += tokenizer.decode(each, false).size();
  }
  const auto decoded = Clock::now();
  std::printf("%.4f %.4f %zu %zu\n", std::chrono::duration<double>(encoded - begin).count(),
              std::chrono::duration<double>(decoded - encoded).count(), count, bytes);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::ios::sync_with_stdio(false);
  spdlog::set_default_logger(spdlog::stderr_logger_mt("warnings"));  // standard output is for answers
  try {
    const Tokenizer tokenizer = Tokenizer::load(argv[1]);
    return argc == 4 ? time_file(tokenizer, argv[3]) : serve(tokenizer);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
