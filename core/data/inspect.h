// Whether files hold what the job says, told before the first step from a little of them.
#pragma once

#include <cstdint>

#include "core/data/token_dataset.h"

namespace pptrain::data {

// Opens the source as TokenDataset does, and looks at a few places of each file (file_places.h). Throws Error
// that names file and byte or token: what TokenDataset refuses; a zero byte in a text, which has none in any
// encoding that is read as bytes; a headerless file that begins with llm.c's header; an id of at least
// `vocab_size`.
void inspect(const Source& source, int64_t vocab_size);

}  // namespace pptrain::data
