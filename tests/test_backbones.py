"""Model bodies behind the adapter: blocks, single tokens and rewinds give the states of one pass over the text."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    FalconH1Config,
    Gemma2Config,
    GPT2Config,
    JambaConfig,
    Lfm2Config,
    Mamba2Config,
    MistralConfig,
    Phi3Config,
    PreTrainedConfig,
    Qwen3NextConfig,
    RwkvConfig,
)

from tests.toys import causal_lm, llama_config
from vocabtrim_core import backbones
from vocabtrim_core.backbones import RereadingBackbone, TransformersBackbone, body_states, rotation_switch
from vocabtrim_core.proof import Proof
from vocabtrim_core.trees import TokenTree

VOCAB, WINDOW, LENGTH = 32, 8, 40
BASE = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
    "pad_token_id": 0,
}
LINEAR = {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
MAMBA = {"mamba_d_state": 8, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_chunk_size": 8}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2}
# No trees: layers that read tokens in a row, positions that change with the text's length, no cache.
TREELESS: dict[str, PreTrainedConfig] = {
    "lfm2, short convolutions": Lfm2Config(**BASE, layer_types=["conv", "full_attention"]),
    "qwen3-next, every other layer recurrent": Qwen3NextConfig(
        **BASE, **LINEAR, **EXPERTS, head_dim=8, layer_types=["linear_attention", "full_attention"]
    ),
    "falcon-h1, attention and recurrence in a layer": FalconH1Config(**BASE, **MAMBA, mamba_d_ssm=64),
    "mamba2, recurrent only": Mamba2Config(
        vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_heads=8, head_dim=8, state_size=8, n_groups=1
    ),
    "jamba, whose recurrence reads one token at a time": JambaConfig(
        **BASE, **EXPERTS, attn_layer_period=2, attn_layer_offset=1, mamba_d_state=8, mamba_dt_rank=4
    ),
    "phi3, other positions beyond a length": Phi3Config(
        **BASE,
        original_max_position_embeddings=26,
        rope_parameters={"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [3.0] * 4},
    ),
    "rwkv, read again and again": RwkvConfig(
        vocab_size=VOCAB, hidden_size=32, attention_hidden_size=32, intermediate_size=48, num_hidden_layers=2
    ),
}
CONFIGS: dict[str, PreTrainedConfig] = {
    "llama": llama_config(VOCAB),
    "mistral, every layer with a window": MistralConfig(**BASE, head_dim=8, sliding_window=WINDOW),
    "gemma2, every other layer with a window": Gemma2Config(**BASE, head_dim=8, sliding_window=WINDOW),
    "gpt2, learned positions": GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=128),
}


@pytest.fixture(scope="module", params=[*CONFIGS, *TREELESS])
def proof(request: pytest.FixtureRequest) -> Proof:
    config = CONFIGS.get(request.param) or TREELESS[request.param]
    # Some of these compute part of it in float32, whatever the dtype, and Jamba knows no other.
    dtype = torch.float64 if request.param in CONFIGS else torch.float32
    return Proof("tiny", causal_lm(0, config, dtype).base_model)


@pytest.fixture(scope="module", params=list(CONFIGS))
def tree_body(request: pytest.FixtureRequest) -> torch.nn.Module:
    return causal_lm(0, CONFIGS[request.param], torch.float64).base_model


def text(seed: int = 0) -> torch.Tensor:
    return torch.randint(1, VOCAB, (LENGTH,), generator=torch.Generator().manual_seed(seed))


def whole(body: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return body(input_ids=ids[None], use_cache=False).last_hidden_state[0]


@settings(max_examples=10)
@given(
    steps=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 8), st.booleans()), min_size=8, max_size=16),
    checked=st.booleans(),
)
def test_blocks_and_rewinds_leave_no_trace(proof: Proof, steps: list[tuple[int, int, bool]], checked: bool) -> None:
    """Bug: a rewind one token off; sliding-window layers that have dropped what a rewind needs; positions that go on
    from before the rewind; a recurrent state that has read rejected tokens, or lost accepted ones. Blocks of right
    tokens are followed by wrong ones, which are taken back."""
    ids = text()
    backbone = proof.new_backbone()
    expected = expected_states(proof, ids)
    if checked:
        backbone.check(trees=False)
    done = 0
    for right, wrong, singly in steps:
        right = min(right, LENGTH - done)
        if not right:
            break
        block = torch.cat([ids[done : done + right], text(seed=1)[:wrong]])
        # A target runs a block at once, a drafter token by token.
        hidden = torch.cat([backbone.run(token[None]) for token in block]) if singly else backbone.run(block)
        torch.testing.assert_close(hidden[:right], expected[done : done + right], atol=1e-4, rtol=1e-4)
        if singly:
            backbone.rewind(wrong)
        else:
            backbone.keep(len(block), torch.arange(right))
        done += right
        assert backbone.length == done


def expected_states(proof: Proof, ids: torch.Tensor) -> torch.Tensor:
    """Of one pass; where positions change with the text's length, as they were when each token came."""
    body = proof.body
    switch = rotation_switch(body)
    return torch.cat([whole(body, ids[:switch]), whole(body, ids)[switch:]])


