#include "core/metrics/run_header.h"

#include <ATen/Version.h>
#include <torch/csrc/api/include/torch/version.h>

#include <regex>

namespace pptrain::metrics {
namespace {

// "3.7.1" of "Intel(R) MKL-DNN v3.7.1 (Git Hash ...)"; the whole text where it has no such number.
std::string version_number(const std::string& text) {
  std::smatch number;
  return std::regex_search(text, number, std::regex("[0-9]+(\\.[0-9]+)+")) ? number.str() : text;
}

}  // namespace

std::map<std::string, std::string> library_versions() {
  return {{"libtorch", TORCH_VERSION},
          {"mkl", version_number(at::get_mkl_version())},
          {"onednn", version_number(at::get_mkldnn_version())},
          {"cpu_capability", at::get_cpu_capability()}};
}

}  // namespace pptrain::metrics
