#include "app/generate/text_codec.h"

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

}  // namespace

std::shared_ptr<const TextCodec> make_byte_codec() {
  return std::make_shared<ByteCodec>();
}

std::shared_ptr<const TextCodec> make_text_codec(const config::JobConfig& job) {
  return job.data.format == "text" ? make_byte_codec() : nullptr;
}

}  // namespace pptrain::app
