"""Head timing: one figure a size, over the rounds asked for. Nothing here asserts a speed."""

import pytest
import torch

from vocabtrim_core.evaluation import latency
from vocabtrim_core.evaluation.latency import time_head
from vocabtrim_core.evaluation.spread import Spread
from vocabtrim_core.heads import RankedHead


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch) -> RankedHead:
    monkeypatch.setattr(latency, "EVICTION_BYTES", 4096)
    return RankedHead(torch.randn(64, 16, dtype=torch.bfloat16), torch.arange(64))


def test_every_size_is_timed_in_the_order_asked_for(head: RankedHead) -> None:
    """Bug: a size is left out or its time shown at another one; a spread whose median lies outside it."""
    timings = time_head(head, [16, 64, 1], repeats=3)
    assert [timing.k for timing in timings] == [16, 64, 1]
    for timing in timings:
        for spread in (timing.warm, timing.cold):
            assert 0 < spread.low <= spread.median <= spread.high


def test_sizes_are_interleaved_and_the_first_round_is_not_counted(
    head: RankedHead, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: all rounds of one size at a stretch, so that a drift of the machine's speed looks like an effect of k; the
    set-up of the first call in the figures."""
    calls: list[tuple[int, bool]] = []

    def measured(_: RankedHead, hidden: torch.Tensor, k: int) -> float:
        assert hidden.shape == (1, 16) and hidden.dtype == torch.bfloat16
        calls.append((k, torch.is_inference_mode_enabled()))
        return float(len(calls))

    monkeypatch.setattr(latency, "_seconds", measured)
    first, second = time_head(head, [8, 32], repeats=2)
    assert [k for k, _ in calls] == [8, 8, 8, 32, 32, 32] * 3
    assert all(inference for _, inference in calls)
    # Calls 1 to 6 are the first round; the first of three calls is cold, the better of the others warm.
    assert first.cold == Spread(10, 7, 13) and first.warm == Spread(11, 8, 14)
    assert second.cold == Spread(13, 10, 16) and second.warm == Spread(14, 11, 17)


def test_spread_is_median_and_extremes() -> None:
    """Bug: a mean, which one slow run moves, shown as the median."""
    assert Spread.of([3.0, 1.0, 100.0]) == Spread(3.0, 1.0, 100.0)
    assert Spread.of([1.0, 2.0]) == Spread(1.5, 1.0, 2.0)
    assert Spread.of([2.0]) == Spread(2.0, 2.0, 2.0)
