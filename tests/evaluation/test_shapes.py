"""The shape lab: heads of random weights, and estimates that follow from what was measured."""

from __future__ import annotations

import psutil
import pytest

from vocabtrim_core.errors import SettingError
from vocabtrim_core.evaluation.latency import HeadTiming
from vocabtrim_core.evaluation.papers import PUBLISHED
from vocabtrim_core.evaluation.shapes import SHAPES, Shape, estimate, measure_shape, random_head
from vocabtrim_core.evaluation.spread import Spread

FR_SPEC, VOCABTRIM = PUBLISHED


def test_published_figures_are_those_of_the_papers() -> None:
    """Bug: a figure mistyped: shares and speedups must be what the papers' own numbers give."""
    assert FR_SPEC.retained(32_768) == pytest.approx(0.933, abs=5e-4)
    for k, speed in FR_SPEC.tokens_per_second.items():
        assert FR_SPEC.speedup[k] == pytest.approx(speed / 89.1, abs=6e-3)
    assert VOCABTRIM.retained(VOCABTRIM.full) == 1
    assert FR_SPEC.retained(16_384) < FR_SPEC.retained(20_000) < FR_SPEC.retained(32_768)
    assert FR_SPEC.retained(100) == FR_SPEC.retained(8_192)


def test_an_estimate_follows_from_the_heads_time() -> None:
    """Bug: bytes of float32, acceptance taken at k of another vocabulary, speedup upside down."""
    shape = Shape("s", hidden=1000, vocab=100_000, body_parameters=50_000_000, target_parameters=1_000_000_000)
    once = [HeadTiming(k, Spread(0, 0, 0), Spread(s, s, s)) for k, s in ((12_500, 0.0025), (100_000, 0.02))]
    found = estimate(shape, once, FR_SPEC, gamma=4)
    # 100 million parameters in 20 ms: ten times as many in 200.
    assert found.body_seconds == pytest.approx(0.01) and found.target_seconds == pytest.approx(0.2)
    tau = 3.89 * FR_SPEC.retained(128_256 / 8)
    assert found.tau == (pytest.approx(tau), pytest.approx(3.89))
    assert found.speedup[0] == pytest.approx(tau * 0.2 / (0.2 + 4 * 0.0125))
    assert found.over_untrimmed[0] == pytest.approx(found.speedup[0] / (3.89 * 0.2 / (0.2 + 4 * 0.03)))


def test_a_small_shape_is_measured() -> None:
    """Bug: a head whose last rows are not filled, or a largest k below the vocabulary."""
    head = random_head(Shape("s", 64, 1000, 1, 1))
    assert head.weight.float().std() == pytest.approx(1, abs=0.05) and head.weight[-1].abs().sum() > 0
    found = measure_shape(Shape("s", 64, 5000, 10_000, 1_000_000), FR_SPEC, repeats=1)
    assert found.ks[-1] == 5000 and min(found.speedup) > 0


def test_shapes_that_cannot_be_measured_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: a typed-in shape that fills the machine's memory and ends the app."""
    memory = psutil.virtual_memory()._replace(available=10**9)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    with pytest.raises(SettingError, match=r"half of the 1\.0 GB"):
        random_head(SHAPES[0])
    with pytest.raises(SettingError, match="outside what can be measured"):
        Shape("s", 100_000, 1000, 1, 1)
