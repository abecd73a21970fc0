"""Heads that copy from the start, and a layer that is otherwise what it was."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig

from vocabtrim_core.drafters.eagle_network import EagleNetwork

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "data" / "drafters"))

import copy_heads
from copy_heads import canonical, regression, with_copy_heads
from train_eagle import widened

WIDTH, HEADS, KV_HEADS, VOCAB, TAPS = 144, 9, 3, 50, 3
HEAD_DIM = WIDTH // HEADS


def target_config() -> LlamaConfig:
    return LlamaConfig(
        hidden_size=WIDTH,
        intermediate_size=96,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        vocab_size=VOCAB,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
    )


def network(config: LlamaConfig) -> EagleNetwork:
    torch.manual_seed(0)
    return EagleNetwork(config, fused=TAPS * WIDTH).eval()


def text(length: int, embeddings: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Random tokens int64[n], and states [n, TAPS * H] that tell each and the one before it, and other things."""
    generator = torch.Generator().manual_seed(length)
    ids = torch.randint(0, VOCAB, (length,), generator=generator)
    other = torch.randn(length, WIDTH, generator=generator)
    mixing = torch.linalg.qr(torch.randn(TAPS * WIDTH, TAPS * WIDTH, generator=torch.Generator().manual_seed(1))).Q
    return ids, torch.cat([embeddings[ids], embeddings[ids.roll(1)], other], dim=1) @ mixing


def outputs(config: LlamaConfig, weights: dict[str, torch.Tensor], *slots: torch.Tensor) -> torch.Tensor:
    ids, states, embeddings = slots
    drafter = network(config)
    drafter.load_state_dict(weights)
    with torch.no_grad():
        return drafter(embeddings[ids[1:]][None], drafter.fuse(states[None, :-1]), torch.arange(len(ids) - 1))[0]


@pytest.fixture
def embeddings() -> torch.Tensor:
    return torch.randn(VOCAB, WIDTH, generator=torch.Generator().manual_seed(2))


def test_the_wider_heads_give_what_the_narrow_ones_gave(embeddings: torch.Tensor) -> None:
    """Bug: a rotary pair, a scale or a group of heads is in another place, so that what was learnt is lost."""
    config = target_config()
    weights = {name: part.clone() for name, part in network(config).state_dict().items()}
    # As of a trained drafter, whose feature leaves some directions nearly unused.
    directions = torch.linalg.qr(torch.randn(WIDTH, WIDTH)).Q
    loud = torch.cat([torch.ones(WIDTH - 40), torch.full((40,), 0.01)])
    weights["fc.weight"] = directions @ (loud[:, None] * directions.T) @ weights["fc.weight"]
    ids, states = text(4000, embeddings)
    grown = with_copy_heads(weights, states, embeddings, ids, HEAD_DIM)
    # Without what the new group adds.
    output = "midlayer.self_attn.o_proj.weight"
    grown[output] = grown[output].clone()
    grown[output][:, HEADS * 2 * HEAD_DIM :] = 0
    slots = (*text(300, embeddings), embeddings)
    before, after = outputs(config, weights, *slots), outputs(widened(config), grown, *slots)
    assert torch.cosine_similarity(before, after, dim=-1).min() > 0.9
    # And without the feature's code.
    exact = outputs(widened(config), grown | {"fc.weight": weights["fc.weight"]}, *slots)
    torch.testing.assert_close(exact, before, atol=1e-4, rtol=1e-3)


def test_heads_of_the_new_group_can_learn_to_differ(embeddings: torch.Tensor) -> None:
    """Bug: heads that are the same get the same gradients, and stay the same for ever."""
    ids, states = text(4000, embeddings)
    grown = with_copy_heads(network(target_config()).state_dict(), states, embeddings, ids, HEAD_DIM)
    queries = grown["midlayer.self_attn.q_proj.weight"].unflatten(0, (-1, 2 * HEAD_DIM))[HEADS:]
    assert len(queries) == HEADS // KV_HEADS
    assert not torch.equal(queries[0], queries[1])
    assert not torch.equal(queries[1], queries[2])


def test_it_copies_what_followed_the_last_two_tokens(embeddings: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: the heads look at the wrong slot, or for one token only, or copy the token that they looked for."""
    config = target_config()
    weights = network(config).state_dict()
    sample = text(4000, embeddings)
    results = []
    for strength in (0.1, 0.0):
        monkeypatch.setattr(copy_heads, "STRENGTH", strength)
        grown = with_copy_heads(weights, sample[1], embeddings, sample[0], HEAD_DIM)
        ids, states = text(600, embeddings)
        results.append(outputs(widened(config), grown, ids, states, embeddings))
    added = results[0] - results[1]  # [n - 1, H]
    guesses = (added @ embeddings.T).argmax(-1).tolist()
    seen: dict[tuple[int, int], int] = {}
    hits = []
    words = ids.tolist()
    for slot in range(2, len(words) - 2):
        seen[words[slot - 2], words[slot - 1]] = words[slot]
        follower = seen.get((words[slot], words[slot + 1]))
        if follower is not None:
            hits.append(guesses[slot] == follower)
    assert len(hits) > 40
    assert sum(hits) / len(hits) > 0.6  # by chance 0.02


def test_canonical_coordinates() -> None:
    """Bug: coordinates that are not the most alike, or not of variance 1."""
    generator = torch.Generator().manual_seed(0)
    shared, noise = torch.randn(20_000, 2, generator=generator), torch.randn(20_000, 6, generator=generator)
    x = torch.cat([shared, noise[:, :3]], dim=1) @ torch.randn(5, 5, generator=generator)
    y = torch.cat([shared + 0.5 * noise[:, 3:5], noise[:, 5:]], dim=1) @ torch.randn(3, 3, generator=generator)
    x_map, y_map, correlations = canonical(x, y, 3)
    expected = (1 / 1.25) ** 0.5
    torch.testing.assert_close(correlations, torch.tensor([expected, expected, 0.0]), atol=0.02, rtol=0)
    torch.testing.assert_close(torch.cov((x @ x_map).T), torch.eye(3), atol=0.05, rtol=0)
    agreement = torch.corrcoef(torch.cat([x @ x_map, y @ y_map], dim=1).T)[:3, 3:].diagonal()
    torch.testing.assert_close(agreement, correlations, atol=0.02, rtol=0)


def test_regression() -> None:
    """Bug: a map that is transposed, or shrunk by its ridge."""
    generator = torch.Generator().manual_seed(0)
    x, there = torch.randn(500, 6, generator=generator), torch.randn(6, 2, generator=generator)
    torch.testing.assert_close(regression(x, x @ there), there, atol=0.01, rtol=0.01)
