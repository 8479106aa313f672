#include "core/metrics/tensorboard.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cctype>
#include <charconv>
#include <iterator>
#include <system_error>
#include <type_traits>
#include <vector>

#include "core/io/files.h"
#include "core/metrics/metrics_file.h"

namespace pptrain::metrics {

namespace {

// A table by byte; the polynomial with its bits reversed.
constexpr std::array<uint32_t, 256> make_table() {
  constexpr uint32_t polynomial = 0x82F63B78;
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? polynomial : 0);
    table[byte] = value;
  }
  return table;
}

constexpr std::array<uint32_t, 256> table = make_table();

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  uint32_t crc = 0xFFFFFFFF;
  for (const char c : bytes) crc = table[(crc ^ static_cast<unsigned char>(c)) & 0xFF] ^ (crc >> 8);
  return ~crc;
}

uint32_t masked_crc32c(std::string_view bytes) {
  return std::rotr(crc32c(bytes), 15) + 0xA282EAD8;
}

namespace {

// Numbers of the fields in the .proto files.
constexpr uint32_t event_wall_time = 1, event_step = 2, event_file_version = 3, event_summary = 5,
                   event_session_log = 7;
constexpr uint32_t summary_value = 1;
constexpr uint32_t value_tag = 1, value_simple_value = 2;
constexpr uint32_t session_log_status = 1;
constexpr uint64_t status_start = 1;

// The protocol buffers' encoding: each field is its number with its wire type, then its value.
class ProtobufMessage {
 public:
  void add_varint(uint32_t field, uint64_t value) {
    append_varint(field << 3 | 0);
    append_varint(value);
  }
  void add_double(uint32_t field, double value) {
    append_varint(field << 3 | 1);
    append_fixed(std::bit_cast<uint64_t>(value));
  }
  void add_bytes(uint32_t field, std::string_view value) {
    append_varint(field << 3 | 2);
    append_varint(value.size());
    bytes_ += value;
  }
  void add_float(uint32_t field, float value) {
    append_varint(field << 3 | 5);
    append_fixed(std::bit_cast<uint32_t>(value));
  }
  // Little-endian, whatever the machine's order.
  template <typename Unsigned>
  void append_fixed(Unsigned value) {
    static_assert(std::is_unsigned_v<Unsigned>);
    for (size_t i = 0; i < sizeof(value); ++i) bytes_ += static_cast<char>(value >> (8 * i) & 0xFF);
  }
  void append(std::string_view bytes) { bytes_ += bytes; }
  const std::string& bytes() const { return bytes_; }

 private:
  void append_varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>((value & 0x7F) | 0x80);
    bytes_ += static_cast<char>(value);
  }
  std::string bytes_;
};

ProtobufMessage event_at(double wall_time, int64_t step) {
  ProtobufMessage event;
  event.add_double(event_wall_time, wall_time);
  event.add_varint(event_step, static_cast<uint64_t>(step));
  return event;
}

// What a file begins with: Event{wall_time, file_version = "brain.Event:2"}. wall_time: seconds since 1970.
std::string version_event(double wall_time) {
  ProtobufMessage event;
  event.add_double(event_wall_time, wall_time);
  event.add_bytes(event_file_version, "brain.Event:2");
  return event.bytes();
}

// Event{wall_time, step, session_log{status = START}}: readers forget what earlier files have of `step` and
// after.
std::string restart_event(double wall_time, int64_t step) {
  ProtobufMessage log;
  log.add_varint(session_log_status, status_start);
  ProtobufMessage event = event_at(wall_time, step);
  event.add_bytes(event_session_log, log.bytes());
  return event.bytes();
}

// Event{wall_time, step, summary{value{tag, simple_value}...}}. Values become float32.
std::string scalars_event(double wall_time, int64_t step, std::span<const Figure> figures) {
  ProtobufMessage summary;
  for (const Figure& figure : figures) {
    ProtobufMessage value;
    value.add_bytes(value_tag, figure.tag);
    value.add_float(value_simple_value, static_cast<float>(figure.value));
    summary.add_bytes(summary_value, value.bytes());
  }
  ProtobufMessage event = event_at(wall_time, step);
  event.add_bytes(event_summary, summary.bytes());
  return event.bytes();
}

// The event as a record of the file: length, masked CRC-32C of the length, event, masked CRC-32C of the
// event.
std::string framed(std::string_view event) {
  ProtobufMessage length;
  length.append_fixed(static_cast<uint64_t>(event.size()));
  ProtobufMessage record;
  record.append(length.bytes());
  record.append_fixed(masked_crc32c(length.bytes()));
  record.append(event);
  record.append_fixed(masked_crc32c(event));
  return record.bytes();
}

namespace fs = std::filesystem;

using Time = std::chrono::system_clock::time_point;

constexpr std::string_view prefix = "events.out.tfevents.";

// A record without a time is of now.
double wall_time(Time time) {
  return unix_seconds(time == Time{} ? std::chrono::system_clock::now() : time);
}

// As part of a file's name.
std::string plain(std::string host) {
  std::ranges::replace_if(
      host, [](unsigned char c) { return std::isalnum(c) == 0 && c != '-' && c != '_' && c != '.'; }, '_');
  return host.empty() ? "host" : host;
}

// The latest TIME of the files there; 0 if there are none.
int64_t latest_time(const fs::path& folder) {
  int64_t latest = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    int64_t time = 0;
    if (name.starts_with(prefix))
      std::from_chars(name.data() + prefix.size(), name.data() + name.size(), time);
    latest = std::max(latest, time);
  }
  return latest;
}

// A file in `folder` that readers take for the latest.
fs::path new_file(const fs::path& folder, const RunHeader& header) {
  io::make_folder(folder);
  const int64_t time = std::max(static_cast<int64_t>(wall_time(header.time)), latest_time(folder) + 1);
  const auto path = [&](int n) {
    return folder / fmt::format("{}{}.{}.{}.{}", prefix, time, plain(header.host), header.pid, n);
  };
  int n = 0;
  while (fs::exists(path(n))) ++n;
  return path(n);
}

class TensorboardSink final : public Sink {
 public:
  TensorboardSink(const fs::path& folder, const RunHeader& header) : file_(new_file(folder, header)) {
    const double now = wall_time(header.time);
    file_.add(framed(version_event(now)));
    if (header.step > 0) file_.add(framed(restart_event(now, header.step + 1)));
  }

  void step(const StepRecord& record) override {
    std::vector<Figure> figures = step_figures(record);
    std::ranges::move(running_figures(record), std::back_inserter(figures));
    file_.add(framed(scalars_event(wall_time(record.time), record.step, figures)));
  }
  void eval(const EvalRecord& record) override {
    file_.add(framed(scalars_event(wall_time(record.time), record.step, eval_figures(record))));
  }

 private:
  PatientFile file_;
};

}  // namespace

std::unique_ptr<Sink> make_tensorboard_sink(const fs::path& folder, const RunHeader& header) {
  return std::make_unique<TensorboardSink>(folder, header);
}

}  // namespace pptrain::metrics
