// What is asked of a run that is under way, and what it answers: files in FOLDER/requests. Written and read
// here alone, for both sides.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "app/run/run_lock.h"

namespace pptrain::app {

enum class RequestKind { save, stop };

std::string word_of(RequestKind kind);  // "save"

// One request: requests/save.ID.
struct Request {
  RequestKind kind = RequestKind::save;
  std::string id;   // 32 hexadecimal digits
  LockHolder run;   // whom it is for: no other run obeys it, whenever it comes
  int64_t pid = 0;  // who asks
  std::string host;

  std::string file_name() const;
  std::string describe() const;  // "save, asked for by process 17 on node3"
};

// What came of it: requests/answer.ID.
struct Answer {
  bool done = false;
  int64_t step = 0;             // after which the run acted
  std::string checkpoint = {};  // name of the folder in FOLDER/checkpoints; empty where nothing was saved
  std::string message = {};     // why not
};

std::filesystem::path requests_folder(const std::filesystem::path& run_dir);
// A run makes it at its start: then it is the run's own, who can remove what others put there. Throws Error
// that names what cannot be made, or is a link.
void make_requests_folder(const std::filesystem::path& run_dir);

// With an id of its own, by this process.
Request make_request(RequestKind kind, const LockHolder& run);

// --- who asks ---
// Puts the request into the folder, which is made where it is not there (see make_requests_folder).
void post(const std::filesystem::path& run_dir, const Request& request);
// Takes it back. False: it is not there any more, so it was answered.
bool withdraw(const std::filesystem::path& run_dir, const Request& request);
// Nothing as long as there is none. One that was read is removed. Throws Error where it cannot be read.
std::optional<Answer> take_answer(const std::filesystem::path& run_dir, const std::string& id);

// --- the run ---
// "save.ID", "stop.ID": whether a file of this name may be a request. Other names are nobody's business.
bool is_request_name(const std::string& name);
// Throws Error that says what is wrong with it: no regular file (a link is none), too long, no such object.
Request read_request(const std::filesystem::path& file);
// Removes the request and writes the answer. Does nothing where the request was withdrawn. Throws Error.
void answer(const std::filesystem::path& run_dir, const Request& request, const Answer& answer);
// Removes answers that nobody has fetched for an hour.
void remove_old_answers(const std::filesystem::path& run_dir);

}  // namespace pptrain::app
