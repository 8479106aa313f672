// The subcommands, one file each with their arguments, declaration and work. The exit code: 0 done, 1 run
// failed, 2 bad job or arguments, 3 stopped after saving; others if --help says so.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace pptrain::app {

class CommandLine;

// Each declares its subcommand and the function that runs for it.
void add_train(CommandLine& line);  // the program without a subcommand
void add_resume(CommandLine& line);
void add_check(CommandLine& line);
void add_plan(CommandLine& line);
void add_eval(CommandLine& line);
void add_generate(CommandLine& line);
void add_verify(CommandLine& line);
void add_doctor(CommandLine& line);
void add_diff(CommandLine& line);
void add_bisect(CommandLine& line);
void add_fork(CommandLine& line);
void add_status(CommandLine& line);
void add_save(CommandLine& line);
void add_stop(CommandLine& line);
void add_report(CommandLine& line);
void add_convert(CommandLine& line);
void add_tokenize(CommandLine& line);
void add_config(CommandLine& line);
void add_completion(CommandLine& line);

// Replaces train() if the arguments are wrong: the ranks of a launch exchange `fault`, as they do with a
// fault of the job, and one prints it. Without a launcher it is thrown as UsageError.
int refuse(const std::string& fault);

// The script of bash, zsh or fish that completes the commands of `program`.
std::string completion_script(CLI::App& program, const std::string& shell);

// The commit that the program was built from: "1a2b3c4d5e6f", or "1a2b3c4d5e6f, with changes"; "" if the
// sources were no git checkout. Defined in a file that the build writes, linked only into the program: a new
// commit recompiles nothing else.
const char* commit();

// Output of --version: "pptrain X.Y.Z", then the parts of the program and what this machine offers it.
// `commit`: of the checkout that it was built from; "": none. Makes no CUDA context, and needs no GPU.
std::string version_text(const std::string& commit);

}  // namespace pptrain::app
