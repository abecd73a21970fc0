"""Acceptance of drafts of any shape by replay: the real drafter runs along a target's output, the target does not.

What a greedy target or a draft tree leaves to chance is nothing, given the output y: greedily the child that is y's
next token is accepted; of a tree's children, which are chosen and not drawn, one is accepted exactly where y goes on
with it, because what is left of the target's law after they are refused has none of them. So y is walked through the
drafts. It has the same law whether the target alone or speculative decoding drew it, and so have the counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from vocabtrim_core.drafters import Draft, Drafter
from vocabtrim_core.errors import SettingError
from vocabtrim_core.evaluation.spread import Spread, interval, resampled
from vocabtrim_core.evaluation.teacher_forcing import kind_of
from vocabtrim_core.evaluation.trace import Trace, TracedText
from vocabtrim_core.heads import RankedHead
from vocabtrim_core.models import ModelPair
from vocabtrim_core.passes import alone
from vocabtrim_core.progress import Progress
from vocabtrim_core.sampling import SamplingSettings
from vocabtrim_core.trees import DraftShape


@dataclass(frozen=True, eq=False)
class Replay:
    """What drafts of a shape at k did on N texts: int64[N] each. `accepted` are drafted tokens that stood; of the
    `rejections`, `out_of_vocabulary` are those of tokens that the drafter does not keep."""

    shape: DraftShape
    k: int
    tokens: np.ndarray
    cycles: np.ndarray
    accepted: np.ndarray
    rejections: np.ndarray
    out_of_vocabulary: np.ndarray

    @property
    def tau(self) -> Spread:
        """Acceptance length, tokens per target pass over all texts, with its interval (bootstrap over texts)."""
        texts = resampled(len(self.tokens), np.random.default_rng(0))  # [B, N]
        low, high = interval((texts @ self.tokens) / (texts @ self.cycles), len(self.tokens))
        return Spread(float(self.tokens.sum() / self.cycles.sum()), float(low), float(high))

    @property
    def out_of_vocabulary_share(self) -> float:
        """Of the rejections."""
        return float(self.out_of_vocabulary.sum() / max(1, self.rejections.sum()))


def replayed_sizes(ks: Sequence[int], also: Sequence[int] = (), count: int = 4) -> list[int]:
    """A handful of the curve's sizes, ascending, with `also` and the largest: each one is a run of the drafter."""
    wanted = np.geomspace(min(max(1024, ks[0]), ks[-1]), ks[-1], count)
    return sorted({*also, *(min(ks, key=lambda k: abs(k - one)) for one in wanted)})


@torch.inference_mode()
def replay(
    pair: ModelPair, trace: Trace, head: RankedHead, shape: DraftShape, ks: Sequence[int], on_progress: Progress
) -> list[Replay]:
    """Drafts of `shape` along every text of the trace, at each k of `head`, which is in rank order.

    Exact: greedily the cycles of the engine, with sampling those of an engine that drew the same output. Raises
    SettingError for sampled chains, whose tokens are drawn, and for a drafter without a head; ModelError where a model
    cannot take the shape.
    """
    kind = kind_of(pair)
    if shape.is_chain and not trace.sampling.greedy:
        raise SettingError("A tree with one branch is a chain. With sampling, give a tree more branches than one.")
    taps = pair.drafter.taps
    pair.target.new_backbone(taps).check(trees=not shape.is_chain)
    pair.drafter.new_drafter(head, ks[0]).check(shape)
    counts = np.zeros((len(ks), 4, len(trace.texts)), dtype=np.int64)
    for number, text in enumerate(trace.texts):
        on_progress(number / len(trace.texts), f"Replaying the drafts of answer {number + 1} of {len(trace.texts)}")
        ids = torch.tensor([*text.prompt.ids, *text.output_ids.tolist()])
        # A language model as drafter looks at no states. The last token is never before a draft.
        states = torch.empty(len(ids), 0) if kind == "independent" else pair.target.new_backbone(taps).run(ids[:-1])
        for column, k in enumerate(ks):
            drafter = pair.drafter.new_drafter(head, k)
            drafter.check(shape)
            counts[column, :, number] = replay_text(drafter, text, states, shape, trace.sampling)
    tokens = np.array([len(text.output_ids) for text in trace.texts], dtype=np.int64)
    return [Replay(shape, k, tokens, *of_k) for k, of_k in zip(ks, counts, strict=True)]


def replay_text(
    drafter: Drafter, text: TracedText, states: torch.Tensor, shape: DraftShape, sampling: SamplingSettings
) -> tuple[int, int, int, int]:
    """Cycles, accepted tokens, rejections and, of those, out-of-vocabulary ones of one text.

    `states` [n, S] are the target's of the prompt and the output, its last token left out or not.
    """
    prompt, output = torch.tensor(text.prompt.ids), text.output_ids.tolist()
    kept = set(drafter.kept.tolist())
    generator = torch.Generator()  # Nothing is drawn.
    cycles = accepted = rejections = outside = done = 0
    if text.draftable:
        drafter.begin(prompt, states[: len(prompt)])
    while done < len(output):
        cycles += 1
        depth = text.draftable - done
        draft = alone(drafter.propose(shape.at_most(depth), sampling, generator)) if depth > 0 else Draft.empty()
        assert draft.laws is None, "drawn drafts cannot be replayed"
        path, refused = _walk(draft, output[done:])
        accepted += len(path)
        before, done = len(prompt) + done - 1, done + len(path) + 1
        if refused:
            rejections += 1
            outside += output[done - 1] not in kept
        if done < min(len(output), text.draftable):
            drafter.settle(torch.tensor(path, dtype=torch.int64), output[done - 1], states[before:][: len(path) + 1])
    return cycles, accepted, rejections, outside


def _walk(draft: Draft, left: list[int]) -> tuple[list[int], bool]:
    """The drafted tokens, from the top, with which the text goes on, and whether children of the last were refused."""
    ids, children = draft.ids.tolist(), draft.tree.children
    path: list[int] = []
    node = -1
    for token in left:
        found = next((child for child in children[node] if ids[child] == token), None)
        if found is None:
            return path, bool(children[node])
        path.append(found)
        node = found
    return path, False  # The text ends inside the draft.
