// The figures of a run as TensorBoard's event files: protocol buffers `Event` of TensorFlow's event.proto and
// summary.proto, of which a handful of fields are used, each in the frame of a TFRecord file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "core/metrics/figures.h"
#include "core/metrics/sinks.h"
#include "core/metrics/step_record.h"

namespace pptrain::metrics {

// CRC-32C (Castagnoli, RFC 3720), and how TFRecord files mask it.
uint32_t crc32c(std::string_view bytes);

// As TensorFlow stores it with data: rotated right by 15 bits, plus a constant, so that a checksum of bytes
// that hold checksums is no weaker.
uint32_t masked_crc32c(std::string_view bytes);

// Makes a new file in `folder`, which is created: events.out.tfevents.TIME.HOST.PID.N, TIME later than the
// existing files' TIME, so that readers, which go by names, take it last. If the start goes on from a step,
// the file says that later steps in other files count no more. Each record is handed to the system whole; if
// the disk is full, records wait in memory (PatientFile). Throws Error that names the file if it cannot be
// made.
std::unique_ptr<Sink> make_tensorboard_sink(const std::filesystem::path& folder, const RunHeader& header);

}  // namespace pptrain::metrics
