"""Small random draft heads on disk, with the key names, shapes and configurations of the public ones."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

WIDTH, INNER, HEADS, KV_HEADS, HEAD_DIM, LAYERS, VOCAB = 32, 48, 4, 2, 8, 8, 40


def weights(shapes: Mapping[str, tuple[int, ...]], seed: int = 0) -> dict[str, torch.Tensor]:
    """Random tensors of these shapes; norms are near one."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, generator=generator) * 0.3 + (1.0 if "norm" in name else 0.0)
        for name, shape in shapes.items()
    }


def layer(prefix: str, inputs: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{prefix}.self_attn.q_proj.weight": (HEADS * HEAD_DIM, inputs),
        f"{prefix}.self_attn.k_proj.weight": (KV_HEADS * HEAD_DIM, inputs),
        f"{prefix}.self_attn.v_proj.weight": (KV_HEADS * HEAD_DIM, inputs),
        f"{prefix}.self_attn.o_proj.weight": (WIDTH, HEADS * HEAD_DIM),
        f"{prefix}.mlp.gate_proj.weight": (INNER, WIDTH),
        f"{prefix}.mlp.up_proj.weight": (INNER, WIDTH),
        f"{prefix}.mlp.down_proj.weight": (WIDTH, INNER),
        f"{prefix}.post_attention_layernorm.weight": (WIDTH,),
    }


def eagle1(bias: bool = True, embeddings: bool = True) -> dict[str, torch.Tensor]:
    shapes = {"fc.weight": (WIDTH, 2 * WIDTH), **layer("layers.0", WIDTH)}
    if bias:
        shapes["fc.bias"] = (WIDTH,)
    if embeddings:
        shapes["embed_tokens.weight"] = (VOCAB, WIDTH)
    return weights(shapes)


def eagle3(layer_name: str = "midlayer", kept: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
    """With a head of its own for the `kept` target ids, ascending, or for all."""
    rows = VOCAB if kept is None else len(kept)
    shapes = {
        "fc.weight": (WIDTH, 3 * WIDTH),
        **layer(layer_name, 2 * WIDTH),
        f"{layer_name}.input_layernorm.weight": (WIDTH,),
        f"{layer_name}.hidden_norm.weight": (WIDTH,),
        "norm.weight": (WIDTH,),
        "lm_head.weight": (rows, WIDTH),
    }
    tensors = weights(shapes)
    if kept is not None:
        tensors["d2t"] = kept - torch.arange(rows)
        tensors["t2d"] = torch.isin(torch.arange(VOCAB), kept)
    return tensors


def medusa(heads: int = 3, blocks: int = 1, own_heads: bool = True) -> dict[str, torch.Tensor]:
    shapes: dict[str, tuple[int, ...]] = {}
    for i in range(heads):
        for j in range(blocks):
            shapes |= {f"{i}.{j}.linear.weight": (WIDTH, WIDTH), f"{i}.{j}.linear.bias": (WIDTH,)}
        if own_heads:
            shapes[f"{i}.{blocks}.weight"] = (VOCAB, WIDTH)
    return weights(shapes)


def config(**more: Any) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "num_hidden_layers": 1,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 256,
        "vocab_size": VOCAB,
    } | more


def save(
    folder: Path,
    tensors: Mapping[str, torch.Tensor],
    settings: Mapping[str, Any] | None,
    file: str = "model.safetensors",
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    if file.endswith(".safetensors"):
        save_file(dict(tensors), folder / file)
    else:
        torch.save(dict(tensors), folder / file)
    if settings is not None:
        (folder / "config.json").write_text(json.dumps(dict(settings)))
    return folder
