"""Every family of causal language models that transformers registers, tiny and random, decoded by the product and
compared with the model's own greedy text. `python -m tests.families [FAMILY ...]` prints the table."""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from vocabtrim_core.decoding.engine import Cycle, GenerationSettings, generate
from vocabtrim_core.decoding.stopping import StopCondition
from vocabtrim_core.drafters.independent import IndependentModel
from vocabtrim_core.errors import ModelError
from vocabtrim_core.language_model import LanguageModel
from vocabtrim_core.models import load_model
from vocabtrim_core.quiet import quiet_transformers
from vocabtrim_core.trees import DraftShape

FAMILIES = tuple(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
VOCAB, CONTEXT, WINDOW = 64, 128, 8
NEW_TOKENS = 12
PROMPT_LENGTHS = (5, 9, 20)  # shorter than the windows, longer, and longer than a chunk of recurrent layers
# One for each prompt.
CHAINS = (6, 1, 3)
TREES = (DraftShape(2, 2, 5), DraftShape(3, 3, 8), DraftShape(4, 2, 12))
MOST_PARAMETERS = 8_000_000

# What families call their sizes.
SIZES: dict[str, Any] = {
    **dict.fromkeys(("vocab_size", "unpadded_vocab_size", "vocab_size_per_layer_input"), VOCAB),
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "embed_dim", "embedding_dim", "embedding_size"), 32),
    **dict.fromkeys(("word_embed_proj_dim", "attention_hidden_size", "out_hidden_size", "hidden_size_global"), 32),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "decoder_ffn_dim", "encoder_ffn_dim"), 48),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "shared_intermediate_size"), 16),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "encoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "swa_num_attention_heads"), 4),
    **dict.fromkeys(("decoder_attention_heads", "encoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "swa_num_key_value_heads"), 2),
    **dict.fromkeys(("head_dim", "swa_head_dim", "rotary_dim", "hidden_size_per_layer_input", "hc_lowrank"), 8),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len"), CONTEXT),
    **dict.fromkeys(("sliding_window", "sliding_window_size", "attention_window_size"), WINDOW),
    # Latent attention, and its indexer
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank", "qk_head_dim", "index_head_dim"), 16),
    **dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"), 8),
    "index_n_heads": 16,
    "index_topk": 6,
    # Mixtures of experts
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token"), 2),
    **dict.fromkeys(("n_group", "num_expert_group", "topk_group", "n_shared_experts", "num_shared_experts"), 1),
    "first_k_dense_replace": 1,
    "num_nextn_predict_layers": 0,
    # Recurrent layers
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "mamba_d_state": 8,
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_n_groups": 1,
    "mamba_dt_rank": 4,
    "mamba_chunk_size": 16,
    "chunk_size": 16,
    "state_size": 8,
    "time_step_rank": 4,
    # Pictures, sound and glyphs, which no test uses
    "depth": 1,
    "image_size": 16,
    "patch_size": 8,
    "num_position_embeddings": 16,
    **dict.fromkeys(("shape_vocab_size", "pronunciation_vocab_size", "shape_embed_dim", "pronunciation_embed_dim"), 16),
    # Wide enough that the text varies.
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "decoder_start_token_id": 1,
    "eos_token_id": None,
    "forced_eos_token_id": None,
    "pad_token_id": 0,
    "use_cache": True,
    "is_decoder": True,
}
_ROPE = {"rope_type": "default", "rope_theta": 10_000.0}
# What a family wants beyond its sizes, by the name of its config.
OVERRIDES: dict[str, dict[str, Any]] = {
    "bailing_hybrid": {"layer_group_size": 2},
    "bamba": {"attn_layer_indices": [1]},
    "blt": {"encoder_hash_byte_group_vocab": 64},
    "codegen": {"rotary_dim": 4},
    "cohere_compass_text": {
        "layer_types": ["full_attention", "sliding_attention"],
        "rope_parameters": {
            kind: _ROPE | {"mrope_section": [2, 1, 1]} for kind in ("full_attention", "sliding_attention")
        },
    },
    "dbrx": {
        "attn_config": {"kv_n_heads": 2},
        "ffn_config": {"ffn_hidden_size": 16, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 32},
    },
    "dory": {
        "num_hidden_layers": 8,
        "layer_types": ["full_attention", "mlp", "sliding_attention", "mlp"] * 2,
        "n_input_layers": 2,
        "n_recurrent_layers": 4,
        "n_output_layers": 2,
    },
    "dots3_note_text": {"per_layer_config": {}, "head_dim": 16, "mlp_layer_types": ["dense", "sparse"]},
    "ernie4_5_moe": {"moe_k": 2},
    "falcon_h1": {"mamba_expand": 2, "mamba_d_ssm": 64},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "gemma4_text": {"global_head_dim": 8},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": WINDOW},
    "gptj": {"rotary_dim": 4},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"num_dense_layers": 1, "layer_types": ["conv", "full_attention"]},
    "longcat_flash": {"ffn_hidden_size": 32, "expert_ffn_hidden_size": 16, "moe_topk": 2, "zero_expert_num": 2},
    "mamba2": {"num_heads": 8, "n_groups": 1},
    "phi3": {
        "original_max_position_embeddings": 26,
        "rope_parameters": {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [3.0] * 4},
    },
    "qwen4_exp_text": {
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 8,
        "indexer_budget": 8,
        "indexer_compress_ratio": 2,
    },
    "recurrent_gemma": {"num_hidden_layers": 3, "lru_width": 32},
    "reformer": {"axial_pos_embds_dim": [16, 16], "axial_pos_shape": [8, 16], "attn_layers": ["local", "local"]},
    "xlm": {"emb_dim": 32, "causal": True},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"num_hidden_layers": 6, "attn_layer_period": 2, "attn_layer_offset": 0},
    "zamba2": {"num_hidden_layers": 4, "layers_block_type": ["linear_attention", "hybrid"] * 2},
    "zaya": {"num_experts_per_tok": 1},
}


