"""Writes the baselines' initial weights as a Hugging Face directory; pptrain starts from it with model.init = "hf".

    python scripts/bench/export_model.py DIR
"""

import argparse
import json
from pathlib import Path

from llama_model import add_size_arguments, build_stage
from safetensors.torch import save_file

OF_MODEL = {"embedding": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"}
OF_BLOCK = {"input_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
OF_BLOCK |= {f"attention.{name}": f"self_attn.{name}_proj" for name in "qkvo"}
OF_BLOCK |= {f"mlp.{name}": f"mlp.{name}_proj" for name in ("gate", "up", "down")}


def hf_name(name: str) -> str:
    """Hugging Face's name of a parameter of llama_model.py."""
    module = name.removesuffix(".weight")
    if module in OF_MODEL:
        return f"{OF_MODEL[module]}.weight"
    _, layer, of_block = module.split(".", 2)
    return f"model.layers.{layer}.{OF_BLOCK[of_block]}.weight"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    add_size_arguments(parser)
    args = parser.parse_args()
    args.dtype = "fp32"
    weights = {hf_name(name): value.detach() for name, value in build_stage(args, 0, args.layers).named_parameters()}
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": args.hidden,
        "intermediate_size": args.ffn,
        "num_hidden_layers": args.layers,
        "num_attention_heads": args.heads,
        "num_key_value_heads": args.heads,
        "vocab_size": args.vocab,
        "max_position_embeddings": args.seq,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
    }
    args.directory.mkdir(parents=True, exist_ok=True)
    (args.directory / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    save_file(weights, args.directory / "model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    main()
