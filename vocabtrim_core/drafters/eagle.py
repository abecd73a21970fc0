"""EAGLE drafters: a single layer that continues the target's own states (arXiv 2401.15077, 2406.16858, 2503.01840).

Slot i holds the embedding of token i + 1 and the target's feature of token i, and predicts token i + 2. A draft appends
slots with the layer's own output in place of the target's features. Once the target has run the accepted tokens, their
slots are computed again, with its true features.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, cast

import torch
from torch import nn
from transformers import LlamaConfig

from vocabtrim_core.draft_maps import readings
from vocabtrim_core.drafters import Draft
from vocabtrim_core.drafters.checkpoints import Checkpoint, as_weight, fill
from vocabtrim_core.drafters.choosing import Choice, chain_draft, choose, no_draft
from vocabtrim_core.drafters.eagle_network import EagleNetwork, Part
from vocabtrim_core.engines import EngineNote
from vocabtrim_core.errors import ModelError
from vocabtrim_core.heads import RankedHead
from vocabtrim_core.language_model import LanguageModel
from vocabtrim_core.passes import HeadPass, Steps, alone
from vocabtrim_core.sampling import SamplingSettings
from vocabtrim_core.sentences import first_line
from vocabtrim_core.trees import DraftShape, GrowingTree, top_children

_ROPE_TYPES = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True, eq=False)
class EagleModel:
    """A loaded EAGLE drafter. `taps` are the target's layers whose inputs it fuses, none for EAGLE-1 and 2.

    `head` is in the checkpoint's order: the target's own, or one that was trained with it (its `ranking` are then the
    tokens that it was trimmed to). `vocab_size` counts the ids that it takes.
    """

    kind: ClassVar[str] = "eagle"
    engine: ClassVar[EngineNote] = EngineNote("own code", "an EAGLE layer is none of transformers' models")
    name: str
    network: EagleNetwork
    embeddings: nn.Module
    head: RankedHead
    vocab_size: int
    max_length: int
    taps: tuple[int, ...]

    @property
    def parameters(self) -> int:
        """Parameters of the layer and what feeds it, without embeddings and head."""
        return sum(parameter.numel() for parameter in self.network.parameters())

    def new_drafter(self, head: RankedHead | None = None, k: int | None = None) -> EagleDrafter:
        head = head or self.head
        return EagleDrafter(self, head, k or head.vocab_size)


class EagleDrafter:
    """Drafts with the network of `model` and the first `k` ranks of `head`."""

    def __init__(self, model: EagleModel, head: RankedHead, k: int) -> None:
        self.kept = head.ranking[:k]
        self.max_length = model.max_length
        self.taps = model.taps
        self._network, self._embed = model.network, model.embeddings
        self._head, self._k = head, k
        self._slots = _Slots()
        # Slots that stand and are not in the cache: their tokens, and the target's states of the tokens before.
        self._ids = self._drafted = torch.empty(0, dtype=torch.int64)
        self._states: list[torch.Tensor] = []

    def check(self, shape: DraftShape) -> None:
        """Chains and trees alike."""

    def begin(self, prompt_ids: torch.Tensor, states: torch.Tensor) -> None:
        self._slots.length = 0
        ids, before = prompt_ids[1:], states[:-1]
        if len(ids) > 1:
            alone(self._run(ids[:-1], self._read(before[:-1]), fuse=True))
        self._ids, self._drafted = ids[-1:], ids[:0]
        self._states = [before[-1:]]

    def propose(self, shape: DraftShape, sampling: SamplingSettings, generator: torch.Generator) -> Steps[Draft]:
        if not len(self._ids):  # a prompt of one token
            return no_draft()
        began = time.perf_counter()
        features = yield from self._run(self._ids, self._read(torch.cat(self._states)), fuse=True)
        feature = features[-1:]  # [1, H]
        self._ids, self._states = self._ids[:0], []
        committed = self._slots.length
        prepared = time.perf_counter() - began
        if shape.is_chain:
            draft = yield from self._chain(shape, sampling, generator, feature)
        else:
            draft = yield from self._tree(shape, sampling, feature)
        self._slots.length = committed
        self._drafted = draft.ids
        return replace(draft, body_seconds=draft.body_seconds + prepared)

    def settle(self, path: torch.Tensor, next_id: int, states: torch.Tensor) -> None:
        self._ids = torch.cat([self._ids, self._drafted[path], torch.tensor([next_id])])
        self._states.append(states)
        self._drafted = self._drafted[:0]

    def _read(self, states: torch.Tensor) -> torch.Tensor:
        """What it reads of the target's states [n, S]: the final ones, or (EAGLE-3) those tapped, to be fused."""
        width = states.shape[-1] // (1 + len(self.taps))
        return states[:, width:] if self.taps else states

    def _run(self, ids: torch.Tensor, features: torch.Tensor, fuse: bool = False) -> Steps[torch.Tensor]:
        """Append slots after those in the cache; the network's output [n, H]."""
        length = self._slots.length
        positions = torch.arange(length, length + len(ids))
        return (yield _SlotsPass(self._network, self._embed, ids, features, fuse, positions, None, self._slots))

    def _chain(
        self, shape: DraftShape, sampling: SamplingSettings, generator: torch.Generator, feature: torch.Tensor
    ) -> Steps[Draft]:
        choices: list[Choice] = []
        body_seconds = head_seconds = 0.0
        for step in range(shape.depth):
            began = time.perf_counter()
            if step:
                feature = yield from self._run(self.kept[choices[-1].ranks], feature)  # [1, H]
            hidden = self._network.predict(feature)
            computed = time.perf_counter()
            logits = yield HeadPass(self._head, hidden, self._k)  # [1, k]
            choices.append(choose(logits, sampling, generator))
            body_seconds += computed - began
            head_seconds += time.perf_counter() - computed
        return chain_draft(choices, self.kept, body_seconds, head_seconds)

    def _tree(self, shape: DraftShape, sampling: SamplingSettings, feature: torch.Tensor) -> Steps[Draft]:
        """EAGLE-2's tree: each level runs the most probable tokens of the last one, each with what it follows."""
        growing = GrowingTree(shape)
        committed = self._slots.length
        visible = torch.empty(1, 0, dtype=torch.bool)  # [frontier, slots of this draft]
        ranks = rows = None
        body_seconds = head_seconds = 0.0
        for level in range(shape.depth):
            began = time.perf_counter()
            if ranks is not None and rows is not None:
                count = len(ranks)
                visible = torch.cat([visible[rows], torch.eye(count, dtype=torch.bool)], dim=1)
                mask = torch.cat([torch.ones(count, committed, dtype=torch.bool), visible], dim=1)
                positions = torch.full((count,), committed + level - 1)
                feature = yield _SlotsPass(
                    self._network, self._embed, self.kept[ranks], feature[rows], False, positions, mask, self._slots
                )  # [f, H]
            hidden = self._network.predict(feature)
            computed = time.perf_counter()
            logits = yield HeadPass(self._head, hidden, self._k)  # [f, k]
            ranks, rows = growing.grow(*top_children(logits, shape.branches, sampling.temperature))
            body_seconds += computed - began
            head_seconds += time.perf_counter() - computed
        began = time.perf_counter()
        tree, chosen, probs, _ = growing.finish()
        head_seconds += time.perf_counter() - began
        return Draft(self.kept[chosen], tree, probs, chosen, None, body_seconds, head_seconds)


