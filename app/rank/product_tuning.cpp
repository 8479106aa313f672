#include "app/rank/product_tuning.h"

#include <spdlog/spdlog.h>

#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "app/forecast/costs.h"
#include "app/forecast/footprint.h"
#include "app/rank/product_table.h"
#include "core/kernels/device_name.h"

namespace pptrain::app {
namespace {

// Below this many multiplications a product takes the time of its launch.
constexpr double least_multiplications = 1 << 24;

constexpr const char* products_name = "products.json";  // in a run's folder

bool is_worth_timing(const kernels::Product& product) {
  return static_cast<double>(product.m) * static_cast<double>(product.n) * static_cast<double>(product.k) >=
         least_multiplications;
}

// Rank 0.
kernels::ProductTable tuned(const RunContext& context) {
  const std::string device = kernels::device_name(context.device);
  const std::string library = kernels::product_library(context.device);
  const ProductTuning tuning{
      .file = std::filesystem::path(context.job.run.dir) / products_name,
      .shared = shared_product_table(device, library),
      .device = device,
      .library = library,
      .time = [&](const kernels::Product& product) { return kernels::tune_product(product, context.device); },
      .say = [](const std::string& line) { spdlog::info(line); },
      .warn = [](const std::string& line) { spdlog::warn(line); }};
  return tune_products(products_of(context.plan), tuning);
}

}  // namespace

std::set<kernels::Product> products_of(const Plan& plan) {
  std::vector<models::StageSlice> stages;
  for (size_t stage = 0; stage < plan.layers.size(); ++stage)
    stages.push_back(models::stage_slice(plan.layers, static_cast<int>(stage)));
  std::set<kernels::Product> products = products_of(plan.model, stages, workload_of(plan).batch);
  std::erase_if(products, [](const kernels::Product& product) { return !is_worth_timing(product); });
  return products;
}

void choose_product_algorithms(const RunContext& context, comm::Communicator& patient) {
  if (!context.device.is_cuda()) return;
  if (!context.job.train.tune_products) return kernels::install_products({});
  install_on_all(patient, [&] { return tuned(context); });
}

void use_products_of_run(const RunContext& context, const std::filesystem::path& step_folder) {
  if (!context.device.is_cuda()) return;
  if (!context.job.train.tune_products) return kernels::install_products({});
  install_on_all(context.mesh.world(), [&] {
    return kept_products(products_file_of(step_folder), kernels::device_name(context.device),
                         kernels::product_library(context.device),
                         [](const std::string& line) { spdlog::warn(line); });
  });
}

void install_on_all(comm::Communicator& world, const std::function<kernels::ProductTable()>& of_root) {
  const std::string own = world.rank() == 0 ? to_json(of_root()) : std::string();
  kernels::install_products(
      product_table_from(comm::broadcast_string(world, own, 0), "the products that rank 0 has"));
}

std::filesystem::path products_file_of(const std::filesystem::path& step_folder) {
  namespace fs = std::filesystem;
  const auto beside = [](fs::path folder) {
    if (!folder.has_filename()) folder = folder.parent_path();  // it was given with a slash behind it
    return folder.parent_path().parent_path() / products_name;
  };
  const fs::path as_named = beside(fs::absolute(step_folder).lexically_normal());
  std::error_code unreadable;
  return fs::exists(as_named, unreadable) ? as_named : beside(fs::weakly_canonical(step_folder));
}

}  // namespace pptrain::app
