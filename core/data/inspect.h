// Checks before the first step, at a few places, that files hold what the job says.
#pragma once

#include <cstdint>

#include "core/data/token_dataset.h"

namespace pptrain::data {

// Opens the source as TokenDataset does, and looks at a few places of each file (file_places.h). Throws Error
// that names file and byte or token: what TokenDataset refuses; a zero byte in a text, which has none in any
// encoding that is read as bytes; a headerless file that begins with llm.c's header; an id of at least
// `vocab_size`.
void inspect(const Source& source, int64_t vocab_size);

// Is this a headerless source of uint16 in which, where a little of each file is looked at, every second id
// is 0 and the others are not? Then it is most likely one of uint32.
bool looks_like_uint32(const Source& source);

}  // namespace pptrain::data
