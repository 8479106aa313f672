// Llama 2 and 3, dense (Touvron et al., arXiv 2307.09288; Grattafiori et al., arXiv 2407.21783). Its block is
// the one that others change.
#include "models/registry.h"

namespace pptrain::models {

BlockConfig llama_block(const ModelConfig& model, int64_t /*layer*/) {
  return {.attention = {.hidden = model.hidden,
                        .heads = model.heads,
                        .kv_heads = model.kv_heads,
                        .head_dim = model.head_dim,
                        .qkv_bias = model.attention_bias,
                        .o_bias = model.attention_bias,
                        .norm_eps = model.norm_eps,
                        .init_std = model.initializer_range,
                        .o_init_std = model.initializer_range},
          .intermediate = model.intermediate,
          .mlp_bias = model.mlp_bias,
          .norm_eps = model.norm_eps,
          .init_std = model.initializer_range};
}

BlockConfig sparse_block(const ModelConfig& model, int64_t layer) {
  BlockConfig config = llama_block(model, layer);
  const SparseLayers& sparse = model.sparse;
  if (!sparse.contains(layer)) return config;
  config.experts = {.hidden = model.hidden,
                    .experts = sparse.experts,
                    .chosen = sparse.chosen,
                    .intermediate = sparse.intermediate,
                    .normalise = sparse.normalise,
                    .init_std = model.initializer_range,
                    .balance_loss = sparse.balance_loss,
                    .z_loss = sparse.z_loss,
                    .balance_bias = sparse.bias_rate > 0};
  return config;
}

constinit const Architecture llama = {.name = "llama",
                                      .hf_model_type = "llama",
                                      .hf_class = "LlamaForCausalLM",
                                      .weights = decoder_weights,
                                      .has_mlp_bias = true,
                                      .block = llama_block,
                                      .hf_max_positions = 2048};

}  // namespace pptrain::models
