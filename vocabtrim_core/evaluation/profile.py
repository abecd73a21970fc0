"""What the parts of a cycle cost on this machine, by draft length and k: measured in the cycle, by the real engine.

The engine runs in short bursts, one a draft length, at a few sizes of the head in turn, vanilla among them, and says
what each part of each cycle took. Bursts are interleaved in rounds, each a whole profile, so that the rounds show the
noise. A head timed alone is beside them, since in a cycle its weights have to come from memory. The target reads each
text once; every burst goes on from there.

A profile is kept on disk: on the same machine, with the same models, the next tuning needs none.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np
import torch

from vocabtrim_core.backbones import Backbone
from vocabtrim_core.decoding.engine import Cycle, GenerationSettings
from vocabtrim_core.decoding.stopping import StopCondition
from vocabtrim_core.errors import SettingError
from vocabtrim_core.evaluation.comparison import Contest
from vocabtrim_core.evaluation.latency import HeadTiming, time_head
from vocabtrim_core.evaluation.machine import Machine, this_machine
from vocabtrim_core.evaluation.spread import Spread
from vocabtrim_core.evaluation.trace import Trace, model_digests
from vocabtrim_core.files import write_atomically
from vocabtrim_core.language_model import LanguageModel
from vocabtrim_core.progress import Progress
from vocabtrim_core.trees import TokenTree

FORMAT = 2  # raise when what is timed, or how it is stored, changes
CYCLES = 4  # of a burst, the first one not counted
DRAFTS = 5  # draft lengths timed, at most
DAY = 86_400.0  # seconds, for which a profile is used
ROUNDS = 6
SHORTEST = 2  # tokens of text that every kind of drafter can draft after
_ON = StopCondition(frozenset())


@dataclass(frozen=True, eq=False)
class LatencyProfile:
    """Seconds of the parts of a cycle, in R rounds at C context lengths.

    `drafts` are the measured draft lengths, 0 (vanilla) the first, `ks` the measured sizes of the head. `verification`
    (the target's pass over one token more than the draft, its head included) and `rest` (all that is not named here)
    are float64[C, R, G]; `body` float64[C, R, G] is a draft's whole time in the drafter's body; `head` float64[C, R, K]
    that of its head for one token. `first` float64[C, R] is the target's head alone, all that vanilla's first cycle
    runs. `alone` are the same sizes of the head timed outside a cycle.
    """

    contexts: tuple[int, ...]
    drafts: tuple[int, ...]
    ks: tuple[int, ...]
    verification: np.ndarray
    rest: np.ndarray
    body: np.ndarray
    head: np.ndarray
    first: np.ndarray
    alone: tuple[HeadTiming, ...]
    dtype: str
    machine: Machine
    measured_at: float  # seconds since 1970

    @property
    def rounds(self) -> int:
        return self.first.shape[1]

    def cycle_seconds(self, drafts: Sequence[int], ks: Sequence[int], context: float) -> np.ndarray:
        """Seconds of a cycle that drafts each of some numbers of tokens, at each k: float64[R, G, K].

        Between what was measured, straight lines: over the draft length, over k, over the context.
        """
        wanted = np.asarray(drafts, dtype=np.float64)
        fixed = self._over_drafts(self.verification + self.rest + self.body, wanted)  # [C, R, G]
        head = _interpolated(
            np.array(self.ks, dtype=np.float64), self.head, np.asarray(ks, dtype=np.float64)
        )  # [C, R, K]
        return self._at(context, fixed[..., None] + wanted[:, None] * head[:, :, None, :])

    def first_cycle_seconds(self, draft: int, ks: Sequence[int], context: float) -> np.ndarray:
        """The same for the first cycle, float64[R, K]: the prompt's pass has run its token already."""
        whole = self.cycle_seconds([draft], ks, context)[:, 0]  # [R, K]
        passes = self._at(context, self._over_drafts(self.verification, np.array([draft, max(0, draft - 1)])))  # [R, 2]
        less = self._at(context, self.first) if draft == 0 else passes[:, 1]
        return whole - passes[:, :1] + less[:, None]

    def covers(self, drafts: Sequence[int], ks: Sequence[int], context: float) -> bool:
        """Whether points of these lie between what was measured, or not far from it."""
        near = self.contexts[0] / 2 <= context <= 2 * self.contexts[-1]
        return near and max(drafts) <= self.drafts[-1] and self.ks[0] <= min(ks) and max(ks) <= self.ks[-1]

    def noise(self) -> float:
        """How far the rounds' vanilla passes lie apart: half their range over their mean."""
        passes = self.verification[:, :, 0]
        return float((np.ptp(passes, axis=1) / passes.mean(axis=1)).max() / 2)

    def part(self, name: str) -> list[Spread]:
        """`verification`, `rest`, `body` or `head` over the rounds and contexts, by draft length or k."""
        values = getattr(self, name)
        return [Spread.of(values[..., i].ravel().tolist()) for i in range(values.shape[-1])]

    def to_json(self) -> dict:
        """Everything as lists, to store."""
        arrays = {name: getattr(self, name).tolist() for name in _ARRAYS}
        return {**asdict(replace(self, **arrays)), "alone": [asdict(one) for one in self.alone]}

    @classmethod
    def from_json(cls, stored: dict) -> LatencyProfile:
        """What `to_json` gave."""
        alone = tuple(HeadTiming(one["k"], Spread(**one["warm"]), Spread(**one["cold"])) for one in stored["alone"])
        lists = {name: tuple(stored[name]) for name in ("contexts", "drafts", "ks")}
        arrays = {name: np.array(stored[name]) for name in _ARRAYS}
        machine = Machine(**{**stored["machine"], "features": tuple(stored["machine"].get("features", ()))})
        return cls(**{**stored, **lists, **arrays, "alone": alone, "machine": machine})

    def _over_drafts(self, values: np.ndarray, drafts: np.ndarray) -> np.ndarray:
        return _interpolated(np.array(self.drafts, dtype=np.float64), values, drafts)

    def _at(self, context: float, values: np.ndarray) -> np.ndarray:
        """`values` [C, ...] at a context length."""
        if len(self.contexts) == 1:
            return values[0]
        low, high = self.contexts
        share = float(np.clip((context - low) / (high - low), 0.0, 1.0))
        return (1 - share) * values[0] + share * values[1]


_ARRAYS = ("verification", "rest", "body", "head", "first")


def kept_profile(
    folder: Path | None,
    contest: Contest,
    trace: Trace,
    gammas: Sequence[int],
    ks: Sequence[int],
    dtype: str,
    on_progress: Progress,
) -> LatencyProfile:
    """The profile that `folder` has of these models on this machine, where it covers what is asked; else a new one,
    which is left there. Weights, device, dtype, threads and how tokens are chosen must be the same. It is used for a
    day, since a machine's speed changes."""
    if folder is None:
        return measure_profile(contest, trace, gammas, ks, dtype, on_progress)
    path = folder / f"profile-{profile_key(contest, dtype)[:32]}.json"
    context = float(np.mean([len(ids) for ids in _timed_texts(contest, trace, max(gammas))]))
    try:
        kept = LatencyProfile.from_json(json.loads(path.read_text()))
        if kept.covers(gammas, ks, context) and time.time() - kept.measured_at < DAY:
            return kept
    except (OSError, ValueError, KeyError, TypeError):
        pass  # None there, or a damaged one: it is made anew.
    profile = measure_profile(contest, trace, gammas, ks, dtype, on_progress)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(profile.to_json()).encode())
    except OSError as error:
        raise SettingError(
            f"The profile cannot be kept in {folder}: {error.strerror}. Choose another folder."
        ) from None
    return profile


