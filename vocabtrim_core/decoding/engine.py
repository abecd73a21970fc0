"""The decoding loop: draft, one target pass, accept. It knows token ids only and yields one record a cycle.

A cycle's pass runs the token emitted last, followed by the draft, a chain or a tree. Before the first cycle the
prompt's pass has run that token already, so that only the draft is left. Vanilla decoding is the same loop with an
empty draft.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch

from vocabtrim_core.decoding.context import draftable_tokens
from vocabtrim_core.decoding.stopping import StopCondition
from vocabtrim_core.decoding.verification import Verdict, verify_greedy, verify_sampled
from vocabtrim_core.drafters import Draft, Drafter
from vocabtrim_core.errors import SettingError
from vocabtrim_core.language_model import LanguageModel, check_ids
from vocabtrim_core.passes import BodyPass, HeadPass, Steps, alone
from vocabtrim_core.sampling import SamplingSettings, law, probability_at
from vocabtrim_core.trees import MAX_DEPTH, DraftShape

MAX_GAMMA = MAX_DEPTH

Finish = Literal["eos", "stop string", "length"]


@dataclass(frozen=True)
class GenerationSettings:
    """How long and how to decode. `gamma` is the length of a drafted chain; `tree` drafts trees of that shape instead.
    Neither is used without a drafter.

    With `fixed_rows`, above the number of drafted tokens, the target computes so many rows in every pass: its text in
    bfloat16 is then the same with any draft and without, bit for bit, at the price of the spare rows.
    """

    gamma: int = 3
    max_new_tokens: int = 128
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    tree: DraftShape | None = None
    fixed_rows: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.gamma <= MAX_GAMMA:
            raise SettingError(f"gamma is {self.gamma}; choose a draft length from 1 to {MAX_GAMMA}.")
        if self.max_new_tokens < 1:
            raise SettingError(f"The number of new tokens is {self.max_new_tokens}; ask for at least 1.")

    @property
    def shape(self) -> DraftShape:
        """What a drafter is asked for."""
        return self.tree or DraftShape(self.gamma)


@dataclass(frozen=True)
class CycleTimes:
    """Seconds of one cycle: the drafter's body and head; the target's pass with its head (`verification`); the accept
    rule with softmax and sampling; forgetting what was refused (`bookkeeping`); the `rest`, such as this record.

    `prefill` (the prompt, both models) is set in the first cycle and not part of `total`. `wall`, set by who asked for
    the cycle, is what it took by their clock, without the prompt: how much of it `total` explains can so be told.
    In a batch, all include what the sequence waits for the others.
    """

    drafter_body: float
    drafter_head: float
    verification: float
    acceptance: float
    bookkeeping: float
    rest: float
    prefill: float = 0.0
    wall: float = 0.0

    @property
    def total(self) -> float:
        drafting = self.drafter_body + self.drafter_head
        return drafting + self.verification + self.acceptance + self.bookkeeping + self.rest


@dataclass(frozen=True)
class Cycle:
    """What happened in one cycle (draft, one target pass, accept).

    `drafted_ids` with their `parents` (the index of the drafted token that each one follows, -1 for none), and with
    `draft_probs` and `target_probs`: what each model gave the drafted token after its parent, under the laws sampled
    from, or under the plain softmax when greedy (with sampling, top-k and the like are left out where the accept rule
    never looked). Those at `path` stand, from the top, `accepted` of them.

    `emitted_ids` are they and then the target's own token, of probability `next_prob`: a "correction" where tokens
    drafted there were rejected, a "bonus" where nothing more was drafted, "vanilla" without a draft. A block that ends
    inside the draft (end of sequence, stop string) has `own_token` None and, of a chain, nothing after its end.
    `out_of_vocabulary` says that the rejection's correction is a token that the drafter does not keep. `finish` says
    why this is the last cycle.
    """

    drafted_ids: tuple[int, ...]
    parents: tuple[int, ...]
    draft_probs: tuple[float, ...]
    target_probs: tuple[float, ...]
    path: tuple[int, ...]
    emitted_ids: tuple[int, ...]
    own_token: Literal["correction", "bonus", "vanilla"] | None
    next_prob: float | None
    out_of_vocabulary: bool
    finish: Finish | None
    times: CycleTimes

    @property
    def accepted(self) -> int:
        return len(self.path)

    @property
    def depth(self) -> int:
        """How many tokens could have been accepted: those on the draft's longest path."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(depths[parent] + 1 if parent >= 0 else 1)
        return max(depths, default=0)


