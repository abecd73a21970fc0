from __future__ import annotations

import random
import sys
from collections import Counter
from pathlib import Path

import pytest

from vocabtrim_core.prompts import TASKS, read_prompts, task_prompts

DATA = Path(__file__).parent.parent.parent / "data"
sys.path.insert(0, str(DATA / "drafters"))
from training_prompts import LONGEST, SHORTEST, WRITERS, document, training_prompts  # noqa: E402


@pytest.fixture(scope="module")
def prompts() -> list[dict[str, str]]:
    return training_prompts(700, seed=3)


def test_all_tasks_alike_and_nothing_twice(prompts: list[dict[str, str]]) -> None:
    """Bug: a task runs dry and repeats itself, or a task is missing."""
    assert Counter(prompt["task"] for prompt in prompts) == dict.fromkeys(TASKS, 100)
    assert len({prompt["prompt"] for prompt in prompts}) == len(prompts)
    assert all(prompt["prompt"].strip() for prompt in prompts)


def test_deterministic(prompts: list[dict[str, str]]) -> None:
    """Bug: the order of a set, or the global source of chance, decides: nobody can make the same drafter again."""
    assert training_prompts(70, seed=3) == prompts[:70]
    assert training_prompts(70, seed=4) != prompts[:70]


def test_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: asking for more than there are never ends."""
    monkeypatch.setitem(WRITERS, "qa", lambda rng, quoted: rng.choice(("Why?", "How?")))
    assert len(training_prompts(18)) == 18
    with pytest.raises(ValueError, match=r"no more than 18 prompts .* qa"):
        training_prompts(700)


def test_quotes_what_was_written() -> None:
    """Bug: the answers given to quote are ignored, or push the other documents out."""
    answers = [f"Answer {i} is about owls. " * 20 for i in range(20)]
    quoted = training_prompts(60, seed=3, tasks=("rag", "summarisation"), quoted=answers)
    share = sum("owls" in prompt["prompt"] for prompt in quoted if prompt["task"] == "summarisation") / 30
    assert 0.2 < share < 0.8
    assert {prompt["task"] for prompt in quoted} == {"rag", "summarisation"}


def test_no_placeholder_is_left(prompts: list[dict[str, str]]) -> None:
    """Bug: a template shows the name of its slot."""
    for prompt in prompts:
        if prompt["task"] in ("translation", "conversation", "math", "qa"):
            assert "{" not in prompt["prompt"]


def test_documents_have_the_length_asked_for() -> None:
    """Bug: a text to summarise is a line, or longer than a drafter's context."""
    rng = random.Random(0)
    assert all(SHORTEST <= len(document(rng)) <= LONGEST for _ in range(100))


def test_disjoint_from_what_measures(prompts: list[dict[str, str]]) -> None:
    """Bug: a drafter is trained on the prompts that measure it."""

    def key(text: str) -> str:
        return " ".join(text.lower().split())

    measured = {key(prompt.text) for prompt in [*task_prompts(), *read_prompts(DATA / "prompts.jsonl")]}
    for prompt in prompts:
        assert key(prompt["prompt"]) not in measured
