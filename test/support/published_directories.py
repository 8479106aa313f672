"""Directories of published_models.py, made and read by transformers: `write(folder, NAME)` with random weights, `load(folder)`."""

import json
import os
import pathlib

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from published_models import config
from transformers_models import shake_norms

disable_progress_bar()


def write(folder, name, dtype=torch.bfloat16, seed=0, mtp=False, **changes):
    """Writes a directory as published: config.json and weights of `dtype`. Returns transformers' model of it, in float32.

    mtp: with the tensors of DeepSeek-V3's layer for multi-token prediction, which transformers does not load.
    """
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(config(name, **changes), indent=2)
    (folder / "config.json").write_text(text)
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4)  # initializer_range 0.02 is too small for narrow layers to have an effect
    shake_norms(model)
    model.to(dtype).save_pretrained(folder)
    (folder / "config.json").write_text(text)  # not in the form of today's transformers
    if mtp:
        add_mtp_layer(folder)
    return load(folder)


def load(folder, **options):
    """transformers' model of a directory, in float32."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", **options).eval()


def add_mtp_layer(folder):
    """One more layer with its embedding, norms, projection and head, as DeepSeek-V3's model.layers.61.*."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    layers = json.loads((folder / "config.json").read_text())["num_hidden_layers"]
    last, extra = f"model.layers.{layers - 1}.", f"model.layers.{layers}."
    embedding, norm = tensors["model.embed_tokens.weight"], tensors["model.norm.weight"]
    tensors.update({extra + key.removeprefix(last): value.clone() for key, value in tensors.items() if key.startswith(last)})
    tensors.update({extra + "embed_tokens.weight": embedding.clone(), extra + "shared_head.head.weight": tensors["lm_head.weight"].clone(),
                    extra + "shared_head.norm.weight": norm.clone(), extra + "enorm.weight": norm.clone(), extra + "hnorm.weight": norm.clone(),
                    extra + "eh_proj.weight": torch.randn(len(norm), 2 * len(norm)).to(norm.dtype)})
    save_file(tensors, path, {"format": "pt"})