def profile_key(contest: Contest, dtype: str) -> str:
    """Sha256 of all that the times of a cycle depend on."""
    parts = {
        "format": FORMAT,
        **model_digests(contest.pair),
        "engine": contest.pair.target.engine.name,
        "device": str(contest.pair.target.head.weight.device),
        "dtype": dtype,
        "machine": asdict(this_machine()),
        "sampling": {**asdict(contest.settings.sampling), "seed": 0},
    }
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def measure_profile(
    contest: Contest,
    trace: Trace,
    gammas: Sequence[int],
    ks: Sequence[int],
    dtype: str,
    on_progress: Progress,
    rounds: int = ROUNDS,
) -> LatencyProfile:
    """Time the parts of a cycle of a pair on texts of the trace (a short and a long one), one run at a time."""
    assert contest.ranked_head is not None, "only a drafter with a head has a profile"
    texts = _contexts(contest, trace, max(gammas))
    drafts = (0, *_spread(sorted(set(gammas)), DRAFTS))
    sizes = tuple(sorted(set(ks)))
    verification, rest, body = np.full((3, len(texts), rounds, len(drafts)), np.nan)
    head = np.full((len(texts), rounds, len(sizes)), np.nan)
    first = np.full((len(texts), rounds), np.nan)
    plan = list(itertools.product(range(rounds), range(len(texts))))
    read = [_with_read_target(contest, ids) for ids in texts]
    _burst(read[0], texts[0], max(gammas), sizes[-1])  # What is set up once is not timed.
    for number, (turn, place) in enumerate(plan):
        on_progress(number / len(plan), f"Timing the parts of a cycle, round {turn + 1} of {rounds}")
        heads: dict[int, list[float]] = {k: [] for k in sizes}
        parts: dict[int, list[Cycle]] = {draft: [] for draft in drafts}
        for gamma, k in _bursts(drafts, sizes, turn):
            cycles = _burst(read[place], texts[place], gamma, k)
            if not gamma:
                first[place, turn] = cycles[0].times.verification
            full = [cycle for cycle in cycles[1:] if len(cycle.drafted_ids) == gamma]
            parts[gamma] += full
            heads[k] += [cycle.times.drafter_head / gamma for cycle in full if gamma]
        for column, draft in enumerate(drafts):
            times = [cycle.times for cycle in parts[draft]]
            verification[place, turn, column] = np.median([one.verification for one in times])
            body[place, turn, column] = np.median([one.drafter_body for one in times])
            rest[place, turn, column] = np.median(
                [one.total - one.drafter_body - one.drafter_head - one.verification for one in times]
            )
        head[place, turn] = [np.median(heads[k]) for k in sizes]
    alone = tuple(time_head(contest.ranked_head, sizes, repeats=3))
    contexts = tuple(len(ids) for ids in texts)
    return LatencyProfile(
        contexts, drafts, sizes, verification, rest, body, head, first, alone, dtype, this_machine(), time.time()
    )


