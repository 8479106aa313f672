// What the options of [model] ask of the families of models, which a floor above describes.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/config/job_config.h"

namespace pptrain::config {

struct Family {
  std::string_view name;               // a value of model.arch
  std::string other_names;             // what others call it, in lower case, with blanks between
  std::vector<std::string_view> keys;  // of [model], of those that not every family takes
  bool whole_qk_norm = false;          // a norm of q or k takes all heads, which tp ranks cannot shard

  bool takes(std::string_view key) const;
};

// All families, in the order in which users read them. models/registry.cpp defines it: a program that asks
// for options links pptrain_models.
std::span<const Family> families();

// By model.arch; null if there is none.
const Family* find_family(std::string_view name);

std::vector<std::string> family_names();
// Of the families that take the key.
std::vector<std::string> families_with(std::string_view key);

// False too for an arch that is not known.
bool takes(const ModelSection& model, std::string_view key);

// Also true for an arch that is not known.
bool has_rotary_embeddings(const ModelSection& model);

// Experts are as wide as an MLP would be (intermediate_size).
bool has_experts_of_mlp_width(const ModelSection& model);

}  // namespace pptrain::config
