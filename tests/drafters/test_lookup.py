"""Prompt lookup: what it copies, and that it follows the text."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from toys import causal_lm, decode, language_model, tokens

from vocabtrim_core.decoding.engine import GenerationSettings
from vocabtrim_core.drafters.lookup import LookupDrafter
from vocabtrim_core.passes import alone
from vocabtrim_core.sampling import SamplingSettings
from vocabtrim_core.trees import DraftShape

NO_STATES = torch.empty(0)


def propose(drafter: LookupDrafter, depth: int = 4) -> list[int]:
    return alone(drafter.propose(DraftShape(depth), SamplingSettings(), torch.Generator())).ids.tolist()


def begun(text: list[int]) -> LookupDrafter:
    drafter = LookupDrafter(100)
    drafter.begin(torch.tensor(text), NO_STATES)
    return drafter


@pytest.mark.parametrize(
    "text, expected",
    [
        ([1, 2, 3, 4, 5, 6, 9, 1, 2, 3], [4, 5, 6, 9]),  # three tokens match
        ([1, 2, 3, 7, 9, 5, 2, 3, 8, 1, 2, 3], [7, 9, 5, 2]),  # the longer match before the later one
        ([3, 7, 3, 8, 3], [8, 3, 8, 3]),  # the latest place, and on through its own copy
        ([5, 5], [5, 5, 5, 5]),
        ([1, 2, 3], []),
        ([4], []),
    ],
)
def test_what_is_copied(text: list[int], expected: list[int]) -> None:
    """Bug: the last tokens match themselves, a short match wins, the copy ends with the text or runs past it."""
    assert propose(begun(text)) == expected


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3))))
def test_a_settled_drafter_is_a_fresh_one(text: list[int], cycles: list[tuple[int, int]]) -> None:
    """Bug: accepted tokens or the target's own are missing from the text, or refused ones stay in it."""
    drafter = begun(text)
    for take, next_id in cycles:
        drafted = propose(drafter)
        path = torch.arange(min(take, len(drafted)))
        text = [*text, *drafted[: len(path)], next_id]
        drafter.settle(path, next_id, NO_STATES)
    assert propose(drafter) == propose(begun(text))


@pytest.mark.parametrize("tree", [None, DraftShape(3, 2, 4)])
def test_text_is_the_targets(tree: DraftShape | None) -> None:
    """Bug: an empty draft, or one that is shorter than asked for, breaks the loop."""
    target = language_model(causal_lm(0))
    settings = GenerationSettings(gamma=3, max_new_tokens=40, tree=tree)
    for prompt in ([7], [1, 2, 1, 2]):
        ours = decode(target, LookupDrafter(32), prompt, settings)
        assert tokens(ours) == tokens(decode(target, None, prompt, settings))
        sampled = GenerationSettings(3, 20, SamplingSettings(temperature=1.0), tree)
        assert len(tokens(decode(target, LookupDrafter(32), prompt, sampled))) == 20
