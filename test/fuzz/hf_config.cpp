#include "models/hf_config.h"

#include <string>

#include "core/base/error.h"
#include "core/config/loader.h"
#include "models/model_config.h"
#include "test/fuzz/targets.h"

namespace pptrain::fuzz {

bool hf_config(std::string_view text) {
  config::JobConfig job;
  try {
    job.model = models::parse_hf_config(text, "config.json");
  } catch (const UsageError&) {
    return false;
  }
  job.train.seq_len = 1;
  job.data.path = {"/dev/null"};
  const std::string written = config::to_toml(job);
  try {
    config::parse_job(written, "job.toml", {},
                      {.finish_model = models::finish_model, .finish = {}, .needs_files = false});
  } catch (const UsageError& error) {
    const std::string_view message = error.what();
    require(message.find("out of range") == std::string_view::npos &&
                message.find("wrong type") == std::string_view::npos,
            "config.json may say what a job may not: " + std::string(message));
  }
  return true;
}

}  // namespace pptrain::fuzz