def test_a_rewind_to_the_prompt_reads_no_token_again(proof: Proof, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: timing after a prompt times the reading of it, since a long answer has pushed out the prompt's state."""
    backbone = proof.new_backbone()
    if isinstance(backbone, RereadingBackbone):
        pytest.skip("reads everything again, always")
    backbone.run(text()[:12])
    backbone.run(text()[12:13])
    for token in text()[13:19]:
        backbone.run(token[None])
        backbone.keep(1, torch.arange(1))
    backbone.rewind(backbone.length - 12)
    asked = []
    monkeypatch.setattr(backbones, "body_states", lambda *args, **kw: asked.append(args[1]) or body_states(*args, **kw))
    torch.testing.assert_close(backbone.run(text()[12:13]), expected_states(proof, text())[12:13], atol=1e-4, rtol=1e-4)
    assert [len(ids) for ids in asked] == [1]


def test_tokens_that_fell_behind_are_read_on_their_own_when_they_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: without a copy of the state in between, every rejection makes the next pass longer, without an end."""
    backbone = Proof("tiny", causal_lm(0, TREELESS["mamba2, recurrent only"]).base_model).new_backbone()
    backbone.check(trees=False)
    backbone.run(text()[:5])
    rows = []
    monkeypatch.setattr(
        backbones, "body_states", lambda *args, **kw: rows.append(len(args[1])) or body_states(*args, **kw)
    )
    for start in range(5, 35, 3):
        backbone.run(torch.cat([text()[start : start + 3], text(seed=1)[:2]]))
        backbone.keep(5, torch.arange(3))
    assert rows == [5, 8, 11, 9, 5, 8, 11, 9, 5, 8, 11, 9, 5]


def test_reset_forgets_the_text_before(proof: Proof) -> None:
    """Bug: a second prompt is read after the first one."""
    backbone = proof.new_backbone()
    backbone.run(text(seed=1))
    backbone.reset()
    assert backbone.length == 0
    torch.testing.assert_close(backbone.run(text()), whole(proof.body, text()), atol=1e-4, rtol=1e-4)


def test_two_backbones_of_one_body_do_not_meet() -> None:
    """Bug: the cache belongs to the model, so that target and drafter of one model mix their texts."""
    body = causal_lm(0).base_model
    first, second = TransformersBackbone(body), TransformersBackbone(body)
    first.run(text()[:5])
    assert second.length == 0
    torch.testing.assert_close(second.run(text()[:3]), whole(body, text()[:3]))


def test_rewinding_nothing_keeps_everything_and_too_much_is_a_bug() -> None:
    """Bug: rewind(0) drops the whole cache (`cache.crop(0)`); a rewind beyond the start passes unnoticed."""
    backbone = TransformersBackbone(causal_lm(0).base_model)
    backbone.run(text()[:5])
    backbone.rewind(0)
    assert backbone.length == 5
    torch.testing.assert_close(backbone.run(text()[5:6])[0], whole(causal_lm(0).base_model, text()[:6])[5])
    with pytest.raises(ValueError, match="cannot rewind 7 of 6"):
        backbone.rewind(7)
    with pytest.raises(ValueError, match="cannot rewind"):
        backbone.rewind(-1)
    backbone.rewind(6)
    assert backbone.length == 0


# Trees


@st.composite
def cycles(draw: st.DrawFn) -> list[tuple[int, list[int], int]]:
    """Text run as a chain, then the parents of a tree, then the node whose path is kept (-1 for none)."""
    found = []
    for _ in range(draw(st.integers(1, 5))):
        parents = [draw(st.integers(-1, node - 1)) for node in range(draw(st.integers(1, 8)))]
        found.append((draw(st.integers(1, 5)), parents, draw(st.integers(-1, len(parents) - 1))))
    return found


@settings(max_examples=15)
@given(cycles=cycles(), levels=st.booleans())
def test_trees_give_the_states_of_each_path_and_leave_the_kept_one(
    tree_body: torch.nn.Module, cycles: list[tuple[int, list[int], int]], levels: bool
) -> None:
    """Bug: a token sees its siblings, or not all of its path; a position counted by place instead of depth; a window
    that the tree's other branches shorten; a path gathered wrongly, so that the next pass differs from a fresh one."""
    backbone = TransformersBackbone(tree_body)
    done = torch.empty(0, dtype=torch.int64)
    source = iter(text(seed=2).repeat(4))
    for right, parents, last in cycles:
        block = torch.stack([next(source) for _ in range(right)])
        hidden = backbone.run(block)
        done = torch.cat([done, block])
        torch.testing.assert_close(hidden, whole(tree_body, done)[-right:], atol=1e-5, rtol=1e-5)

        ids, tree = torch.stack([next(source) for _ in parents]), TokenTree(torch.tensor(parents))
        if levels:
            # As a drafter grows it: a few nodes at a time, whose parents are in the cache.
            cuts = sorted({0, len(ids) // 3, len(ids) // 2, len(ids)})
            pairs = itertools.pairwise(cuts)
            hidden = torch.cat([backbone.run(ids[a:b], TokenTree(tree.parents[:b])) for a, b in pairs])
        else:
            hidden = backbone.run(ids, tree)
        for node in range(len(ids)):
            expected = whole(tree_body, torch.cat([done, ids[tree.path_to(node)]]))[-1]
            torch.testing.assert_close(hidden[node], expected, atol=1e-5, rtol=1e-5)

        path = tree.path_to(last) if last >= 0 else torch.empty(0, dtype=torch.int64)
        backbone.keep(len(ids), path)
        done = torch.cat([done, ids[path]])
        assert backbone.length == len(done)
    after = backbone.run(text()[:2])
    torch.testing.assert_close(after, whole(tree_body, torch.cat([done, text()[:2]]))[-2:], atol=1e-5, rtol=1e-5)


def test_a_tree_in_half_precision_masks_as_much() -> None:
    """Bug: a mask of another dtype than the body's is refused, or its hidden entries overflow to NaN."""
    body = causal_lm(0, dtype=torch.bfloat16).base_model
    backbone = TransformersBackbone(body)
    backbone.run(text()[:6])
    hidden = backbone.run(text()[6:9], TokenTree(torch.tensor([-1, -1, 1])))
    expected = whole(body, torch.cat([text()[:6], text()[7:9]]))[-1]
    torch.testing.assert_close(hidden[2], expected, atol=0.1, rtol=0.05)


# Taps


def test_taps_are_the_inputs_of_layers_behind_the_final_state(tree_body: torch.nn.Module) -> None:
    """Bug: a tap one layer off, in another order, or taken before a tree's mask is applied."""
    taps = (1, 0)
    backbone = TransformersBackbone(tree_body, taps)
    done = text()[:6]

    def expected(ids: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            output = tree_body(input_ids=ids[None], use_cache=False, output_hidden_states=True)
        return torch.cat([output.last_hidden_state, *(output.hidden_states[tap] for tap in taps)], dim=-1)[0]

    torch.testing.assert_close(backbone.run(done), expected(done), atol=1e-5, rtol=1e-5)
    states = backbone.run(text()[6:9], TokenTree(torch.tensor([-1, -1, 1])))
    last = expected(torch.cat([done, text()[7:9]]))[-1]
    torch.testing.assert_close(states[2], last, atol=1e-5, rtol=1e-5)
    assert states.shape == (3, 3 * 32)
