"""Model bodies behind the adapter: blocks, single tokens and rewinds give the states of one pass over the text."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Gemma2Config, GPT2Config, Lfm2Config, MambaConfig, MistralConfig, PreTrainedConfig

from tests.toys import causal_lm, llama_config
from vocabtrim_core.backbones import TransformersBackbone
from vocabtrim_core.errors import ModelError
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
TREELESS = "lfm2, short convolutions"
CONFIGS: dict[str, PreTrainedConfig] = {
    "llama": llama_config(VOCAB),
    "mistral, every layer with a window": MistralConfig(**BASE, head_dim=8, sliding_window=WINDOW),
    "gemma2, every other layer with a window": Gemma2Config(**BASE, head_dim=8, sliding_window=WINDOW),
    "gpt2, learned positions": GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=128),
    TREELESS: Lfm2Config(**BASE, layer_types=["conv", "full_attention"]),
}


@pytest.fixture(scope="module", params=list(CONFIGS))
def body(request: pytest.FixtureRequest) -> torch.nn.Module:
    return causal_lm(0, CONFIGS[request.param], torch.float64).base_model


@pytest.fixture(scope="module", params=[name for name in CONFIGS if name != TREELESS])
def tree_body(request: pytest.FixtureRequest) -> torch.nn.Module:
    return causal_lm(0, CONFIGS[request.param], torch.float64).base_model


def text(seed: int = 0) -> torch.Tensor:
    return torch.randint(1, VOCAB, (LENGTH,), generator=torch.Generator().manual_seed(seed))


def whole(body: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return body(input_ids=ids[None], use_cache=False).last_hidden_state[0]


@settings(max_examples=15)
@given(steps=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 8), st.booleans()), min_size=8, max_size=16))
def test_blocks_and_rewinds_leave_no_trace(body: torch.nn.Module, steps: list[tuple[int, int, bool]]) -> None:
    """Bug: a rewind one token off; sliding-window layers that have dropped what a rewind needs; positions that go on
    from before the rewind. Blocks of right tokens are followed by wrong ones, which are taken back."""
    ids = text()
    expected = whole(body, ids)
    backbone = TransformersBackbone(body)
    done = 0
    for right, wrong, singly in steps:
        right = min(right, LENGTH - done)
        if not right:
            break
        block = torch.cat([ids[done : done + right], text(seed=1)[:wrong]])
        # A target runs a block at once, a drafter token by token.
        hidden = torch.cat([backbone.run(token[None]) for token in block]) if singly else backbone.run(block)
        # Gemma computes some of it in float32, whatever the dtype.
        torch.testing.assert_close(hidden[:right], expected[done : done + right], atol=1e-5, rtol=1e-5)
        backbone.rewind(wrong)
        done += right
        assert backbone.length == done


def test_reset_forgets_the_text_before(body: torch.nn.Module) -> None:
    """Bug: a second prompt is read after the first one."""
    backbone = TransformersBackbone(body)
    backbone.run(text(seed=1))
    backbone.reset()
    assert backbone.length == 0
    torch.testing.assert_close(backbone.run(text()), whole(body, text()), atol=1e-5, rtol=1e-5)


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


def test_a_recurrent_state_that_cannot_be_rewound_is_refused() -> None:
    """Bug: a state-space model goes on from a state that has read rejected tokens, and its text changes silently."""
    body = causal_lm(0, MambaConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2)).base_model
    for trees in (False, True):
        with pytest.raises(ModelError, match="cannot be rewound"):
            TransformersBackbone(body).check(trees)


def test_a_layer_that_reads_tokens_in_a_row_refuses_trees_only() -> None:
    """Bug: a convolution mixes siblings of a draft tree; or such a model is refused for chains too, before it has run
    anything."""
    backbone = TransformersBackbone(causal_lm(0, CONFIGS[TREELESS]).base_model)
    backbone.check(trees=False)
    with pytest.raises(ModelError, match="Draft chains"):
        backbone.check(trees=True)
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
    backbone.check(trees=True)
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


def test_another_attention_is_refused_for_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: an attention that takes no mask reads a tree as if it were a chain."""
    body = causal_lm(0).base_model
    monkeypatch.setattr(body.config, "_attn_implementation_internal", "flash_attention_2")
    TransformersBackbone(body).check(trees=False)
    with pytest.raises(ModelError, match="flash_attention_2"):
        TransformersBackbone(body).check(trees=True)


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
