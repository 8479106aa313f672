// The records of steps as people watch them: lines of the log, a bar on a terminal, and at the end the losses
// as one line of characters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "core/metrics/log_sinks.h"
#include "core/metrics/sinks.h"

namespace pptrain::metrics {

// The values from left to right in at most `columns` characters, the lowest value lowest: as block characters
// (UTF-8, each of one column), else in ASCII. Several values to a character are their mean. "" if there are
// none.
std::string sparkline(std::span<const double> values, size_t columns, bool utf8);

// "loss 5.6324 █▆▄▃▂▁▁ 1.6387", at most `columns` columns wide: the first loss, means of those in order, and
// the last. "" if there are fewer than two means, or if it does not fit.
std::string loss_line(double first, std::span<const double> means, double last, size_t columns, bool utf8);

// Do terminals of this locale take UTF-8? The first of these that is set and not empty says; null: not set.
bool is_utf8_locale(const char* lc_all, const char* lc_ctype, const char* lang);

// Logs the line of the run's losses when it ends.
std::unique_ptr<Sink> make_loss_curve_sink();

// Logs one line for the first step and then every `interval` steps; rates are means over the steps since the
// last line, and off a terminal the line says how long the rest takes. The first of several skipped steps
// gets a line of its own, and so does an evaluation.
std::unique_ptr<Sink> make_line_sink(int64_t interval, int64_t last_step);

// Keeps the status line of the console: the latest step, or what the run does instead of steps. The line goes
// when the sink does.
std::unique_ptr<Sink> make_bar_sink(std::shared_ptr<Console> console, int64_t first_step, int64_t last_step);

}  // namespace pptrain::metrics
