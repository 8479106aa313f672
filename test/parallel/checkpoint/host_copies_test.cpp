// Checkpoints on hosts with folders of their own: each keeps another one's files, and a start brings together
// what is left.
#include "parallel/checkpoint/host_copies.h"

#include <spdlog/fmt/fmt.h>

#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "parallel/checkpoint/manifest.h"
#include "parallel/checkpoint/step_folders.h"
#include "parallel/comm/host_values.h"
#include "test/parallel/checkpoint/example.h"
#include "test/parallel/checkpoint/file_size_limit.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::checkpoint;
using namespace pptrain::test;

namespace fs = std::filesystem;

namespace {

// Folders as hosts, with these numbers of ranks. Each rank has a stage.
class Cluster {
 public:
  explicit Cluster(std::vector<int> sizes) {
    for (int host = 0; host < static_cast<int>(sizes.size()); ++host) {
      fs::create_directories(root(host));
      of_rank_.insert(of_rank_.end(), static_cast<size_t>(sizes[static_cast<size_t>(host)]), host);
    }
  }

  fs::path root(int host) const { return scratch_.path() / fmt::format("host_{}", host); }
  fs::path step(int host, int64_t step) const { return root(host) / step_folder_name(step); }
  int ranks() const { return static_cast<int>(of_rank_.size()); }

  void save(int64_t step, int64_t keep_last_n = 0) const {
    comm::run_thread_ranks(ranks(), [&](comm::Communicator& world) {
      const Hosts hosts(of_rank_);
      checkpoint::save(world,
                       {.root = root(hosts.of(world.rank())),
                        .hosts = hosts,
                        // As in a run: only rank 0 knows the data.
                        .layout = {{"data", world.rank() == 0 ? "known" : ""}},
                        .job_toml = example_job,
                        .keep_last_n = keep_last_n},
                       example_state(step), {example_stage(world.rank(), ranks(), step)});
    });
  }

  std::string complete(const CopiesWanted& wanted = {}) const {
    std::string remark;
    comm::run_thread_ranks(ranks(), [&](comm::Communicator& world) {
      const Hosts hosts(of_rank_);
      const std::string said = complete_newest(world, hosts, root(hosts.of(world.rank())), wanted);
      if (world.rank() == 0) remark = said;
    });
    return remark;
  }

  // Files of tensors on a host.
  int files(int host, int64_t step) const {
    int count = 0;
    if (!fs::exists(this->step(host, step))) return -1;
    for (const auto& entry : fs::recursive_directory_iterator(this->step(host, step)))
      count += entry.path().extension() == ".safetensors" ? 1 : 0;
    return count;
  }

  void lose(int host) const {
    fs::remove_all(root(host));
    fs::create_directories(root(host));
  }

 private:
  ScratchFolder scratch_;
  std::vector<int> of_rank_;
};

// Every byte is there, and right.
bool whole(const fs::path& step_folder, int64_t step) {
  return verify(step_folder).empty() && reads_back(Reader(step_folder), step);
}

}  // namespace

TEST_CASE("each host keeps its ranks' files and those of another host") {
  const Cluster two({2, 1});
  two.save(4);
  for (const int host : {0, 1}) CHECK(whole(two.step(host, 4), 4));

  const Cluster three({1, 1, 1});
  three.save(4);
  for (const int host : {0, 1, 2}) CHECK(three.files(host, 4) == 4);  // two stages of two kinds of files
  three.lose(1);
  CHECK(three.complete() == "copies in memory: step 4 is on 3 hosts; 10 files came from others");
  for (const int host : {0, 1, 2}) CHECK(whole(three.step(host, 4), 4));
}

TEST_CASE("an older copy goes once all hosts have the newer one") {
  const Cluster cluster({1, 2});
  for (const int64_t step : {1, 2, 3}) cluster.save(step, /*keep_last_n=*/2);
  for (const int host : {0, 1}) {
    CHECK_FALSE(fs::exists(cluster.step(host, 1)));
    CHECK(whole(cluster.step(host, 2), 2));
    CHECK(whole(cluster.step(host, 3), 3));
  }
}

