// products.json: which of the library's algorithms serves which product, as a run's folder keeps it.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <string>

#include "core/kernels/products.h"

namespace pptrain::app {

std::string to_json(const kernels::ProductTable& table);
// Throws Error that begins with `what` where the text is no such table.
kernels::ProductTable product_table_from(const std::string& text, const std::string& what);

// Where a table is kept and how products are timed.
struct ProductTuning {
  std::filesystem::path file;    // of the run
  std::filesystem::path shared;  // of the user's runs on this kind of device; empty: none
  std::string device, library;   // that products are timed on and by
  // The fastest algorithm; nothing where the library is to choose.
  std::function<std::optional<kernels::ProductAlgorithm>(const kernels::Product&)> time;
  std::function<void(const std::string&)> say, warn;  // a line of the log
};

// <cache>/pptrain/products_<device>_<library>.json, where <cache> is $XDG_CACHE_HOME or $HOME/.cache; empty
// where neither is set.
std::filesystem::path shared_product_table(const std::string& device, const std::string& library);

// The run's table with what it lacks of `products`: from the shared table, so that runs of other layouts have
// the same bits, or timed now; both files are completed. A run's file of another device or library, or a
// damaged one, is set aside with a line that says so. What is in a file is never changed, so that a run which
// goes on has the same bits. A shared file that cannot be used is left out with a warning.
kernels::ProductTable tune_products(const std::set<kernels::Product>& products, const ProductTuning& tuning);

// What a run has kept in `file` for this device and library; an empty table where there is no such file, or
// it is of others, or damaged, which `warn` is told. Nothing is written.
kernels::ProductTable kept_products(const std::filesystem::path& file, const std::string& device,
                                    const std::string& library,
                                    const std::function<void(const std::string&)>& warn);

}  // namespace pptrain::app
