// A job file as read: the values, where each was given, and what is wrong with them so far.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/config/job_config.h"

namespace pptrain::config {

// Where a key was given: "job.toml:12:3", or "--set train.steps=5", which comes after every line of the file.
struct Origin {
  std::string where;
  bool from_override = false;
  int includers = 0;  // files that include the one where it stands, one another
  uint32_t line = 0;  // from 1; 0: the file as a whole
  uint32_t column = 0;

  // Does a key that was given here count for more than one given there?
  bool is_after(const Origin& other) const {
    return from_override != other.from_override ? from_override : includers < other.includers;
  }
};

struct Problem {
  Origin origin;
  std::string name;  // what it is about: "train.steps"; may be empty
  std::string text;  // what is wrong
};

struct Document {
  std::string file;                                     // stands for the file that is read in messages
  int includers = 0;                                    // of that file
  JobConfig job;                                        // as read; then filled in
  JobConfig as_read;                                    // what the file and the overrides say, and defaults
  std::map<std::string, Origin, std::less<>> options;   // the ones given, by full name
  std::map<std::string, Origin, std::less<>> sections;  // the headers in the file
  std::set<std::string, std::less<>> broken;            // options whose value could not be taken
  std::set<std::string, std::less<>> filled;    // options that the number of ranks or a command has filled
  std::set<std::string, std::less<>> forgiven;  // what was given later left them nothing to act on
  std::vector<Problem> problems;
  std::map<std::string, std::string> notes;  // for the user, by option, about what is no error

  bool given(std::string_view option) const { return options.contains(option); }

  // A problem with `option` itself, or with its section when the option is absent.
  void report(std::string_view option, const std::string& text);

  // A contradiction: it is laid at the first of these options that the user gave, else at the section of the
  // first. Nothing is reported when one of them is broken, since its value is not what the user meant.
  void report_conflict(std::initializer_list<std::string_view> involved, const std::string& text);

  // Throws UsageError with every problem, in the order of the file, if there is one.
  void throw_if_bad() const;
};

// The text of a job file. Throws UsageError that names it.
std::string read_job_file(const std::string& path);

// "section.key=value" as an override that a command adds to the user's: it does not count as given, so that
// messages name the job and no --set that the user did not write.
std::string by_command(const std::string& setting);

// Reads `text` as TOML, after the file that its root names as `include` (relative to its own folder; the keys
// of `text` win), and applies `overrides`, each option on its own: names, types, literals, ranges, required
// keys. Throws UsageError only if the text is not TOML; all else goes to `problems`. A path to read is taken
// beside the file that gives it, if something is there (beside_job).
Document read_document(const std::string& text, const std::string& file,
                       std::span<const std::string> overrides);

// The same of a job that is part of another file: paths stay as they stand there.
Document read_document_inside(const std::string& text, const std::string& name);

// The keys that were given, of a document without problems (GivenJob::given).
std::string given_toml(const Document& document);

}  // namespace pptrain::config