TEST_CASE("a start takes the newest step of which every file is left") {
  const Cluster cluster({1, 1, 1});
  for (const int64_t step : {5, 6, 7}) cluster.save(step);
  // A host died while step 7 became complete, and two have lost step 6 of the last stage.
  fs::remove_all(cluster.step(0, 7));
  fs::remove(cluster.step(1, 7) / "stage_0/model.safetensors");
  fs::remove(cluster.step(2, 7) / "stage_0/model.safetensors");
  fs::remove_all(cluster.step(2, 6));

  SECTION("files that one host has come to the others") {
    CHECK(cluster.complete() == "copies in memory: step 6 is on 3 hosts; 10 files came from others");
    for (const int host : {0, 1, 2}) {
      CHECK(whole(cluster.step(host, 6), 6));
      CHECK(cluster.files(host, 7) == -1);
      CHECK(cluster.files(host, 5) == 4);
    }
  }
  SECTION("a file that was cut off is not there") {
    fs::resize_file(cluster.step(0, 6) / "stage_0/model.safetensors", 100);
    CHECK(cluster.complete() == "copies in memory: step 6 is on 3 hosts; 11 files came from others");
    CHECK(whole(cluster.step(0, 6), 6));
  }
  SECTION("a step that proved unusable is not taken again") {
    cluster.complete({.newer_than = -1, .known_bad = {6}});
    for (const int host : {0, 1, 2}) {
      CHECK(whole(cluster.step(host, 5), 5));
      CHECK(cluster.files(host, 6) == -1);
    }
  }
  SECTION("the disk has a newer one") {
    CHECK(cluster.complete({.newer_than = 6}) ==
          "copies in memory: step 7 lacks files of hosts that are gone");
    CHECK(cluster.files(0, 6) == 4);
    CHECK(cluster.complete({.newer_than = 7}).empty());
  }
  SECTION("another manifest of the step is another step") {
    overwrite(cluster.step(0, 6) / manifest_name, [](std::string& text) { text += "\n"; });
    cluster.complete();
    CHECK(whole(cluster.step(1, 5), 5));
  }
}

TEST_CASE("a file that can not be written is said, and leaves no host waiting") {
  const Cluster cluster({1, 1, 1});
  cluster.save(5);
  const fs::path file = cluster.step(1, 5) / "stage_1/model.safetensors";
  fs::remove(file);
  fs::create_directories(file / "in the way");
  CHECK_THAT(cluster.complete(), Catch::StartsWith("copies in memory: step 5 is not on all hosts: rank 1:"));
  CHECK(cluster.files(0, 5) == 4);  // what came goes again, the host's own stays
}

TEST_CASE("hosts without copies have nothing to bring") {
  const Cluster cluster({1, 1});
  CHECK(cluster.complete().empty());
}

TEST_CASE("hosts are numbered in the order of their first ranks") {
  comm::run_thread_ranks(5, [](comm::Communicator& world) {
    const std::vector<std::string> names = {"b", "a", "b", "c", "a"};
    const std::vector<int> numbers = comm::host_numbers(world, names[static_cast<size_t>(world.rank())]);
    CHECK(numbers == std::vector<int>{0, 1, 0, 2, 1});
    const Hosts hosts(numbers);
    CHECK(hosts.first(1) == 1);
    CHECK(hosts.ranks_of(0) == std::vector<int>{0, 2});
    CHECK(hosts.buddy(0) == 1);
    CHECK(hosts.buddy(2) == 4);
    CHECK(hosts.buddy(4) == 3);
    CHECK(hosts.buddy(3) == 0);
    CHECK(comm::all_gather_strings(world, std::string(static_cast<size_t>(world.rank()), 'x')) ==
          std::vector<std::string>{"", "x", "xx", "xxx", "xxxx"});
  });
}

