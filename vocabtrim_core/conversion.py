"""A GGUF file made an ordinary model folder, by `transformers`."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM

from vocabtrim_core.progress import Progress
from vocabtrim_core.quiet import quiet_transformers


def convert(gguf: Path, folder: Path, name: str, report: Progress) -> None:
    """De-quantise a Llama GGUF file into a bf16 folder. `name` is the model's in what is reported."""
    report(0.05, f"Converting {name} to bf16")
    with quiet_transformers():
        read = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16)
    # What was read remembers its quantisation and refuses to be saved, so a plain model takes its place.
    config = read.config.to_dict()
    for fact in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        config.pop(fact, None)
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig.from_dict(config))
    model.load_state_dict(read.state_dict(), assign=True)
    model.tie_weights()
    model.generation_config = GenerationConfig(
        bos_token_id=model.config.bos_token_id,
        eos_token_id=model.config.eos_token_id,
        pad_token_id=model.config.pad_token_id,
    )
    report(0.65, f"Saving {name}")
    with quiet_transformers():
        model.save_pretrained(folder)
    report(0.8, f"Converting the tokenizer of {name}")
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)
