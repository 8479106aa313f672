// What the user of a run that diverged is told.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace pptrain::app {

struct DivergedCheckpoints {
  std::string saved;            // the folder's name, "diverged_step_520"; "": it could not be saved
  std::string failure;          // why
  std::filesystem::path sound;  // the newest checkpoint from before the loss left its band; "": none
};

// `seen`: the loss and its band (fault::DivergenceWatch::describe).
std::string describe_divergence(int64_t step, const std::string& seen, const DivergedCheckpoints& left);

}  // namespace pptrain::app
