#include "app/data/chat_codec.h"

#include <spdlog/fmt/fmt.h>

#include <filesystem>

#include "app/data/text_codec.h"
#include "core/base/error.h"

namespace pptrain::app {
namespace {

std::filesystem::path needed_tokenizer(const config::JobConfig& job) {
  std::filesystem::path path = tokenizer_of(job);
  if (path.empty())
    throw UsageError("--chat needs a tokenizer: give data.tokenizer, or model.hf_dir that has one");
  return path;
}

config::ChatSection section_of(const config::JobConfig& job) {
  config::ChatSection section = job.data.chat;
  if (section == config::ChatSection()) section.style = config::ChatStyle::folder;
  return section;
}

}  // namespace

ChatCodec::ChatCodec(const config::JobConfig& job)
    : tokenizer_(tokenizer::Tokenizer::load(needed_tokenizer(job))),
      template_(corpus::make_chat_template(section_of(job), tokenizer_of(job))) {
  template_->require_tokens(tokenizer_);
  find_end();
}

std::vector<int64_t> ChatCodec::prompt(const std::vector<corpus::Message>& messages) const {
  std::vector<int32_t> ids;
  try {
    tokenizer_.encode_pieces(template_->prompt(messages), ids);
  } catch (const UsageError&) {
    throw;
  } catch (const Error& error) {
    throw UsageError(fmt::format("--chat: {}", error.what()));
  }
  return {ids.begin(), ids.end()};
}

// Finds a sample's end: the marks after the answer.
void ChatCodec::find_end() {
  const std::vector<corpus::Message> sample = {{.role = "user", .content = "u"},
                                               {.role = "assistant", .content = "a"}};
  const std::vector<tokenizer::Piece> pieces = template_->render(sample);
  std::vector<int32_t> ids;
  const std::vector<size_t> borders = tokenizer_.encode_pieces(pieces, ids);
  if (!borders.empty() && tokenizer_.is_special(ids[borders.back() - 1])) {
    stop_ids_.push_back(ids[borders.back() - 1]);
    return;
  }
  for (auto piece = pieces.rbegin(); piece != pieces.rend() && !piece->quoted; ++piece) {
    if (piece->marked && !piece->text.empty()) stop_texts_.push_back(piece->text);
  }
}

}  // namespace pptrain::app
