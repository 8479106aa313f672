// Jobs read with the rules of the models.
#pragma once

#include <string>

#include "models/hf_config.h"
#include "models/model_config.h"
#include "test/core/config/config_test_support.h"

namespace pptrain::test {

inline config::Hooks model_hooks() {
  return {.read_hf_config = models::read_hf_config, .finish_model = models::finish_model};
}

inline config::JobConfig parse(const std::string& text, const config::test::Overrides& overrides = {}) {
  return config::test::parse(text, overrides, model_hooks());
}

inline std::string refusal(const std::string& text, const config::test::Overrides& overrides = {}) {
  return config::test::refusal(text, overrides, model_hooks());
}

}  // namespace pptrain::test
