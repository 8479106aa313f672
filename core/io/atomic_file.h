// Files and folders that appear whole or not at all, and stay after a power failure.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "core/io/files.h"

namespace pptrain::io {

// --- Names for temporary files that no other process takes, not even in other containers that see the
// folder.

// 16 hexadecimal digits of the scope in which process ids are unique: this start of the machine's kernel and
// this process's namespace of ids. Two containers may both run a process 7, with the same host name.
const std::string& process_space();

// "SPACE.PID.N": another one at each call.
std::string unique_suffix();

// Does a file have to stay after a power failure? Only then is it synced, which takes milliseconds.
enum class Lasting { no, yes };

// A file under a temporary name beside `path`, which it replaces when it is published. If it never is, it
// goes with this object. Each call throws Error with the path and the system's reason.
class NewFile {
 public:
  explicit NewFile(std::filesystem::path path);
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  void write(std::string_view text);
  void publish(Lasting lasting = Lasting::yes);

 private:
  std::filesystem::path path_;
  OutputFile file_;
  bool published_ = false;
};

// Replaces `path` by a NewFile with this content. On failure throws Error; the old file is then untouched.
void write_file_atomically(const std::filesystem::path& path, std::string_view content,
                           Lasting lasting = Lasting::yes);

// The end of the name of a folder that waits to be replaced, see rename_folder_synced.
inline constexpr const char* replaced_extension = ".replaced";

// The open descriptor of this process that a path in /dev or /proc stands for; -1 for any other path. It may
// be open on a file, which is then written on, not replaced.
int own_descriptor(const std::filesystem::path& path);

// Writes output to a path that the user gave. A file appears as above, at the end of links. A device, a pipe,
// a socket, or what /dev/stdout and its like are open on, is written as it is.
void write_output(const std::filesystem::path& path, std::string_view content);

// Forces a file's bytes, whoever has written them, to the device. Throws Error.
void sync_file(const std::filesystem::path& file);
// Forces a folder's entries (creations, renames) to the device; "": of the current folder.
void sync_folder(const std::filesystem::path& folder);
// And of all folders below it.
void sync_folders(const std::filesystem::path& root);

// Renames within one file system and syncs the target's folder. If the file system can, an existing folder
// `to` changes places with `from` in one step, so that `to` is there at every instant. Otherwise the old `to`
// gets the name of `to` with .1.replaced (or the next number), between two renames. Returns true if `from`
// now holds what was at `to` (the caller removes it).
bool rename_folder_synced(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace pptrain::io