def tiny_config(family: str) -> PreTrainedConfig:
    """A small config: every size it has, each kind of its layers once, and its sub-configs likewise."""
    options = _options(family)
    return CONFIG_MAPPING[family](**{name: value for name, value in options.items() if name != "model_type"})


def _options(family: str) -> dict[str, Any]:
    default = CONFIG_MAPPING[family]().to_dict()
    options = {name: value for name, value in SIZES.items() if name in default}
    if "kv_lora_rank" in default and "num_key_value_heads" in default:
        options["num_key_value_heads"] = 4  # Latent attention has as many as heads.
    kinds = list(dict.fromkeys(default.get("layer_types") or ()))
    if kinds:
        options["layer_types"] = kinds if len(kinds) > 1 else kinds * 2
        options["num_hidden_layers"] = len(options["layer_types"])
    for name, value in default.items():
        if isinstance(value, dict) and value.get("model_type") in CONFIG_MAPPING:
            options[name] = _options(value["model_type"])
        elif isinstance(value, dict) and name.endswith("_config") and name != "per_layer_config":
            options[name] = value | {size: small for size, small in SIZES.items() if size in value}
    return options | OVERRIDES.get(family, {}) | {"model_type": family}


@dataclass(frozen=True)
class Verdict:
    """What came of each use: "right", "refused", "WRONG" or "CRASHED"; `words` are the refusals and what went wrong."""

    family: str
    vanilla: str
    chains: str
    trees: str
    words: str


class CannotBuildError(Exception):
    """No tiny model of the family can be made here; the message says why."""


def save_tiny(family: str, folder: Path) -> PreTrainedModel:
    """Write a random model to `folder`/target, and one much like it to `folder`/drafter."""
    try:
        config = tiny_config(family)
        with torch.device("meta"):
            size = sum(parameter.numel() for parameter in AutoModelForCausalLM.from_config(config).parameters())
        if size > MOST_PARAMETERS:
            raise ValueError(f"{size:,} parameters")
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)
    except Exception as error:
        raise CannotBuildError(f"{type(error).__name__}: {' '.join(str(error).split())[:100]}") from error
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            parameter.normal_()
    other = deepcopy(model)
    for parameter in other.parameters():
        if parameter.dim() > 1:
            parameter += 0.05 * parameter.std() * torch.randn(parameter.shape)
    model.save_pretrained(folder / "target")
    other.save_pretrained(folder / "drafter")
    return model


