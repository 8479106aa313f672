// products.json with a timer that counts in place of the library's.
#include "app/rank/product_table.h"

#include <atomic>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "app/rank/product_tuning.h"
#include "core/base/error.h"
#include "core/io/files.h"
#include "test/app/small_job.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::test;
using kernels::Product;
using kernels::ProductLayout;
namespace fs = std::filesystem;

namespace {

const Product forward{ProductLayout::nt, at::kBFloat16, 4096, 11008, 4096, 4096, true};
const Product backward{ProductLayout::nn, at::kBFloat16, 4096, 4096, 11008, 11008, false};
const Product gradient{ProductLayout::tn, at::kFloat, 11008, 4096, 4096, 11008, false};

// A folder and what happened on each start there.
struct Starts {
  TemporaryFolder folder;
  std::vector<Product> timed;
  std::vector<std::string> said, warned;

  fs::path shared;  // empty: none

  fs::path file() const { return fs::path(folder.path()) / "products.json"; }

  kernels::ProductTable start(const std::set<Product>& products, const std::string& device = "GPU",
                              const std::string& library = "lib 1") {
    timed.clear();
    said.clear();
    warned.clear();
    return app::tune_products(
        products, {.file = file(),
                   .shared = shared,
                   .device = device,
                   .library = library,
                   .time = [this](const Product& product) -> std::optional<kernels::ProductAlgorithm> {
                     timed.push_back(product);
                     if (product == gradient) return std::nullopt;  // the library proposes nothing
                     return kernels::ProductAlgorithm{0xfedcba9876543210, ++serial_};
                   },
                   .say = [this](const std::string& line) { said.push_back(line); },
                   .warn = [this](const std::string& line) { warned.push_back(line); }});
  }

  std::string text() const { return io::read_small_file(file(), 1 << 20); }

 private:
  uint64_t serial_ = 0;
};

}  // namespace

TEST_CASE("a table of products reads back as it was written") {
  kernels::ProductTable table{.device = "NVIDIA H200", .library = "cuBLASLt 130101", .algorithms = {}};
  table.algorithms[forward] = {1, ~uint64_t{0}, 3, 4, 5, 6, 7, 0x8000000000000000};
  table.algorithms[gradient] = {};
  CHECK(app::product_table_from(app::to_json(table), "it") == table);
}

TEST_CASE("each product is timed once, and later starts use what the folder has") {
  Starts run;
  const auto first = run.start({forward, backward});
  CHECK(run.timed.size() == 2);
  CHECK(first.algorithms.size() == 2);
  REQUIRE(run.said.size() == 1);
  CHECK(run.said[0].find("2 shapes of products") != std::string::npos);
  const std::string text = run.text();

  CHECK(run.start({forward, backward}) == first);
  CHECK(run.timed.empty());
  CHECK(run.said.empty());
  CHECK(run.text() == text);

  // Another layout has other products: they are added, and what was there stays.
  const Product other{ProductLayout::nn, at::kBFloat16, 64, 64, 64, 64, false};
  const auto more = run.start({forward, other});
  CHECK(run.timed == std::vector<Product>{other});
  CHECK(more.algorithms.size() == 3);
  CHECK(more.algorithms.at(forward) == first.algorithms.at(forward));
  CHECK(more.algorithms.at(backward) == first.algorithms.at(backward));
}

TEST_CASE("runs of one user time each product once between them") {
  const TemporaryFolder cache;
  Starts first, second;
  first.shared = second.shared = fs::path(cache.path()) / "deep" / "products.json";
  const auto chosen = first.start({forward});
  second.start({backward});  // so that its counter gives other algorithms than the first's
  const auto same = second.start({forward, backward});
  CHECK(second.timed.empty());
  CHECK(same.algorithms.at(forward) == chosen.algorithms.at(forward));
  CHECK(app::product_table_from(second.text(), "it") == same);
  CHECK(app::product_table_from(io::read_small_file(first.shared, 1 << 20), "it") == same);

  // A folder's own choices come first, and are not lost with the shared file.
  fs::remove(first.shared);
  CHECK(second.start({forward, backward}) == same);
  CHECK(second.timed.empty());
  CHECK(app::product_table_from(io::read_small_file(first.shared, 1 << 20), "it") == same);
}

