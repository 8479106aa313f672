#include "parallel/checkpoint/host_copies.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <system_error>
#include <utility>

#include "core/io/checksum.h"
#include "core/io/files.h"
#include "core/io/mapped_file.h"
#include "core/io/paths.h"
#include "parallel/checkpoint/step_folders.h"
#include "parallel/comm/host_values.h"

namespace pptrain::checkpoint {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr int root_rank = 0;

// Moves whole files between ranks, piece by piece, so that other messages on the same links pass between two
// pieces, and a receiver never holds more than one of a sender's. A rank on which a file cannot be read or
// written goes on to take part, so that no other one waits for it, and says at the end what failed.
class FileExchange {
 public:
  explicit FileExchange(comm::Communicator& comm) : comm_(comm) {}

  // Both ranks of a pair name their files in the same order.
  void send(const fs::path& path, uint64_t bytes, int to) { outgoing_[to].push_back({path, bytes}); }
  void receive(const fs::path& path, uint64_t bytes, int from) { incoming_[from].push_back({path, bytes}); }

  // Moves all. Returns what failed first on this rank, "" if nothing did.
  std::string run() {
    std::map<int, Reading> readings;
    std::map<int, Writing> writings;
    for (auto& [to, files] : outgoing_) readings.emplace(to, Reading{std::move(files)});
    for (auto& [from, files] : incoming_) writings.emplace(from, Writing{std::move(files)});
    while (!readings.empty() || !writings.empty()) {
      std::vector<std::unique_ptr<comm::Work>> sends;
      for (auto& [to, reading] : readings) sends.push_back(comm_.isend(next_piece(reading), to));
      for (auto& [from, writing] : writings) {
        writing.piece = at::empty({piece_size(writing)}, at::kByte);
        writing.work = comm_.irecv(writing.piece, from);
      }
      for (auto& [from, writing] : writings) {
        writing.work->wait([&] { return fmt::format("files of a checkpoint from rank {}", from); });
        take_piece(writing);
      }
      for (const auto& work : sends) work->wait([] { return "files of a checkpoint on their way"; });
      std::erase_if(readings, [](const auto& entry) { return entry.second.files.empty(); });
      std::erase_if(writings, [](const auto& entry) { return entry.second.files.empty(); });
    }
    return fault_;
  }

 private:
  static constexpr uint64_t piece_bytes = uint64_t{4} << 20;

  struct File {
    fs::path path;
    uint64_t bytes = 0;  // more than 0, as of every file with a header
  };
  struct Reading {
    std::deque<File> files{};
    uint64_t done = 0;  // of the first one
    std::shared_ptr<const io::MappedFile> mapped{};
  };
  struct Writing {
    std::deque<File> files{};
    uint64_t done = 0;
    std::optional<io::OutputFile> output{};
    at::Tensor piece{};
    std::unique_ptr<comm::Work> work{};
  };

  template <typename Way>
  static int64_t piece_size(const Way& way) {
    return static_cast<int64_t>(std::min(piece_bytes, way.files.front().bytes - way.done));
  }

  // Zeros if the file cannot be read.
  at::Tensor next_piece(Reading& reading) {
    const File& file = reading.files.front();
    if (reading.done == 0) {
      reading.mapped.reset();
      attempt([&] {
        auto opened = std::make_shared<const io::MappedFile>(file.path);
        if (opened->bytes().size() != file.bytes)
          throw Error(fmt::format("'{}' has {} bytes instead of {}", file.path.string(),
                                  opened->bytes().size(), file.bytes));
        reading.mapped = std::move(opened);
      });
    }
    const int64_t size = piece_size(reading);
    at::Tensor piece =
        reading.mapped ? piece_of(reading.mapped, reading.done, size) : at::zeros({size}, at::kByte);
    advance(reading, size);
    return piece;
  }

  // Keeps the file mapped: the peer may read it after this rank has failed. To be read alone.
  static at::Tensor piece_of(const std::shared_ptr<const io::MappedFile>& file, uint64_t begin,
                             int64_t size) {
    auto* const bytes = const_cast<std::byte*>(file->bytes().data() + begin);
    return at::from_blob(
        bytes, {size}, [file](void*) {}, at::TensorOptions().dtype(at::kByte));
  }

  void take_piece(Writing& writing) {
    const File& file = writing.files.front();
    const int64_t size = writing.piece.numel();
    attempt([&] {
      if (writing.done == 0) {
        std::error_code none;
        fs::remove(file.path, none);  // one half received before
        io::make_folder(file.path.parent_path());
        writing.output.emplace(file.path);
      }
      if (!writing.output) return;
      writing.output->write(
          {static_cast<const std::byte*>(writing.piece.const_data_ptr()), static_cast<size_t>(size)});
      if (writing.done + static_cast<uint64_t>(size) == file.bytes) writing.output->sync_and_close();
    });
    if (advance(writing, size)) writing.output.reset();
  }

  // True at a file's end.
  template <typename Way>
  static bool advance(Way& way, int64_t size) {
    way.done += static_cast<uint64_t>(size);
    if (way.done < way.files.front().bytes) return false;
    way.files.pop_front();
    way.done = 0;
    return true;
  }

