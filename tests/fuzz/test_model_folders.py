"""Model folders in which something is not as it should be."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import torch
from fuzz import hostile
from fuzz.harness import Pantry, Run
from safetensors.torch import load_file, save_file

FIELDS = (
    "num_hidden_layers",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "eos_token_id",
    "bos_token_id",
    "pad_token_id",
    "rms_norm_eps",
    "rope_theta",
    "rope_parameters",
    "rope_scaling",
    "hidden_act",
    "tie_word_embeddings",
    "architectures",
    "model_type",
    "dtype",
    "quantization_config",
    "auto_map",
    "logit_scale",
    "attention_bias",
    "layer_types",
    "sliding_window",
)


class Code:
    """Pickled, it is a command."""

    def __reduce__(self) -> tuple:
        return os.system, ("touch hacked",)


def change_json(path: Path, chance: random.Random, fields: tuple[str, ...]) -> None:
    content = json.loads(path.read_text())
    for _ in range(chance.choice((1, 1, 2))):
        content[chance.choice(fields)] = chance.choice(hostile.VALUES)
    path.write_text(json.dumps(content))


def change_tokenizer(folder: Path, chance: random.Random) -> None:
    path = folder / "tokenizer.json"
    content: dict[str, Any] = json.loads(path.read_text())
    match chance.randrange(5):
        case 0:
            content["model"]["vocab"]["zzz"] = chance.choice((10**6, 4 * 10**9, -1, 5))
        case 1:
            content["added_tokens"][0]["id"] = chance.choice((1, 7, 10**6, 4 * 10**9))
        case 2:
            content[chance.choice(list(content))] = chance.choice(hostile.VALUES)
        case 3:
            part = content["model"]
            part[chance.choice(list(part))] = chance.choice(hostile.VALUES)
        case 4:
            path.write_bytes(hostile.damaged(path.read_bytes(), chance))
            return
    path.write_text(json.dumps(content))


def change_weights(folder: Path, chance: random.Random) -> None:
    path = folder / "model.safetensors"
    weights = load_file(path)
    name = chance.choice(sorted(weights))
    match chance.randrange(8):
        case 0:
            weights[name] = torch.full_like(weights[name], chance.choice((float("nan"), float("inf"), 1e38, 0.0)))
        case 1:
            del weights[name]
        case 2:
            weights[name] = weights[name][:3].clone()
        case 3:
            weights["another.weight"] = torch.zeros(3)
        case 4:
            weights[name] = weights[name].to(
                chance.choice((torch.int8, torch.float64, torch.bool, torch.float8_e4m3fn))
            )
        case 5:
            path.write_bytes(hostile.damaged(path.read_bytes(), chance))
            return
        case 6:
            path.unlink()
            held = chance.choice(
                ({"a": Code()}, [1], {name: weights[name].to_sparse()}, {name: torch.zeros(1).expand(10**10)}, {})
            )
            torch.save(held, folder / chance.choice(("pytorch_model.bin", "medusa_lm_head.pt")))
            return
        case 7:
            weights = {"medusa_head.0.0.linear.weight": torch.full((32, 32), float("nan"))}
            weights["medusa_head.0.0.linear.bias"] = torch.zeros(chance.choice((32, 7)))
    save_file(weights, path, metadata={"format": "pt"})


def test_a_folder(chance: random.Random, pantry: Pantry, run: Run) -> None:
    """Bug: a folder with something wrong in it is loaded into a traceback, or endless work; or code in it is run."""
    shutil.copytree(pantry.target, "target")
    shutil.copytree(pantry.drafter, "drafter")
    folder = Path(chance.choice(("target", "target", "drafter")))
    match chance.randrange(5):
        case 0 | 1:
            change_json(folder / "config.json", chance, FIELDS)
        case 2:
            change_weights(folder, chance)
        case 3:
            change_tokenizer(folder, chance)
        case 4:
            path = folder / chance.choice(("tokenizer_config.json", "generation_config.json"))
            content = json.loads(path.read_text()) | {"chat_template": chance.choice(hostile.TEMPLATES)}
            content |= {chance.choice(("eos_token", "eos_token_id", "bos_token")): chance.choice(hostile.VALUES)}
            path.write_text(json.dumps(content))
    pair = ["--target", "target", "--drafter", "drafter", "--counts", str(pantry.counts)]
    sampling = ["--temperature", chance.choice(("0", "1"))]
    run("generate", "--prompt", "The dog", "--k", "100", "--max-new-tokens", "3", *pair, *sampling)
    assert not Path("hacked").exists()
