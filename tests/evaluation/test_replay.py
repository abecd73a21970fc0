"""Replayed drafts, chains and trees, are those of the engine: cycle by cycle, without the target."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from drafters.checkpoints import LAYERS, VOCAB, config, eagle1, eagle3, medusa, save
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.evaluation.test_acceptance import SIGMAS, quiet, toy_pair
from tests.toys import NEVER, causal_lm, disturbed, language_model, llama_config, with_context
from vocabtrim_core.decoding.engine import Cycle, GenerationSettings, generate
from vocabtrim_core.decoding.stopping import StopCondition
from vocabtrim_core.drafters.independent import IndependentModel
from vocabtrim_core.drafters.registry import load_added
from vocabtrim_core.errors import SettingError
from vocabtrim_core.evaluation.acceptance import acceptance, acceptance_chances
from vocabtrim_core.evaluation.replay import Replay, replay
from vocabtrim_core.evaluation.teacher_forcing import heads_by_depth, longest_draft
from vocabtrim_core.evaluation.trace import Trace, TracedText, TunePrompt, record, seeded
from vocabtrim_core.heads import RankedHead
from vocabtrim_core.models import ModelPair
from vocabtrim_core.sampling import SamplingSettings
from vocabtrim_core.trees import DraftShape

PROMPTS = [TunePrompt((1, 2, 3)), TunePrompt((9, 4)), TunePrompt((4, 4, 8, 1, 0))]
SHAPES = st.builds(
    DraftShape, st.integers(1, 6), st.sampled_from([1, 2, 3, 5]), st.one_of(st.none(), st.integers(1, 30))
)
PAIRS = {}
for DTYPE in (torch.float32, torch.float64):
    LM = causal_lm(0, llama_config(VOCAB), DTYPE)
    DRAFTER = IndependentModel(language_model(disturbed(LM, 0.15)))
    PAIRS[DTYPE] = ModelPair(language_model(LM), DRAFTER, None)  # type: ignore[arg-type]
DEEP = language_model(causal_lm(0, llama_config(VOCAB, LAYERS), torch.float64))
RANKING = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(5))
LAYOUTS = {
    "EAGLE-1": (eagle1(), config()),
    "EAGLE-3": (eagle3(), config()),
    "Medusa": (medusa(), None),
    "Medusa, the target's head": (medusa(4, 2, own_heads=False), None),
}


def ranked(pair: ModelPair) -> RankedHead:
    head = pair.drafter.head
    assert head is not None
    return head.reordered(head.ranking[torch.randperm(head.vocab_size, generator=torch.Generator().manual_seed(3))])


def engine(pair: ModelPair, head: RankedHead, shape: DraftShape, k: int, how: GenerationSettings, stop: StopCondition):  # type: ignore[no-untyped-def]
    """The cycles of every prompt, for real."""
    runs: list[list[Cycle]] = []
    for number, prompt in enumerate(PROMPTS):
        one = replace(how, tree=shape, sampling=seeded(how.sampling, number))
        runs.append(list(generate(pair.target, pair.drafter.new_drafter(head, k), list(prompt.ids), one, stop)))
    return runs


def check(found: Replay, runs: list[list[Cycle]]) -> None:
    assert found.cycles.tolist() == [len(run) for run in runs]
    assert found.accepted.tolist() == [sum(cycle.accepted for cycle in run) for run in runs]
    assert found.rejections.tolist() == [sum(cycle.own_token == "correction" for cycle in run) for run in runs]
    assert found.out_of_vocabulary.tolist() == [sum(cycle.out_of_vocabulary for cycle in run) for run in runs]


@settings(max_examples=20)
@given(
    k=st.integers(1, VOCAB),
    shape=SHAPES,
    limit=st.integers(1, 30),
    eos=st.integers(0, VOCAB - 1),
    dtype=st.sampled_from(list(PAIRS)),
    context=st.one_of(st.integers(1, 25), st.just(256)),
)
def test_greedy_replay_is_the_engine(
    k: int, shape: DraftShape, limit: int, eos: int, dtype: torch.dtype, context: int
) -> None:
    """Bug: a draft settled at another place than in the engine, a tree too deep near the limit of length, an end token
    inside a draft counted as a rejection; for chains, another count than that of the walk over w."""
    pair, stop, how = with_context(PAIRS[dtype], context), StopCondition(frozenset([eos])), GenerationSettings(6, limit)
    head = pair.drafter.head.reordered(RANKING)  # type: ignore[union-attr]
    trace = record(pair, PROMPTS, how, stop, quiet)
    (found,) = replay(pair, trace, head, shape, [k], quiet)
    check(found, engine(pair, head, shape, k, how, stop))
    if shape.is_chain:
        walked = acceptance(acceptance_chances(trace, [head], [k]), [shape.depth], [k])
        assert walked.cycles[:, 0, :, 0].sum(axis=1).tolist() == found.cycles.tolist()
        assert walked.rejections[:, 0, 0].tolist() == found.rejections.tolist()


@pytest.fixture(params=list(LAYOUTS))
def added(request: pytest.FixtureRequest, tmp_path: Path) -> ModelPair:
    """A drafter that reads the target's states."""
    tensors, settings_ = LAYOUTS[request.param]
    drafter = load_added(save(tmp_path / "drafter", tensors, settings_), "tiny", DEEP)  # type: ignore[arg-type]
    assert drafter is not None
    return ModelPair(DEEP, drafter, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("context", [4, 14, 256])
@pytest.mark.parametrize("shape", [DraftShape(3), DraftShape(3, 3, 8), DraftShape(4, 2)], ids=str)
def test_replay_of_drafters_that_read_states_is_the_engine(added: ModelPair, shape: DraftShape, context: int) -> None:
    """Bug: states of the token after or before, of the wrong layers, or of a text that the drafter has not seen; ks
    that share one drafter; a drafter that reads beyond its context, or stops before."""
    added = with_context(added, context)
    how = GenerationSettings(4, 20)
    head = ranked(added)
    trace = record(added, PROMPTS, how, NEVER, quiet)
    ks = [3, head.vocab_size]
    found = replay(added, trace, head, shape, ks, quiet)
    for one, k in zip(found, ks, strict=True):
        check(one, engine(added, head, shape, k, how, NEVER))
    assert sum(one.accepted.sum() for one in found) > 0 or context < 256
    if shape.is_chain:
        gamma = longest_draft(added, shape.depth)
        walked = acceptance(acceptance_chances(trace, heads_by_depth(added, head), ks), [gamma], ks)
        assert walked.cycles[:, 0].sum(axis=1).T.tolist() == [one.cycles.tolist() for one in found]


@settings(max_examples=6)
@given(k=st.integers(2, VOCAB), branches=st.integers(2, 5), seed=st.integers(0, 1000), eos=st.integers(0, VOCAB - 1))
def test_a_sampled_output_replayed_is_the_run_that_drew_it(k: int, branches: int, seed: int, eos: int) -> None:
    """Bug: an accepted child taken for a refused one or the other way round; trees grown at another temperature."""
    pair, stop, shape = PAIRS[torch.float64], StopCondition(frozenset([eos])), DraftShape(3, branches, 9)
    how = GenerationSettings(3, 24, SamplingSettings(1.3, top_p=0.95, seed=seed))
    head = pair.drafter.head.reordered(RANKING)  # type: ignore[union-attr]
    runs = engine(pair, head, shape, k, how, stop)
    outputs = [np.array([token for cycle in run for token in cycle.emitted_ids]) for run in runs]
    texts = [
        TracedText(prompt, ids, np.ones(len(ids)), 23, torch.empty(1, len(ids), 0))
        for prompt, ids in zip(PROMPTS, outputs, strict=True)
    ]
    (found,) = replay(pair, Trace(tuple(texts), how.sampling, 0.0, 0.0), head, shape, [k], quiet)
    check(found, runs)


def test_sampled_trees_on_the_targets_own_text_are_the_engines_on_average() -> None:
    """Bug: counts that hold given the engine's output but not given the target's, whose law must be the same.

    Correct code fails for one choice of seeds in about five thousand, for any of the four comparisons.
    """
    pair = toy_pair()
    head = pair.drafter.head.reordered(torch.randperm(12, generator=torch.Generator().manual_seed(2)))  # type: ignore[union-attr]
    shape, stop = DraftShape(3, 3, 8), StopCondition(frozenset([5]))
    how = GenerationSettings(3, 20, SamplingSettings(0.8, top_p=0.95))
    trace = record(pair, [TunePrompt((1, 0))] * 200, how, stop, quiet)
    for k, found in zip((5, 12), replay(pair, trace, head, shape, [5, 12], quiet), strict=True):
        runs = []
        for number in range(200):
            one = replace(how, tree=shape, sampling=seeded(how.sampling, 10_000 + number))
            runs.append(list(generate(pair.target, pair.drafter.new_drafter(head, k), [1, 0], one, stop)))
        for ours, theirs in (
            (found.cycles, [len(run) for run in runs]),
            (found.rejections, [sum(cycle.own_token == "correction" for cycle in run) for run in runs]),
        ):
            real = np.array(theirs)
            spread = np.sqrt(real.var() / len(real) + ours.var() / len(ours))
            assert abs(real.mean() - ours.mean()) < SIGMAS * spread


def test_what_cannot_be_replayed_is_said() -> None:
    """Bug: a sampled chain, whose drafts are drawn, replayed as if they were not."""
    pair = PAIRS[torch.float32]
    how = GenerationSettings(3, 5, SamplingSettings(1.0))
    trace = record(pair, PROMPTS, how, NEVER, quiet)
    with pytest.raises(SettingError, match="one branch"):
        replay(pair, trace, ranked(pair), DraftShape(3), [5], quiet)
