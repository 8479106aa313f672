#include "models/seams.h"

#include <spdlog/fmt/fmt.h>

#include "core/base/error.h"
#include "parallel/context/ring_attention.h"
#include "parallel/context/ulysses_attention.h"

namespace pptrain::models {
namespace {

bool shared(const comm::Communicator* group) {
  return group != nullptr && group->size() > 1;
}

}  // namespace

Seams make_seams(const StageGroups& groups) {
  if (shared(groups.tp)) throw Error("no seam for tensor parallelism");
  if (shared(groups.ep)) throw Error("no seam for expert parallelism");
  Seams seams;
  if (shared(groups.cp)) {
    seams.attention = groups.cp_kind == ContextKind::ring ? context::make_ring_attention(*groups.cp)
                                                          : context::make_ulysses_attention(*groups.cp);
  }
  return seams;
}

ContextKind parse_context_kind(std::string_view name) {
  if (name == "ring") return ContextKind::ring;
  if (name == "ulysses") return ContextKind::ulysses;
  throw Error(fmt::format("no kind of context parallelism is called \"{}\": ring or ulysses", name));
}

kernels::ContextOrder order_of(ContextKind kind) {
  return kind == ContextKind::ring ? kernels::ContextOrder::zigzag : kernels::ContextOrder::contiguous;
}

}  // namespace pptrain::models
