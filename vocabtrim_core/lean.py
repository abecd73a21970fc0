"""A lean body for the Llama family: fused and packed projections, a preallocated cache, few calls a layer.

It computes what `transformers` computes for the same weights, up to rounding, in about half the time for a few tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import torch
from transformers import LlamaModel, MistralModel, PreTrainedModel, Qwen2Model, Qwen3Model

from vocabtrim_core.huge_pages import use_huge_pages
from vocabtrim_core.layers import Linear, RmsNorm, fused_linear, has_room
from vocabtrim_core.trees import TokenTree

COVERED: tuple[type[PreTrainedModel], ...] = (LlamaModel, MistralModel, Qwen2Model, Qwen3Model)
# Frequencies that stay as they are, however long the text gets.
_ROPE_TYPES = ("default", "linear", "llama3", "yarn")
_FIRST_CAPACITY = 256  # tokens
_KEY_BLOCK = 64  # tokens: with a fixed number of rows, the cache is read in whole blocks
_CHUNK = 256  # rows: longer passes are cut, since a mask grows with their number


class NotCoveredError(Exception):
    """A body that the lean one does not compute; the message says what it has that is not covered."""


@dataclass(frozen=True, eq=False)
class _Layer:
    attention_norm: RmsNorm
    qkv: Linear
    query_key_norm: torch.Tensor | None  # [heads + kv heads, D]
    out: Linear
    mlp_norm: RmsNorm
    gate_up: Linear
    down: Linear
    window: int | None

    @property
    def linears(self) -> tuple[Linear, ...]:
        return self.qkv, self.out, self.gate_up, self.down


class LeanBody:
    """The weights of a covered body, shared by its backbones. Raises `NotCoveredError` for others.

    `weights` is the dtype to hold those of the projections in, the body's own by default.
    """

    def __init__(self, body: PreTrainedModel, weights: torch.dtype | None = None) -> None:
        config = body.config.get_text_config()
        if type(body) not in COVERED:
            raise NotCoveredError(f"{type(body).__name__} is not of the Llama family")
        modules: Any = body
        attention = modules.layers[0].self_attn
        self.head_dim: int = attention.head_dim
        self.heads: int = config.num_attention_heads
        self.kv_heads: int = config.num_key_value_heads
        self.eps: float = config.rms_norm_eps
        rotary = modules.rotary_emb
        if config.hidden_act != "silu":
            raise NotCoveredError(f"its activation is {config.hidden_act}, not silu")
        if rotary.rope_type not in _ROPE_TYPES:
            raise NotCoveredError(f"its positions change with the text's length (rope type {rotary.rope_type})")
        if 2 * len(rotary.inv_freq) != self.head_dim or attention.scaling != self.head_dim**-0.5:
            raise NotCoveredError("its attention is scaled or rotated in a way of its own")
        if not all(type(m) is torch.nn.Linear for layer in modules.layers for m in _projections(layer)):
            raise NotCoveredError("its weights are quantized or adapted")
        if not has_room(sum(weight.nbytes for weight in modules.layers.parameters())):
            raise NotCoveredError("there is no memory for a second, fused copy of its weights")
        self.embeddings: torch.Tensor = modules.embed_tokens.weight.detach()
        self.norm = RmsNorm(modules.norm.weight, self.eps)
        self.frequencies: torch.Tensor = rotary.inv_freq.float()
        self.rotary_scale: float = rotary.attention_scaling
        self.layers = [self._layer(layer, config, weights) for layer in modules.layers]
        use_huge_pages(linear.block for layer in self.layers for linear in layer.linears)

    def _layer(self, layer: Any, config: Any, weights: torch.dtype | None) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp
        norms = None
        if hasattr(attention, "q_norm"):
            q_norm, k_norm = (
                norm.weight.detach().expand(heads, -1)
                for norm, heads in ((attention.q_norm, self.heads), (attention.k_norm, self.kv_heads))
            )
            norms = torch.cat([q_norm, k_norm])
        # Qwen says it layer by layer, Mistral for all; Llama's config may hold one that its code does not use.
        window = config.sliding_window if type(attention).__name__ == "MistralAttention" else None
        return _Layer(
            attention_norm=RmsNorm(layer.input_layernorm.weight, self.eps),
            qkv=fused_linear(attention.q_proj, attention.k_proj, attention.v_proj, weights=weights),
            query_key_norm=norms,
            out=fused_linear(attention.o_proj, weights=weights),
            mlp_norm=RmsNorm(layer.post_attention_layernorm.weight, self.eps),
            gate_up=fused_linear(mlp.gate_proj, mlp.up_proj, weights=weights),
            down=fused_linear(mlp.down_proj, weights=weights),
            window=getattr(attention, "sliding_window", window),
        )

    def rotations(self, capacity: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines [capacity, 1, D] by position; the sines' first half is negative, as `rotate_half` is."""
        positions = torch.arange(capacity, device=self.frequencies.device, dtype=torch.float32)
        angles = positions[:, None] * self.frequencies  # [capacity, D / 2]
        cos, sin = angles.cos() * self.rotary_scale, angles.sin() * self.rotary_scale
        dtype = self.embeddings.dtype
        return torch.cat([cos, cos], -1).to(dtype)[:, None], torch.cat([-sin, sin], -1).to(dtype)[:, None]


