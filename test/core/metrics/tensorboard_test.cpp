// Event files, checked field by field with a reader of their bytes; the real TensorBoard reads them in
// test/app/report/look_test.py.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "core/metrics/tensorboard.h"
#include "test/core/io/scratch_folder.h"
#include "test/support/catch.h"

using namespace pptrain;
namespace fs = std::filesystem;

namespace {

// Bit by bit, from the polynomial in RFC 3720.
uint32_t slow_crc32c(const std::string& bytes) {
  uint32_t crc = 0xFFFFFFFF;
  for (const char c : bytes) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? (crc >> 1) ^ 0x82F63B78 : crc >> 1;
  }
  return crc ^ 0xFFFFFFFF;
}

uint32_t unmasked(uint32_t masked) {
  const uint32_t rotated = masked - 0xA282EAD8;
  return rotated << 15 | rotated >> 17;
}

template <typename T>
T taken(const std::string& bytes, size_t& at) {
  T value;
  REQUIRE(at + sizeof(value) <= bytes.size());
  std::memcpy(&value, bytes.data() + at, sizeof(value));
  at += sizeof(value);
  return value;
}

// Fields by number. Each value is its bytes; for varints, the decimal number.
std::multimap<int, std::string> fields_of(const std::string& message) {
  std::multimap<int, std::string> fields;
  const auto varint = [&](size_t& at) {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(message.at(at++));
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
  };
  for (size_t at = 0; at < message.size();) {
    const uint64_t key = varint(at);
    const int number = static_cast<int>(key >> 3);
    if ((key & 7) == 0) {
      fields.emplace(number, std::to_string(varint(at)));
      continue;
    }
    const size_t size = (key & 7) == 1 ? 8 : (key & 7) == 5 ? 4 : varint(at);
    fields.emplace(number, message.substr(at, size));
    at += size;
  }
  return fields;
}

std::vector<std::string> events_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  std::vector<std::string> events;
  for (size_t at = 0; at < bytes.size();) {
    const std::string length_bytes = bytes.substr(at, 8);
    const auto length = taken<uint64_t>(bytes, at);
    CHECK(unmasked(taken<uint32_t>(bytes, at)) == slow_crc32c(length_bytes));
    REQUIRE(at + length <= bytes.size());
    events.push_back(bytes.substr(at, length));
    at += length;
    CHECK(unmasked(taken<uint32_t>(bytes, at)) == slow_crc32c(events.back()));
  }
  return events;
}

// tag -> value
std::map<std::string, float> scalars_of(const std::string& event) {
  std::map<std::string, float> scalars;
  const auto fields = fields_of(event);
  for (const auto& [number, value] : fields_of(fields.find(5)->second)) {
    const auto parts = fields_of(value);
    size_t at = 0;
    scalars[parts.find(1)->second] = taken<float>(parts.find(2)->second, at);
  }
  return scalars;
}

metrics::RunHeader header_of(const std::string& host, int64_t pid) {
  metrics::RunHeader header;
  header.host = host;
  header.pid = pid;
  return header;
}

std::vector<fs::path> files_in(const fs::path& folder) {
  std::vector<fs::path> files(fs::directory_iterator(folder), {});
  std::ranges::sort(files);
  return files;
}

}  // namespace

TEST_CASE("CRC-32C is that of RFC 3720") {
  CHECK(metrics::crc32c(std::string(32, '\0')) == 0x8A9136AA);
  CHECK(metrics::crc32c(std::string(32, '\xFF')) == 0x62A8AB43);
  CHECK(metrics::crc32c("123456789") == 0xE3069283);
  std::string bytes;
  for (int i = 0; i < 300; ++i) {
    CHECK(metrics::crc32c(bytes) == slow_crc32c(bytes));
    CHECK(unmasked(metrics::masked_crc32c(bytes)) == slow_crc32c(bytes));
    bytes += static_cast<char>(i * 37);
  }
}

TEST_CASE("a run's figures are scalars of its event file") {
  const ScratchFolder folder;
  const metrics::RunHeader header = header_of("node 7/a", 42);
  const auto sink = metrics::make_tensorboard_sink(folder.path() / "tensorboard", header);
  const fs::path file = files_in(folder.path() / "tensorboard").at(0);
  metrics::StepRecord record{.step = 300, .loss = 2.5, .grad_norm = 0.5, .lr = 1e-3, .tokens_per_s = 1000};
  record.bubble = metrics::Bubble{.fill = 0.125, .steady = 0.25};
  record.expert_loads = {{3, {6, 2}}};
  record.time = std::chrono::system_clock::time_point(std::chrono::milliseconds(1500));
  sink->step(record);
  record.loss = std::numeric_limits<double>::quiet_NaN();
  sink->step(record);
  sink->eval(
      {.step = 300,
       .loss = 2.75,
       .tokens = 99,
       .time_s = 0.5,
       .sources = {{.name = "web", .sum = 30, .tokens = 10}, {.name = "chat", .sum = 8, .tokens = 4}}});
  CHECK(file.filename().string().ends_with(".node_7_a.42.0"));
  const auto events = events_of(file);
  REQUIRE(events.size() == 4);
  CHECK(fields_of(events[0]).find(3)->second == "brain.Event:2");
  const auto fields = fields_of(events[1]);
  CHECK(fields.find(2)->second == "300");
  size_t at = 0;
  CHECK(taken<double>(fields.find(1)->second, at) == 1.5);
  auto scalars = scalars_of(events[1]);
  CHECK(scalars.at("train/loss") == 2.5F);
  CHECK(scalars.at("train/lr") == 1e-3F);
  CHECK(scalars.at("bubble/total") == 0.375F);
  CHECK(scalars.at("bubble/steady") == 0.25F);
  CHECK(scalars.at("experts/imbalance_layer_3") == 1.5F);
  CHECK_FALSE(scalars.contains("speed/mfu"));
  CHECK_FALSE(scalars.contains("train/checkpoint"));
  CHECK(std::isnan(scalars_of(events[2]).at("train/loss")));
  CHECK(scalars_of(events[3]).at("eval/loss") == 2.75F);
  CHECK(scalars_of(events[3]).at("eval/loss_web") == 3.0F);
  CHECK(scalars_of(events[3]).at("eval/loss_chat") == 2.0F);
}

TEST_CASE("a start that goes on adds a later file, which says from where") {
  const ScratchFolder folder;
  metrics::RunHeader header = header_of("h", 9);
  header.time = std::chrono::system_clock::time_point(std::chrono::seconds(1000));
  metrics::make_tensorboard_sink(folder.path(), header);
  header.step = 12;
  header.pid = 1;  // sorts before the other
  metrics::make_tensorboard_sink(folder.path(), header);
  const std::vector<fs::path> files = files_in(folder.path());
  REQUIRE(files.size() == 2);
  CHECK(events_of(files[0]).size() == 1);
  const auto events = events_of(files[1]);
  REQUIRE(events.size() == 2);
  const auto fields = fields_of(events[1]);
  CHECK(fields.find(2)->second == "13");
  CHECK(fields_of(fields.find(7)->second).find(1)->second == "1");  // SessionLog.START
}
