"""The sentence above the three texts: what is known of the texts that are shown, and of those decoded again."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from pages.components import side_by_side
from vocabtrim_core.evaluation.comparison import Comparison, Difference
from vocabtrim_core.evaluation.spread import Spread

FASTER = Spread(1.2, 1.1, 1.3)
PARTS = (Difference(0, "trimmed", 91, 3, 4, 0.0),)


def comparison(speed: Spread = FASTER) -> Comparison:
    figures: Any = SimpleNamespace(speedup_vs_vanilla=speed, speedup_vs_untrimmed=speed)
    return Comparison({"trimmed": figures}, True, (), 3, None, ())


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Any:
    def read(found: Comparison) -> str:
        told: list[str] = []
        monkeypatch.setattr(side_by_side, "answer", lambda template, **values: told.append(template.format(**values)))
        session: Any = SimpleNamespace(contest=SimpleNamespace(ranked_head=object(), k=4096))
        side_by_side.sentence(session, found)
        return told[0]

    return read


def test_texts_that_part_are_not_called_identical(said: Any) -> None:
    """Bug: "all texts are identical, bit for bit" above two timed texts that part at token 92."""
    text = said(replace(comparison(), fixed_rows=3, timed_differences=PARTS))
    assert "As timed, the texts part at token 92" in text and "All texts" not in text
    assert "decoded again with every pass of one size they are identical, token for token, bit for bit" in text
    text = said(replace(comparison(), fixed_rows=3, identical=False, differences=PARTS, timed_differences=PARTS))
    assert "they are not identical" in text and "bit for bit" not in text


def test_identical_texts_are_called_so(said: Any) -> None:
    """Bug: a text that is the same with a sentence that doubts it; sampled texts compared token for token."""
    assert "All texts are identical, token for token." in said(comparison())
    assert "identical as timed, and again" in said(replace(comparison(), fixed_rows=3))
    assert "The texts are not identical" in said(replace(comparison(), identical=False, timed_differences=PARTS))
    assert "by design" in said(replace(comparison(), identical=None))


def test_repeats_that_disagree_carry_no_verdict(said: Any) -> None:
    """Bug: "SLOWER (0.81x)" from a busy machine whose repeats lie between 0.4 and 2."""
    text = said(comparison(Spread(0.8, 0.44, 2.08)))
    assert "disagree too much" in text and "SLOWER" not in text and "faster" not in text
    assert "faster" in said(comparison()) and "disagree" not in said(comparison())
