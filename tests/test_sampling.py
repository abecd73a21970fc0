"""The law that is sampled from: temperature, top-k, top-p and min-p, against numpy and against transformers."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from vocabtrim_core.errors import SettingError
from vocabtrim_core.sampling import SamplingSettings, draw, law, probability_of

VOCAB = 24

settings = st.builds(
    SamplingSettings,
    temperature=st.sampled_from([0.05, 0.3, 0.7, 1.0, 1.7, 10.0]),
    top_k=st.sampled_from([0, 1, 2, 5, 23, 24, 1000]),
    top_p=st.sampled_from([1e-6, 0.1, 0.5, 0.9, 0.99, 1.0]),
    min_p=st.sampled_from([0.0, 0.01, 0.1, 0.5, 0.99]),
)


def random_logits(seed: int, rows: int = 3) -> torch.Tensor:
    return 3 * torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed))


def numpy_law(logits: np.ndarray, sampling: SamplingSettings) -> np.ndarray:
    """One row, token by token, in float64."""

    def softmax(scores: dict[int, float]) -> dict[int, float]:
        highest = max(scores.values())
        mass = {i: np.exp(score - highest) for i, score in scores.items()}
        return {i: part / sum(mass.values()) for i, part in mass.items()}

    left = {i: float(score) / sampling.temperature for i, score in enumerate(logits)}
    best_first = sorted(left, key=lambda i: (-left[i], i))
    if sampling.top_k:
        left = {i: left[i] for i in best_first[: sampling.top_k]}
    if sampling.top_p < 1:
        probs, before, kept = softmax(left), 0.0, {}
        for i in (i for i in best_first if i in left):
            if before < sampling.top_p:
                kept[i] = left[i]
            before += probs[i]
        left = kept
    if sampling.min_p:
        probs = softmax(left)
        left = {i: left[i] for i in left if probs[i] >= sampling.min_p * max(probs.values())}
    result = np.zeros(len(logits))
    for i, prob in softmax(left).items():
        result[i] = prob
    return result


@given(seed=st.integers(0, 10_000), sampling=settings)
def test_law_is_the_textbook_one(seed: int, sampling: SamplingSettings) -> None:
    """Bug: filters in another order, or not renormalised after one another; top-p without the token that crosses the
    line; rows of a block mixed up."""
    logits = random_logits(seed)
    expected = np.stack([numpy_law(row, sampling) for row in logits.double().numpy()])
    np.testing.assert_allclose(law(logits, sampling).numpy(), expected, atol=2e-6)


@given(seed=st.integers(0, 10_000), sampling=settings)
def test_law_is_that_of_transformers(seed: int, sampling: SamplingSettings) -> None:
    """Bug: the same settings sample another distribution here than with `generate`."""
    processors = LogitsProcessorList([TemperatureLogitsWarper(sampling.temperature)])
    if sampling.top_k:
        processors.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        processors.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p:
        processors.append(MinPLogitsWarper(sampling.min_p))
    logits = random_logits(seed)
    expected = processors(torch.zeros(3, 1, dtype=torch.int64), logits).softmax(-1)
    torch.testing.assert_close(law(logits, sampling), expected, atol=2e-6, rtol=0)


@given(seed=st.integers(0, 10_000), sampling=settings)
def test_law_is_a_distribution_that_keeps_the_best_token(seed: int, sampling: SamplingSettings) -> None:
    """Bug: everything filtered out, which becomes NaN; a law that does not sum to one."""
    logits = random_logits(seed)
    probs = law(logits, sampling)
    assert probs.dtype == torch.float32 and bool((probs >= 0).all())
    torch.testing.assert_close(probs.sum(-1), torch.ones(3))
    assert bool((probs.gather(-1, logits.argmax(-1, keepdim=True)) > 0).all())


def test_law_of_half_precision_logits_is_computed_in_float32() -> None:
    """Bug: top-p cut in bf16, where cumulative sums stop growing."""
    logits = torch.zeros(1, 4096, dtype=torch.bfloat16)
    assert int((law(logits, SamplingSettings(temperature=1, top_p=0.75)) > 0).sum()) == pytest.approx(3072, abs=2)


def test_top_p_among_equals_keeps_the_first() -> None:
    """Bug: an unstable sort keeps another one of equal tokens from run to run."""
    probs = law(torch.zeros(1, 8), SamplingSettings(temperature=1, top_p=0.5))
    torch.testing.assert_close(probs, torch.tensor([[0.25] * 4 + [0.0] * 4]))


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -0.1},
        {"temperature": 10.1},
        {"temperature": 1e-40},
        {"temperature": float("nan")},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.01},
        {"top_p": float("nan")},
        {"min_p": -0.1},
        {"min_p": 1.0},
        {"seed": -1},
        {"seed": 2**63},
    ],
)
def test_settings_outside_their_range_are_refused(wrong: dict) -> None:
    """Bug: a setting that gives NaN or an empty law surfaces as a torch error in the middle of a run."""
    with pytest.raises(SettingError):
        SamplingSettings(**wrong)


def test_temperature_zero_is_greedy_and_extremes_are_finite() -> None:
    """Bug: greedy decoding divides by zero; the smallest and largest settings overflow."""
    assert SamplingSettings(temperature=0, top_k=5, top_p=0.5).greedy
    assert not SamplingSettings(temperature=0.01).greedy
    logits = torch.tensor([[5000.0, 4999.0, -5000.0]])
    torch.testing.assert_close(law(logits, SamplingSettings(temperature=0.01)), torch.tensor([[1.0, 0.0, 0.0]]))
    SamplingSettings(seed=2**63 - 1)
    torch.Generator().manual_seed(2**63 - 1)


def test_draw_never_gives_a_token_of_probability_zero_and_depends_only_on_its_generator() -> None:
    """Bug: a filtered token drawn; the global random state used, so that a page's other work changes an output."""
    probs = torch.tensor([0.0, 0.5, 0.0, 0.5, 0.0])
    first = torch.Generator().manual_seed(1)
    drawn = [draw(probs, first) for _ in range(500)]
    assert set(drawn) == {1, 3}
    second = torch.Generator().manual_seed(1)
    torch.manual_seed(99)
    assert [draw(probs, second) for _ in range(500)] == drawn


def test_probability_of_is_the_softmax_entry() -> None:
    """Bug: a probability shown for another token, or computed in bf16."""
    logits = random_logits(0)
    indices = torch.tensor([3, 0, 23])
    expected = logits.softmax(-1)[torch.arange(3), indices]
    torch.testing.assert_close(probability_of(logits, indices), expected)
    assert probability_of(logits.bfloat16(), indices).dtype == torch.float32
