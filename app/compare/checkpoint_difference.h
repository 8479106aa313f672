// Compares two checkpoints, of any two layouts, that should be equal bit for bit, tensor by tensor.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace pptrain::app {

// An element as one of the checkpoints holds it.
struct StoredElement {
  double value = 0;
  std::string file;  // below the checkpoint's folder: "stage_1/model.safetensors"
  // The rank that wrote it; nothing if the checkpoint does not name the job that saved it.
  std::optional<int> rank;
};

struct TensorDifference {
  std::string file;  // the kind: "model", "adamw.exp_avg"
  std::string name;  // "layers.0.attn.q.weight"
  // "only in A", "F32 [3, 5] in A, F32 [3, 6] in B"; "": the elements were compared.
  std::string mismatch;
  std::vector<int64_t> shape;
  int64_t elements = 0;
  int64_t differing = 0;       // elements with other bits
  std::vector<int64_t> index;  // index of the first of them, in row-major order
  StoredElement a, b;          // the first of them
  // Maxima over them of |a - b|, and of |a - b| / max(|a|, |b|); infinite if one is not finite.
  double largest_absolute = 0, largest_relative = 0;
  double norm_a = 0, norm_b = 0;  // Euclidean, of the whole tensor

  bool is_equal() const { return mismatch.empty() && differing == 0; }
};

// The layer that a tensor belongs to; nothing for the embedding, the last norm and the head.
std::optional<int64_t> layer_of(const std::string& tensor);

// The checkpoint that a path names: a step's folder, or the newest sound one of a folder of them or of a run.
// Throws UsageError if there is none.
std::filesystem::path find_checkpoint(const std::string& path);

// All tensors of two step folders, equal ones too: the weights in the model's order, then, with `state`, the
// optimizer's tensors. Holds a few million elements at a time, whatever the tensor's size. Throws Error if a
// checkpoint is damaged.
std::vector<TensorDifference> compare_checkpoints(const std::filesystem::path& a,
                                                  const std::filesystem::path& b, bool state);

}  // namespace pptrain::app