def _bursts(drafts: Sequence[int], ks: Sequence[int], turn: int) -> Iterator[tuple[int, int]]:
    """Pairs of draft length and k, each of either at least once; other pairs in another round."""
    yield 0, ks[0]
    drafting = drafts[1:]
    for i in range(max(len(drafting), len(ks))):
        yield drafting[i % len(drafting)], ks[(i + turn) % len(ks)]


def _burst(contest: Contest, ids: list[int], gamma: int, k: int) -> list[Cycle]:
    """A few cycles after a text, none of them near its end."""
    how = GenerationSettings(max(1, gamma), (CYCLES + 1) * (gamma + 1), contest.settings.sampling)
    short = replace(contest, k=k, settings=how, stop=_ON)
    return list(itertools.islice(short.cycles("trimmed" if gamma else "vanilla", ids), CYCLES))


def _contexts(contest: Contest, trace: Trace, gamma: int) -> list[list[int]]:
    """A short and a long text of the trace: half-way through its output. One where they are about as long."""
    texts = sorted(_timed_texts(contest, trace, gamma), key=len)
    short, long = texts[len(texts) // 4], texts[-1 - len(texts) // 4]
    return [short, long] if len(long) >= 1.5 * len(short) else [long]


def _timed_texts(contest: Contest, trace: Trace, gamma: int) -> list[list[int]]:
    """The texts of the trace half-way through their output, cut at the front where a burst would have no room to draft.

    SettingError where the drafter's context has no room for that at all.
    """
    drafter = contest.pair.drafter
    context = min(contest.pair.target.max_length, drafter.max_length)
    longest = context - (CYCLES + 1) * (gamma + 1)
    if longest < SHORTEST:
        raise SettingError(
            f"The context of the drafter {drafter.name} holds {context:,} tokens, too few to time drafts of {gamma}. "
            "Choose smaller gammas."
        )
    return [ids[-longest:] for ids in _halves(trace)]


def _halves(trace: Trace) -> list[list[int]]:
    return [[*text.prompt.ids, *text.output_ids[: len(text.output_ids) // 2].tolist()] for text in trace.texts]


def _spread(values: Sequence[int], count: int) -> list[int]:
    """At most `count` of ascending values, the first and the last among them, denser among the small ones."""
    wanted = np.geomspace(values[0], values[-1], count)
    return sorted({min(values, key=lambda value: abs(value - one)) for one in wanted})


class _ReadTarget:
    """A target that has read a text already: what decodes after that text begins with the same states, at once.

    One at a time: its backbones share their caches.
    """

    def __init__(self, target: LanguageModel, ids: list[int]) -> None:
        self.head, self.max_length = target.head, target.max_length
        self._target, self._ids = target, torch.tensor(ids)
        self._read: dict[tuple[int, ...], _ReadBackbone] = {}

    def new_backbone(self, taps: tuple[int, ...] = (), fixed_rows: int | None = None) -> Backbone:
        if taps not in self._read:
            self._read[taps] = _ReadBackbone(self._target.new_backbone(taps, fixed_rows), self._ids)
        self._read[taps].forget()
        return self._read[taps]


class _ReadBackbone:
    """A backbone whose first tokens are always `ids`."""

    def __init__(self, inner: Backbone, ids: torch.Tensor) -> None:
        self._inner, self._ids = inner, ids
        self._states = inner.run(ids)
        self._begun = False

    @property
    def length(self) -> int:
        return self._inner.length if self._begun else 0

    @length.setter
    def length(self, value: int) -> None:
        raise AttributeError("the length follows from what is run")

    def forget(self) -> None:
        """All but `ids`, which are still to be asked for."""
        self._inner.rewind(self._inner.length - len(self._ids))
        self._begun = False

    def check(self, trees: bool) -> None:
        self._inner.check(trees)

    def run(self, ids: torch.Tensor, tree: TokenTree | None = None) -> torch.Tensor:
        if self._begun:
            return self._inner.run(ids, tree)
        assert torch.equal(ids, self._ids), "another text than the one that was read"
        self._begun = True
        return self._states

    def rewind(self, n: int) -> None:
        self._inner.rewind(n)

    def keep(self, n: int, path: torch.Tensor) -> None:
        self._inner.keep(n, path)

    def reset(self) -> None:
        self.forget()


def _with_read_target(contest: Contest, ids: list[int]) -> Contest:
    target = cast(LanguageModel, _ReadTarget(contest.pair.target, ids))
    return replace(contest, pair=replace(contest.pair, target=target))


def _interpolated(known: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Straight lines along the last axis of `values` [..., n] at `known` [n]; level beyond the ends."""
    if len(known) == 1:
        return np.repeat(values, len(wanted), axis=-1)
    clipped = np.clip(wanted, known[0], known[-1])
    right = np.clip(np.searchsorted(known, clipped), 1, len(known) - 1)
    share = (clipped - known[right - 1]) / (known[right] - known[right - 1])
    return (1 - share) * values[..., right - 1] + share * values[..., right]