TEST_CASE("a shared table that cannot be read or written is left out with a warning") {
  const TemporaryFolder cache;
  Starts run;
  run.shared = fs::path(cache.path()) / "products.json";
  std::ofstream(run.shared) << "{";
  CHECK(run.start({forward}).algorithms.size() == 1);
  CHECK(run.timed.size() == 1);
  REQUIRE(run.warned.size() == 1);
  CHECK(run.warned[0].find(run.shared.string()) != std::string::npos);
  CHECK(run.start({forward}).algorithms.size() == 1);
  CHECK(run.warned.empty());  // it was written anew
  Starts other;
  other.shared = run.shared / "below a file" / "products.json";
  CHECK(other.start({forward}).algorithms.size() == 1);
  CHECK(other.warned.size() == 1);
}

TEST_CASE("what the library proposes nothing for is left to it") {
  Starts run;
  CHECK(run.start({gradient}).algorithms.empty());
  CHECK_FALSE(fs::exists(run.file()));
}

TEST_CASE("a table of another device or library is set aside with a word") {
  const bool device = GENERATE(false, true);
  Starts run;
  run.start({forward});
  const std::string old = run.text();
  const auto anew = run.start({forward}, device ? "other GPU" : "GPU", device ? "lib 1" : "lib 2");
  CHECK(run.timed.size() == 1);
  CHECK(anew.device == (device ? "other GPU" : "GPU"));
  CHECK(anew.library == (device ? "lib 1" : "lib 2"));
  REQUIRE(run.said.size() == 2);
  CHECK(run.said[0].find("timed anew") != std::string::npos);
  CHECK(run.said[0].find("products.1.json") != std::string::npos);
  CHECK(io::read_small_file(fs::path(run.folder.path()) / "products.1.json", 1 << 20) == old);
  CHECK(app::product_table_from(run.text(), "it") == anew);
}

TEST_CASE("a damaged table is set aside with a warning, and says what is wrong with it") {
  Starts run;
  run.start({forward});
  const std::string sound = run.text();
  const auto damaged = [&](const std::string& from, const std::string& to) {
    std::string text = sound;
    const size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    return text.replace(at, from.size(), to);
  };
  const std::vector<std::pair<std::string, std::string>> cases = {
      {sound.substr(0, sound.size() / 2), "products.json"},
      {"[]", "'device' is missing"},
      {damaged("\"nt\"", "\"tt\""), "'layout' must be nn, nt or tn"},
      {damaged("\"bf16\"", "\"fp8\""), "'type' must be bf16 or fp32"},
      {damaged("11008", "-1"), "'n'"},
      {damaged("true", "1"), "'bias' must be true or false"},
      {damaged("fedcba98", "fedcba9"), "128 hexadecimal digits"},
      {damaged("fedcba98", "fedcbaxx"), "128 hexadecimal digits"},
  };
  for (const auto& [text, problem] : cases) {
    CAPTURE(problem);
    std::ofstream(run.file()) << text;
    run.start({forward});
    CHECK(run.timed.size() == 1);
    REQUIRE(run.warned.size() == 1);
    CHECK(run.warned[0].find(problem) != std::string::npos);
    CHECK(run.warned[0].find("products.json") != std::string::npos);
  }
}

TEST_CASE("a plan's products are those of its stages, without the smallest") {
  const TemporaryFolder folder;
  const Overrides large = {"model.hidden_size=512", "model.intermediate_size=1024", "train.seq_len=256",
                           "train.grad_accum_steps=2"};
  for (const Overrides& layout : {Overrides{}, Overrides{"distributed.pp=2"}}) {
    const app::Plan plan = small_plan(small_job_text(), folder.path(), with(large, layout));
    const std::set<Product> products = app::products_of(plan);
    CHECK_FALSE(products.empty());
    for (const Product& product : products) {
      CAPTURE(kernels::describe(product));
      CHECK(product.m * product.n * product.k >= 1 << 24);
    }
  }
  const app::Plan one = small_plan(small_job_text(), folder.path(), large);
  const app::Plan two = small_plan(small_job_text(), folder.path(), with(large, {"distributed.pp=2"}));
  CHECK(app::products_of(one) == app::products_of(two));  // so that layouts can have equal bits
}

