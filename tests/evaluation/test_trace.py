"""Traces: reused while everything is the same, and only then."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.toys import NEVER
from vocabtrim_core.decoding.engine import GenerationSettings
from vocabtrim_core.decoding.stopping import StopCondition
from vocabtrim_core.drafters.independent import IndependentModel
from vocabtrim_core.drafters.medusa import Block, MedusaModel
from vocabtrim_core.errors import SettingError
from vocabtrim_core.evaluation import trace as tracing
from vocabtrim_core.evaluation.trace import Trace, TunePrompt, kept_trace, record, trace_key, usable_prompts
from vocabtrim_core.models import ModelPair
from vocabtrim_core.sampling import SamplingSettings

PROMPTS = [TunePrompt((3, 4, 5), "qa"), TunePrompt((6,), "code", "a.jsonl:2")]
HOW = GenerationSettings(2, 8)


def quiet(share: float, message: str) -> None:
    pass


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_trace_read_back_is_the_trace(tiny_pair: ModelPair, dtype: torch.dtype) -> None:
    """Bug: states of another dtype, texts cut at the wrong places, tasks lost."""
    made = record(tiny_pair, PROMPTS, HOW, NEVER, quiet)
    texts = tuple(replace(text, states=text.states.to(dtype)) for text in made.texts)
    made = replace(made, texts=texts)
    read = Trace.from_bytes(made.to_bytes("key"), "key")
    assert (read.sampling, read.tokens) == (made.sampling, 16)
    for ours, theirs in zip(made.texts, read.texts, strict=True):
        assert (ours.prompt, ours.draftable) == (theirs.prompt, theirs.draftable)
        assert np.array_equal(ours.output_ids, theirs.output_ids)
        assert np.array_equal(ours.target_probs, theirs.target_probs)
        assert theirs.states.dtype == dtype and torch.equal(ours.states, theirs.states)
    with pytest.raises(ValueError, match="another"):
        Trace.from_bytes(made.to_bytes("key"), "other")


def test_states_are_kept_as_they_are_computed(tiny_pair: ModelPair) -> None:
    """Bug: with weights in float16 the states, which are float32, are rounded, and the head does not take them."""
    target, drafter = tiny_pair.target, tiny_pair.drafter
    assert isinstance(drafter, IndependentModel)
    short = replace(drafter.model.head, weight=drafter.model.head.weight.half())
    pair = replace(tiny_pair, drafter=IndependentModel(replace(drafter.model, head=short)))
    made = record(pair, PROMPTS, HOW, NEVER, quiet)
    assert target.dtype == torch.float32
    for text in made.texts:
        assert text.states.dtype == torch.float32
        assert short.logits(text.states[0]).isfinite().all()


def test_a_kept_trace_is_used_again_and_a_damaged_one_is_not(
    tiny_pair: ModelPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: the target runs again although nothing has changed; half a file is taken for a trace."""
    folder = tmp_path / "new" / "folder"
    made = kept_trace(folder, tiny_pair, PROMPTS, HOW, NEVER, quiet)
    (file,) = folder.iterdir()
    monkeypatch.setattr(tracing, "record", lambda *_: pytest.fail("ran again"))
    again = kept_trace(folder, tiny_pair, PROMPTS, GenerationSettings(5, 8), NEVER, quiet)
    assert np.array_equal(again.texts[1].output_ids, made.texts[1].output_ids)
    monkeypatch.undo()
    whole = file.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", whole[:-200] + bytes(200)):
        file.write_bytes(damaged)
        assert kept_trace(folder, tiny_pair, PROMPTS, HOW, NEVER, quiet).tokens == made.tokens
        assert Trace.from_bytes(file.read_bytes(), trace_key(tiny_pair, PROMPTS, HOW, NEVER)).tokens == made.tokens


def test_a_trace_that_cannot_be_read_is_said(tiny_pair: ModelPair, tmp_path: Path) -> None:
    """Bug: a file that the user may not read ends in a traceback."""
    kept_trace(tmp_path, tiny_pair, PROMPTS, HOW, NEVER, quiet)
    (file,) = tmp_path.iterdir()
    file.unlink()
    file.mkdir()  # root may read every file, but no folder
    with pytest.raises(SettingError, match=f"{file.name} cannot be read: .*Choose another folder"):
        kept_trace(tmp_path, tiny_pair, PROMPTS, HOW, NEVER, quiet)


