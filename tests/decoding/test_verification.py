"""The accept rule: greedy by agreement, sampled without changing the target's distribution.

The statistical tests use fixed seeds, so they give the same answer every time. Each of them would reject correct code
for one seed in ten thousand (`FALSE_ALARM`); wrong rules have to fail far below that (`SURELY`).
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.chi_square import p_value, pair_counts
from vocabtrim_core.decoding import verification
from vocabtrim_core.decoding.verification import Verdict, residual_law, verify_greedy, verify_sampled
from vocabtrim_core.drafters import Draft
from vocabtrim_core.sampling import SamplingSettings, law
from vocabtrim_core.trees import TokenTree

FALSE_ALARM = 1e-4
SURELY = 1e-12

VOCAB = 16
DRAWS, FEWER = 20_000, 5_000
RANKING = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(7))
WARPED = {
    "temperature": SamplingSettings(temperature=0.7),
    "top-p": SamplingSettings(temperature=1.0, top_p=0.8),
    "all filters": SamplingSettings(temperature=1.3, top_k=10, top_p=0.95, min_p=0.02),
}
START = 0


def chain(ids: torch.Tensor, ranks: torch.Tensor, laws: torch.Tensor | None) -> Draft:
    return Draft(ids, TokenTree.chain(len(ids)), torch.ones(len(ids)), ranks, laws, 0.0, 0.0)


@st.composite
def drafts(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    gamma = draw(st.integers(0, 8))
    tokens = st.integers(0, 2)
    choices = draw(st.lists(tokens, min_size=gamma + 1, max_size=gamma + 1))
    return choices, draw(st.lists(tokens, min_size=gamma, max_size=gamma))


@given(drafts())
def test_greedy_accepts_up_to_the_first_disagreement(case: tuple[list[int], list[int]]) -> None:
    """Bug: agreement after a rejection is counted; the correction is taken from the wrong row."""
    choices, drafted = case
    accepted = 0
    while accepted < len(drafted) and drafted[accepted] == choices[accepted]:
        accepted += 1
    verdict = verify_greedy(choices.__getitem__, drafted, TokenTree.chain(len(drafted)))
    assert verdict == Verdict(tuple(range(accepted)), choices[accepted])


@given(seed=st.integers(0, 10_000), k=st.integers(1, VOCAB), same=st.booleans())
def test_residual_law_is_a_law_over_the_full_vocabulary(seed: int, k: int, same: bool) -> None:
    """Bug: negative entries (no clamp), no renormalising, the kept tokens only; NaN where the laws are equal."""
    generator = torch.Generator().manual_seed(seed)
    target = (2 * torch.randn(VOCAB, generator=generator)).softmax(-1)
    kept = RANKING[:k]
    draft = target[kept] if same and k == VOCAB else (2 * torch.randn(k, generator=generator)).softmax(-1)
    before = target.clone()
    residual = residual_law(target, draft, kept)
    full = torch.zeros(VOCAB)
    full[kept] = draft
    left = (target - full).clamp(min=0)
    expected = left / left.sum() if float(left.sum()) > 0 else target
    torch.testing.assert_close(residual, expected)
    assert bool((residual >= 0).all()) and float(residual.sum()) == pytest.approx(1)
    assert torch.equal(target, before)


def test_a_token_that_the_target_never_says_is_never_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: `>` for `>=`: a uniform draw of exactly 0 accepts a token of probability 0 (one in 2^24)."""
    monkeypatch.setattr(torch, "rand", lambda *size, generator: torch.zeros(*size))
    target_laws = torch.tensor([[0.0, 1.0], [0.5, 0.5]])
    for laws in (torch.tensor([[1.0, 0.0]]), None):
        draft = chain(torch.tensor([0]), torch.tensor([0]), laws)
        verdict = verify_sampled(target_laws.__getitem__, draft, torch.tensor([0, 1]), torch.Generator())
        assert verdict == Verdict((), 1)


def test_equal_laws_accept_everything() -> None:
    """Bug: a draft from the target's own law is rejected now and then (a bound on the wrong side of one)."""
    laws = torch.randn(4, VOCAB, generator=torch.Generator().manual_seed(0)).softmax(-1)
    generator = torch.Generator().manual_seed(1)
    for _ in range(200):
        drafted = torch.multinomial(laws[:3], 1, generator=generator)[:, 0]
        draft = chain(drafted, drafted, laws[:3])
        assert verify_sampled(laws.__getitem__, draft, torch.arange(VOCAB), generator).path == (0, 1, 2)


