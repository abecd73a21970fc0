"""The rank-ordered head: the same numbers as the full head, at every k, without copies."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vocabtrim_core.heads import RankedHead

VOCAB, WIDTH = 24, 8


def head(**treatment: object) -> RankedHead:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(VOCAB, WIDTH, generator=generator, dtype=torch.float64)
    return RankedHead(weight, torch.arange(VOCAB), **treatment)  # type: ignore[arg-type]


def hidden(rows: int = 3) -> torch.Tensor:
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@given(order=st.permutations(range(VOCAB)), k=st.integers(1, VOCAB))
def test_a_trimmed_head_gives_the_full_heads_logits_in_rank_order(order: list[int], k: int) -> None:
    """Bug: the ranking applied the wrong way round (its inverse), so a rank's score belongs to another token."""
    full = head().logits(hidden())
    ranked = head().reordered(torch.tensor(order))
    torch.testing.assert_close(ranked.logits(hidden(), k), full[:, order[:k]])
    assert ranked.logits(hidden()).shape == (3, VOCAB)


@given(first=st.permutations(range(VOCAB)), second=st.permutations(range(VOCAB)))
def test_reordering_a_reordered_head_goes_by_target_ids(first: list[int], second: list[int]) -> None:
    """Bug: a second ranking is read as positions in the first one."""
    once, twice = torch.tensor(first), torch.tensor(second)
    ranked = head(bias=torch.arange(VOCAB, dtype=torch.float64)).reordered(once).reordered(twice)
    direct = head(bias=torch.arange(VOCAB, dtype=torch.float64)).reordered(twice)
    assert torch.equal(ranked.ranking, twice)
    assert torch.equal(ranked.weight, direct.weight)
    assert ranked.bias is not None and direct.bias is not None
    assert torch.equal(ranked.bias, direct.bias)


def test_a_ranking_shorter_than_the_head_drops_its_padding() -> None:
    """Bug: rows beyond the usable vocabulary stay reachable, so a padding id is drafted."""
    ranked = head().reordered(torch.arange(VOCAB - 4).flip(0))
    assert ranked.vocab_size == VOCAB - 4
    assert ranked.logits(hidden()).shape == (3, VOCAB - 4)
    assert int(ranked.ranking.max()) == VOCAB - 5


@pytest.mark.parametrize("k", [1, 5, VOCAB - 1, VOCAB])
def test_trimming_is_a_view(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: moving the k slider copies the head's rows."""
    ranked = head(bias=torch.zeros(VOCAB, dtype=torch.float64)).reordered(torch.arange(VOCAB).flip(0))
    assert ranked.bias is not None
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    linear = torch.nn.functional.linear

    def spy(states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        seen.append((weight, bias))
        return linear(states, weight, bias)

    monkeypatch.setattr(torch.nn.functional, "linear", spy)
    ranked.logits(hidden(), k)
    ((weight, bias),) = seen
    assert weight.data_ptr() == ranked.weight.data_ptr() and weight.shape == (k, WIDTH) and weight.is_contiguous()
    assert bias.data_ptr() == ranked.bias.data_ptr() and bias.shape == (k,)


def test_bias_scale_and_soft_cap_are_applied_in_the_models_order() -> None:
    """Bug: the soft-cap before the scale, a bias left out or in the old order, a scale divided by."""
    order, k = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(2)), 9
    bias = torch.randn(VOCAB, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    ranked = head(bias=bias, logit_scale=0.25, soft_cap=2.0).reordered(order)
    raw = (hidden() @ head().weight.T + bias) * 0.25
    expected = 2.0 * torch.tanh(raw / 2.0)
    torch.testing.assert_close(ranked.logits(hidden(), k), expected[:, order[:k]])
    only_cap = head(soft_cap=0.5).logits(hidden())
    assert float(only_cap.abs().max()) < 0.5


def test_equal_logits_go_to_the_lower_rank_at_every_k() -> None:
    """Bug: an argmax whose winner among equals depends on k, so results change with k by accident."""
    rows = torch.zeros(VOCAB, WIDTH)
    rows[[3, 7, 20]] = 1.0
    tied = RankedHead(rows, torch.arange(VOCAB))
    states = torch.ones(1, WIDTH)
    for k in range(4, VOCAB + 1):
        assert int(tied.logits(states, k).argmax(-1)) == 3
    reversed_head = tied.reordered(torch.arange(VOCAB).flip(0))  # token 20 has rank 3 now
    for k in range(4, VOCAB + 1):
        assert int(reversed_head.logits(states, k).argmax(-1)) == 3


def test_bytes_are_those_of_the_rows_kept() -> None:
    """Bug: bytes of the whole head shown for the trimmed one; the bias or the element size forgotten."""
    weight = torch.zeros(VOCAB, WIDTH, dtype=torch.bfloat16)
    assert RankedHead(weight, torch.arange(VOCAB)).bytes_kept(10) == 10 * WIDTH * 2
    with_bias = RankedHead(weight.float(), torch.arange(VOCAB), bias=torch.zeros(VOCAB))
    assert with_bias.bytes_kept(10) == 10 * (WIDTH + 1) * 4


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 2e-2), (torch.float16, 1e-5)])
def test_packed_weights_score_as_the_view_does(dtype: torch.dtype, tolerance: float) -> None:
    """Bug: a packed copy of another k or of another head is used; the bias or the order is lost in packing."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(200, 48, generator=generator).to(dtype)
    computed = torch.float32 if dtype == torch.float16 else dtype
    bias = torch.randn(200, generator=generator).to(computed)
    states = torch.randn(3, 48, generator=generator).to(computed)
    ranked = RankedHead(weight, torch.arange(200), bias=bias)
    assert ranked.activations == computed
    other = ranked.reordered(torch.arange(200).flip(0))
    for k in (200, 7, 64, 1, 7, 130, 33, 99, 7, 200):
        for each in (ranked, other):
            assert each.bias is not None
            expected = states.float() @ each.weight[:k].float().T + each.bias[:k].float()
            torch.testing.assert_close(each.logits(states, k).float(), expected, rtol=tolerance, atol=10 * tolerance)


def test_few_packed_sizes_are_kept() -> None:
    """Bug: moving the k slider fills the memory with packed copies."""
    ranked = RankedHead(torch.randn(100, 32), torch.arange(100))
    for k in range(1, 101):
        ranked.logits(torch.randn(1, 32), k)
    assert len(ranked._packed) <= 4


def test_spare_rows_are_computed_and_not_given() -> None:
    """Bug: with a fixed number of rows, the spare ones come back, or the first are cut off."""
    ranked = RankedHead(torch.randn(50, 32), torch.arange(50))
    states = torch.randn(3, 32)
    torch.testing.assert_close(ranked.logits(states, rows=8), ranked.logits(states))
    torch.testing.assert_close(ranked.logits(states, 20, rows=2), ranked.logits(states, 20))
