#include "app/generate/sample_log.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/base/error.h"

namespace pptrain::app {

namespace {

// On one line, with \n for a new one.
std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

StopRules stop_rules(const config::JobConfig& job, const TextCodec& codec) {
  StopRules rules{.max_tokens = job.eval.generate_tokens, .ids = codec.stop_ids(), .texts = {}};
  if (job.data.document_end >= 0) rules.ids.push_back(job.data.document_end);
  return rules;
}

}  // namespace

SampleLog::SampleLog(RunContext& context, RankModel& model)
    : context_(context),
      codec_(make_text_codec(context.job)),
      stop_(stop_rules(context.job, *codec_)),
      generator_(context, model,
                 {.sampling = {.seed = static_cast<uint64_t>(context.job.run.seed)}, .stop = stop_}) {}

void SampleLog::log(int64_t step) {
  std::vector<Sequence> sequences;
  sequences.emplace_back(codec_->encode(context_.job.eval.generate_prompt), 0, stop_, codec_.get());
  generator_.run(sequences);
  if (!context_.root()) return;
  spdlog::info("step {}  sample {} -> {}", step, quoted(context_.job.eval.generate_prompt),
               quoted(sequences.front().text()));
}

}  // namespace pptrain::app