def tables() -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of what follows each token, [V, V], of the target and of a drafter that knows it roughly."""
    generator = torch.Generator().manual_seed(3)
    target = 1.5 * torch.randn(VOCAB, VOCAB, generator=generator)
    return target, target + torch.randn(VOCAB, VOCAB, generator=generator)


def first_two_tokens(sampling: SamplingSettings, k: int, gamma: int, draws: int, recorded: str) -> torch.Tensor:
    """The first two tokens after START of trimmed speculative decoding, int64 [draws, 2].

    `recorded` is what the accept rule is told of the draft's law: the law drawn from, or one of the usual mistakes.
    """
    target_logits, draft_logits = tables()
    kept = RANKING[:k]
    target_law, draft_law = law(target_logits, sampling), law(draft_logits[:, kept], sampling)
    told = {
        "the law drawn from": draft_law,
        "unwarped": draft_logits[:, kept].softmax(-1),
        "not renormalised on the kept set": law(draft_logits, sampling)[:, kept],
    }[recorded]
    generator = torch.Generator().manual_seed(11)
    outputs: list[list[int]] = [[] for _ in range(draws)]
    # A first cycle for all, a second one for those that a rejection left with one token.
    while unfinished := [output for output in outputs if len(output) < 2]:
        contexts = [torch.tensor([output[-1] if output else START for output in unfinished])]
        ranks = []
        for _ in range(gamma):
            ranks.append(torch.multinomial(draft_law[contexts[-1]], 1, generator=generator)[:, 0])
            contexts.append(kept[ranks[-1]])
        context, rank = torch.stack(contexts, dim=1), torch.stack(ranks, dim=1)  # [n, g + 1], [n, g]
        cases = zip(unfinished, target_law[context], context[:, 1:], rank, told[context[:, :-1]], strict=True)
        for output, target_laws, drafted, drafted_ranks, draft_laws in cases:
            draft = chain(drafted, drafted_ranks, draft_laws)
            verdict = verify_sampled(target_laws.__getitem__, draft, kept, generator)
            output += [*drafted[: len(verdict.path)].tolist(), verdict.next_id]
    return torch.tensor([output[:2] for output in outputs])


def law_of_pairs(sampling: SamplingSettings) -> torch.Tensor:
    """The target's own law of the first two tokens, [V, V]."""
    target_law = law(tables()[0].double(), sampling).double()
    joint = target_law[START][:, None] * target_law
    return joint / joint.sum()


def agreement(
    sampling: SamplingSettings, k: int, gamma: int = 2, draws: int = DRAWS, recorded: str = "the law drawn from"
) -> float:
    pairs = first_two_tokens(sampling, k, gamma, draws, recorded)
    return p_value(pair_counts(pairs, VOCAB), law_of_pairs(sampling).numpy())


# The second token is a bonus token with gamma 1, a second accepted draft or a correction with gamma 2.
@pytest.mark.parametrize(
    "name, k, gamma",
    [
        ("temperature", 2, 2),
        ("temperature", 8, 1),
        ("temperature", VOCAB, 2),
        ("top-p", 2, 1),
        ("top-p", 8, 2),
        ("top-p", VOCAB, 1),
    ],
)
def test_sampled_output_follows_the_targets_law(name: str, k: int, gamma: int) -> None:
    """Bug: any accept rule, residual or bonus that is not lossless, at any size of the draft vocabulary."""
    assert agreement(WARPED[name], k, gamma) > FALSE_ALARM


def test_sampled_output_follows_the_targets_law_with_all_filters() -> None:
    """Bug: a rule that is lossless only where target and draft laws have the same tokens left."""
    assert agreement(WARPED["all filters"], 6) > FALSE_ALARM


def test_the_test_rejects_accepting_by_target_prob_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug of the test: it would not notice the well-known wrong rule `rand() < target_prob`."""
    monkeypatch.setattr(verification, "acceptance_probability", lambda target_prob, draft_prob: target_prob)
    assert agreement(WARPED["temperature"], 8, draws=FEWER) < SURELY


@pytest.mark.parametrize("recorded", ["unwarped", "not renormalised on the kept set"])
def test_the_test_rejects_a_draft_law_that_was_not_drawn_from(recorded: str) -> None:
    """Bug of the test: it would not notice acceptance against unwarped, or not renormalised, draft_probs."""
    assert agreement(WARPED["temperature"], 8, draws=FEWER, recorded=recorded) < SURELY
