// pptrain status, save and stop: a run that is under way, through its folder.
#pragma once

#include <CLI/App.hpp>
#include <string>

namespace pptrain::app {

struct LiveArguments {
  std::string run;  // run.dir
  bool json = false;
  double wait_s = 600;  // for the answer of a run
  bool no_wait = false;
};

CLI::App* add_status(CLI::App& cli, LiveArguments& arguments);
CLI::App* add_save(CLI::App& cli, LiveArguments& arguments);
CLI::App* add_stop(CLI::App& cli, LiveArguments& arguments);

// 0 while the run is under way; 3 finished or stopped, 4 diverged, failed or dead, 1 cannot be told.
int status(const LiveArguments& arguments);
// 0 done, 1 refused, failed or not answered.
int save(const LiveArguments& arguments);
int stop(const LiveArguments& arguments);

}  // namespace pptrain::app
