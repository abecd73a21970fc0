"""The drafter's hidden states along a text that it did not write, by its depth in the draft. One function a kind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.nn.functional import linear, silu

from vocabtrim_core.errors import SettingError
from vocabtrim_core.heads import RankedHead
from vocabtrim_core.models import ModelPair


@torch.inference_mode()
def drafter_states(pair: ModelPair, prompt_ids: torch.Tensor, output_ids: torch.Tensor, depth: int) -> torch.Tensor:
    """[D, L, H] for int64[n] prompt and int64[L] output: row [d, t] is the state from which the drafter, d tokens into
    its draft, proposes output token t, where the draft so far is the output. D is `depths(pair, depth)`; rows with
    d > t mean nothing.
    """
    ids = torch.cat([prompt_ids, output_ids])
    states: torch.Tensor = _KINDS[kind_of(pair)](pair, ids, len(prompt_ids), depths(pair, depth))
    return states.clone()


def kind_of(pair: ModelPair) -> str:
    """The drafter's kind. SettingError for one that has no head, and so nothing to tune."""
    kind = pair.drafter.kind
    if kind not in _KINDS:
        raise SettingError(f"The drafter {pair.drafter.name} has no head to trim, so there is no k to tune.")
    return kind


def shortest_prompt(pair: ModelPair) -> int:
    """In tokens: draft heads go by the target's state of the token before the last."""
    return 1 if kind_of(pair) == "independent" else 2


def longest_draft(pair: ModelPair, gamma: int) -> int:
    """How many tokens the drafter can propose where `gamma` are wanted: Medusa has a head for each."""
    drafter: Any = pair.drafter
    return min(gamma, drafter.heads) if kind_of(pair) == "medusa" else gamma


def depths(pair: ModelPair, gamma: int) -> int:
    """How many depths differ: 1 where the state is the same at every depth."""
    return 1 if kind_of(pair) == "independent" else longest_draft(pair, gamma)


def heads_by_depth(pair: ModelPair, head: RankedHead) -> Sequence[RankedHead]:
    """The LM head at each depth, in the order of `head`; one where all are the same."""
    own: Sequence[RankedHead] = getattr(pair.drafter, "own_heads", ())
    return tuple(one.reordered(head.ranking) for one in own) or (head,)


def weights(pair: ModelPair) -> Iterator[tuple[str, torch.Tensor]]:
    """The drafter's tensors by name, all that its states and logits depend on."""
    drafter: Any = pair.drafter
    kind = kind_of(pair)
    if kind == "independent":
        yield from drafter.model.body.state_dict().items()
    elif kind == "eagle":
        yield from drafter.network.state_dict().items()
        yield from drafter.embeddings.state_dict().items()
    else:
        for number, block in enumerate(drafter.blocks):
            yield from ((f"{number} weight", block.weight), (f"{number} bias", block.bias))
        yield from ((f"head {number}", one.weight) for number, one in enumerate(drafter.own_heads))
    yield "head", drafter.head.weight
    yield "ranking", drafter.head.ranking
    if drafter.head.bias is not None:
        yield "bias", drafter.head.bias


def _independent(pair: ModelPair, ids: torch.Tensor, prompt: int, depth: int) -> torch.Tensor:
    """A language model sees tokens only, so one pass gives the states of every depth."""
    drafter: Any = pair.drafter
    hidden = drafter.model.new_backbone().run(ids[:-1])  # [n + L - 1, H]
    return hidden[prompt - 1 :][None]


def _eagle(pair: ModelPair, ids: torch.Tensor, prompt: int, depth: int) -> torch.Tensor:
    """Slot i holds token i + 1 and the target's feature of token i. A draft from slot c on sees the true slots up to c
    and, at each depth, its own: so all drafts of one depth run together, each behind its own mask."""
    drafter: Any = pair.drafter
    network = drafter.network
    if prompt < 2:
        raise SettingError("A prompt of one token gives an EAGLE drafter nothing to begin with. Use longer prompts.")
    states = pair.target.new_backbone(drafter.taps).run(ids[:-2])  # [M, S], M = n + L - 2 slots
    width = states.shape[-1] // (1 + len(drafter.taps))
    features = network.fuse(states[:, width:] if drafter.taps else states)
    embedded = drafter.embeddings(ids[1:-1])  # [M, H]
    slots, first = len(features), prompt - 2
    past = _Past()
    output = network(embedded[None], features[None], torch.arange(slots), past=past)[0]  # [M, H]
    result = network.predict(output)[first:][None].repeat(depth, 1, 1)  # [D, L, H]
    output = output[first:]
    starts = torch.arange(first, slots)  # the last true slot of each draft
    visible = torch.arange(slots) <= starts[:, None]  # [L, M]
    for step in range(1, depth):
        starts = starts[:-1]
        if not len(starts):
            break
        own = torch.eye(len(starts), dtype=torch.bool)
        visible = torch.cat([visible[:-1], own], dim=1)
        places = starts + step
        output = network(embedded[places][None], output[:-1][None], places, visible, past)[0]
        result[step, step:] = network.predict(output)
    return result


def _medusa(pair: ModelPair, ids: torch.Tensor, prompt: int, depth: int) -> torch.Tensor:
    """Head d reads the target's state of the token d + 2 before the one that it guesses."""
    drafter: Any = pair.drafter
    if prompt < 2:
        raise SettingError("A prompt of one token gives Medusa heads nothing to begin with. Use longer prompts.")
    hidden = pair.target.new_backbone().run(ids[:-2])  # [n + L - 2, H]
    places = torch.arange(prompt - 2, len(ids) - 2)  # [L]
    rows = []
    for step in range(depth):
        states = hidden[(places - step).clamp(min=0)]
        for block in drafter.blocks:
            states = states + silu(linear(states, block.weight[step], block.bias[step]))
        rows.append(states)
    return torch.stack(rows)


class _Past:
    """Keys and values so far, all kept."""

    def __init__(self) -> None:
        self.length = 0
        self._kept: list[tuple[torch.Tensor, torch.Tensor]] = []

    def extend(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self._kept.append((keys, values))
        self.length += keys.shape[2]
        return torch.cat([one for one, _ in self._kept], dim=2), torch.cat([one for _, one in self._kept], dim=2)


_KINDS = {"independent": _independent, "eagle": _eagle, "medusa": _medusa}