class _Slots:
    """Keys and values of the slots so far, in memory that grows by doubling. Fewer again is a smaller `length`."""

    def __init__(self) -> None:
        self.length = 0
        self._keys = self._values = torch.empty(1, 0, 0, 0)

    def extend(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Append [1, heads, n, d] each; views of all."""
        begin, end = self.length, self.length + keys.shape[2]
        if end > self._keys.shape[2]:
            self._keys, self._values = self._grown(self._keys, keys, end), self._grown(self._values, values, end)
        self._keys[:, :, begin:end] = keys
        self._values[:, :, begin:end] = values
        self.length = end
        return self._keys[:, :, :end], self._values[:, :, :end]

    def _grown(self, old: torch.Tensor, like: torch.Tensor, needed: int) -> torch.Tensor:
        _, heads, _, width = like.shape
        new = like.new_empty(1, heads, max(256, 2 * needed), width)
        if self.length:
            new[:, :, : self.length] = old[:, :, : self.length]
        return new


@dataclass(frozen=True, eq=False)
class _SlotsPass:
    """The network's output [n, H] for slots appended to those in `slots`.

    They hold the tokens `ids` int64[n] and, after them, `features` [n, H]; with `fuse` those are to be fused first.
    """

    network: EagleNetwork
    embed: nn.Module
    ids: torch.Tensor
    features: torch.Tensor
    fuse: bool
    positions: torch.Tensor
    mask: torch.Tensor | None
    slots: _Slots

    @property
    def group(self) -> Hashable:
        return self.network, self.fuse

    @classmethod
    def run(cls, passes: Sequence[Self]) -> list[torch.Tensor]:
        first = passes[0]
        ids, features, positions = (
            torch.cat([getattr(one, name) for one in passes]) for name in ("ids", "features", "positions")
        )
        if first.fuse:
            features = first.network.fuse(features)
        parts = [Part(len(one.ids), one.mask, one.slots) for one in passes]
        output = first.network.run(first.embed(ids)[None], features[None], positions, parts)[0]
        return list(output.split([part.size for part in parts]))


def recognises(names: Collection[str]) -> bool:
    """Whether tensors of these names are an EAGLE drafter's."""
    plain = {_plain_name(name) for name in names}
    return "fc.weight" in plain and any(name and name.startswith("midlayer.") for name in plain)


def load(checkpoint: Checkpoint, target: LanguageModel) -> EagleModel:
    """The drafter of a checkpoint, for `target` and in its dtype.

    Embeddings and head that the checkpoint lacks are the target's. Raises `ModelError` where the two do not fit.
    """
    name, dtype = checkpoint.name, target.dtype
    tensors = checkpoint.renamed(_plain_name)
    outer = checkpoint.config
    config = _llama_config(outer, name, target, "midlayer.self_attn.q_proj.bias" in tensors)
    parts = {key: tensors.pop(key, None) for key in ("embed_tokens.weight", "lm_head.weight", "d2t", "t2d")}

    version = 3 if "midlayer.hidden_norm.weight" in tensors else 1
    fc = tensors["fc.weight"]
    taps = _taps(outer, fc, target, name) if version == 3 else ()
    if version == 1 and config.hidden_size != target.hidden_size:
        raise _unfit(name, f"width {config.hidden_size}", f"width {target.hidden_size}")
    if config.vocab_size != target.vocab_size:
        raise _unfit(name, f"{config.vocab_size:,} tokens", f"{target.vocab_size:,} tokens")
    speculators = "speculators_model_type" in outer
    network = EagleNetwork(
        config,
        version,
        fused=fc.shape[-1],
        norm_before_residual=bool(outer.get("norm_before_residual", speculators)),
        fc_bias="fc.bias" in tensors,
    )
    fill(network, tensors, name, dtype)
    network.pack()
    stated = outer.get("draft_vocab_size", getattr(config, "draft_vocab_size", None))
    return EagleModel(
        name=name,
        network=network,
        embeddings=_embeddings(parts["embed_tokens.weight"], config, target, name),
        head=_head(parts["lm_head.weight"], parts["d2t"], parts["t2d"], stated, config, target, name),
        vocab_size=target.vocab_size,
        max_length=min(config.max_position_embeddings, target.max_length),
        taps=taps,
    )


def _plain_name(name: str) -> str | None:
    """A tensor's name as in EAGLE-3's own checkpoints, from any of the layouts; None for what is computed anyway."""
    if name.endswith("rotary_emb.inv_freq"):
        return None
    name = name.removeprefix("model.")
    for prefix, plain in (("layers.0.", "midlayer."), ("transformer.", "midlayer."), ("fusion_fc.", "fc.")):
        if name.startswith(prefix):
            return plain + name.removeprefix(prefix)
    return name


def _llama_config(outer: Any, name: str, target: LanguageModel, attention_bias: bool) -> LlamaConfig:
    inner = outer.get("transformer_layer_config") or outer
    if not inner.get("num_attention_heads") or not inner.get("hidden_size"):
        raise ModelError(f"The drafter {name} has no config.json that says its width and number of attention heads.")
    try:
        config = LlamaConfig.from_dict({**inner, "model_type": "llama", "attention_bias": attention_bias})
        rope = (config.rope_parameters or {})["rope_type"]
    # The library raises errors of every kind for values that make no sense.
    except Exception as error:
        raise ModelError(f"The configuration of the drafter {name} makes no sense: {first_line(error)}") from error
    if rope not in _ROPE_TYPES:
        raise ModelError(f"The drafter {name} has rotary positions of the kind {rope}, which is not supported.")
    return config


def _taps(outer: Any, fc: torch.Tensor, target: LanguageModel, name: str) -> tuple[int, ...]:
    """Indices of the target's layers whose inputs the drafter fuses: what its configuration says, or vLLM's default."""
    layers = target.body.config.get_text_config().num_hidden_layers
    given = outer.get("eagle_aux_hidden_state_layer_ids")
    if not given:
        # SGLang and NVIDIA count outputs of layers there: that of layer i is the input of layer i + 1.
        outputs = (outer.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
        given = [index + 1 for index in outputs] if outputs else (2, layers // 2, layers - 3)
    taps = tuple(int(index) for index in given)
    if fc.shape[-1] != len(taps) * target.hidden_size:
        raise _unfit(
            name,
            f"width {fc.shape[-1]:,} for the states of {len(taps)} of its layers",
            f"{len(taps)} times {target.hidden_size}",
        )
    if not all(0 <= index < layers for index in taps):
        raise _unfit(name, f"layers {', '.join(map(str, taps))}", f"{layers} layers")
    return taps


def _embeddings(own: torch.Tensor | None, config: LlamaConfig, target: LanguageModel, name: str) -> nn.Module:
    if own is None:
        shared: Any = target.body.get_input_embeddings()
        width = shared.weight.shape[-1]
        if width != config.hidden_size:
            raise _unfit(name, f"embeddings of width {config.hidden_size}", f"embeddings of width {width}")
        return cast(nn.Module, shared)
    if tuple(own.shape) != (config.vocab_size, config.hidden_size):
        raise ModelError(f"The drafter {name} is damaged: embed_tokens.weight is {tuple(own.shape)}.")
    return nn.Embedding.from_pretrained(as_weight(own, target.head.activations, name))


def _head(
    own: torch.Tensor | None,
    d2t: torch.Tensor | None,
    t2d: torch.Tensor | None,
    stated: Any,
    config: LlamaConfig,
    target: LanguageModel,
    name: str,
) -> RankedHead:
    """The head with the target ids of its rows as ranking."""
    if own is None:
        if d2t is not None:
            raise ModelError(
                f"The drafter {name} is incomplete: it has d2t, which maps the rows of a head, but no head."
            )
        if config.hidden_size != target.head.hidden_size:
            raise _unfit(name, f"a head of width {config.hidden_size}", f"one of width {target.head.hidden_size}")
        return target.head
    if own.dim() != 2 or own.shape[1] != config.hidden_size:
        raise _damaged(name, f"lm_head.weight is {tuple(own.shape)}")
    ids = _row_ids(len(own), stated, d2t, t2d, config.vocab_size, name)
    return RankedHead(as_weight(own, target.dtype, f"The drafter {name} (lm_head.weight)"), ids)


def _row_ids(
    rows: int, stated: Any, d2t: torch.Tensor | None, t2d: torch.Tensor | None, vocab_size: int, name: str
) -> torch.Tensor:
    """int64[rows]: the target id of each row of a head. `stated` is how many rows the configuration says there are, d2t
    has each one's offset from the row, t2d which ids there are; any of them may be missing."""
    marked = None if t2d is None else t2d.flatten().nonzero()[:, 0]
    if stated not in (None, rows):
        raise _damaged(name, f"its head has {rows:,} rows, and its configuration a draft_vocab_size of {stated}")
    if marked is not None and (len(marked) != rows or int(marked.max()) >= vocab_size):
        raise _damaged(name, f"its head has {rows:,} rows, and t2d marks {len(marked):,} of {vocab_size:,} tokens")
    if d2t is None:
        if marked is None and rows != vocab_size:
            raise _damaged(
                name,
                f"its head has {rows:,} rows for {vocab_size:,} tokens, and neither d2t nor t2d says which they are",
            )
        return torch.arange(rows) if marked is None else marked
    if tuple(d2t.shape) != (rows,):
        raise _damaged(name, f"its head has {rows:,} rows, and d2t the shape {tuple(d2t.shape)}")
    if d2t.is_floating_point():
        # Cast with the weights. Ascending offsets can be made again from t2d.
        if marked is not None and torch.equal((marked - torch.arange(rows)).to(d2t.dtype), d2t):
            return marked
        raise _damaged(name, f"d2t is {str(d2t.dtype).removeprefix('torch.')}, which rounds ids; save it as int64")
    offsets = d2t.long()
    ids = torch.arange(rows) + offsets
    if marked is not None:
        if torch.equal(marked, ids.sort().values):
            return ids
        held = torch.equal(marked, offsets.sort().values)
        raise _damaged(name, _IDS_IN_D2T if held else "t2d and d2t do not say the same")
    found = readings(offsets.numpy(), vocab_size)
    if not offsets.any() and rows < vocab_size:
        raise _damaged(name, f"d2t is all zeros, which would keep the first {rows:,} ids: it was never filled in")
    if found == {"ids"}:
        raise _damaged(name, _IDS_IN_D2T)
    if len(found) > 1:
        raise _damaged(
            name, "d2t could be offsets (token id = row + d2t[row]) or the token ids themselves; add t2d, which tells"
        )
    if not found:
        raise _damaged(name, "d2t maps rows of its head to the same token, or outside the vocabulary")
    return ids


_IDS_IN_D2T = "d2t holds token ids; it has to hold offsets (token id - row)"


def _damaged(name: str, problem: str) -> ModelError:
    return ModelError(f"The drafter {name} is damaged: {problem}.")


def _unfit(name: str, drafter: str, target: str) -> ModelError:
    return ModelError(
        f"The drafter {name} was made for another target: it expects {drafter}, and this target has {target}. Choose "
        "the target that it was trained with."
    )
