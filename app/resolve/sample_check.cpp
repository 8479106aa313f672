#include "app/resolve/sample_check.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "app/data/text_codec.h"
#include "app/plan/all_positions.h"
#include "core/base/error.h"
#include "core/config/data_sources.h"

namespace pptrain::app {

void check_samples(const config::JobConfig& job, const models::ModelConfig& trained,
                   const config::ReportConflict& report) {
  const models::ModelConfig model = with_all_positions(trained, job);
  const config::EvalSection& eval = job.eval;
  if (eval.generate_interval == 0) return;
  std::shared_ptr<const TextCodec> codec;
  try {
    codec = make_text_codec(job);
  } catch (const Error& error) {
    return report({"data.tokenizer", "model.hf_dir"}, error.what());
  }
  if (!codec) {
    return report({"eval.generate_interval", "data.format"},
                  fmt::format("samples need to know the text of tokens, which data.format = \"{}\" does not "
                              "say: give data.tokenizer, or leave generate_interval = 0",
                              config::data_sources(job).front().format));
  }
  const std::vector<int64_t> prompt = codec->encode(eval.generate_prompt);
  if (prompt.empty()) {
    return report({"eval.generate_prompt", "eval.generate_interval"},
                  "the prompt is empty: the model goes on from one token at least");
  }
  const auto tokens = static_cast<int64_t>(prompt.size());
  if (tokens + eval.generate_tokens - 1 > model.max_seq) {
    report({"eval.generate_tokens", "eval.generate_prompt", "model.max_position_embeddings"},
           fmt::format("generate_tokens = {} behind a prompt of {} tokens is beyond the model's {} positions "
                       "(max_position_embeddings, which is seq_len where it is not given): {} at most",
                       eval.generate_tokens, tokens, model.max_seq,
                       std::max<int64_t>(0, model.max_seq - tokens + 1)));
  }
}

}  // namespace pptrain::app
