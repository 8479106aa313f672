// metrics.jsonl over several starts: nothing is lost, and a bad line stops no reader.
#include "core/metrics/metrics_file.h"

#include <spdlog/fmt/fmt.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "test/support/catch.h"

using namespace pptrain;
using pptrain::test::contains_text;

namespace fs = std::filesystem;

namespace {

class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "pptrain_metrics_XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  fs::path file() const { return path_ / "metrics.jsonl"; }
  void write(const std::string& text) const { std::ofstream(file(), std::ios::binary) << text; }
  std::string read(const std::string& name = "metrics.jsonl") const {
    std::ifstream in(path_ / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  }
  bool has(const std::string& name) const { return fs::exists(path_ / name); }
  size_t files() const { return std::distance(fs::directory_iterator(path_), fs::directory_iterator()); }

 private:
  fs::path path_;
};

struct Reports {
  std::vector<std::string> texts;
  metrics::Report hear() {
    return [this](const std::string& text) { texts.push_back(text); };
  }
};

const std::string header = R"({"start":"new","step":0})", resumed = R"({"start":"resume","step":2})",
                  later = R"({"start":"resume","step":4})";

std::string step(int number) {
  return "{\"step\":" + std::to_string(number) + ",\"loss\":1.5}\n";
}

std::string eval(int number) {
  return "{\"step\":" + std::to_string(number) + ",\"eval_loss\":1.25}\n";
}

}  // namespace

TEST_CASE("lines after the step that a run goes on from move to one file, however often it starts") {
  const Folder folder;
  Reports reports;
  folder.write(header + '\n' + step(1) + step(2) + eval(2) + step(3) + step(4) + later + '\n' + step(5));
  metrics::set_aside_after(folder.file(), 2, reports.hear());
  CHECK(folder.read() == header + '\n' + step(1) + step(2) + eval(2));
  const std::string first = header + '\n' + step(3) + step(4) + later + '\n' + step(5);
  CHECK(folder.read("metrics.repeated.jsonl") == first);
  REQUIRE(reports.texts.size() == 1);
  CHECK_THAT(reports.texts[0], contains_text("moved 4 lines of") && contains_text("metrics.repeated.jsonl"));

  // The next time too, from a file that has grown; the header belongs to the lines.
  folder.write(header + '\n' + step(1) + step(2) + resumed + '\n' + step(3));
  metrics::set_aside_after(folder.file(), 2, reports.hear());
  CHECK(folder.read() == header + '\n' + step(1) + step(2) + resumed + '\n');
  CHECK(folder.read("metrics.repeated.jsonl") == first + resumed + '\n' + step(3));
  CHECK(folder.files() == 2);
}

TEST_CASE("a file without lines to move stays as it is") {
  const Folder folder;
  Reports reports;
  metrics::set_aside_after(folder.file(), 2, reports.hear());
  CHECK_FALSE(folder.has("metrics.jsonl"));
  folder.write(header + '\n' + step(1) + step(2));
  const auto written = fs::last_write_time(folder.file());
  metrics::set_aside_after(folder.file(), 2, reports.hear());
  CHECK(fs::last_write_time(folder.file()) == written);
  CHECK(folder.files() == 1);
  CHECK(reports.texts.empty());
}

TEST_CASE("a new run moves the file of an earlier one as a whole") {
  const Folder folder;
  Reports reports;
  folder.write(header + '\n');  // a start that made no step
  metrics::set_aside_all(folder.file(), reports.hear());
  CHECK(folder.read() == header + '\n');
  CHECK(reports.texts.empty());
  const std::string text = header + '\n' + step(1) + step(2);
  folder.write(text);
  metrics::set_aside_all(folder.file(), reports.hear());
  CHECK_FALSE(folder.has("metrics.jsonl"));
  CHECK(folder.read("metrics.1.jsonl") == text);
}

TEST_CASE("lines that are no records are reported by file and number, kept aside, and stop nobody") {
  const std::vector<std::string> bad_lines = {"{\"step\":3,\"lo",   "[3]",     "{\"step\":\"three\"}",
                                              "{\"loss\":1}",       "3.5",     "null",
                                              std::string(7, '\0'), "\xff\xfe"};
  for (const std::string& bad : bad_lines) {
    CAPTURE(bad);
    const Folder folder;
    Reports reports;
    folder.write(step(1) + bad + '\n' + step(2));
    metrics::set_aside_after(folder.file(), 5, reports.hear());
    CHECK(folder.read() == step(1) + step(2));
    CHECK(folder.read("metrics.repeated.jsonl") == bad + '\n');
    REQUIRE(reports.texts.size() == 2);
    CHECK_THAT(reports.texts[0], contains_text("metrics.jsonl:2: no record of a step"));
  }
  const Folder folder;
  Reports reports;
  folder.write(step(1) + "x\ny\n" + step(2) + "z");
  metrics::set_aside_after(folder.file(), 5, reports.hear());
  CHECK_THAT(reports.texts.at(0),
             contains_text("metrics.jsonl:2: ") && contains_text("nor are 2 lines after it"));
  CHECK(folder.read("metrics.repeated.jsonl") == "x\ny\nz\n");
}

