"""Small random models on disk, as a hub would serve them."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedConfig, PreTrainedModel

# Wide enough that probabilities are far from flat and each part of a head (bias, scale, cap) moves the logits.
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def save_random(config: PreTrainedConfig, folder: Path, seed: int = 0) -> PreTrainedModel:
    """Write a model with random weights (biases too) to `folder`; always the same for the same seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config)
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                torch.nn.init.normal_(parameter)
    model.eval().save_pretrained(folder)
    return model


def save_tiny_llama(folder: Path, vocab_size: int, seed: int = 0) -> PreTrainedModel:
    """A two-layer Llama whose last layer says little, so that the first alone drafts right about half of the time."""
    model = save_random(LlamaConfig(**SIZES, vocab_size=vocab_size), folder, seed)
    last = model.model.layers[-1]
    with torch.no_grad():
        last.self_attn.o_proj.weight.mul_(0.4)
        last.mlp.down_proj.weight.mul_(0.4)
    model.save_pretrained(folder)
    return model


def save_first_layer(model: PreTrainedModel, folder: Path, vocab_size: int) -> PreTrainedModel:
    """Write a Llama drafter that is the first layer of `model`, its vocabulary padded or cut to `vocab_size`."""
    config = LlamaConfig(**{**model.config.to_dict(), "num_hidden_layers": 1})
    drafter = LlamaForCausalLM(config)
    drafter.load_state_dict(model.state_dict(), strict=False)
    drafter.resize_token_embeddings(vocab_size, mean_resizing=False)
    drafter.save_pretrained(folder)
    return drafter
