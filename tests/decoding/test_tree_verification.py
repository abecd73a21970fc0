"""The accept rule on draft trees: it keeps or corrects them without changing the target's distribution.

The statistical tests use fixed seeds, so they give the same answer every time. Each of them would reject correct code
for one seed in ten thousand (`FALSE_ALARM`); wrong rules, made from the right one by changing its text, have to fail
far below that (`SURELY`).
"""

import inspect
from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.chi_square import p_value, pair_counts
from vocabtrim_core.decoding import verification
from vocabtrim_core.drafters import Draft
from vocabtrim_core.sampling import SamplingSettings, law
from vocabtrim_core.trees import DraftShape, GrowingTree, TokenTree, top_children

FALSE_ALARM = 1e-4
SURELY = 1e-12

VOCAB, START = 12, 0
DRAWS = 8_000
RANKING = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(7))
SAMPLINGS = {
    "temperature": SamplingSettings(temperature=0.7),
    "all filters": SamplingSettings(temperature=1.3, top_k=9, top_p=0.95, min_p=0.02),
}
Maker = Callable[[int, torch.Generator], Draft]


def tables() -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of what follows each token, [V, V], of the target and of a drafter that knows it roughly."""
    generator = torch.Generator().manual_seed(3)
    target = 1.5 * torch.randn(VOCAB, VOCAB, generator=generator)
    return target, target + torch.randn(VOCAB, VOCAB, generator=generator)


def dynamic(shape: DraftShape, k: int) -> Maker:
    """Trees of the most probable continuations of a token among the first k of the ranking."""
    logits, kept = tables()[1][:, RANKING[:k]], RANKING[:k]

    def grown(token: int) -> Draft:
        growing, frontier = GrowingTree(shape), torch.tensor([token])
        for _ in range(shape.depth):
            ranks, _ = growing.grow(*top_children(logits[frontier], shape.branches))
            frontier = kept[ranks]
        tree, ranks, probs, _ = growing.finish()
        return Draft(kept[ranks], tree, probs, ranks, None, 0.0, 0.0)

    # What was chosen does not depend on chance.
    drafts = [grown(token) for token in range(VOCAB)]
    return lambda token, generator: drafts[token]


def drawn(widths: list[int], k: int, sampling: SamplingSettings) -> Maker:
    """Trees whose children are drawn one by one from the same law, `widths` of them at each depth."""
    kept = RANKING[:k]
    draft_laws = law(tables()[1][:, kept], sampling)

    def draft(token: int, generator: torch.Generator) -> Draft:
        parents, ranks, level = [], [], [-1]
        for width in widths:
            following = []
            for parent in level:
                before = token if parent < 0 else int(kept[ranks[parent]])
                for _ in range(width):
                    following.append(len(parents))
                    parents.append(parent)
                    ranks.append(int(torch.multinomial(draft_laws[before], 1, generator=generator)))
            level = following
        chosen = torch.tensor(ranks)
        before_each = torch.tensor([token if parent < 0 else int(kept[ranks[parent]]) for parent in parents])
        laws = draft_laws[before_each]
        probs = laws.gather(-1, chosen[:, None])[:, 0]
        return Draft(kept[chosen], TokenTree(torch.tensor(parents)), probs, chosen, laws, 0.0, 0.0)

    return draft


def agreement(
    sampling: SamplingSettings, make: Maker, k: int, rule: ModuleType = verification, draws: int = DRAWS
) -> float:
    """How well the first two tokens after START follow the target's law, where trees are verified by `rule`."""
    target_law = law(tables()[0], sampling)
    generator = torch.Generator().manual_seed(11)
    outputs = []
    for _ in range(draws):
        output = [START]
        while len(output) < 3:
            draft = make(output[-1], generator)
            before = [output[-1], *draft.ids.tolist()]
            verdict = rule.verify_sampled(lambda row: target_law[before[row]], draft, RANKING[:k], generator)  # noqa: B023
            output += [*draft.ids[list(verdict.path)].tolist(), verdict.next_id]
        outputs.append(output[1:3])
    expected = law(tables()[0].double(), sampling).double()
    joint = expected[START][:, None] * expected
    return p_value(pair_counts(torch.tensor(outputs), VOCAB), (joint / joint.sum()).numpy())


def mutant(old: str, new: str) -> ModuleType:
    """The accept rule with one piece of its text replaced."""
    source = inspect.getsource(verification)
    assert source.count(old) == 1, f"the rule no longer says {old!r}"
    module = ModuleType(verification.__name__)
    exec(compile(source.replace(old, new), "mutant", "exec"), module.__dict__)
    return module