TEST_CASE("a last line without its end does not swallow the next one") {
  const Folder folder;
  Reports reports;
  std::string text = step(1) + step(2);
  text.pop_back();
  folder.write(text);
  metrics::set_aside_after(folder.file(), 2, reports.hear());
  CHECK(folder.read() == step(1) + step(2));
  CHECK(folder.files() == 1);
}

TEST_CASE("what cannot be read or written is named, and loses nothing") {
  const Folder folder;
  Reports reports;
  fs::create_directory(folder.file());
  CHECK_THROWS_WITH(metrics::set_aside_after(folder.file(), 2, reports.hear()),
                    contains_text("metrics.jsonl"));
}

TEST_CASE("records wait for room on a full disk, and a note tells of it") {
  const Folder folder;
  const rlimit before = [] {
    rlimit limit{};
    getrlimit(RLIMIT_FSIZE, &limit);
    return limit;
  }();
  const auto limit_files = [&](rlim_t bytes) {
    const rlimit limit{.rlim_cur = bytes, .rlim_max = before.rlim_max};
    REQUIRE(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  };
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  {
    const auto sink = metrics::make_jsonl_sink(folder.file(), {});
    sink->step({.step = 1, .loss = 3});
    limit_files(fs::file_size(folder.file()) + 10);  // half a line fits
    sink->step({.step = 2, .loss = 2});
    sink->step({.step = 3, .loss = 1});
    limit_files(before.rlim_cur);
    sink->step({.step = 4, .loss = 0.5});
  }
  std::signal(SIGXFSZ, handler);
  std::vector<nlohmann::json> lines;
  std::ifstream in(folder.file());
  for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
  REQUIRE(lines.size() == 6);
  for (int step = 1; step <= 4; ++step) CHECK(lines[step].at("step") == step);
  CHECK_THAT(lines[5].at("note").get<std::string>(), contains_text("File too large"));
}

TEST_CASE("records beyond what may wait are lost, the oldest first, and counted") {
  const Folder folder;
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  {
    metrics::PatientFile file(
        folder.file(), [](const std::string&, int64_t lost) { return fmt::format("lost {}\n", lost); }, 8);
    const rlimit none{.rlim_cur = 0, .rlim_max = before.rlim_max};
    REQUIRE(setrlimit(RLIMIT_FSIZE, &none) == 0);
    for (const char* record : {"aaa\n", "bbb\n", "ccc\n", "ddd\n"}) file.add(record);
    REQUIRE(setrlimit(RLIMIT_FSIZE, &before) == 0);
  }
  std::signal(SIGXFSZ, handler);
  std::ifstream in(folder.file());
  CHECK(std::string(std::istreambuf_iterator<char>(in), {}) == "ccc\nddd\nlost 2\n");
}

TEST_CASE("each start adds a header, whose lines any reader can tell from those of steps") {
  const Folder folder;
  metrics::RunHeader start{
      .step = 0,
      .checkpoint = {},
      .time = std::chrono::system_clock::time_point(std::chrono::milliseconds(1'700'000'000'123)),
      .version = "1.2.3",
      .host = "node7",
      .pid = 17,
      .command = "pptrain --config 'a job.toml'",
      .device = "cpu",
      .world_size = 2,
      .layout = {{"pp", "2"}},
      .libraries = metrics::library_versions()};
  metrics::make_jsonl_sink(folder.file(), start)->step({.step = 1, .loss = 2.5});
  start.step = 1;
  start.checkpoint = "runs/x/checkpoints/step_1";
  {
    const auto sink = metrics::make_jsonl_sink(folder.file(), start);
    metrics::StepRecord record{.step = 2, .loss = 2.25};
    record.total_tokens = 1000;
    record.epoch = 1.5;
    record.data_wait_s = 0.25;
    record.save_time_s = 0.125;
    record.time = start.time;
    sink->step(record);
    sink->eval({.step = 2, .loss = 2.125, .tokens = 10, .time_s = 1, .time = start.time});
  }
  std::vector<nlohmann::json> lines;
  std::ifstream in(folder.file());
  for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
  REQUIRE(lines.size() == 5);
  CHECK(lines[0].at("start") == "new");
  CHECK(lines[0].at("time") == "2023-11-14T22:13:20.123Z");
  for (const char* key :
       {"version", "host", "pid", "command", "device", "world_size", "layout", "libraries"}) {
    CHECK(lines[0].contains(key));
  }
  CHECK_THAT(lines[0].at("libraries").at("libtorch").get<std::string>(), contains_text("."));
  CHECK(lines[2].at("start") == "resume");
  CHECK(lines[2].at("checkpoint") == start.checkpoint);
  CHECK(lines[2].at("step") == 1);
  CHECK(lines[3].at("total_tokens") == 1000);
  CHECK(lines[3].at("epoch") == 1.5);
  CHECK(lines[3].at("data_wait_s") == 0.25);
  CHECK(lines[3].at("save_time_s") == 0.125);
  CHECK(lines[3].at("time") == lines[0].at("time"));
  CHECK(lines[4].at("time") == lines[0].at("time"));
}
