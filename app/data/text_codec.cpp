#include "app/data/text_codec.h"

#include <spdlog/fmt/fmt.h>

#include <filesystem>
#include <utility>

#include "core/base/error.h"
#include "core/config/data_sources.h"
#include "core/io/paths.h"

namespace pptrain::app {

namespace {

class ByteDecoder final : public TextCodec::Decoder {
 public:
  std::string next(int64_t token) override {
    return token >= 0 && token < 256 ? std::string(1, static_cast<char>(token)) : "\xEF\xBF\xBD";
  }
  std::string rest() override { return ""; }
};

class ByteCodec final : public TextCodec {
 public:
  std::vector<int64_t> encode(std::string_view text) const override {
    std::vector<int64_t> tokens;
    for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
    return tokens;
  }
  std::unique_ptr<Decoder> decoder() const override { return std::make_unique<ByteDecoder>(); }
};

class TokenDecoder final : public TextCodec::Decoder {
 public:
  explicit TokenDecoder(const tokenizer::Tokenizer& tokenizer) : stream_(tokenizer, /*skip_special=*/true) {}
  std::string next(int64_t token) override { return stream_.put(static_cast<int32_t>(token)); }
  std::string rest() override { return stream_.finish(); }

 private:
  tokenizer::StreamDecoder stream_;
};

class TokenizerCodec final : public TextCodec {
 public:
  TokenizerCodec(tokenizer::Tokenizer tokenizer, bool add_special, int64_t vocab_size)
      : tokenizer_(std::move(tokenizer)), add_special_(add_special), vocab_size_(vocab_size) {}
  std::vector<int64_t> encode(std::string_view text) const override {
    return checked(tokenizer_.encode_prompt(text, add_special_));
  }
  std::vector<int64_t> encode_completion(std::string_view text) const override {
    return checked(tokenizer_.encode(text, /*add_special=*/false));
  }
  std::unique_ptr<Decoder> decoder() const override { return std::make_unique<TokenDecoder>(tokenizer_); }
  std::vector<int64_t> stop_ids() const override {
    return {tokenizer_.stop_ids().begin(), tokenizer_.stop_ids().end()};
  }

 private:
  std::vector<int64_t> checked(const std::vector<int32_t>& ids) const {
    tokenizer_.require_known(ids, vocab_size_);
    return {ids.begin(), ids.end()};
  }

  tokenizer::Tokenizer tokenizer_;
  bool add_special_;
  int64_t vocab_size_;  // of the model
};

}  // namespace

std::filesystem::path tokenizer_of(const config::JobConfig& job) {
  namespace fs = std::filesystem;
  if (!job.data.tokenizer.empty()) return job.data.tokenizer;
  // A new model that takes only its sizes from there is trained on bytes, if the data are text.
  const bool of_bytes = config::all_of_bytes(job) && job.model.init != config::Init::hf;
  if (job.model.hf_dir.empty() || of_bytes) return {};
  const fs::path beside = fs::path(job.model.hf_dir) / "tokenizer.json";
  return io::is_there(beside) ? beside : fs::path();
}

void require_rows(const tokenizer::Tokenizer& tokenizer, int64_t vocab_size, const std::string& name) {
  if (tokenizer.least_vocab_size() <= vocab_size) return;
  throw UsageError(fmt::format("{} has ids up to {}, but model.vocab_size = {}: it is another model's", name,
                               tokenizer.least_vocab_size() - 1, vocab_size));
}

std::shared_ptr<const TextCodec> make_byte_codec() {
  return std::make_shared<ByteCodec>();
}

std::shared_ptr<const TextCodec> make_text_codec(const config::JobConfig& job) {
  const std::filesystem::path path = tokenizer_of(job);
  if (path.empty()) return config::all_of_bytes(job) ? make_byte_codec() : nullptr;
  auto tokenizer = tokenizer::Tokenizer::load(path);
  require_rows(tokenizer, job.model.vocab_size, path.string());
  return std::make_shared<TokenizerCodec>(std::move(tokenizer), job.data.add_special, job.model.vocab_size);
}

}  // namespace pptrain::app
