#include "app/run/run_end.h"

#include <nlohmann/json.hpp>
#include <system_error>

#include "core/base/error.h"
#include "core/base/process.h"
#include "core/io/atomic_file.h"
#include "core/io/files.h"

namespace pptrain::app {

namespace fs = std::filesystem;
using Json = nlohmann::json;

namespace {
constexpr const char* file_name = "end.json";
constexpr size_t longest_end = 1 << 16;  // bytes
}  // namespace

void write_run_end(const fs::path& folder, const RunEnd& end) {
  const Json json{{"how", end.how},
                  {"step", end.step},
                  {"checkpoint", end.checkpoint},
                  {"message", end.message.substr(0, 4096)},
                  {"pid", end.process.pid},
                  {"host", end.process.host},
                  {"since", end.process.since},
                  {"time", now_utc()}};
  io::write_file_atomically(folder / file_name,
                            json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
}

std::optional<RunEnd> read_run_end(const fs::path& folder) {
  try {
    const Json json = Json::parse(io::read_small_file(folder / file_name, longest_end));
    return RunEnd{
        .how = json.at("how"),
        .step = json.at("step"),
        .checkpoint = json.at("checkpoint"),
        .message = json.at("message"),
        .process = {
            .pid = json.at("pid"), .host = json.at("host"), .since = json.at("since"), .command = {}}};
  } catch (const Error&) {
    return std::nullopt;
  } catch (const Json::exception&) {
    return std::nullopt;
  }
}

void forget_run_end(const fs::path& folder) {
  std::error_code ignored;
  fs::remove(folder / file_name, ignored);
}

}  // namespace pptrain::app
