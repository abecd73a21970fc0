"""EAGLE's network: one decoder layer over the target's states and the embedding of the token that follows each.

EAGLE-1 and 2 (arXiv 2401.15077, 2406.16858) project both to one width before the layer. EAGLE-3 (arXiv 2503.01840)
first fuses the states of three of the target's layers into one feature, and the layer attends over both side by side.
Parameters carry the names of public EAGLE-3 checkpoints (`fc`, `midlayer.*`, `norm`), so a state dict is a checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import LlamaConfig
from transformers.activations import ACT2FN
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from vocabtrim_core.huge_pages import use_huge_pages
from vocabtrim_core.layers import Linear, RmsNorm, fused_linear


class KeyValues(Protocol):
    """Keys and values of the slots before, [B, kv heads, past, head dim]. `length` is how many there are."""

    length: int

    def extend(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Append those of new slots; all of them together."""
        ...


@dataclass(frozen=True, eq=False)
class Part:
    """The next `size` of the slots in a pass: those of a sequence whose slots before them are `past`.

    `mask` bool[size, past + size] says which slots each sees, those of `past` first; without it, all of `past` and
    those up to itself.
    """

    size: int
    mask: torch.Tensor | None = None
    past: KeyValues | None = None


class EagleNetwork(nn.Module):
    """The network of one drafter; slot i sees the embedding of token i + 1 and the target's feature of token i.

    `version` is 1 (EAGLE-1 and 2) or 3. `fused` is the width of the target's states that `fuse` takes (EAGLE-3).
    `norm_before_residual` (EAGLE-3): the residual is the normed feature, not the feature itself.
    """

    def __init__(
        self,
        config: LlamaConfig,
        version: int = 3,
        *,
        fused: int | None = None,
        norm_before_residual: bool = False,
        fc_bias: bool = False,
    ) -> None:
        super().__init__()
        width = config.hidden_size
        self.version = version
        self.norm_before_residual = norm_before_residual
        self.fc = nn.Linear((fused or 3 * width) if version == 3 else 2 * width, width, bias=fc_bias)
        self.midlayer = _Layer(config, version)
        self.norm = nn.RMSNorm(width, config.rms_norm_eps) if version == 3 else nn.Identity()

    def pack(self) -> None:
        """Lay the weights out for running, now that they are final: copies, which no later change reaches."""
        layer = self.midlayer
        attention, mlp = layer.self_attn, layer.mlp
        attention.fused = fused_linear(attention.q_proj, attention.k_proj, attention.v_proj)
        mlp.fused = fused_linear(mlp.gate_proj, mlp.up_proj)
        packed = [attention.fused, mlp.fused]
        for parent in (self, attention, mlp, layer):
            for name, child in parent.named_children():
                if isinstance(child, nn.RMSNorm):
                    setattr(parent, name, _PackedNorm(child))
                elif name in ("fc", "o_proj", "down_proj"):
                    one = _PackedLinear(cast(nn.Linear, child))
                    setattr(parent, name, one)
                    packed.append(one.packed)
        use_huge_pages(linear.block for linear in packed)

    def fuse(self, states: torch.Tensor) -> torch.Tensor:
        """Features [..., H] of the target's states, [..., fused] (EAGLE-3); the states themselves, [..., H] (EAGLE-1).

        What the layer gives is a feature already, and is not fused.
        """
        fused: torch.Tensor = self.fc(states) if self.version == 3 else states
        return fused

    def forward(
        self,
        embeddings: torch.Tensor,
        features: torch.Tensor,
        positions: torch.Tensor,
        mask: torch.Tensor | None = None,
        past: KeyValues | None = None,
    ) -> torch.Tensor:
        """Token embeddings and features, both [B, L, H], to the next features [B, L, H].

        `positions` int64[L] are those of the features' tokens; see `Part` for the others. A next feature is what
        follows the token: the layer's input at the next draft step, and, through `predict`, the head's.
        """
        return self.run(embeddings, features, positions, [Part(embeddings.shape[1], mask, past)])

    def run(
        self, embeddings: torch.Tensor, features: torch.Tensor, positions: torch.Tensor, parts: Sequence[Part]
    ) -> torch.Tensor:
        """The same where the L slots are those of several sequences, one after the other."""
        layer = self.midlayer
        if self.version == 3:
            normed = layer.hidden_norm(features)
            inputs = torch.cat([layer.input_layernorm(embeddings), normed], dim=-1)  # [B, L, 2H]
            residual = normed if self.norm_before_residual else features
        else:
            inputs = residual = self.fc(torch.cat([embeddings, features], dim=-1))  # [B, L, H]
        hidden = residual + layer.self_attn(inputs, positions, parts)
        output: torch.Tensor = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        return output

    def predict(self, features: torch.Tensor) -> torch.Tensor:
        """What the head takes, [..., H], of the layer's output [..., H]: EAGLE-3 norms it, EAGLE-1 does not."""
        normed: torch.Tensor = self.norm(features)
        return normed


