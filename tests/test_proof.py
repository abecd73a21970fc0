"""What a body may be used for is what it does right, and every refusal says what still works."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from transformers import (
    BertConfig,
    BloomConfig,
    GPTNeoConfig,
    LlamaModel,
    MixtralConfig,
    MptConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen3NextConfig,
)

from tests.test_backbones import BASE, CONFIGS, LINEAR, TREELESS, VOCAB
from tests.toys import causal_lm
from vocabtrim_core.backbones import RereadingBackbone, TransformersBackbone
from vocabtrim_core.errors import ModelError
from vocabtrim_core.proof import Proof

NEO = {"vocab_size": VOCAB, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "max_position_embeddings": 256}


def body(config: PreTrainedConfig, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    return causal_lm(0, config, dtype).base_model


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_families_that_heed_position_and_mask_take_trees(config: PreTrainedConfig) -> None:
    """Bug: a right family is refused."""
    Proof("tiny", body(config)).check(trees=True)


@pytest.mark.parametrize("config", TREELESS.values(), ids=TREELESS)
def test_layers_that_read_tokens_in_a_row_refuse_trees_and_take_chains(config: PreTrainedConfig) -> None:
    """Bug: a convolution or a recurrence mixes siblings of a draft tree; or such a model is refused for chains too."""
    proof = Proof("tiny", body(config))
    proof.check(trees=False)
    with pytest.raises(ModelError, match=r"^tiny \(\w+\) cannot read a draft tree: .*\. Draft chains with it\.$"):
        proof.check(trees=True)


@pytest.mark.parametrize(
    "config",
    [
        # The window is longer than any text of the proof.
        GPTNeoConfig(**NEO, attention_types=[[["global", "local"], 1]], window_size=128, initializer_range=0.2),
        BloomConfig(vocab_size=VOCAB, hidden_size=32, n_layer=2, n_head=4, initializer_range=0.2),
        MptConfig(vocab_size=VOCAB, d_model=32, n_layers=2, n_heads=4, max_seq_len=128),
    ],
    ids=["gpt-neo, a window by places", "bloom, biases by places", "mpt, biases by places"],
)
def test_families_that_go_by_a_tokens_place_refuse_trees(config: PreTrainedConfig) -> None:
    """Bug: right in most trees, since a node's place and its position differ by little, and wrong in others."""
    proof = Proof("tiny", body(config))
    proof.check(trees=False)
    with pytest.raises(ModelError, match="Draft chains with it"):
        proof.check(trees=True)


def test_a_body_that_does_not_heed_positions_refuses_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: siblings of a tree are read as one after the other."""
    forward = LlamaModel.forward
    monkeypatch.setattr(LlamaModel, "forward", lambda self, position_ids=None, **kw: forward(self, **kw))
    proof = Proof("tiny", causal_lm(0).base_model)
    proof.check(trees=False)
    with pytest.raises(ModelError, match="heeds the place of a token"):
        proof.check(trees=True)


def test_another_attention_is_refused_for_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: an attention that takes no mask reads a tree as if it were a chain."""
    llama = causal_lm(0).base_model
    proof = Proof("tiny", llama)
    monkeypatch.setattr(llama.config, "_attn_implementation_internal", "flash_attention_2")
    proof.check(trees=False)
    with pytest.raises(ModelError, match="flash_attention_2"):
        proof.check(trees=True)


def test_a_body_that_reads_ahead_cannot_be_decoded() -> None:
    """Bug: an encoder is decoded as if it were a language model."""
    with pytest.raises(ModelError, match=r"tiny \(BertModel\) cannot be decoded .* reads those after it"):
        Proof("tiny", body(BertConfig(**{**BASE, "num_key_value_heads": 4}, is_decoder=False)))


def test_a_trace_of_rejected_tokens_leaves_vanilla_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: a cache that forgets too little goes on from rejected tokens; or the model is not even decoded alone."""
    monkeypatch.setattr(TransformersBackbone, "rewind", lambda self, n: None)
    proof = Proof("tiny", body(CONFIGS["gpt2, learned positions"]))
    for trees in (False, True):
        with pytest.raises(ModelError, match=r"rejected leave a trace\. Decode with it alone, without a drafter\.$"):
            proof.check(trees)
    assert proof.new_backbone().run(torch.arange(5)).shape == (5, 32)


@pytest.mark.parametrize("error", [RuntimeError("shapes\nof tensors"), KeyError("layer"), NotImplementedError()])
def test_whatever_a_body_raises_is_one_line(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: a family that cannot be run ends in a traceback."""

    def broken(self: LlamaModel, **arguments: object) -> None:
        raise error

    llama = causal_lm(0).base_model
    monkeypatch.setattr(LlamaModel, "forward", broken)
    with pytest.raises(ModelError, match=r"^tiny \(LlamaModel\) cannot be decoded[^\n]*\.$"):
        Proof("tiny", llama)


def test_without_a_cache_the_text_is_read_again() -> None:
    """Bug: a family that keeps its state elsewhere is decoded as if every token were the first."""
    proof = Proof("tiny", body(TREELESS["rwkv, read again and again"]))
    assert isinstance(proof.new_backbone(), RereadingBackbone) and "reads the whole text again" in proof.note


HALVES = {
    **{name: CONFIGS[name] for name in CONFIGS if not name.startswith("llama")},
    **{name: TREELESS[name] for name in TREELESS if not name.startswith("jamba")},
    "mixtral, experts": MixtralConfig(**BASE, num_local_experts=8),
    "qwen3-next, more experts": Qwen3NextConfig(**BASE, **LINEAR, num_experts=16, num_experts_per_tok=4, head_dim=8),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("config", HALVES.values(), ids=HALVES)
def test_rounding_is_not_taken_for_a_fault(config: PreTrainedConfig, dtype: torch.dtype) -> None:
    """Bug: in half precision a family is refused, or read token by token, for what is only rounding."""
    exact, proof = Proof("tiny", body(config)), Proof("tiny", body(config, dtype))
    assert proof.note == exact.note
    proof.check(trees=False)


def faults(monkeypatch: pytest.MonkeyPatch, rows: tuple[int, int, int]) -> object:
    """What a script comes to whose texts are wrong at these rows."""
    proof = Proof("tiny", causal_lm(0).base_model)
    wrong = iter(rows)

    def script(ids: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        states = torch.ones(6, 4)
        states[next(wrong)] = 3.0
        yield states, torch.ones(6, 4)

    return proof._fault(script)


def test_only_what_is_wrong_in_every_text_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: an expert chosen otherwise at a near tie refuses the model; a fault passes for one."""
    assert faults(monkeypatch, (2, 4, 5)) is None
    assert faults(monkeypatch, (3, 3, 3)) == (3, None)


def test_padding_is_only_used_where_it_changes_nothing() -> None:
    """Bug: the padding of shorter prompts runs through a recurrence, or counts as positions."""
    assert Proof("tiny", body(CONFIGS["gemma2, every other layer with a window"])).pads
    assert not Proof("tiny", body(TREELESS["rwkv, read again and again"])).pads
