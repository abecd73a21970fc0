from __future__ import annotations

import json
import random
import sys
from collections import Counter
from pathlib import Path

import pytest

from vocabtrim_core.prompts import TASKS, read_prompts, task_prompts

DATA = Path(__file__).parent.parent.parent / "data"
sys.path.insert(0, str(DATA / "drafters"))
from training_prompts import LONGEST, SHORTEST, WRITERS, Quotable, document, read_documents, training_prompts  # noqa: E402


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
    monkeypatch.setitem(WRITERS, "qa", lambda rng, quotable: rng.choice(("Why?", "How?")))
    assert len(training_prompts(18)) == 18
    with pytest.raises(ValueError, match=r"no more than 18 prompts .* qa"):
        training_prompts(700)


def test_quotes_documents_from_elsewhere(tmp_path: Path) -> None:
    """Bug: the documents are ignored, push the others out, or a German one is to be summarised in English."""
    lines = [{"language": "English", "text": f"Document {i} is about owls. " * 20} for i in range(20)]
    lines += [{"language": "German", "text": f"Satz {i} handelt von Eulen."} for i in range(20)]
    (tmp_path / "documents.jsonl").write_text("\n".join(map(json.dumps, lines)))
    quotable = read_documents(tmp_path / "documents.jsonl")
    prompts = training_prompts(90, seed=3, tasks=("translation", "rag", "summarisation"), quotable=quotable)
    by_task = {task: [one["prompt"] for one in prompts if one["task"] == task] for task in TASKS}
    assert 0.5 < sum("owls" in prompt for prompt in by_task["summarisation"]) / 30 < 0.95
    assert any("owls" in prompt for prompt in by_task["rag"])
    assert 5 < sum("Eulen" in prompt for prompt in by_task["translation"]) < 20
    assert not any("Eulen" in prompt for prompt in by_task["summarisation"] + by_task["rag"])


def test_no_placeholder_is_left(prompts: list[dict[str, str]]) -> None:
    """Bug: a template shows the name of its slot."""
    for prompt in prompts:
        if prompt["task"] in ("translation", "conversation", "math", "qa"):
            assert "{" not in prompt["prompt"]


def test_documents_have_the_length_asked_for() -> None:
    """Bug: a text to summarise is a line, or longer than a drafter's context."""
    rng = random.Random(0)
    assert all(SHORTEST <= len(document(rng)) <= LONGEST for _ in range(100))
    uneven = Quotable(["Short.", "A line that is longer. " * 30, "\n\n".join(["Some words of a paragraph. " * 9] * 40)])
    assert all(SHORTEST <= len(document(rng, uneven)) <= LONGEST for _ in range(100))


def test_disjoint_from_what_measures(prompts: list[dict[str, str]]) -> None:
    """Bug: a drafter is trained on the prompts that measure it."""

    def key(text: str) -> str:
        return " ".join(text.lower().split())

    measured = {key(prompt.text) for prompt in [*task_prompts(), *read_prompts(DATA / "prompts.jsonl")]}
    for prompt in prompts:
        assert key(prompt["prompt"]) not in measured
