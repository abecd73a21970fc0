"""A drafter whose context is shorter than the target's: drafting ends there, the text does not."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from drafters.checkpoints import LAYERS, VOCAB, config, eagle1, eagle3, medusa, save
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GPT2Config

from tests.toys import NEVER, causal_lm, decode, disturbed, language_model, llama_config, tokens
from vocabtrim_core.decoding.context import context_notes, draftable_tokens
from vocabtrim_core.decoding.engine import Cycle, Decoding, GenerationSettings, generate
from vocabtrim_core.decoding.lockstep import decode_together
from vocabtrim_core.decoding.stopping import StopCondition
from vocabtrim_core.drafters import DrafterModel
from vocabtrim_core.drafters.independent import IndependentModel
from vocabtrim_core.drafters.lookup import LookupModel
from vocabtrim_core.drafters.registry import load_added
from vocabtrim_core.sampling import SamplingSettings
from vocabtrim_core.trees import DraftShape

CONTEXT = 64
# In float64 a block and single tokens give the same logits up to 1e-15: no near-ties.
LM = causal_lm(0, llama_config(VOCAB, LAYERS, CONTEXT), torch.float64)
TARGET = language_model(LM)
PROMPT = [5, 6, 7, 8, 2, 30, 11, 12, 9, 1]
KINDS = ("independent", "lookup", "EAGLE-1", "EAGLE-3", "Medusa", "Medusa, own heads")
SHAPES = (DraftShape(1), DraftShape(4), DraftShape(7), DraftShape(3, 2), DraftShape(4, 3, 8))


@pytest.fixture(scope="module")
def drafters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, DrafterModel]:
    """One of every kind."""
    folder = tmp_path_factory.mktemp("drafters")
    files = {
        "EAGLE-1": (eagle1(), config()),
        "EAGLE-3": (eagle3(), config()),
        "Medusa": (medusa(own_heads=False), None),
        "Medusa, own heads": (medusa(), None),
    }
    made: dict[str, Any] = {
        name: load_added(save(folder / name, tensors, settings_), name, TARGET)
        for name, (tensors, settings_) in files.items()
    }
    independent = IndependentModel(language_model(disturbed(LM, 0.1)))
    return {"independent": independent, "lookup": LookupModel(VOCAB), **made}


@dataclass
class Shorter:
    """A drafter's model with a context of `max_length` tokens, which it refuses to leave."""

    model: DrafterModel
    max_length: int

    def new_drafter(self, head: object = None, k: int | None = None) -> Any:
        drafter: Any = self.model.new_drafter(None, k)
        drafter.max_length = self.max_length
        begin = drafter.begin

        def watched(prompt_ids: torch.Tensor, states: torch.Tensor) -> None:
            assert len(prompt_ids) < self.max_length, "a prompt that fills the context"
            begin(prompt_ids, states)

        drafter.begin = watched
        return drafter


def check_drafts(cycles: list[Cycle], prompt: int, context: int, room: int) -> None:
    """No drafted token lies beyond the context, and a chain is as long as the context lets it be."""
    length = prompt
    for cycle in cycles:
        assert length + cycle.depth <= max(context, length)
        if not cycle.depth:
            assert cycle.own_token == "vanilla" and len(cycle.emitted_ids) == 1
        length += len(cycle.emitted_ids)
    assert length - prompt <= room


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12)
@given(
    context=st.integers(len(PROMPT) - 3, len(PROMPT) + 25),
    prompt=st.integers(2, len(PROMPT)),
    shape=st.sampled_from(SHAPES),
    k=st.sampled_from([7, VOCAB]),
    limit=st.integers(1, 60),
)
def test_greedy_text_is_vanillas_in_full(
    drafters: dict[str, DrafterModel], kind: str, context: int, prompt: int, shape: DraftShape, k: int, limit: int
) -> None:
    """Bug: the text is cut where the drafter's context ends, or the drafter goes on beyond it."""
    how = GenerationSettings(3, limit, tree=shape)
    drafter = Shorter(drafters[kind], context).new_drafter(k=k)
    cycles = decode(TARGET, drafter, PROMPT[:prompt], how)
    vanilla = decode(TARGET, None, PROMPT[:prompt], how)
    assert tokens(cycles) == tokens(vanilla) and cycles[-1].finish == vanilla[-1].finish == "length"
    check_drafts(cycles, prompt, context, min(limit, CONTEXT - prompt))


def test_a_chain_reaches_to_the_end_of_the_context(drafters: dict[str, DrafterModel]) -> None:
    """Bug: drafting ends a cycle or a token before it has to."""
    cycles = decode(TARGET, Shorter(drafters["independent"], 25).new_drafter(), PROMPT, GenerationSettings(4, 40))
    length = len(PROMPT)
    for cycle in cycles:
        assert len(cycle.drafted_ids) == max(0, min(4, 25 - length))
        length += len(cycle.emitted_ids)
    assert length == 50 and any(cycle.accepted for cycle in cycles)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("context", [3, len(PROMPT) - 1, len(PROMPT)])
