"""What a recommendation says: never more than was found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vocabtrim_core.evaluation.advice import against_measurement, in_words
from vocabtrim_core.evaluation.contention import disagree, doubt, moment, others_since
from vocabtrim_core.evaluation.measuring import Measured
from vocabtrim_core.evaluation.spread import Spread
from vocabtrim_core.evaluation.tuning import Recommendation

SURE, OPEN = Spread(1.2, 1.1, 1.3), Spread(1.12, 0.44, 2.08)
BEST = Recommendation(4096, 2, SURE, 1.5, True, True, SURE, 4096, (2048, 8192), 0.98, False)


def run(k: int, median: float, low: float, high: float, gamma: int = 2) -> Measured:
    return Measured(k, gamma, 1.5, Spread(40, 39, 41), Spread(median, low, high))


def test_nothing_is_shipped_while_vanilla_may_be_as_fast() -> None:
    """Bug: "Ship" with an interval that holds 1; "speculate" where the best point is slower."""
    assert in_words(BEST).startswith("Ship k = 4,096")
    doubtful = in_words(replace(BEST, speedup=OPEN))
    assert doubtful.startswith("Try k = 4,096") and "not beyond doubt" in doubtful
    assert in_words(replace(BEST, trim=False, speedup=OPEN)).startswith("Do not trim: if you speculate")
    never = in_words(replace(BEST, speculate=False, speedup=Spread(0.87, 0.77, 1.0)))
    assert never.startswith("Do not speculate") and "Ship" not in never and "at most" not in never


def test_a_plateau_is_a_bound_on_one_side() -> None:
    """Bug: "within 1%" of points that are faster by more; a plateau of one point."""
    assert "Any k from 2,048 to 8,192 is at most 1% slower." in in_words(BEST)
    assert "Any k" not in in_words(replace(BEST, plateau=(4096, 4096)))


def test_measured_runs_change_the_sentence() -> None:
    """Bug: a recommendation that was measured to be slower, or slower than another point, without a word."""
    assert against_measurement(BEST, [run(2048, 1.1, 1.0, 1.2)], 49_152) == ""
    assert "no gain" in against_measurement(BEST, [run(4096, 0.9, 0.8, 1.1)], 49_152)
    assert "Not every repeat" in against_measurement(BEST, [run(4096, 1.1, 0.9, 1.2)], 49_152)
    both = [run(4096, 1.13, 1.10, 1.15), run(49_152, 1.14, 1.12, 1.16), run(0, 1.0, 1.0, 1.0, gamma=0)]
    said = against_measurement(BEST, both, 49_152)
    assert "the full vocabulary at gamma = 2" in said and "do not tell apart" in said
    faster = [run(4096, 1.13, 1.10, 1.15), run(2048, 1.3, 1.25, 1.4)]
    assert "k = 2,048" in against_measurement(BEST, faster, 49_152)
    assert "faster in every repeat" in against_measurement(BEST, faster, 49_152)


def test_other_programs_are_named() -> None:
    """Bug: a busy machine that gives a verdict, or a quiet one that is doubted."""
    assert doubt(None) == doubt(0.1) == ""
    assert "1.4 of this machine's" in doubt(1.4)
    assert disagree(0.44, 2.08) and not disagree(1.0, 1.2)


def test_ones_own_work_is_not_that_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: the timed run itself counted as another program; a negative figure."""
    began = moment()
    assert began is not None and others_since(None) is None
    later = replace(began, wall=began.wall + 10, machine=began.machine + 15, own=began.own + 9)
    monkeypatch.setattr("vocabtrim_core.evaluation.contention.moment", lambda: later)
    assert others_since(began) == pytest.approx(0.6)
    monkeypatch.setattr("vocabtrim_core.evaluation.contention.moment", lambda: replace(later, machine=began.machine))
    assert others_since(began) == 0
