// Checkpoints on hosts that do not see each other's folders, as are copies in memory: each host keeps the
// files of its own ranks and those of another host's ranks, so that all are left when a host is lost.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "parallel/checkpoint/hosts.h"
#include "parallel/checkpoint/manifest.h"
#include "parallel/comm/communicator.h"

namespace pptrain::checkpoint {

// Every rank sends its files below `folder`, which is its host's, to its buddy, which writes them below its
// own host's. files: [rank] all of its. Returns what went wrong on this rank, "" if nothing did. Collective.
std::string exchange_with_buddies(comm::Communicator& comm, const Hosts& hosts,
                                  const std::filesystem::path& folder,
                                  const std::vector<std::vector<FileEntry>>& files);

// Where complete_newest looks; counts on rank 0.
struct CopiesWanted {
  int64_t newer_than = -1;              // the step of the newest checkpoint on disk
  std::vector<int64_t> known_bad = {};  // steps that proved unusable
};

// Finds the newest step of which the hosts together have every file, and brings to each host what it lacks
// of it. Steps after it, of which a file is lost, are removed. root: of the host's step folders; it exists.
// What a start needs to read is then on every host; checksums prove it there. Returns on rank 0 a remark for
// the user, "" if no host has a step. Collective.
std::string complete_newest(comm::Communicator& comm, const Hosts& hosts, const std::filesystem::path& root,
                            const CopiesWanted& wanted);

}  // namespace pptrain::checkpoint
