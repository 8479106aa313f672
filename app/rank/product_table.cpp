#include "app/rank/product_table.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/base/error.h"
#include "core/io/atomic_file.h"
#include "core/io/files.h"
#include "core/io/paths.h"
#include "core/io/strict_json.h"

namespace pptrain::app {
namespace {

using kernels::Product;
using kernels::ProductAlgorithm;
using kernels::ProductLayout;
using kernels::ProductTable;
using nlohmann::json;

constexpr size_t longest_file = size_t{16} << 20;
constexpr size_t word_digits = 16;

struct LayoutName {
  const char* name;
  ProductLayout layout;
};
constexpr LayoutName layout_names[] = {
    {"nn", ProductLayout::nn}, {"nt", ProductLayout::nt}, {"tn", ProductLayout::tn}};

const char* name_of(ProductLayout layout) {
  for (const LayoutName& each : layout_names) {
    if (each.layout == layout) return each.name;
  }
  throw Error("a product of unknown layout");
}

const json& member(const json& object, const char* key, const std::string& what) {
  if (!object.is_object() || !object.contains(key))
    throw Error(fmt::format("{}: '{}' is missing", what, key));
  return object.at(key);
}

std::string text_of(const json& object, const char* key, const std::string& what) {
  const json& value = member(object, key, what);
  if (!value.is_string()) throw Error(fmt::format("{}: '{}' must be a text", what, key));
  return value.get<std::string>();
}

int64_t size_of(const json& object, const char* key, const std::string& what) {
  return io::integer_from(member(object, key, what), 1, std::numeric_limits<int64_t>::max(),
                          fmt::format("{}: '{}'", what, key));
}

std::string digits_of(const ProductAlgorithm& algorithm) {
  std::string digits;
  for (const uint64_t word : algorithm) digits += fmt::format("{:016x}", word);
  return digits;
}

ProductAlgorithm algorithm_from(std::string_view digits, const std::string& what) {
  ProductAlgorithm algorithm{};
  bool sound = digits.size() == algorithm.size() * word_digits;
  for (size_t i = 0; sound && i < algorithm.size(); ++i) {
    const char* const begin = digits.data() + i * word_digits;
    const auto [end, fault] = std::from_chars(begin, begin + word_digits, algorithm[i], 16);
    sound = fault == std::errc() && end == begin + word_digits;
  }
  if (!sound) throw Error(fmt::format("{}: 'algorithm' must be 128 hexadecimal digits", what));
  return algorithm;
}

json to_object(const Product& product, const ProductAlgorithm& algorithm) {
  return {{"layout", name_of(product.layout)},
          {"type", product.type == at::kBFloat16 ? "bf16" : "fp32"},
          {"m", product.m},
          {"n", product.n},
          {"k", product.k},
          {"stride", product.stride},
          {"bias", product.bias},
          {"algorithm", digits_of(algorithm)}};
}

ProductLayout layout_from(const std::string& name, const std::string& what) {
  for (const LayoutName& each : layout_names) {
    if (name == each.name) return each.layout;
  }
  throw Error(fmt::format("{}: 'layout' must be nn, nt or tn", what));
}

Product product_from(const json& object, const std::string& what) {
  const std::string type = text_of(object, "type", what);
  if (type != "bf16" && type != "fp32") throw Error(fmt::format("{}: 'type' must be bf16 or fp32", what));
  const json& bias = member(object, "bias", what);
  if (!bias.is_boolean()) throw Error(fmt::format("{}: 'bias' must be true or false", what));
  return {.layout = layout_from(text_of(object, "layout", what), what),
          .type = type == "bf16" ? at::kBFloat16 : at::kFloat,
          .m = size_of(object, "m", what),
          .n = size_of(object, "n", what),
          .k = size_of(object, "k", what),
          .stride = size_of(object, "stride", what),
          .bias = bias.get<bool>()};
}

std::string quoted(const std::filesystem::path& file) {
  return fmt::format("'{}'", file.string());
}

ProductTable read_table(const std::filesystem::path& file) {
  return product_table_from(io::read_small_file(file, longest_file), quoted(file));
}

// What the folder has for this device and library; an empty table where nothing serves.
ProductTable stored(const ProductTuning& tuning) {
  const ProductTable nothing{.device = tuning.device, .library = tuning.library, .algorithms = {}};
  if (!std::filesystem::exists(tuning.file)) return nothing;
  try {
    const std::string what = quoted(tuning.file);
    ProductTable table = read_table(tuning.file);
    if (table.device == tuning.device && table.library == tuning.library) return table;
    tuning.say(fmt::format("{} is of {} on {}: products are timed anew for {} on {}; it becomes {}", what,
                           table.library, table.device, tuning.library, tuning.device,
                           io::set_aside(tuning.file).filename().string()));
  } catch (const Error& error) {
    tuning.warn(
        fmt::format("{}: products are timed anew, and numbers may differ in their last bits; it becomes {}",
                    error.what(), io::set_aside(tuning.file).filename().string()));
  }
  return nothing;
}

enum class Damaged { warn, pass };

// Of the shared file.
ProductTable shared_table(const ProductTuning& tuning, Damaged damaged) {
  const ProductTable nothing{.device = tuning.device, .library = tuning.library, .algorithms = {}};
  if (tuning.shared.empty() || !std::filesystem::exists(tuning.shared)) return nothing;
  try {
    ProductTable table = read_table(tuning.shared);
    if (table.device == tuning.device && table.library == tuning.library) return table;
  } catch (const Error& error) {
    if (damaged == Damaged::warn) tuning.warn(fmt::format("{}: it is written anew", error.what()));
  }
  return nothing;
}

// Adds what is new. Of two runs that time at once, the one that comes later takes the other's choices from
// its next folder on.
void share(const ProductTable& table, const ProductTuning& tuning) {
  if (tuning.shared.empty()) return;
  ProductTable all = shared_table(tuning, Damaged::pass);
  const size_t known = all.algorithms.size();
  all.algorithms.insert(table.algorithms.begin(), table.algorithms.end());
  if (all.algorithms.size() == known) return;
  try {
    std::filesystem::create_directories(tuning.shared.parent_path());
    io::write_file_atomically(tuning.shared, to_json(all));
  } catch (const std::exception& error) {
    tuning.warn(fmt::format("{}: other runs will time products for themselves", error.what()));
  }
}

}  // namespace

std::filesystem::path shared_product_table(const std::string& device, const std::string& library) {
  std::string name = fmt::format("products_{}_{}.json", device, library);
  std::ranges::replace_if(
      name, [](unsigned char c) { return std::isalnum(c) == 0 && c != '.' && c != '_' && c != '-'; }, '-');
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache != '\0') return std::filesystem::path(cache) / "pptrain" / name;
  const char* const home = std::getenv("HOME");
  if (home == nullptr || *home == '\0') return {};
  return std::filesystem::path(home) / ".cache" / "pptrain" / name;
}