def generate(
    target: LanguageModel,
    drafter: Drafter | None,
    prompt_ids: list[int],
    settings: GenerationSettings,
    stop: StopCondition,
) -> Iterator[Cycle]:
    """Decode after `prompt_ids` and yield each cycle as it ends; without a drafter, vanilla decoding.

    Where the drafter's context ends, drafting does, and the target goes on alone. The time between two yields belongs
    to the caller and is counted nowhere. Raises `SettingError` for an empty prompt or one that leaves no room in the
    target's context, `ModelError` for a model that cannot take part in speculative decoding of this kind.
    """
    return _decode(Decoding(target, drafter, prompt_ids, settings, stop))


@torch.inference_mode()
def _decode(decoding: Decoding) -> Iterator[Cycle]:
    decoding.begin()
    while decoding.finish is None:
        draft = alone(decoding.draft())
        yield alone(decoding.verify(draft))


class Decoding:
    """One sequence: `begin`, then again and again `draft` and `verify`, until `finish` says why it has ended.

    Drafting and verifying are steps (`passes.Steps`), so that several sequences can take them together. Raises as
    `generate` does.
    """

    def __init__(
        self,
        target: LanguageModel,
        drafter: Drafter | None,
        prompt_ids: list[int],
        settings: GenerationSettings,
        stop: StopCondition,
    ) -> None:
        self.finish: Finish | None = None
        self._room = output_room(target, prompt_ids, settings.max_new_tokens)
        self.backbone = target.new_backbone(drafter.taps if drafter is not None else (), settings.fixed_rows)
        self._draftable = 0
        if drafter is not None:
            self._draftable = draftable_tokens(drafter.max_length, len(prompt_ids), self._room)
            self.backbone.check(trees=not settings.shape.is_chain)
            drafter.check(settings.shape)
        self._head = target.head
        self._drafter = drafter
        self._prompt = torch.tensor(prompt_ids)
        self._settings, self._stop = settings, stop
        self._generator = torch.Generator().manual_seed(settings.sampling.seed)
        self._output: list[int] = []
        self._prefill = 0.0

    def begin(self) -> None:
        """Run the prompt."""
        began = time.perf_counter()
        prompt, drafter = self._prompt, self._drafter
        states = self.backbone.run(prompt)  # [n, S]
        # The last token before a draft: its state where it has been run, else the token.
        self._known, self._pending = states[-1:], prompt[:0]
        self._is_kept = torch.zeros(self._head.vocab_size, dtype=torch.bool)
        if drafter is not None and self._draftable:
            drafter.begin(prompt, states)
            self._is_kept[drafter.kept] = True
        self._prefill = time.perf_counter() - began

    def draft(self) -> Steps[Draft]:
        """What the drafter proposes next: nothing in vanilla decoding, before a text's last token and beyond the
        drafter's context."""
        self._began = time.perf_counter()
        depth = self._draftable - len(self._output)
        if self._drafter is None or depth < 1:
            return Draft.empty()
        shape = self._settings.shape.at_most(depth)
        return (yield from self._drafter.propose(shape, self._settings.sampling, self._generator))

    def verify(self, draft: Draft) -> Steps[Cycle]:
        """The target's pass over the draft, and what it accepts."""
        drafted = time.perf_counter()
        drafter, pending, sampling = self._drafter, self._pending, self._settings.sampling
        # The block is the pending token, if any, and the draft.
        tree = draft.tree.below if len(pending) else draft.tree
        states = self._known
        if len(tree):
            ran = yield BodyPass(self.backbone, torch.cat([pending, draft.ids]), tree)
            states = torch.cat([states, ran])  # [n + 1, S]
        hidden = states[:, : self._head.hidden_size]
        logits = yield HeadPass(self._head, hidden, rows=self._settings.fixed_rows)  # [n + 1, V]
        verified = time.perf_counter()

        verdict, target_probs, next_prob = _accept(logits, draft, drafter, sampling, self._generator)
        accepted = time.perf_counter()

        drafted_ids = draft.ids.tolist()
        emitted = [*(drafted_ids[node] for node in verdict.path), verdict.next_id]
        count, why = self._stop.kept(self._output, emitted)
        self._output += emitted[:count]
        self.finish = why or ("length" if len(self._output) >= self._room else None)
        path = torch.tensor(verdict.path, dtype=torch.int64)
        stopped = time.perf_counter()
        if self.finish is None:
            first = len(pending)  # of the block, where the draft begins
            self.backbone.keep(len(tree), torch.cat([torch.arange(first), path + first]))
            if drafter is not None and len(self._output) < self._draftable:
                drafter.settle(path, verdict.next_id, torch.cat([states[:1], states[path + 1]]))
            self._known, self._pending = states[:0], torch.tensor([verdict.next_id])
        kept = time.perf_counter()

        inside_draft = count <= len(verdict.path)
        last = verdict.path[-1] if verdict.path else -1
        refused = bool(draft.tree.children[last]) and not inside_draft
        shown = count if inside_draft and draft.tree.is_chain else len(drafted_ids)
        prefill, self._prefill = self._prefill, 0.0
        spent = draft.body_seconds + draft.head_seconds + (accepted - drafted) + (kept - stopped)
        times = CycleTimes(
            drafter_body=draft.body_seconds,
            drafter_head=draft.head_seconds,
            verification=verified - drafted,
            acceptance=accepted - verified,
            bookkeeping=kept - stopped,
            rest=time.perf_counter() - self._began - spent,
            prefill=prefill,
        )
        return Cycle(
            drafted_ids=tuple(drafted_ids[:shown]),
            parents=tuple(draft.tree.parents.tolist()[:shown]),
            draft_probs=tuple(draft.probs.tolist()[:shown]),
            target_probs=tuple(target_probs.tolist()[:shown]),
            path=verdict.path[:count],
            emitted_ids=tuple(emitted[:count]),
            own_token=None if inside_draft else "correction" if refused else "bonus" if drafted_ids else "vanilla",
            next_prob=None if inside_draft else next_prob,
            out_of_vocabulary=refused and not bool(self._is_kept[verdict.next_id]),
            finish=self.finish,
            times=times,
        )