TEST_CASE("who does not train reads the products of the run whose checkpoint it has, and writes nothing") {
  Starts run;
  const auto trained = run.start({forward, backward});
  const std::string text = run.text();
  const fs::path step = fs::path(run.folder.path()) / "checkpoints" / "step_20";
  fs::create_directories(step);
  for (const fs::path& named : {step, fs::path(step.string() + "/"), step / "." / ".." / "step_20"})
    CHECK(app::products_file_of(named) == run.file());
  // By a link: to the checkpoint, or to the folder of all; and where the run's own folder of them is a link.
  const TemporaryFolder other;
  const fs::path links = other.path() / "links";
  fs::create_directory(links);
  fs::create_directory_symlink(step, links / "best");
  fs::create_directory_symlink(step.parent_path(), links / "all");
  for (const fs::path& named : {links / "best", links / "best/", links / "all/step_20"}) {
    CAPTURE(named);
    CHECK(fs::equivalent(app::products_file_of(named), run.file()));
  }
  const TemporaryFolder disk;
  fs::create_directories(disk.path() / "step_40");
  fs::create_directory_symlink(disk.path(), fs::path(run.folder.path()) / "elsewhere");
  CHECK(app::products_file_of(fs::path(run.folder.path()) / "elsewhere" / "step_40") == run.file());

  std::vector<std::string> warned;
  const auto kept = [&](const fs::path& folder, const std::string& device, const std::string& library) {
    warned.clear();
    return app::kept_products(app::products_file_of(folder), device, library,
                              [&](const std::string& line) { warned.push_back(line); });
  };
  CHECK(kept(step, "GPU", "lib 1") == trained);
  CHECK(warned.empty());
  // Of another kind of GPU or library nothing is taken; the run's own file stays.
  for (const auto& [device, library] : {std::pair{"other GPU", "lib 1"}, std::pair{"GPU", "lib 2"}}) {
    const auto table = kept(step, device, library);
    CHECK(table.algorithms.empty());
    CHECK(table.device == device);
    REQUIRE(warned.size() == 1);
    CHECK(warned[0].find("products.json") != std::string::npos);
    CHECK(warned[0].find("last bits") != std::string::npos);
  }
  CHECK(run.text() == text);
  // A checkpoint that is in no run's folder.
  const TemporaryFolder elsewhere;
  CHECK(kept(fs::path(elsewhere.path()) / "a" / "step_20", "GPU", "lib 1").algorithms.empty());
  CHECK(warned.empty());
  std::ofstream(run.file()) << "{";
  CHECK(kept(step, "GPU", "lib 1").algorithms.empty());
  CHECK(warned.size() == 1);
  CHECK(run.text() == "{");
}

TEST_CASE("all ranks install the products that the first one has") {
  const TemporaryFolder folder;
  kernels::ProductTable table{.device = "GPU", .library = "lib 1", .algorithms = {}};
  table.algorithms[forward] = {1, 2, 3};
  std::atomic<int> asked = 0, same = 0;
  const app::Plan plan =
      small_plan(small_job_text(), folder.path(), {"distributed.pp=2", "train.grad_accum_steps=2"});
  app::run_ranks(plan, [&](app::RunContext& context) {
    app::install_on_all(context.mesh.world(), [&] {
      ++asked;
      return table;
    });
    if (*kernels::installed_products() == table) ++same;
    context.mesh.world().barrier();
    return 0;
  });
  kernels::install_products({});
  CHECK(asked == 1);
  CHECK(same == 2);
}
