"""The trainings' own maths: labels in their places, and a training-time test that is what drafting does."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig

from vocabtrim_core.drafters.eagle_network import EagleNetwork

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "data" / "drafters"))

from distillation import LABELS, Batch, Columns
from train_eagle import DEPTHS, drafted_positions, features_by_depth

TAPS, WIDTH, LENGTH = 3, 16, 10


class Cache:
    """Keys and values one after the other, as when drafting."""

    def __init__(self) -> None:
        self.length = 0
        self.parts: list[tuple[torch.Tensor, torch.Tensor]] = []

    def extend(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.parts.append((keys, values))
        self.length += keys.shape[2]
        return torch.cat([k for k, _ in self.parts], 2), torch.cat([v for _, v in self.parts], 2)


def random_batch(rows: int = 2) -> Batch:
    generator = torch.Generator().manual_seed(0)
    shape = (rows, LENGTH)
    ids = torch.randint(0, 30, shape, generator=generator)
    top_ids = torch.arange(rows * LENGTH).view(*shape, 1).expand(-1, -1, LABELS)
    top_probs = torch.full((*shape, LABELS), 1 / LABELS)
    states = torch.randn(*shape, (1 + TAPS) * WIDTH, generator=generator)
    return Batch(ids, torch.tensor([LENGTH, LENGTH - 2]), torch.tensor([3, 2]), top_ids, top_probs, states)


@pytest.mark.parametrize("begin", [0, 3])
def test_every_depth_of_the_training_is_what_drafting_would_give(begin: int) -> None:
    """Would catch a mask, a position or a shifted token that makes the drafter train for something it never sees."""
    torch.manual_seed(1)
    config = LlamaConfig(
        hidden_size=WIDTH, intermediate_size=24, num_attention_heads=4, num_key_value_heads=2, vocab_size=30
    )
    network = EagleNetwork(config, fused=TAPS * WIDTH).eval()
    embeddings = torch.nn.Embedding(30, WIDTH)
    batch = random_batch()
    assert batch.states is not None
    with torch.no_grad():
        outputs = features_by_depth(network, embeddings, batch, TAPS, DEPTHS, begin)
        for row in range(2):
            for slot in range(begin, LENGTH - DEPTHS - 1):
                cache = Cache()
                features = network.fuse(batch.states[row : row + 1, : slot + 1, WIDTH:])
                tokens = embeddings(batch.ids[row : row + 1, 1 : slot + 2])
                drafted = network(tokens, features, torch.arange(slot + 1), None, cache)[:, -1:]
                for depth in range(DEPTHS):
                    expected = network.predict(drafted)[0, 0]
                    found = outputs[depth][row, slot - begin if depth else slot]
                    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
                    token = embeddings(batch.ids[row : row + 1, slot + 2 + depth : slot + 3 + depth])
                    drafted = network(token, drafted, torch.tensor([slot + 1 + depth]), None, cache)


def test_labels_are_those_of_the_place_ahead_and_inside_the_row() -> None:
    """Would catch labels that are off by one, or taken from the padding or from the next row."""
    batch = random_batch()
    for ahead in range(3):
        positions = batch.labelled(ahead)
        expected = [
            row * LENGTH + i + ahead
            for row, length in enumerate(batch.lengths.tolist())
            for i in range(LENGTH)
            if i + ahead < length - 1
        ]
        assert batch.labels(ahead, positions)[0][:, 0].tolist() == expected


def test_answers_only_begins_with_the_label_of_the_first_answer_token() -> None:
    """Would catch an acceptance measured on prompts, too, or one that leaves out each answer's first token."""
    batch = random_batch()
    assert batch.labelled(0, answers_only=True).nonzero().tolist() == [
        *([0, i] for i in range(2, LENGTH - 1)),
        *([1, i] for i in range(1, LENGTH - 3)),
    ]


def test_deeper_slots_are_those_that_draft_the_answer() -> None:
    """Would catch drafts inside a prompt that a longer row's batch lets in, or an answer's first token left out."""
    batch = random_batch()
    assert torch.equal(drafted_positions(batch, 0), batch.labelled(1))
    for depth in range(1, DEPTHS):
        expected = [[0, i] for i in range(1, LENGTH - 2 - depth)] + [[1, i] for i in range(LENGTH - 4 - depth)]
        assert drafted_positions(batch, depth).nonzero().tolist() == expected


def test_the_sampled_softmax_agrees_with_the_whole_one_where_it_takes_every_column() -> None:
    """Would catch a wrong place of a label's column, or a correction where nothing was sampled."""
    torch.manual_seed(2)
    head, hidden = torch.randn(40, WIDTH), torch.randn(5, WIDTH)
    top_ids = torch.randint(0, 40, (5, LABELS))
    top_probs = torch.rand(5, LABELS)
    found = Columns(head, top_ids).cross_entropy(hidden, top_ids, top_probs)
    weights = top_probs / top_probs.sum(-1, keepdim=True)
    expected = -(weights * (hidden @ head.T).log_softmax(-1).gather(1, top_ids)).sum(-1).mean()
    torch.testing.assert_close(found, expected)