  template <typename Action>
  void attempt(const Action& action) {
    try {
      action();
    } catch (const PeerFailure&) {
      throw;
    } catch (const std::exception& error) {
      if (fault_.empty()) fault_ = error.what();
    }
  }

  comm::Communicator& comm_;
  std::map<int, std::deque<File>> outgoing_, incoming_;  // by the other rank
  std::string fault_;
};

// --- What the hosts have, as texts of their first ranks ---

uint64_t free_bytes(const fs::path& folder) {
  struct statvfs system {};
  if (::statvfs(folder.c_str(), &system) != 0) return 0;
  return static_cast<uint64_t>(system.f_bavail) * system.f_frsize;
}

std::string manifest_text(const fs::path& step_folder) {
  return io::read_small_file(step_folder / manifest_name, size_t{1} << 30);
}

// A host's steps whose manifests can be read, with the files that it lacks of each.
json describe(const fs::path& root) {
  json steps = json::array();
  for (const auto& [step, folder] : list_step_folders(root)) {
    try {
      const std::string text = manifest_text(folder);
      json missing = json::array();
      for (const FileEntry& entry : parse_manifest(text, folder.string()).files) {
        std::error_code error;
        if (fs::file_size(folder / entry.path(), error) != entry.bytes || error)
          missing.push_back(entry.path().string());
      }
      steps.push_back({{"step", step},
                       {"manifest", io::checksum_hex(std::as_bytes(std::span(text)))},
                       {"missing", missing}});
    } catch (const Error&) {
      // No copy to go on from.
    }
  }
  return {{"steps", steps}, {"free", free_bytes(root)}};
}

// A step by its manifest: hosts may have been left with different ones of a step.
struct Candidate {
  int64_t step = 0;
  std::string manifest;                          // its checksum
  std::map<int, std::set<std::string>> missing;  // by the hosts that have the manifest

  // Whether some host has the file.
  bool has(const std::string& file) const {
    return std::ranges::any_of(missing, [&](const auto& host) { return !host.second.contains(file); });
  }
  bool lacks(int host, const std::string& file) const {
    const auto found = missing.find(host);
    return found == missing.end() || found->second.contains(file);
  }
  // A host lacks a file that another one has; what all that know it lack is lost.
  bool complete() const {
    return std::ranges::all_of(missing.begin()->second, [&](const std::string& file) { return has(file); });
  }
};

// The newest first. hosts: [host] its text.
std::vector<Candidate> candidates(const std::vector<json>& hosts) {
  std::map<std::pair<int64_t, std::string>, Candidate> found;
  for (size_t host = 0; host < hosts.size(); ++host) {
    for (const json& entry : hosts[host].at("steps")) {
      const auto step = entry.at("step").get<int64_t>();
      const auto manifest = entry.at("manifest").get<std::string>();
      Candidate& candidate = found[{-step, manifest}];
      candidate.step = step;
      candidate.manifest = manifest;
      candidate.missing[static_cast<int>(host)] = entry.at("missing").get<std::set<std::string>>();
    }
  }
  std::vector<Candidate> result;
  for (auto& [key, candidate] : found) result.push_back(std::move(candidate));
  return result;
}

// The newest that is complete; null if none is.
const Candidate* choose(const std::vector<Candidate>& all, const json& wanted) {
  const auto bad = wanted.at("known_bad").get<std::set<int64_t>>();
  const auto found = std::ranges::find_if(all, [&](const Candidate& candidate) {
    return candidate.step > wanted.at("newer_than").get<int64_t>() && !bad.contains(candidate.step) &&
           candidate.complete();
  });
  return found == all.end() ? nullptr : &*found;
}

// One file from a host that has it to one that lacks it.
struct Transfer {
  fs::path path;  // below the step's folder
  uint64_t bytes = 0;
  int from = 0, to = 0;  // hosts
};

std::vector<Transfer> transfers(const Candidate& candidate, const Manifest& manifest, int hosts) {
  std::vector<Transfer> result;
  size_t turn = 0;  // so that those who have a file share the work
  for (const FileEntry& entry : manifest.files) {
    const std::string path = entry.path().string();
    std::vector<int> holders;
    for (int host = 0; host < hosts; ++host) {
      if (!candidate.lacks(host, path)) holders.push_back(host);
    }
    for (int host = 0; host < hosts; ++host) {
      if (candidate.lacks(host, path))
        result.push_back({entry.path(), entry.bytes, holders[turn++ % holders.size()], host});
    }
  }
  return result;
}

// The first host without room for what it lacks; -1 if all have it.
int without_room(const std::vector<Transfer>& list, const std::vector<json>& hosts) {
  std::vector<uint64_t> needed(hosts.size());
  for (const Transfer& t : list) needed[static_cast<size_t>(t.to)] += t.bytes;
  for (size_t host = 0; host < hosts.size(); ++host) {
    if (needed[host] > hosts[host].at("free").get<uint64_t>()) return static_cast<int>(host);
  }
  return -1;
}

// Removes step folders below `root` after `step`, and the step's own if its manifest is another one or cannot
// be read.
void remove_others(const fs::path& root, const Candidate& chosen) {
  for (const auto& [step, folder] : list_step_folders(root)) {
    bool stays = step < chosen.step;
    if (step == chosen.step) {
      try {
        const std::string text = manifest_text(folder);
        stays = io::checksum_hex(std::as_bytes(std::span(text))) == chosen.manifest;
      } catch (const Error&) {  // then it is no copy of the step
      }
    }
    std::error_code ignored;
    if (!stays) fs::remove_all(folder, ignored);
  }
}

// Where a host gathers the step: in its folder, or in a new one that gets its name in the end.
fs::path gathering_place(const fs::path& root, const Candidate& chosen, bool has_step) {
  const std::string name = step_folder_name(chosen.step);
  return root / (has_step ? name : temporary_prefix + name);
}

void publish(const fs::path& folder, const fs::path& target, const std::string& manifest) {
  if (folder == target) return;
  io::OutputFile file(folder / manifest_name);
  file.write(std::as_bytes(std::span(manifest)));
  file.sync_and_close();
  fs::rename(folder, target);
}

}  // namespace

