"""The decoding loop: draft, one target pass, accept. It knows token ids only and yields one record a cycle.

A cycle's pass runs the token emitted last, followed by the draft. Before the first cycle the prompt's pass has run that
token already, so that only the draft is left. Vanilla decoding is the same loop with an empty draft.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import torch

from vocabtrim_core.decoding.stopping import StopCondition
from vocabtrim_core.decoding.verification import Verdict, verify_greedy, verify_sampled
from vocabtrim_core.drafters import Draft, Drafter
from vocabtrim_core.errors import SettingError
from vocabtrim_core.models import LanguageModel
from vocabtrim_core.sampling import SamplingSettings, draw, law

MAX_GAMMA = 32


@dataclass(frozen=True)
class GenerationSettings:
    """How long and how to decode. `gamma` is the draft length; it is not used without a drafter."""

    gamma: int = 3
    max_new_tokens: int = 128
    sampling: SamplingSettings = field(default_factory=SamplingSettings)

    def __post_init__(self) -> None:
        if not 1 <= self.gamma <= MAX_GAMMA:
            raise SettingError(f"gamma is {self.gamma}; choose a draft length from 1 to {MAX_GAMMA}.")
        if self.max_new_tokens < 1:
            raise SettingError(f"The number of new tokens is {self.max_new_tokens}; ask for at least 1.")


@dataclass(frozen=True)
class CycleTimes:
    """Seconds of one cycle. `prefill` (the prompt, both models) is set in the first cycle and not part of `total`."""

    drafter_body: float
    drafter_head: float
    verification: float
    rest: float
    prefill: float = 0.0

    @property
    def total(self) -> float:
        return self.drafter_body + self.drafter_head + self.verification + self.rest


@dataclass(frozen=True)
class Cycle:
    """What happened in one cycle (draft, one target pass, accept).

    `drafted_ids` with `draft_probs` and `target_probs` (what each model gave the drafted token: under the laws sampled
    from, or under the plain softmax when greedy). The first `accepted` of them stand. `emitted_ids` are they and
    then the target's own token, of probability `next_prob`: a "correction" after a rejection, a "bonus" after a whole
    draft, "vanilla" without a draft. A block that ends inside the draft (end of sequence, stop string) has `own_token`
    None and nothing after its end. `out_of_vocabulary` says that the rejection's correction is a token that the
    drafter does not keep. `finish` says why this is the last cycle.
    """

    drafted_ids: tuple[int, ...]
    draft_probs: tuple[float, ...]
    target_probs: tuple[float, ...]
    accepted: int
    emitted_ids: tuple[int, ...]
    own_token: Literal["correction", "bonus", "vanilla"] | None
    next_prob: float | None
    out_of_vocabulary: bool
    finish: Literal["eos", "stop string", "length"] | None
    times: CycleTimes


def generate(
    target: LanguageModel,
    drafter: Drafter | None,
    prompt_ids: list[int],
    settings: GenerationSettings,
    stop: StopCondition,
) -> Iterator[Cycle]:
    """Decode after `prompt_ids` and yield each cycle as it ends; without a drafter, vanilla decoding.

    The time between two yields belongs to the caller and is counted nowhere. Raises `SettingError` for an empty prompt
    or one that leaves no room in the context of the target or the drafter.
    """
    room = _room(target, drafter, prompt_ids, settings)
    return _decode(target, drafter, torch.tensor(prompt_ids), room, settings, stop)


def _room(target: LanguageModel, drafter: Drafter | None, prompt_ids: list[int], settings: GenerationSettings) -> int:
    if not prompt_ids:
        raise SettingError("The prompt is empty. Write something for the model to answer.")
    context = target.max_length if drafter is None else min(target.max_length, drafter.max_length)
    room = context - len(prompt_ids)
    if room < 1:
        raise SettingError(
            f"The prompt is {len(prompt_ids):,} tokens long and the context holds {context:,}. Shorten the prompt."
        )
    return min(room, settings.max_new_tokens)


@torch.inference_mode()
def _decode(
    target: LanguageModel,
    drafter: Drafter | None,
    prompt: torch.Tensor,
    room: int,
    settings: GenerationSettings,
    stop: StopCondition,
) -> Iterator[Cycle]:
    sampling = settings.sampling
    generator = torch.Generator().manual_seed(sampling.seed)
    backbone = target.new_backbone()
    output: list[int] = []

    began = time.perf_counter()
    hidden = backbone.run(prompt)  # [n, H]
    # The last token before a draft: its state where it has been run, else the token.
    known, pending = hidden[-1:], prompt[:0]
    kept = None
    is_kept = torch.ones(target.head.vocab_size, dtype=torch.bool)
    if drafter is not None:
        drafter.begin(prompt, hidden)
        kept = drafter.kept
        is_kept[:] = False
        is_kept[kept] = True
    prefill = time.perf_counter() - began

    finish = None
    while finish is None:
        began = time.perf_counter()
        # A cycle emits one token more than it drafts, so a longer draft could not be used.
        gamma = 0 if drafter is None else min(settings.gamma, room - len(output) - 1)
        draft = drafter.propose(gamma, sampling, generator) if drafter is not None and gamma else None

        drafted = time.perf_counter()
        block = pending if draft is None else torch.cat([pending, draft.ids])
        hidden = torch.cat([known, backbone.run(block)]) if len(block) else known  # [g + 1, H]
        logits = target.head.logits(hidden)  # [g + 1, V]
        verified = time.perf_counter()

        verdict, target_probs, next_prob = _accept(logits, draft, kept, sampling, generator)
        drafted_ids = [] if draft is None else draft.ids.tolist()
        emitted = [*drafted_ids[: verdict.accepted], verdict.next_id]
        count, why = stop.kept(output, emitted)
        inside_draft = count <= verdict.accepted
        output += emitted[:count]
        finish = why or ("length" if len(output) >= room else None)
        if finish is None:
            backbone.rewind(gamma - verdict.accepted)
            if drafter is not None:
                drafter.settle(verdict.accepted, verdict.next_id, hidden)
            known, pending = known[:0], torch.tensor([verdict.next_id])
        rejected = verdict.accepted < len(drafted_ids) and not inside_draft
        shown = count if inside_draft else len(drafted_ids)
        ended = time.perf_counter()

        body = draft.body_seconds if draft else 0.0
        head = draft.head_seconds if draft else 0.0
        verification = verified - drafted
        yield Cycle(
            drafted_ids=tuple(drafted_ids[:shown]),
            draft_probs=tuple(draft.probs.tolist()[:shown]) if draft else (),
            target_probs=tuple(target_probs[:shown]),
            accepted=min(verdict.accepted, count),
            emitted_ids=tuple(emitted[:count]),
            own_token=None if inside_draft else "vanilla" if not drafted_ids else "correction" if rejected else "bonus",
            next_prob=None if inside_draft else next_prob,
            out_of_vocabulary=rejected and not bool(is_kept[verdict.next_id]),
            finish=finish,
            times=CycleTimes(body, head, verification, ended - began - body - head - verification, prefill),
        )
        prefill = 0.0


def _accept(
    logits: torch.Tensor,
    draft: Draft | None,
    kept: torch.Tensor | None,
    sampling: SamplingSettings,
    generator: torch.Generator,
) -> tuple[Verdict, list[float], float]:
    """The verdict, the target's probability of each drafted token, and that of its own next token."""
    ids = torch.empty(0, dtype=torch.int64) if draft is None else draft.ids
    laws = logits.float().softmax(-1) if sampling.greedy else law(logits, sampling)  # [g + 1, V]
    if sampling.greedy:
        verdict = verify_greedy(logits.argmax(-1), ids)
    elif draft is None or draft.laws is None or kept is None:
        verdict = Verdict(0, draw(laws[0], generator))
    else:
        verdict = verify_sampled(laws, ids, draft.ranks, draft.laws, kept, generator)
    target_probs = laws[torch.arange(len(ids)), ids].tolist()
    return verdict, target_probs, float(laws[verdict.accepted, verdict.next_id])
