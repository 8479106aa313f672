// The fuzzers' targets on their corpora and on seeded damage; scripts/fuzz.sh lets libFuzzer search.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "test/fuzz/mutate.h"
#include "test/fuzz/targets.h"
#include "test/support/catch.h"
#include "test/support/paths.h"

using namespace pptrain;

namespace {

struct Target {
  const char* name;  // the name of its corpus folder
  bool (*run)(std::string_view input);
  int mutants;
};

constexpr Target targets[] = {
    {"job", fuzz::job, 4000},
    {"safetensors", fuzz::safetensors, 20000},
    {"manifest", fuzz::manifest, 10000},
    {"schedule", fuzz::schedule, 10000},
    {"hf_config", fuzz::hf_config, 4000},
    {"token_file", fuzz::token_file, 5000},
    {"frames", fuzz::frames, 20000},
    {"handshake", fuzz::handshake, 5000},
    {"tokenizer", fuzz::tokenizer, 3000},
};

std::vector<std::string> corpus_of(const char* name) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry :
       std::filesystem::directory_iterator(test::source_dir() / "test/fuzz/corpus" / name))
    paths.push_back(entry.path());
  std::ranges::sort(paths);
  std::vector<std::string> inputs;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    inputs.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return inputs;
}

// Runs one input; prints it if it breaks the target.
bool accepts(const Target& target, const std::string& input) {
  try {
    return target.run(input);
  } catch (const std::exception& error) {
    INFO(target.name << " on " << Catch::StringMaker<std::string>::convert(input));
    FAIL(error.what());
    return false;
  }
}

}  // namespace

TEST_CASE("every input of the corpora, and damaged ones, are accepted or refused") {
  for (const Target& target : targets) {
    const auto begin = std::chrono::steady_clock::now();
    const std::vector<std::string> corpus = corpus_of(target.name);
    REQUIRE(!corpus.empty());
    int sound = 0, accepted = 0;
    for (const std::string& input : corpus) sound += accepts(target, input);
    fuzz::Mutator mutator(corpus, 1);
    for (int i = 0; i < target.mutants; ++i) accepted += accepts(target, mutator.next());
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    INFO(target.name << ": " << sound << " of " << corpus.size() << " inputs and " << accepted << " of "
                     << target.mutants << " mutants accepted, " << seconds.count() << " s");
    CHECK(sound > 0);
    CHECK(accepted > target.mutants / 100);
    CHECK(accepted < target.mutants);
  }
}
