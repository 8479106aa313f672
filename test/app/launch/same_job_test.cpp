#include "app/launch/same_job.h"

#include <array>
#include <fstream>
#include <mutex>
#include <string>
#include <vector>

#include "app/resolve/load_plan.h"
#include "parallel/comm/thread/thread_communicator.h"
#include "test/app/small_job.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::test;
using app::fingerprint;
using app::Identity;

namespace {

// The message that each rank gets when rank r has identities[r].
std::vector<std::string> compare(const std::vector<Identity>& identities) {
  std::vector<std::string> told(identities.size());
  comm::run_thread_ranks(static_cast<int>(identities.size()), [&](comm::Communicator& world) {
    const auto rank = static_cast<size_t>(world.rank());
    told[rank] = app::difference_from_rank_0(world, identities[rank]);
  });
  return told;
}

std::string value_of(const Identity& identity, const std::string& name) {
  for (const auto& [key, value] : identity) {
    if (key == name) return value;
  }
  return "absent";
}

app::Plan plan_of(const fs::path& data, const Overrides& more = {}) {
  return app::parse_plan(small_job_text(data), "small.toml", more);
}

}  // namespace

TEST_CASE("ranks with another job than rank 0's are told what differs") {
  const Identity job = {{"train.seq_len", "16"}, {"run.seed", "0"}, {"data.format", "\"text\""}};
  Identity other = job, shorter = job;
  other[0].second = "17";
  shorter.pop_back();
  CHECK(compare({job, job, job}) == std::vector<std::string>(3));
  CHECK(compare({job}) == std::vector<std::string>(1));
  const auto told = compare({job, other, job, shorter});
  CHECK(told[0].empty());
  CHECK(told[2].empty());
  CHECK_THAT(told[1], contains_text("another one than rank 0's") &&
                          contains_text("train.seq_len is 17, on rank 0 16. Start"));
  CHECK_THAT(told[3], contains_text("data.format is absent, on rank 0 \"text\". Start"));
  CHECK_THAT(compare({shorter, job})[1], contains_text("data.format is \"text\", on rank 0 absent. Start"));
  // Only rank 0 differs: all others get the message.
  for (const std::string& text : {compare({other, job, job})[1], compare({other, job, job})[2]})
    CHECK_THAT(text, contains_text("train.seq_len is 16, on rank 0 17"));
}

TEST_CASE("of many differences the first few are named") {
  Identity job, other;
  for (int i = 0; i < 9; ++i) {
    job.emplace_back("key" + std::to_string(i), "1");
    other.emplace_back("key" + std::to_string(i), "2");
  }
  const std::string told = compare({job, other})[1];
  CHECK_THAT(
      told, contains_text("key0 is 2, on rank 0 1; ") && contains_text("key4 is 2, on rank 0 1; and 4 more"));
  CHECK(told.find("key5") == std::string::npos);
}

TEST_CASE("every key of the job counts, by its name, but where its files are") {
  const Identity plain = app::identity(plan_of(shakespeare));
  CHECK(value_of(plain, "train.seq_len") == "16");
  CHECK(value_of(plain, "optimizer.betas") == "[0.9, 0.95]");
  const auto with_groups = [](const std::string& scale) {
    const std::string groups =
        "[[optimizer.groups]]\nmatch = \"norm\"\nlr_scale = 1.0\n[[optimizer.groups]]\nmatch "
        "= \"head\"\nlr_scale = " +
        scale + "\n";
    return app::identity(app::parse_plan(small_job_text() + groups, "small.toml", {}));
  };
  CHECK(value_of(with_groups("0.5"), "optimizer.groups[1].lr_scale") == "0.5");
  CHECK(fingerprint(with_groups("0.5")) != fingerprint(with_groups("0.25")));
  CHECK(fingerprint(plain) == fingerprint(app::identity(plan_of(shakespeare, {"run.dir=elsewhere"}))));
  for (const char* change :
       {"train.seq_len=8", "train.micro_batch_size=1", "optimizer.lr=0.5", "data.shuffle=false",
        "model.rope_theta=5", "checkpoint.interval=7", "distributed.pp_schedule=gpipe"})
    CHECK(fingerprint(plain) != fingerprint(app::identity(plan_of(shakespeare, {change}))));
}

TEST_CASE("data files count by what they hold") {
  const TemporaryFolder folder;
  const auto write = [&](const std::string& name, const std::string& text) {
    std::ofstream(folder.path() / name) << text;
    return folder.path() / name;
  };
  const std::string text(4000, 'a');
  const auto data = [](const fs::path& path, const Overrides& more = {}) {
    return value_of(app::files_identity(plan_of(path, more)), "the data of data.path");
  };
  CHECK(data(write("a", text)) == data(write("b", text)));
  CHECK(data(write("a", text)) != data(write("b", text + "a")));
  CHECK_THAT(data(write("b", text + "a")), contains_text("4001 bytes, fingerprint "));
  const Overrides validation = {"data.val_fraction=0", "data.val_path=\"" + write("v", text).string() + "\""};
  CHECK_THAT(value_of(app::files_identity(plan_of(shakespeare, validation)), "the data of data.val_path"),
             contains_text("4000 bytes"));
  // Both sides run the same program, known by its file.
  CHECK_THAT(value_of(app::files_identity(plan_of(shakespeare)), "the program"),
             contains_text(" bytes, fingerprint "));
}

TEST_CASE("a tokenizer counts by what it holds") {
  const TemporaryFolder folder;
  const auto identity_with = [&](const std::string& name, const std::string& text) {
    write_file(folder.path() / name / "tokenizer.json", text);
    const app::Plan plan =
        plan_of(shakespeare, {"data.format=bin", "data.tokenizer=" + (folder.path() / name).string()});
    Identity all = app::identity(plan), files = app::files_identity(plan);
    all.insert(all.end(), files.begin(), files.end());
    return all;
  };
  const Identity here = identity_with("a", "{}");
  CHECK(compare({here, identity_with("b", "{}")}) == std::vector<std::string>(2));
  CHECK_THAT(compare({here, identity_with("c", "{ }")})[1], contains_text("the tokenizer is 3 bytes"));
}

TEST_CASE("a rank that cannot read its files says so, and no other is blamed") {
  const TemporaryFolder folder;
  std::ofstream(folder.path() / "gone") << std::string(4000, 'a');
  const app::Plan sound = plan_of(shakespeare), lost = plan_of(folder.path() / "gone");
  fs::remove(folder.path() / "gone");
  for (const int odd : {0, 1}) {
    std::array<std::string, 3> told;
    comm::run_thread_ranks(3, [&](comm::Communicator& world) {
      told[static_cast<size_t>(world.rank())] =
          app::find_other_job(world, world.rank() == odd ? lost : sound);
    });
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == odd) CHECK_THAT(told[static_cast<size_t>(rank)], contains_text("gone"));
      if (rank != odd) CHECK(told[static_cast<size_t>(rank)].empty());
    }
  }
}