TEST_CASE("files of several pieces come to the buddy whole, whatever lies in the way of one") {
  const ScratchFolder scratch;
  const auto root = [&](int rank) { return scratch / fmt::format("host_{}", rank); };
  std::vector<std::vector<FileEntry>> files(2);
  std::vector<std::string> contents;
  for (int rank = 0; rank < 2; ++rank) {
    contents.emplace_back((size_t{4} << 20) + 5, '\0');  // a piece has 4 MiB
    for (size_t i = 0; i < contents.back().size(); ++i)
      contents.back()[i] = static_cast<char>((i + i / 4099 + static_cast<size_t>(rank)) % 251);
    for (const char* file : {"adamw.exp_avg", "model"}) {
      files[static_cast<size_t>(rank)].push_back({.stage = rank,
                                                  .file = file,
                                                  .part = 0,
                                                  .parts = 1,
                                                  .bytes = contents.back().size(),
                                                  .tensors = {}});
      const fs::path path = root(rank) / files[static_cast<size_t>(rank)].back().path();
      fs::create_directories(path.parent_path());
      ScratchFolder::write_file(path, contents.back());
    }
  }
  std::vector<std::string> failures(2);
  const auto exchange = [&] {
    comm::run_thread_ranks(2, [&](comm::Communicator& world) {
      failures[static_cast<size_t>(world.rank())] =
          exchange_with_buddies(world, Hosts(std::vector<int>{0, 1}), root(world.rank()), files);
    });
  };
  const auto came = [&](int to, const char* file) {
    const fs::path path = root(to) / fmt::format("stage_{}/{}.safetensors", 1 - to, file);
    return ScratchFolder::read_file(path) == contents[static_cast<size_t>(1 - to)];
  };
  exchange();
  CHECK(failures == std::vector<std::string>(2));
  for (const int to : {0, 1}) CHECK((came(to, "model") && came(to, "adamw.exp_avg")));
  const fs::path in_the_way = root(1) / "stage_0/adamw.exp_avg.safetensors";
  fs::remove(in_the_way);
  fs::create_directories(in_the_way / "folder");
  exchange();
  CHECK(failures[0].empty());
  CHECK_FALSE(failures[1].empty());
  CHECK((came(0, "model") && came(0, "adamw.exp_avg") && came(1, "model")));
}

TEST_CASE("a host with another manifest of the newest step, or none, takes the other's step") {
  const std::string how = GENERATE("other", "none", "folder");
  const Cluster cluster({1, 1});
  cluster.save(5);
  const fs::path manifest = cluster.step(0, 5) / manifest_name;
  if (how == "other") {
    overwrite(manifest, [](std::string& text) { text += "\n"; });
  } else {
    fs::remove(manifest);
    if (how == "folder") fs::create_directories(manifest / "folder");
  }
  CHECK(cluster.complete() == "copies in memory: step 5 is on 2 hosts; 4 files came from others");
  for (const int host : {0, 1}) CHECK(whole(cluster.step(host, 5), 5));
  CHECK(ScratchFolder::read_file(manifest) == ScratchFolder::read_file(cluster.step(1, 5) / manifest_name));
}

TEST_CASE("a host without room for what it lacks is named, and takes nothing") {
  const Cluster cluster({1, 1});
  const uint64_t bytes = fs::space(cluster.root(0)).available + (uint64_t{1} << 40);  // of a sparse file
  const FileEntry entry{.stage = 0, .file = "model", .part = 0, .parts = 1, .bytes = bytes, .tensors = {}};
  const fs::path file = cluster.step(1, 5) / entry.path();
  fs::create_directories(file.parent_path());
  ScratchFolder::write_file(file, "");
  std::error_code too_large;  // for some file systems
  fs::resize_file(file, bytes, too_large);
  if (too_large) return;
  ScratchFolder::write_file(
      cluster.step(1, 5) / manifest_name,
      to_text(Manifest{.state = example_state(5), .layout = {}, .job_toml = {}, .files = {entry}}));
  const FileSizeLimit limit(1 << 20);
  CHECK(cluster.complete() ==
        "copies in memory: the host of rank 0 has no room for step 5, which other hosts have");
  CHECK(cluster.files(0, 5) == -1);
}