def own_text(model: PreTrainedModel, prompt: list[int]) -> list[int]:
    """What the model itself writes, greedily; by whole passes where its `generate` does not run."""
    ids = torch.tensor([prompt])
    try:
        limits = {"max_new_tokens": NEW_TOKENS, "eos_token_id": None, "pad_token_id": 0, "do_sample": False}
        written = model.generate(ids, attention_mask=torch.ones_like(ids), **limits)[0, len(prompt) :].tolist()
    # A family's own errors are of every kind.
    except Exception:
        written = []
    if len(written) == NEW_TOKENS:
        return written
    for _ in range(NEW_TOKENS):
        logits = model(input_ids=ids, use_cache=False).logits[:, -1]
        ids = torch.cat([ids, logits.argmax(-1, keepdim=True)], dim=-1)
    return ids[0, len(prompt) :].tolist()


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(3, VOCAB, (length,), generator=generator).tolist() for length in PROMPT_LENGTHS]


def verdict(family: str, folder: Path) -> Verdict:
    """Raises `CannotBuildError`."""
    with quiet_transformers(), torch.inference_mode():
        model = save_tiny(family, folder)
    try:
        target = load_model(folder / "target", "float32")
        drafter = IndependentModel(load_model(folder / "drafter", "float32"))
    except ModelError as error:
        return Verdict(family, "refused", "refused", "refused", str(error))
    except Exception as error:
        return Verdict(family, *["CRASHED"] * 3, f"{type(error).__name__}: {error}")
    with quiet_transformers(), torch.inference_mode():
        expected = [own_text(model, prompt) for prompt in prompts()]
    uses: dict[str, list[GenerationSettings]] = {
        "vanilla": [GenerationSettings(max_new_tokens=NEW_TOKENS)] * len(expected),
        "chains": [GenerationSettings(gamma, NEW_TOKENS) for gamma in CHAINS],
        "trees": [GenerationSettings(max_new_tokens=NEW_TOKENS, tree=shape) for shape in TREES],
    }
    results, words = [], []
    for use, every in uses.items():
        try:
            with torch.inference_mode():
                each = zip(prompts(), every, expected, strict=True)
                right = [_is_right(target, drafter, use, *one) for one in each]
            results.append("right" if all(right) else "WRONG")
            if not all(right):
                words.append(f"{use}: {right}")
        except ModelError as error:
            results.append("refused")
            words.append(str(error))
        except Exception as error:
            results.append("CRASHED")
            words.append(f"{type(error).__name__}: {error}")
    return Verdict(family, *results, " | ".join(dict.fromkeys(words)))


def _is_right(
    target: LanguageModel,
    drafter: IndependentModel,
    use: str,
    prompt: list[int],
    settings: GenerationSettings,
    expected: list[int],
) -> bool:
    """Whether the text is the model's own, and each drafted chain the drafter's."""
    drafts = None if use == "vanilla" else drafter.new_drafter()
    cycles = list(generate(target, drafts, prompt, settings, StopCondition(frozenset())))
    text = [token for cycle in cycles for token in cycle.emitted_ids]
    return text == expected and (use != "chains" or _drafted_greedily(drafter, prompt, cycles))


def _drafted_greedily(drafter: IndependentModel, prompt: list[int], cycles: list[Cycle]) -> bool:
    """Whether each drafted chain is what the drafter's body, asked afresh, says after the text so far."""
    text = list(prompt)
    for cycle in cycles:
        ids = torch.tensor([*text, *cycle.drafted_ids])
        hidden = drafter.model.body(input_ids=ids[None], use_cache=False).last_hidden_state[0]
        greedy = drafter.head.logits(hidden).argmax(-1)[len(text) - 1 :]
        if greedy.tolist()[: len(cycle.drafted_ids)] != list(cycle.drafted_ids):
            return False
        text += cycle.emitted_ids
    return True


def verdicts(families: tuple[str, ...] = FAMILIES) -> Iterator[Verdict]:
    for family in families:
        with tempfile.TemporaryDirectory() as folder:
            try:
                yield verdict(family, Path(folder))
            except CannotBuildError as error:
                yield Verdict(family, *["not built"] * 3, str(error))


def main(families: tuple[str, ...]) -> None:
    warnings.filterwarnings("ignore")
    print(f"{'family':26}{'vanilla':11}{'chains':11}{'trees':11}")
    for one in verdicts(families or FAMILIES):
        print(f"{one.family:26}{one.vanilla:11}{one.chains:11}{one.trees:11}{one.words}", flush=True)


if __name__ == "__main__":
    main(tuple(sys.argv[1:]))
