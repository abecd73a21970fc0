"""The independent drafter: what it proposes, under which law, and that it follows what became of its drafts."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.toys import causal_lm, drafter_of, language_model
from vocabtrim_core.drafters.independent import IndependentDrafter
from vocabtrim_core.passes import alone
from vocabtrim_core.sampling import SamplingSettings, law
from vocabtrim_core.trees import DraftShape

VOCAB, K = 32, 12
GREEDY, SAMPLED = SamplingSettings(), SamplingSettings(temperature=0.8, top_p=0.9, top_k=9, min_p=0.01)
MODEL = language_model(causal_lm(0, dtype=torch.float64))
RANKING = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(5))
NO_STATES = torch.empty(0)


def new_drafter(k: int = K) -> IndependentDrafter:
    return drafter_of(MODEL, RANKING, k)


def kept_logits(text: Sequence[int], k: int = K) -> torch.Tensor:
    """Logits [k] of the kept tokens after a text, from one pass without a cache."""
    with torch.inference_mode():
        states = MODEL.body(input_ids=torch.tensor([list(text)]), use_cache=False).last_hidden_state[0, -1:]
        return MODEL.head.logits(states)[0, RANKING[:k]]


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("prompt", [[7], [1, 2, 3, 4]])
def test_a_greedy_draft_is_the_best_kept_token_each_time(prompt: list[int]) -> None:
    """Bug: ranks fed back as if they were target ids; a prompt of one token lost; the draft not over the kept set."""
    drafter = new_drafter()
    drafter.begin(torch.tensor(prompt), NO_STATES)
    draft = alone(drafter.propose(DraftShape(5), GREEDY, generator()))
    assert draft.laws is None
    text = list(prompt)
    for token, rank, prob in zip(draft.ids.tolist(), draft.ranks.tolist(), draft.probs.tolist(), strict=True):
        logits = kept_logits(text)
        assert rank == int(logits.argmax()) and token == int(RANKING[rank])
        assert prob == pytest.approx(float(logits.softmax(-1)[rank]), rel=1e-4)
        text.append(token)
    assert set(draft.ids.tolist()) <= set(drafter.kept.tolist())


def test_a_sampled_draft_tells_the_law_that_it_was_drawn_from() -> None:
    """Bug: laws unwarped, or not renormalised on the kept set; drawn ids that do not belong to their ranks."""
    drafter = new_drafter()
    drafter.begin(torch.tensor([3, 4, 5]), NO_STATES)
    draft = alone(drafter.propose(DraftShape(6), SAMPLED, generator()))
    assert draft.laws is not None and draft.laws.shape == (6, K) and draft.laws.dtype == torch.float32
    text = [3, 4, 5]
    for position, (token, rank) in enumerate(zip(draft.ids.tolist(), draft.ranks.tolist(), strict=True)):
        expected = law(kept_logits(text)[None], SAMPLED)[0]
        torch.testing.assert_close(draft.laws[position], expected)
        assert token == int(RANKING[rank])
        assert float(draft.probs[position]) == float(draft.laws[position, rank]) > 0
        text.append(token)


def test_a_draft_depends_on_its_generator_only() -> None:
    """Bug: the global random state used for drafting."""
    drafts = []
    for _ in range(2):
        drafter = new_drafter()
        drafter.begin(torch.tensor([3, 4]), NO_STATES)
        drafts.append(alone(drafter.propose(DraftShape(8), SAMPLED, generator())).ids.tolist())
        torch.manual_seed(len(drafts))
    assert drafts[0] == drafts[1]


SHAPES = st.builds(
    DraftShape, st.integers(1, 6), st.sampled_from([1, 1, 2, 3, 20]), st.one_of(st.none(), st.integers(1, 25))
)


@settings(max_examples=60)
@given(
    prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=4),
    cycles=st.lists(st.tuples(SHAPES, st.integers(-1, 30), st.integers(0, VOCAB - 1)), max_size=6),
    sampling=st.sampled_from([GREEDY, SAMPLED]),
)
def test_the_cache_stays_in_step_with_the_text(
    prompt: list[int], cycles: list[tuple[DraftShape, int, int]], sampling: SamplingSettings
) -> None:
    """Bug: a rewind that is one token off at some accepted count; the last token of a wholly accepted draft, or a leaf
    of a tree, which was never fed, missing from the cache; another branch of a tree kept. Also for corrections that the
    drafter does not keep."""
    drafter, drawing = new_drafter(), generator()
    drafter.begin(torch.tensor(prompt), NO_STATES)
    text = list(prompt)
    for shape, last, next_id in cycles:
        draft = alone(drafter.propose(shape, sampling, drawing))
        node = min(last, len(draft.ids) - 1)
        path = draft.tree.path_to(node) if node >= 0 else torch.empty(0, dtype=torch.int64)
        drafter.settle(path, next_id, NO_STATES)
        text += [*draft.ids[path].tolist(), next_id]
    probe = alone(drafter.propose(DraftShape(1), SamplingSettings(temperature=1), drawing))
    assert probe.laws is not None
    torch.testing.assert_close(probe.laws[0], kept_logits(text).softmax(-1).float())


@settings(max_examples=30)
@given(
    shape=st.builds(DraftShape, st.integers(1, 5), st.integers(2, 5), st.one_of(st.none(), st.integers(1, 25))),
    sampling=st.sampled_from([GREEDY, SAMPLED]),
)
def test_a_tree_holds_the_probabilities_of_its_own_paths(shape: DraftShape, sampling: SamplingSettings) -> None:
    """Bug: a node's children come from the states of another node (rows of a level mixed up); siblings that are not
    the best of what may follow; filters or laws in a tree, whose tokens are chosen."""
    drafter = new_drafter()
    drafter.begin(torch.tensor([3, 4, 5]), NO_STATES)
    draft = alone(drafter.propose(shape, sampling, generator()))
    assert draft.laws is None and 0 < len(draft.ids) <= (shape.nodes or 1000)
    assert torch.equal(draft.ids, drafter.kept[draft.ranks])
    assert int(draft.tree.depths.max()) < shape.depth
    for node in (-1, *range(len(draft.ids))):
        before = draft.ids[draft.tree.path_to(node)].tolist() if node >= 0 else []
        law = (kept_logits([3, 4, 5, *before]) / (sampling.temperature or 1)).softmax(-1)
        children = list(draft.tree.children[node])
        assert draft.ranks[children].tolist() == law.argsort(descending=True)[: len(children)].tolist()
        torch.testing.assert_close(draft.probs[children], law[draft.ranks[children]].float(), atol=1e-5, rtol=1e-4)


def test_a_wide_enough_tree_holds_the_greedy_chain() -> None:
    """Bug: what is most probable step by step is lost in a tree."""
    drafter = new_drafter()
    drafter.begin(torch.tensor([3, 4, 5]), NO_STATES)
    tree = alone(drafter.propose(DraftShape(2, K), GREEDY, generator()))
    drafter.begin(torch.tensor([3, 4, 5]), NO_STATES)
    chain = alone(drafter.propose(DraftShape(2), GREEDY, generator()))
    paths = [tree.ids[tree.tree.path_to(node)].tolist() for node in range(len(tree.ids))]
    assert chain.ids.tolist() in paths and len(paths) == K + K * K


def test_a_drafter_can_begin_again() -> None:
    """Bug: a second prompt is drafted after the first one's text."""
    drafter = new_drafter()
    for prompt in ([1, 2, 3], [4], [9, 8]):
        drafter.begin(torch.tensor(prompt), NO_STATES)
        draft = alone(drafter.propose(DraftShape(2), GREEDY, generator()))
        assert int(draft.ids[0]) == int(RANKING[int(kept_logits(prompt).argmax())])


def test_times_are_split_and_not_negative() -> None:
    """Bug: the head's time counted as the body's, or a clock read twice."""
    drafter = new_drafter()
    for shape in (DraftShape(3), DraftShape(3, 2)):
        drafter.begin(torch.tensor([1, 2]), NO_STATES)
        draft = alone(drafter.propose(shape, GREEDY, generator()))
        assert draft.body_seconds > 0 and draft.head_seconds > 0