std::string exchange_with_buddies(comm::Communicator& comm, const Hosts& hosts, const fs::path& folder,
                                  const std::vector<std::vector<FileEntry>>& files) {
  FileExchange exchange(comm);
  const int rank = comm.rank();
  for (const FileEntry& entry : files[static_cast<size_t>(rank)])
    exchange.send(folder / entry.path(), entry.bytes, hosts.buddy(rank));
  for (int source = 0; source < comm.size(); ++source) {
    if (hosts.buddy(source) != rank) continue;
    for (const FileEntry& entry : files[static_cast<size_t>(source)])
      exchange.receive(folder / entry.path(), entry.bytes, source);
  }
  return exchange.run();
}

std::string complete_newest(comm::Communicator& comm, const Hosts& hosts, const fs::path& root,
                            const CopiesWanted& wanted) {
  const int own = hosts.of(comm.rank());
  const bool is_first = hosts.is_first(comm.rank());
  json mine = is_first ? describe(root) : json();
  if (comm.rank() == root_rank)
    mine["wanted"] = {{"newer_than", wanted.newer_than}, {"known_bad", wanted.known_bad}};
  std::vector<json> texts;  // [host]
  const std::vector<std::string> all = comm::all_gather_strings(comm, mine.dump());
  for (int host = 0; host < hosts.count(); ++host)
    texts.push_back(json::parse(all[static_cast<size_t>(hosts.first(host))]));
  const std::vector<Candidate> steps = candidates(texts);
  if (steps.empty()) return "";
  const json& wanted_of_root = texts.front().at("wanted");  // rank 0 is the first of host 0
  const Candidate* const chosen = choose(steps, wanted_of_root);
  if (chosen == nullptr) {
    const bool newer = steps.front().step > wanted_of_root.at("newer_than").get<int64_t>();
    return newer ? fmt::format("copies in memory: step {} lacks files of hosts that are gone",
                               steps.front().step)
                 : "";
  }
  const int holder = chosen->missing.begin()->first;
  const fs::path target = root / step_folder_name(chosen->step);
  const std::string text = comm::broadcast_string(
      comm, comm.rank() == hosts.first(holder) ? manifest_text(target) : "", hosts.first(holder));
  const std::vector<Transfer> list =
      transfers(*chosen, parse_manifest(text, "a copy in memory"), hosts.count());
  if (const int poor = without_room(list, texts); poor >= 0)
    return fmt::format(
        "copies in memory: the host of rank {} has no room for step {}, which other hosts have",
        hosts.first(poor), chosen->step);
  FileExchange exchange(comm);
  const fs::path folder = gathering_place(root, *chosen, chosen->missing.contains(own));
  if (is_first) {
    remove_others(root, *chosen);
    std::error_code ignored;
    if (folder != target) fs::remove_all(folder, ignored);
    for (const Transfer& t : list) {
      if (t.from == own) exchange.send(target / t.path, t.bytes, hosts.first(t.to));
    }
    for (const Transfer& t : list) {
      if (t.to == own) exchange.receive(folder / t.path, t.bytes, hosts.first(t.from));
    }
  }
  const std::string failure = exchange.run();
  const auto [failing, problem] = first_problem<std::exception>(comm, [&] {
    if (!failure.empty()) throw Error(failure);
    if (is_first) publish(folder, target, text);
  });
  if (failing >= 0) {
    // What came may be zeros of a file that its sender could not read.
    const fs::path place = io::is_there(folder) ? folder : target;
    for (const Transfer& t : list) {
      std::error_code ignored;
      if (is_first && t.to == own) fs::remove(place / t.path, ignored);
    }
    return fmt::format("copies in memory: step {} is not on all hosts: rank {}: {}", chosen->step, failing,
                       problem);
  }
  return fmt::format("copies in memory: step {} is on {} hosts; {} files came from others", chosen->step,
                     hosts.count(), list.size());
}

}  // namespace pptrain::checkpoint
