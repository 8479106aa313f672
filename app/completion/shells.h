// Completion scripts: each is whole, and asks pptrain for nothing when it runs.
#pragma once

#include <span>
#include <string>

#include "app/completion/command_tree.h"

namespace pptrain::app {

// bash 4 or newer. Words that bash breaks at = and : (COMP_WORDBREAKS) are put together again.
std::string bash_completion(const CommandTree& program, std::span<const JobKey> keys);

// The same, run by zsh's bashcompinit. As a file of $fpath, or sourced after compinit.
std::string zsh_completion(const CommandTree& program, std::span<const JobKey> keys);

std::string fish_completion(const CommandTree& program, std::span<const JobKey> keys);

// `text` as one word of the shell, single quotes included. fish, other than the others, reads backslashes in
// them.
std::string single_quoted(const std::string& text, bool for_fish = false);

}  // namespace pptrain::app