std::string to_json(const ProductTable& table) {
  json products = json::array();
  for (const auto& [product, algorithm] : table.algorithms) products.push_back(to_object(product, algorithm));
  const json document = {
      {"device", table.device}, {"library", table.library}, {"products", std::move(products)}};
  return document.dump(1) + "\n";
}

ProductTable product_table_from(const std::string& text, const std::string& what) {
  const json document = io::parse_strict_json(text, what);
  ProductTable table{.device = text_of(document, "device", what),
                     .library = text_of(document, "library", what),
                     .algorithms = {}};
  const json& products = member(document, "products", what);
  if (!products.is_array()) throw Error(fmt::format("{}: 'products' must be a list", what));
  for (size_t i = 0; i < products.size(); ++i) {
    const std::string place = fmt::format("{}: product {}", what, i + 1);
    const Product product = product_from(products[i], place);
    const ProductAlgorithm algorithm = algorithm_from(text_of(products[i], "algorithm", place), place);
    if (!table.algorithms.emplace(product, algorithm).second)
      throw Error(fmt::format("{} is there twice", place));
  }
  return table;
}

ProductTable kept_products(const std::filesystem::path& file, const std::string& device,
                           const std::string& library, const std::function<void(const std::string&)>& warn) {
  const ProductTable nothing{.device = device, .library = library, .algorithms = {}};
  if (!std::filesystem::exists(file)) return nothing;
  try {
    ProductTable table = read_table(file);
    if (table.device == device && table.library == library) return table;
    warn(fmt::format(
        "{} is of {} on {}, not of {} on {}: numbers may differ from the run's in their last bits",
        quoted(file), table.library, table.device, library, device));
  } catch (const Error& error) {
    warn(fmt::format("{}: numbers may differ from the run's in their last bits", error.what()));
  }
  return nothing;
}

ProductTable tune_products(const std::set<Product>& products, const ProductTuning& tuning) {
  ProductTable table = stored(tuning);
  const ProductTable shared = shared_table(tuning, Damaged::warn);
  const size_t own = table.algorithms.size();
  const auto begin = std::chrono::steady_clock::now();
  size_t timed = 0;
  for (const Product& product : products) {
    if (table.algorithms.contains(product)) continue;
    if (const auto found = shared.algorithms.find(product); found != shared.algorithms.end()) {
      table.algorithms.insert(*found);
    } else if (const auto algorithm = tuning.time(product)) {
      table.algorithms.emplace(product, *algorithm);
      ++timed;
    }
  }
  const size_t known = table.algorithms.size() - timed;
  if (table.algorithms.size() > own) io::write_file_atomically(tuning.file, to_json(table));
  share(table, tuning);
  if (timed == 0) return table;
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  tuning.say(
      fmt::format("timed {}'s algorithms for {} shapes of products in {:.1f} s ({} were known); kept in {}",
                  tuning.library, timed, seconds, known, tuning.file.string()));
  return table;
}

}  // namespace pptrain::app