def test_a_prompt_that_fills_the_context_is_vanilla_when_sampled_too(
    drafters: dict[str, DrafterModel], kind: str, context: int
) -> None:
    """Bug: such a prompt is refused, or the drafter reads it; chance is drawn for drafts that are not made."""
    how = GenerationSettings(3, 20, SamplingSettings(0.8, top_k=12, seed=4))
    drafter = Shorter(drafters[kind], context).new_drafter()
    assert tokens(decode(TARGET, drafter, PROMPT, how)) == tokens(decode(TARGET, None, PROMPT, how))


def test_positions_that_the_drafter_lacks_are_never_asked_for() -> None:
    """Bug: with learned positions, one token beyond the context is an error from deep inside."""
    sizes = GPT2Config(vocab_size=VOCAB, n_positions=32, n_embd=32, n_layer=1, n_head=2, initializer_range=0.3)
    model = IndependentModel(language_model(causal_lm(1, sizes, torch.float64)))
    assert model.max_length == 32
    for shape in SHAPES:
        for prompt in (PROMPT[:4], PROMPT, PROMPT * 4):
            how = GenerationSettings(3, 40, tree=shape if shape.is_chain else DraftShape(3))
            assert tokens(decode(TARGET, model.new_drafter(), prompt, how)) == tokens(decode(TARGET, None, prompt, how))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [DraftShape(3), DraftShape(3, 2, 6)], ids=["chain", "tree"])
def test_sequences_of_a_batch_leave_the_context_each_on_its_own(
    drafters: dict[str, DrafterModel], kind: str, shape: DraftShape
) -> None:
    """Bug: where one sequence drafts no more, the others do not either, or read its cache."""
    how = GenerationSettings(3, 25, tree=shape)
    jobs = [(PROMPT[:2], 20), (PROMPT, 8), (PROMPT[3:], 13), (PROMPT[:5], 100)]
    found: list[list[int]] = [[] for _ in jobs]
    decodings = [
        Decoding(TARGET, Shorter(drafters[kind], context).new_drafter(), prompt, how, NEVER) for prompt, context in jobs
    ]
    for round in decode_together(decodings, 3):
        for number, cycle in round.cycles.items():
            found[number] += cycle.emitted_ids
    assert found == [tokens(decode(TARGET, None, prompt, how)) for prompt, _ in jobs]


def test_an_end_token_still_ends_the_text_beyond_the_context(drafters: dict[str, DrafterModel]) -> None:
    """Bug: what ends a text is looked for in drafts only."""
    how = GenerationSettings(3, 40)
    vanilla = tokens(decode(TARGET, None, PROMPT, how))
    stop = StopCondition(
        frozenset([next(token for i, token in enumerate(vanilla) if i > 15 and token not in vanilla[:i])])
    )
    drafter = Shorter(drafters["independent"], 16).new_drafter()
    cycles = list(generate(TARGET, drafter, PROMPT, how, stop))
    assert cycles[-1].finish == "eos" and tokens(cycles) == vanilla[: len(tokens(cycles))]


def test_how_much_can_be_drafted() -> None:
    """Bug: off by one at the end of the text or of the context."""
    assert [draftable_tokens(60, 36, room) for room in (1, 2, 24, 25, 100)] == [0, 1, 23, 24, 24]
    assert [draftable_tokens(context, 36, 100) for context in (35, 36, 37)] == [0, 0, 1]


def test_where_drafting_stopped_is_said(drafters: dict[str, DrafterModel]) -> None:
    """Bug: a text that was decoded without drafts from some place on looks drafted throughout."""
    model: Any = drafters["independent"]
    drafter = IndependentModel(replace(model.model, name="short", max_length=60))
    assert context_notes(drafter, [(36, 24), (1, 1)]) == context_notes(drafter, []) == []
    assert "holds 60 tokens: drafting stopped there" in context_notes(drafter, [(36, 25)])[0]
    assert "fills it, so nothing was drafted" in context_notes(drafter, [(60, 1)])[0]
    several = context_notes(drafter, [(36, 25), (70, 9), (4, 4)])
    assert several == [
        "The context of the drafter short holds 60 tokens: in 2 of 3 texts the target went on alone from there, in 1 "
        "of them from the first token on."
    ]


def test_trees_near_the_end_of_the_context_are_no_deeper_than_it(
    drafters: dict[str, DrafterModel], tmp_path: Path
) -> None:
    """Bug: a tree's depth is taken for its number of nodes, or the other way round."""
    cycles = decode(
        TARGET,
        Shorter(drafters["EAGLE-3"], 12).new_drafter(),
        PROMPT,
        GenerationSettings(4, 9, tree=DraftShape(4, 3, 8)),
    )
    assert cycles[0].depth == 2 and len(cycles[0].drafted_ids) > 2