def test_the_key_changes_with_everything_that_changes_the_trace(tiny_pair: ModelPair, tmp_path: Path) -> None:
    """Bug: a trace of other weights, another dtype, prompt, law, length or stop is served as this one."""
    other = load_model_of(tiny_pair, tmp_path)
    sampled = replace(HOW, sampling=SamplingSettings(temperature=0.7))
    keys = [
        trace_key(pair, prompts, how, stop)
        for pair, prompts, how, stop in (
            (tiny_pair, PROMPTS, HOW, NEVER),
            (replace(tiny_pair, target=other), PROMPTS, HOW, NEVER),
            (replace(tiny_pair, drafter=IndependentModel(other)), PROMPTS, HOW, NEVER),
            (replace(tiny_pair, drafter=shorter(tiny_pair, 9)), PROMPTS, HOW, NEVER),
            (tiny_pair, PROMPTS[:1], HOW, NEVER),
            (tiny_pair, [TunePrompt((3, 4, 6), "qa"), PROMPTS[1]], HOW, NEVER),
            (tiny_pair, PROMPTS, replace(HOW, max_new_tokens=9), NEVER),
            (tiny_pair, PROMPTS, sampled, NEVER),
            (tiny_pair, PROMPTS, replace(HOW, sampling=SamplingSettings(temperature=0.7, seed=1)), NEVER),
            (tiny_pair, PROMPTS, HOW, StopCondition(frozenset([1]))),
        )
    ]
    assert len(set(keys)) == len(keys)
    assert trace_key(tiny_pair, PROMPTS, replace(HOW, sampling=SamplingSettings(seed=5)), NEVER) == keys[0]


def shorter(pair: ModelPair, max_length: int) -> IndependentModel:
    """The pair's drafter with a shorter context."""
    assert isinstance(pair.drafter, IndependentModel)
    return IndependentModel(replace(pair.drafter.model, max_length=max_length))


def load_model_of(pair: ModelPair, folder: Path):  # type: ignore[no-untyped-def]
    """The pair's target with one weight changed a little."""
    pair.target.body.save_pretrained(folder)
    body = type(pair.target.body).from_pretrained(folder)
    with torch.no_grad():
        next(body.parameters()).view(-1)[0].add_(1e-3)
    return replace(pair.target, body=body)


def test_impossible_prompts_are_named(tiny_pair: ModelPair) -> None:
    """Bug: a prompt longer than the context is an error from deep inside, without the line it stands on."""
    with pytest.raises(SettingError, match="no prompts"):
        record(tiny_pair, [], HOW, NEVER, quiet)
    with pytest.raises(SettingError, match=r"b\.jsonl:7: The prompt is 600 tokens"):
        record(tiny_pair, [TunePrompt((1,) * 600, where="b.jsonl:7")], HOW, NEVER, quiet)


def test_prompts_that_cannot_be_read_are_left_out_with_a_note(tiny_pair: ModelPair) -> None:
    """Bug: one prompt of a thousand that is too long, or one token long for draft heads, ends the tuning."""
    long, one = TunePrompt((1,) * 600, where="b.jsonl:7"), TunePrompt((1,))
    usable, notes = usable_prompts(tiny_pair, [long, *PROMPTS, one])
    assert usable == [*PROMPTS, one] and len(notes) == 1
    assert "b.jsonl:7" in notes[0] and "600 tokens" in notes[0]
    drafter = replace_kind(tiny_pair)
    usable, notes = usable_prompts(drafter, [long, *PROMPTS, one])
    assert usable == PROMPTS[:1] and len(notes) == 3 and "one token" in notes[-1]
    assert usable_prompts(drafter, [*PROMPTS, one], traced=False) == ([*PROMPTS, one], [])
    with pytest.raises(SettingError, match=r"None of the prompts.*600 tokens"):
        usable_prompts(tiny_pair, [long])


def replace_kind(pair: ModelPair) -> ModelPair:
    """The pair with Medusa heads."""
    blocks = (Block(torch.zeros(2, 32, 32), torch.zeros(2, 32)),)
    return replace(pair, drafter=MedusaModel("medusa", blocks, 2, pair.target.head, (), pair.target.max_length))


def test_nothing_is_drafted_beyond_the_drafters_context(tiny_pair: ModelPair) -> None:
    """Bug: the output is cut where the drafter's context ends; the drafter reads on beyond it."""
    short = replace(tiny_pair, drafter=shorter(tiny_pair, 7))
    made, whole = (record(pair, PROMPTS, HOW, NEVER, quiet) for pair in (short, tiny_pair))
    assert [text.output_ids.tolist() for text in made.texts] == [text.output_ids.tolist() for text in whole.texts]
    assert [text.draftable for text in made.texts] == [4, 6]
    for ours, theirs in zip(made.texts, whole.texts, strict=True):
        torch.testing.assert_close(ours.states[:, : ours.draftable], theirs.states[:, : ours.draftable])
        assert not ours.states[:, ours.draftable :].any()
