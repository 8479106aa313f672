#include "models/hf_loader.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include "core/base/error.h"
#include "core/io/hf_checkpoint.h"
#include "models/weight_map.h"

namespace pptrain::models {

void load_hf_weights(TransformerStage& stage, const std::filesystem::path& hf_dir) {
  const io::HfCheckpoint checkpoint(hf_dir);
  for (nn::Parameter& parameter : stage.parameters().parameters()) {
    const std::string name = hf_name(parameter.spec.name, stage.tied());
    const at::Tensor stored = checkpoint.tensor(name);
    if (stored.sizes() != parameter.master.sizes()) {
      throw Error(fmt::format("{}: tensor {} has shape [{}], {} needs [{}]", hf_dir.string(), name, fmt::join(stored.sizes(), ", "),
                              parameter.spec.name, fmt::join(parameter.master.sizes(), ", ")));
    }
    if (!stored.is_floating_point()) {
      throw Error(fmt::format("{}: tensor {} does not hold floating-point numbers", hf_dir.string(), name));
    }
    parameter.master.copy_(stored);
  }
  stage.parameters().refresh_compute();
}

}  // namespace pptrain::models