def output_room(target: LanguageModel, prompt_ids: Sequence[int], max_new_tokens: int) -> int:
    """How many tokens the output after a prompt can have. SettingError for an empty prompt, or where it is none."""
    if not prompt_ids:
        raise SettingError("The prompt is empty. Write something for the model to answer.")
    check_ids(prompt_ids, target)
    room = target.max_length - len(prompt_ids)
    if room < 1:
        raise SettingError(
            f"The prompt is {len(prompt_ids):,} tokens long and the context holds {target.max_length:,}. Shorten the "
            "prompt."
        )
    return min(room, max_new_tokens)


def _accept(
    logits: torch.Tensor,
    draft: Draft,
    drafter: Drafter | None,
    sampling: SamplingSettings,
    generator: torch.Generator,
) -> tuple[Verdict, torch.Tensor, float]:
    """The verdict, the target's probability of each drafted token, float32[n], and that of its own next token."""
    ids, tree = draft.ids.tolist(), draft.tree
    laws: dict[int, torch.Tensor] = {}

    def law_of(row: int) -> torch.Tensor:
        laws[row] = law(logits[row : row + 1], sampling)[0]
        return laws[row]

    if sampling.greedy:
        # In half precision argmax is slow.
        verdict = verify_greedy(lambda row: int(logits[row].float().argmax()), ids, tree)
    else:
        verdict = verify_sampled(law_of, draft, draft.ids if drafter is None else drafter.kept, generator)
    # The rest is for the record.
    last = verdict.path[-1] if verdict.path else -1
    rows = torch.cat([tree.parents, torch.tensor([last])]) + 1
    probs = probability_at(logits, rows, torch.cat([draft.ids, torch.tensor([verdict.next_id])]), sampling.temperature)
    for row, sampled_from in laws.items():
        for node in tree.children[row - 1]:
            probs[node] = sampled_from[ids[node]]
        if row == last + 1:
            probs[-1] = sampled_from[verdict.next_id]
    return verdict, probs[:-1], float(probs[-1])