def _projections(layer: Any) -> tuple[torch.nn.Module, ...]:
    attention, mlp = layer.self_attn, layer.mlp
    return (
        *(attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj),
        *(mlp.gate_proj, mlp.up_proj, mlp.down_proj),
    )


class LeanBackbone:
    """A lean body with a cache of the tokens that it has seen.

    With `fixed_rows`, every pass of at most so many tokens computes exactly so many rows, each attending on its own to
    whole blocks of keys in the order of their positions, so that in bfloat16 a token's states have the same bits
    however it was run: alone, or within a draft.

    `run_together` runs those of several sequences in one pass.
    """

    def __init__(self, body: LeanBody, taps: tuple[int, ...] = (), fixed_rows: int | None = None) -> None:
        self.length = 0
        self.body = body
        self.taps = taps
        self._rows = fixed_rows
        self._windows = {layer.window for layer in body.layers}
        self._allocate(_FIRST_CAPACITY)

    def check(self, trees: bool) -> None:
        """Chains and trees can both be run and forgotten."""

    def reset(self) -> None:
        self.length = 0

    def rewind(self, n: int) -> None:
        if not 0 <= n <= self.length:
            raise ValueError(f"cannot rewind {n} of {self.length} tokens")
        self.length -= n

    @torch.inference_mode()
    def keep(self, n: int, path: torch.Tensor) -> None:
        kept = len(path)
        start = self.length - n
        if kept and int(path[-1]) != kept - 1:
            self._cache[..., start : start + kept, :] = self._cache[..., start + path, :]
        self.rewind(n - kept)

    @torch.inference_mode()
    def run(self, ids: torch.Tensor, tree: TokenTree | None = None) -> torch.Tensor:
        if tree is not None and tree.is_chain:
            tree = None
        if tree is None and len(ids) > _CHUNK:
            return torch.cat([self.run(chunk) for chunk in ids.split(_CHUNK)])
        return _run([self], [self._block(ids, tree)])[0]

    def _allocate(self, capacity: int) -> None:
        body = self.body
        self._cos, self._sin = body.rotations(capacity)
        # Zeros, since what lies behind a mask is multiplied by zero and must not be NaN.
        self._cache = body.embeddings.new_zeros(len(body.layers), 2, body.kv_heads, capacity, body.head_dim)
        self._capacity = capacity

    def _make_room(self, tokens: int) -> None:
        if tokens > self._capacity:
            old = self._cache
            self._allocate(max(2 * self._capacity, -(-tokens // _KEY_BLOCK) * _KEY_BLOCK))
            self._cache[..., : old.shape[-2], :] = old

    def _block(self, ids: torch.Tensor, tree: TokenTree | None) -> _Block:
        """What a pass over `ids`, appended to the cache, reads and writes. `tree` is None for a chain."""
        real, start = len(ids), self.length
        rows = self._rows or 0
        alone = real <= rows
        if real < rows:
            # Spare rows, behind the mask of the others and in the cache only until the next pass.
            ids = torch.cat([ids, ids[-1:].expand(rows - real)])
        n = len(ids)
        end = start + n
        keys_read = -(-end // _KEY_BLOCK) * _KEY_BLOCK if alone else end
        self._make_room(keys_read)
        positions = columns = None
        if tree is None:
            cos, sin = self._cos[start:end], self._sin[start:end]  # [n, 1, D]
        else:
            before = start + real - len(tree)
            positions = torch.cat([before + tree.depths, torch.arange(start + real, end)])
            cos, sin = self._cos[positions[-n:]], self._sin[positions[-n:]]
            if alone:
                columns = _path_columns(tree, before, n, real, keys_read)
        return _Block(
            ids=ids,
            real=real,
            cos=cos,
            sin=sin,
            written=self._cache[..., start:end, :].unbind(0),
            keys=self._cache[:, 0, None, :, :keys_read].unbind(0),
            values=self._cache[:, 1, None, :, :keys_read].unbind(0),
            biases={
                window: self._bias(start, real, n, keys_read, tree, positions, window)
                if columns is None
                else self._path_bias(cast(torch.Tensor, positions)[-n:], keys_read, window)
                for window in self._windows
            },
            columns=columns,
            attend=_attend_alone if alone else _attend,
        )

    def _bias(
        self,
        start: int,
        real: int,
        n: int,
        keys: int,
        tree: TokenTree | None,
        positions: torch.Tensor | None,
        window: int | None,
    ) -> torch.Tensor | None:
        """What to add to the scores of n rows, [n, keys]: 0 where a row sees a key, else -inf. None: all see all.

        The last `real` cached tokens (or those of `tree`, of which they are the end) and n - `real` spare rows are at
        the end of the keys; `positions` are the tree's and the spare rows', for a chain a key's position is its index.
        """
        end = start + n
        reach = keys if window is None else window
        if n == 1 and tree is None and keys == end and reach >= end:
            return None
        bias = self.body.embeddings.new_zeros(n, keys)
        bias[:, start:end] = _triangle(n, bias.dtype, bias.device)
        bias[:, end:] = -torch.inf
        if tree is not None:
            before = start + real - len(tree)
            seen = tree.visible[-real:].to(bias.device)
            bias[:real, before : start + real] = bias.new_zeros(seen.shape).masked_fill_(~seen, -torch.inf)
        if reach < end:
            place = torch.arange(keys)
            if positions is not None:
                place[end - len(positions) : end] = positions
            hidden = place[start:end, None] - place >= reach  # [n, keys]
            bias.masked_fill_(hidden.to(bias.device), -torch.inf)
        return bias

    def _path_bias(self, positions: torch.Tensor, keys: int, window: int | None) -> torch.Tensor:
        """As `_bias`, [n, keys], for rows at `positions` that read each key at its own position (`_path_columns`)."""
        ago = positions[:, None] - torch.arange(keys)
        hidden = (ago < 0) | (ago >= (keys if window is None else window))
        return self.body.embeddings.new_zeros(hidden.shape).masked_fill_(hidden, -torch.inf)


@dataclass(frozen=True, eq=False)
class _Block:
    """The n rows that one sequence adds in a pass, the first `real` of which are its tokens; by layer, the places in
    the cache that they write, [2, kv, n, D], and the keys and values that they read, each [1, kv, keys, D]. With
    `columns` int64[n, keys], each row reads them in an order of its own."""

    ids: torch.Tensor
    real: int
    cos: torch.Tensor  # [n, 1, D]
    sin: torch.Tensor
    written: tuple[torch.Tensor, ...]
    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]
    biases: dict[int | None, torch.Tensor | None]  # by window
    columns: torch.Tensor | None
    attend: Attend


@torch.inference_mode()
def run_together(
    backbones: Sequence[LeanBackbone], ids: Sequence[torch.Tensor], trees: Sequence[TokenTree | None]
) -> list[torch.Tensor]:
    """`run` of several backbones of one body, with the same taps, in one pass: the weights are read once for all.

    Each sequence attends to its own cache only. The promise of `fixed_rows` is not kept here.
    """
    trees = [None if tree is None or tree.is_chain else tree for tree in trees]
    return _run(backbones, [one._block(new, tree) for one, new, tree in zip(backbones, ids, trees, strict=True)])


def _run(backbones: Sequence[LeanBackbone], blocks: Sequence[_Block]) -> list[torch.Tensor]:
    """States [n, S] of each block's tokens."""
    body, taps = backbones[0].body, backbones[0].taps
    functional = torch.nn.functional
    dim, kv = body.head_dim, body.kv_heads
    rotated, group = body.heads + kv, body.heads // kv
    sizes = [len(block.ids) for block in blocks]
    ids, cos, sin = (_joined([getattr(block, name) for block in blocks]) for name in ("ids", "cos", "sin"))
    n = len(ids)

    tapped: dict[int, torch.Tensor] = {}
    hidden = functional.embedding(ids, body.embeddings)  # [n, H]
    for index, layer in enumerate(body.layers):
        if index in taps:
            tapped[index] = hidden
        qkv = layer.qkv(layer.attention_norm(hidden))
        qkv = qkv.view(n, rotated + kv, dim)
        query_key = qkv[:, :rotated]
        if layer.query_key_norm is not None:
            query_key = functional.rms_norm(query_key, [dim], None, body.eps) * layer.query_key_norm
        # x * cos + rotate_half(x) * sin
        torch.addcmul(query_key * cos, query_key.roll(dim // 2, -1), sin, out=qkv[:, :rotated])
        queries = qkv[:, : body.heads].view(n, kv, group, dim)
        keys_values = qkv[:, body.heads :].view(n, 2, kv, dim).permute(1, 2, 0, 3)  # [2, kv, n, D]
        attended = []
        for block, query, new in zip(blocks, queries.split(sizes), keys_values.split(sizes, 2), strict=True):
            block.written[index].copy_(new)
            keys, values = block.keys[index], block.values[index]
            if block.columns is not None:
                keys, values = (one[0, :, block.columns].transpose(0, 1) for one in (keys, values))  # [n, kv, keys, D]
            attended.append(block.attend(query, keys, values, block.biases[layer.window]))
        hidden = hidden + layer.out(_joined(attended))
        gate_up = layer.gate_up(layer.mlp_norm(hidden))
        gate, up = gate_up.chunk(2, -1)
        hidden = hidden + layer.down(functional.silu(gate).mul_(up))
    hidden = body.norm(hidden)
    tapped[len(body.layers)] = hidden
    states = torch.cat([hidden, *(tapped[tap] for tap in taps)], -1) if taps else hidden
    for backbone, block in zip(backbones, blocks, strict=True):
        backbone.length += block.real
    return [part[: block.real] for part, block in zip(states.split(sizes), blocks, strict=True)]


def _joined(parts: list[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _path_columns(tree: TokenTree, before: int, n: int, real: int, keys: int) -> torch.Tensor:
    """int64[n, keys]: where each row's key of every position is in the cache, for rows that end `tree`.

    In a tree the tokens before a row are not where they would be alone, and sums change with the place of a term.
    """
    columns = torch.arange(keys).repeat(n, 1)
    rows, nodes = tree.visible[-real:].nonzero(as_tuple=True)
    columns[rows, before + tree.depths[nodes]] = before + nodes
    return columns


@lru_cache(maxsize=64)
def _triangle(n: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """[n, n]: -inf above the diagonal, where a chain's row does not see."""
    return torch.full((n, n), -torch.inf, dtype=dtype, device=device).triu(1)


Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]


def _attend(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Attention [n, heads * D] of `queries` [n, kv, group, D] to `keys` and `values` [1, kv, m, D].

    The heads that share a key are rows of one block: that reads the keys once.
    """
    n, kv, group, dim = queries.shape
    if bias is not None and n > 1:
        bias = bias[:, None].expand(-1, group, -1).reshape(n * group, -1)
    stacked = queries.transpose(0, 1).reshape(1, kv, n * group, dim)
    attended = torch.nn.functional.scaled_dot_product_attention(stacked, keys, values, bias)  # [1, kv, n * group, D]
    return attended.view(kv, n, group, dim).transpose(0, 1).reshape(n, -1)


def _attend_alone(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """As `_attend`, with each row on its own (an item of a batch), so that no row's sums depend on the other rows."""
    n = len(queries)
    attended = torch.nn.functional.scaled_dot_product_attention(
        queries,
        keys.expand(n, -1, -1, -1),  # [n, kv, m, D]
        values.expand(n, -1, -1, -1),
        None if bias is None else bias[:, None, None],
    )  # [n, kv, group, D]
    return attended.reshape(n, -1)