class _PackedLinear(nn.Module):
    """In the place, and with the weights, of a linear layer."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.packed = fused_linear(layer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.packed(x)


class _PackedNorm(nn.Module):
    """In the place, and with the weights, of a norm."""

    def __init__(self, norm: nn.RMSNorm) -> None:
        super().__init__()
        self.weight = norm.weight
        self._norm = RmsNorm(norm.weight, cast(float, norm.eps))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._norm(x.flatten(0, -2)).view_as(x)


class _Layer(nn.Module):
    """A Llama decoder layer. EAGLE-1's has no norm before its attention, EAGLE-3's one for each half of its input."""

    def __init__(self, config: LlamaConfig, version: int) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.rms_norm_eps
        self.self_attn = _Attention(config, 2 * width if version == 3 else width)
        self.mlp = _Mlp(config)
        if version == 3:
            self.input_layernorm = nn.RMSNorm(width, eps)
            self.hidden_norm = nn.RMSNorm(width, eps)
        self.post_attention_layernorm = nn.RMSNorm(width, eps)


class _Mlp(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        width, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(width, inner, bias=config.mlp_bias)
        self.up_proj = nn.Linear(width, inner, bias=config.mlp_bias)
        self.down_proj = nn.Linear(inner, width, bias=config.mlp_bias)
        self.act = ACT2FN[config.hidden_act]
        self.fused: Linear | None = None  # gate and up

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        if self.fused is None:
            gate, up = self.gate_proj(hidden), self.up_proj(hidden)
        else:
            gate, up = self.fused(hidden).chunk(2, -1)
        output: torch.Tensor = self.down_proj(self.act(gate) * up)
        return output


class _Attention(nn.Module):
    """Grouped-query attention with rotary positions, over [B, L, inputs] and what is in the cache."""

    def __init__(self, config: LlamaConfig, inputs: int) -> None:
        super().__init__()
        self.head_dim = config.head_dim or config.hidden_size // config.num_attention_heads
        self.kv_heads = config.num_key_value_heads or config.num_attention_heads
        self.groups = config.num_attention_heads // self.kv_heads
        heads = config.num_attention_heads
        self.q_proj = nn.Linear(inputs, heads * self.head_dim, bias=config.attention_bias)
        self.k_proj = nn.Linear(inputs, self.kv_heads * self.head_dim, bias=config.attention_bias)
        self.v_proj = nn.Linear(inputs, self.kv_heads * self.head_dim, bias=config.attention_bias)
        self.o_proj = nn.Linear(heads * self.head_dim, config.hidden_size, bias=config.attention_bias)
        self.rotary = Rotary(config)
        self.fused: Linear | None = None  # queries, keys and values

    def forward(self, inputs: torch.Tensor, positions: torch.Tensor, parts: Sequence[Part]) -> torch.Tensor:
        if self.fused is None:
            projected = torch.cat([self.q_proj(inputs), self.k_proj(inputs), self.v_proj(inputs)], -1)
        else:
            projected = self.fused(inputs)
        rotated = -self.kv_heads  # all but the values
        projected = projected.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [B, heads + 2 kv heads, L, d]
        queries_keys = rotate(projected[:, :rotated], *self.rotary(positions, inputs.dtype))
        queries, keys = queries_keys[:, :rotated], queries_keys[:, rotated:]
        values = projected[:, rotated:]
        sizes = [part.size for part in parts]
        mixed = [
            self._mixed(*split)
            for split in zip(queries.split(sizes, 2), keys.split(sizes, 2), values.split(sizes, 2), parts, strict=True)
        ]
        output: torch.Tensor = self.o_proj(torch.cat(mixed, 2).transpose(1, 2).flatten(2))
        return output

    def _mixed(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, part: Part) -> torch.Tensor:
        """The values [B, heads, L, d] that each of a sequence's queries attends to."""
        mask, past = part.mask, part.past
        count, before = queries.shape[2], 0 if past is None else past.length
        if past is not None:
            keys, values = past.extend(keys, values)  # [B, kv heads, past + L, d]
        if mask is None and not before:
            return scaled_dot_product_attention(queries, keys, values, is_causal=count > 1, enable_gqa=True)
        if mask is None and count > 1:
            mask = torch.ones(count, before + count, dtype=torch.bool, device=queries.device).tril(before)
        # The queries that share a key's head stand below each other, so that no key is copied.
        batch, heads, _, width = queries.shape
        folded = queries.reshape(batch, self.kv_heads, self.groups * count, width)
        every = None if mask is None else mask.repeat(self.groups, 1)  # [groups * L, past + L]
        return scaled_dot_product_attention(folded, keys, values, attn_mask=every).view(batch, heads, count, width)


class Rotary(nn.Module):
    """Cosines and sines of rotary positions, looked up in a table that grows with the longest position."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        embedding = LlamaRotaryEmbedding(config)
        self._frequencies, self._scale = embedding.inv_freq.float(), float(embedding.attention_scaling)
        self._table: tuple[torch.Tensor, torch.Tensor] | None = None

    def forward(self, positions: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Each [L, d] for `positions` int64[L]; the sines' first half is negative."""
        table = self._table
        longest = int(positions.max()) + 1
        if table is None or longest > len(table[0]) or table[0].dtype != dtype:
            with torch.inference_mode(False):  # a table made while decoding serves training, too
                angles = torch.outer(torch.arange(max(512, 2 * longest)).float(), self._frequencies)
                cos, sin = angles.cos() * self._scale, angles.sin() * self._scale
                table = torch.cat([cos, cos], -1).to(dtype), torch.cat([-sin, sin], -1).to(dtype)
            self._table = table
        return table[0][positions], table[1][positions]


def rotate(states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate [B, heads, L, d] by the angles of its L positions, [L, d] each as from `Rotary`."""
    return torch.addcmul(states * cos, states.roll(states.shape[-1] // 2, -1), sin)
