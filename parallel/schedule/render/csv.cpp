#include "parallel/schedule/render/csv.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/base/special_file.h"
#include "core/base/text.h"
#include "parallel/schedule/cost/simulate.h"
#include "parallel/schedule/proof/validate.h"

namespace pptrain::schedule {
namespace {

// Where an action was read, counted from 1.
struct Cell {
  int row = 0;
  int column = 0;
};

constexpr int max_number = 1 << 20;  // of stages and of microbatches: beyond it a digit too many is likelier

class Parser {
 public:
  Parser(const std::string& text, const std::string& name) : text_(text), name_(name) {
    schedule_.name = name;
  }

  Schedule run() {
    read_rows();
    if (owner_.empty()) throw UsageError(name_ + ": the file holds no action");
    infer_sizes();
    infer_placement();
    return std::move(schedule_);
  }

 private:
  [[noreturn]] void fail(Cell cell, std::string_view why) const {
    throw UsageError(fmt::format("{}:{}:{}: {}", name_, cell.row, cell.column, why));
  }

  void read_rows() {
    std::istringstream stream(text_);
    std::string line;
    int row = 0;
    while (std::getline(stream, line)) {
      ++row;
      if (line.find_first_not_of(" \t\r,") == std::string::npos) {
        blank_row_ = blank_row_ == 0 ? row : blank_row_;
        continue;
      }
      if (blank_row_ != 0)
        fail({blank_row_, 1}, "an empty row between the rows of two ranks: every rank has actions");
      schedule_.actions.emplace_back();
      read_row(line, row);
    }
  }

  void read_row(const std::string& line, int row) {
    std::istringstream cells(line);
    std::string text;
    for (int column = 1; std::getline(cells, text, ','); ++column) {
      std::erase(text, '"');
      if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
      const Cell cell{row, column};
      try {
        schedule_.actions.back().push_back(parse_action(text));
      } catch (const UsageError& error) {
        fail(cell, error.what());
      }
      for_each_part(schedule_.actions.back().back(), [&](const Action& action) { note(action, cell); });
    }
  }

  // Notes the owner of the stage, and how many microbatches there are.
  void note(const Action& action, Cell cell) {
    if (action.stage >= max_number || action.microbatch >= max_number) {
      fail(cell, fmt::format("{}: numbers end at {}", to_string(action), max_number - 1));
    }
    backward_ |= action.kind != ActionKind::forward && is_compute(action.kind) && !is_of_head(action.kind);
    schedule_.spread_head |= is_of_head(action.kind);
    schedule_.microbatches = std::max(schedule_.microbatches, action.microbatch + 1);
    if (static_cast<size_t>(action.stage) >= owner_.size()) owner_.resize(action.stage + 1);
    Cell& owner = owner_[action.stage];
    if (owner.row == 0) owner = cell;
    if (owner.row != cell.row) {
      fail(cell,
           fmt::format("stage {} is in row {} already; a stage lives on one rank", action.stage, owner.row));
    }
  }

  void infer_sizes() {
    schedule_.ranks = static_cast<int>(schedule_.actions.size());
    schedule_.forward_only = !backward_;
    const int stages = static_cast<int>(owner_.size());
    for (int stage = 0; stage < stages; ++stage) {
      if (owner_[stage].row == 0) throw UsageError(fmt::format("{}: stage {} has no action", name_, stage));
    }
    if (stages % schedule_.ranks != 0) {
      throw UsageError(
          fmt::format("{}: {} stages do not divide over {} ranks (rows)", name_, stages, schedule_.ranks));
    }
    schedule_.stages_per_rank = stages / schedule_.ranks;
    // The proof keeps a table of stages x microbatches: one number with a digit too many would fill memory.
    size_t actions = 0;
    for (const auto& list : schedule_.actions) actions += list.size();
    if (schedule_.cells() > 16 * actions) {
      throw UsageError(
          fmt::format("{}: {} stages and microbatches up to {} need many more than the file's {} actions",
                      name_, stages, schedule_.microbatches - 1, actions));
    }
  }

  void infer_placement() {
    Cell misplaced;
    for (const Placement placement : {Placement::loop, Placement::v}) {
      schedule_.placement = placement;
      misplaced = {};
      for (size_t stage = 0; stage < owner_.size() && misplaced.row == 0; ++stage) {
        if (schedule_.rank_of(static_cast<int>(stage)) + 1 != owner_[stage].row) misplaced = owner_[stage];
      }
      if (misplaced.row == 0) return;
    }
    fail(misplaced,
         "the stages lie neither in a loop (stage s on row s mod p) nor on a V (down the rows and back up)");
  }

  const std::string& text_;
  const std::string& name_;
  Schedule schedule_;
  std::vector<Cell> owner_;  // [stage] the first cell that names it
  bool backward_ = false;
  int blank_row_ = 0;
};

}  // namespace

// Spreadsheets begin their files with a byte order mark.
Schedule parse_csv(const std::string& text, const std::string& name) {
  const std::string rows(without_byte_order_mark(text));
  return Parser(rows, name).run();
}

Schedule load_schedule(const std::filesystem::path& path, int sequence_slices) {
  if (const std::string kind = special_file(path); !kind.empty())
    throw UsageError(fmt::format("the schedule file {} is {}; expected a file", path.string(), kind));
  std::ifstream file(path, std::ios::binary);
  if (!file) throw UsageError("cannot read the schedule file " + path.string());
  std::ostringstream text;
  text << file.rdbuf();
  Schedule schedule = parse_csv(text.str(), path.string());
  schedule.sequence_slices = sequence_slices;
  try {
    validate(schedule);
  } catch (const Error& error) {
    throw UsageError(error.what());
  }
  return schedule;
}

namespace {

// `spans`: each action's column, by rank; none: without gaps.
std::string write_cells(const Schedule& schedule, const std::vector<std::vector<Span>>& spans) {
  std::string text;
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    const auto& list = schedule.actions[rank];
    size_t column = 0;
    for (size_t i = 0; i < list.size(); ++i) {
      const size_t wanted = spans.empty() ? i : static_cast<size_t>(std::lround(spans[rank][i].start));
      if (i > 0) text += ",", ++column;
      for (; column < wanted; ++column) text += ",";
      text += to_string(list[i]);
    }
    text += "\n";
  }
  return text;
}

}  // namespace

std::string write_csv(const Schedule& schedule) {
  return write_cells(schedule, {});
}

// A pair takes one step, as each of its halves does alone.
std::string write_stepped_csv(const Schedule& schedule) {
  if (schedule.has_communication() || schedule.has(ActionKind::recv_head))
    throw Error("write_csv: only compute actions can be written in steps");
  const StageCost step{.time = PerPass<double>::each([](ActionKind) { return 1; }),
                       .wire = PerPass<double>::each([](ActionKind) { return 0.5; })};
  return write_cells(schedule, simulate(schedule, {.stages = {step}, .latency = {}}).spans);
}

}  // namespace pptrain::schedule