@pytest.mark.parametrize("name", SAMPLINGS)
@pytest.mark.parametrize(
    "shape, k",
    [(DraftShape(1, 3), 4), (DraftShape(2, 4, 9), 8), (DraftShape(3, 2), VOCAB)],
    ids=["one level", "two levels, pruned", "three levels"],
)
def test_sampled_output_of_chosen_trees_follows_the_targets_law(name: str, shape: DraftShape, k: int) -> None:
    """Bug: any rule for chosen tokens, or any correction after them, that is not lossless."""
    assert agreement(SAMPLINGS[name], dynamic(shape, k), k) > FALSE_ALARM


@pytest.mark.parametrize("name", SAMPLINGS)
@pytest.mark.parametrize("widths, k", [([3], 5), ([2, 2], VOCAB)])
def test_sampled_output_of_drawn_trees_follows_the_targets_law(name: str, widths: list[int], k: int) -> None:
    """Bug: a second sibling tried against the target's law instead of what the first one left of it."""
    sampling = SAMPLINGS[name]
    assert agreement(sampling, drawn(widths, k, sampling), k, draws=DRAWS // 2) > FALSE_ALARM


@pytest.mark.parametrize(
    "old, new",
    [
        ("if chance * rest < prob:", "if chance < acceptance_probability(prob, float(draft.probs[child])):"),
        ("without = left.index_fill(0, ids, 0.0)", "without = left"),
        ("        rest -= prob\n", ""),
        ("left = draft.tree.children[node], law_of(node + 1)", "left = draft.tree.children[node], law_of(0)"),
    ],
    ids=[
        "accepted by target_prob / draft_prob, as if drawn",
        "rejected siblings can come back as the correction",
        "siblings not tried against what is left",
        "judged by the row before the draft",
    ],
)  # fmt: skip
def test_the_test_rejects_wrong_rules_for_chosen_trees(old: str, new: str) -> None:
    """Bug of the test: it would not notice these."""
    rule = mutant(old, new)
    assert agreement(SAMPLINGS["temperature"], dynamic(DraftShape(2, 4, 9), 8), 8, rule, 3000) < SURELY


@pytest.mark.parametrize(
    "old, new",
    [
        ("        left = residual_law(left, draft.laws[child], kept)\n", ""),
        (
            "target_prob, draft_prob = float(left[draft.ids[child]]),",
            "first = left if child == siblings[0] else first\n"
            "        target_prob, draft_prob = float(first[draft.ids[child]]),",
        ),
        ("return min(1.0, target_prob / draft_prob)", "return target_prob"),
    ],
    ids=["no residual at all", "siblings tried against the whole law", "rand() < target_prob"],
)
def test_the_test_rejects_wrong_rules_for_drawn_trees(old: str, new: str) -> None:
    """Bug of the test: it would not notice these."""
    sampling = SAMPLINGS["temperature"]
    assert agreement(sampling, drawn([3], 8, sampling), 8, mutant(old, new), 3000) < SURELY


@given(
    parents=st.lists(st.integers(0, 100), max_size=8),
    ids=st.permutations(range(8)),
    choices=st.lists(st.integers(0, 7), min_size=9, max_size=9),
)
def test_greedy_goes_down_while_a_child_is_the_targets_choice(
    parents: list[int], ids: list[int], choices: list[int]
) -> None:
    """Bug: a token accepted under another parent than its own; the correction taken from another row."""
    tree = TokenTree(torch.tensor([parent % (node + 1) - 1 for node, parent in enumerate(parents)], dtype=torch.int64))
    verdict = verification.verify_greedy(choices.__getitem__, list(ids), tree)
    node, path = -1, []
    while any(ids[child] == choices[node + 1] for child in tree.children[node]):
        node = next(child for child in tree.children[node] if ids[child] == choices[node + 1])
        path.append(node)
    assert verdict.path == tuple(path) and verdict.next_id == choices[node + 1]


def test_a_law_that_is_all_on_the_siblings_accepts_one_of_them() -> None:
    """Bug: with a top-k law every sibling is refused by rounding, and nothing is left to draw from."""
    target = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.0])
    tree, ids = TokenTree(torch.full((4,), -1)), torch.tensor([3, 0, 2, 1])
    draft = Draft(ids, tree, torch.full((4,), 0.25), ids, None, 0.0, 0.0)
    generator = torch.Generator().manual_seed(0)
    for _ in range(300):
        verdict = verification.verify_sampled(lambda row: target, draft, torch.arange(5), generator)
        assert len(verdict.path) == 1 and verdict.next_id < 4
