"""Attention heads that start as copiers, for an EAGLE-3 layer that was taken from the target.

What a model repeats from its context it finds by induction: attend to where the last tokens stood before, and expect
the one that followed them there (Olsson et al., arXiv 2209.11895). A target builds that of two layers. A drafter has
one, and does not find it by itself in a training of hours; but one is enough. Slot j holds the target's feature of
token j beside the embedding of token j + 1: where the feature tells tokens j - 1 and j, a query for the last two tokens
finds the slot, whose embedding is what followed.

So the feature is given a code of both, in the directions that it uses least, and the layer a group of heads that look
for it. Heads are twice as wide as the target's, at the squared rotary base: their first pairs then turn as the target's
do, the others hardly at all, so that tokens are found at any distance. This holds for the first token of a draft; where
the feature is the layer's own, at the next ones, the training has to teach it what code to leave there.
"""

from __future__ import annotations

import torch
from torch.nn.functional import rms_norm

# The share of a head's numbers that look for one of the two tokens: of 128, those of the pairs that turn by about a
# radian at most in 1,000 tokens.
CODE_SHARE_OF_HEAD = 0.355
# How large the code is beside a usual feature, by energy.
CODE_ENERGY = 0.02
# How far a slot whose two tokens are those looked for is above others before the softmax, if the codes were exact.
SHARPNESS = 30.0
# By how much the logit of a token that was found for sure is raised, before training.
STRENGTH = 8.0
# How large random weights are that nothing needs yet.
FAINT = 0.02
EPS = 1e-5


def with_copy_heads(
    weights: dict[str, torch.Tensor], states: torch.Tensor, embeddings: torch.Tensor, ids: torch.Tensor, head_dim: int
) -> dict[str, torch.Tensor]:
    """An EAGLE-3 layer's `weights` with heads of twice their `head_dim` and one more group of them, which copies.

    Fitted to a text: tokens int64[n] `ids`, the target's tapped `states` float[n, taps * H] at them, and all token
    `embeddings` [V, H]. But for what the new group adds, the layer gives nearly what it gave.
    """
    attention = "midlayer.self_attn.{}_proj.weight".format
    queries, keys, values, output = (weights[attention(name)] for name in ("q", "k", "v", "o"))
    width, wide, group = len(output), 2 * head_dim, len(queries) // len(keys)
    code = int(CODE_SHARE_OF_HEAD * wide)
    norm = weights["midlayer.input_layernorm.weight"]
    read = rms_norm(embeddings[ids], (width,), norm, EPS)  # what a slot reads of a token
    named, before, states = read[1:], read[:-1], states[1:]

    # The feature's codes of its token and of the one before, as a key tells them, and of its token as a query does.
    looks, finds, likeness = canonical(named, states, code)
    looks_before, finds_before, likeness_before = canonical(before, states, code)
    codes = torch.cat([finds, finds_before, regression(states, named @ looks_before)], dim=1)  # [taps * H, 3 * code]
    features = states @ weights["fc.weight"].T  # [n, H]
    quiet = torch.linalg.eigh(torch.cov(features.T)).eigenvectors[:, : 3 * code]  # [H, 3 * code]
    # Medians, since the first tokens of a text have features many times as large as others.
    size = (CODE_ENERGY * features.square().sum(-1).median() / (3 * code)).sqrt()
    fuse = weights["fc.weight"] - quiet @ (quiet.T @ weights["fc.weight"]) + size * quiet @ codes.T
    typical = (states @ fuse.T).square().mean(-1).sqrt().median()
    # A slot reads its feature normed, and so the codes in it.
    reader = quiet / weights["midlayer.hidden_norm.weight"][:, None] * typical / size
    self_code, before_code, own_code = reader.split(code, dim=1)  # [H, code] each

    # Of what is new and not set here only one factor of each product is zero, or else neither would ever learn.
    new_queries, new_keys = FAINT * torch.randn(group, wide, 2 * width), torch.zeros(wide, 2 * width)
    slow = torch.arange(wide // 2 - code, wide // 2)  # the rotary pairs that turn least
    first, second = slow, slow + wide // 2
    gain = (SHARPNESS * wide**0.5 / (likeness.square().sum() + likeness_before.square().sum())) ** 0.5
    new_queries[:, first] = gain * torch.cat([(looks * likeness).T, torch.zeros(code, width)], dim=1)
    new_queries[:, second] = gain * torch.cat([torch.zeros(code, width), (own_code * likeness_before).T], dim=1)
    new_keys[first, width:] = gain * (self_code * likeness).T
    new_keys[second, width:] = gain * (before_code * likeness_before).T
    # What is carried of a token has variance 1, and its product with an embedding is a logit: that of the same token is
    # as high as the head is wide, that of others about zero.
    variances, directions = torch.linalg.eigh(torch.cov(embeddings.T))
    carried = directions[:, -wide:] / variances[-wide:].sqrt()  # [H, wide]
    new_values = torch.cat([regression(named, embeddings[ids[1:]] @ carried).T, torch.zeros(wide, width)], dim=1)
    back = carried / weights["norm.weight"][:, None] * (STRENGTH * typical / wide)

    # A wider head divides its scores by more.
    old_queries, old_keys = 2**0.5 * _spread(queries, head_dim, FAINT), _spread(keys, head_dim)
    old_values = values.unflatten(0, (-1, head_dim))
    old_values = torch.cat([old_values, new_values[:head_dim].expand_as(old_values)], dim=1).flatten(0, 1)
    old_output = output.unflatten(1, (-1, head_dim))
    old_output = torch.cat([old_output, torch.zeros_like(old_output)], dim=2).flatten(1)
    return {
        **weights,
        "fc.weight": fuse,
        attention("q"): torch.cat([old_queries, *new_queries]),
        attention("k"): torch.cat([old_keys, new_keys]),
        attention("v"): torch.cat([old_values, new_values]),
        attention("o"): torch.cat([old_output, *[back / group] * group], dim=1),
    }


def canonical(x: torch.Tensor, y: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Canonical correlations of samples x [n, X] and y [n, Y].

    Maps [X, count] and [Y, count], from which no mean is taken, to coordinates of variance 1, the i-th ones of which
    agree as much as those before leave, and how much [count].
    """
    x_map, y_map = _whitening(x), _whitening(y)
    shared = x_map.T @ (x - x.mean(0)).T @ (y - y.mean(0)) @ y_map / len(x)
    left, correlations, right = torch.linalg.svd(shared, full_matrices=False)
    return x_map @ left[:, :count], y_map @ right.T[:, :count], correlations[:count]


def regression(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The map [X, Y] that gives y [n, Y] of x [n, X] with the least squared error."""
    products = x.T @ x
    ridge = 1e-3 * products.diagonal().mean() * torch.eye(len(products))
    return torch.linalg.solve(products + ridge, x.T @ y)


def _whitening(x: torch.Tensor) -> torch.Tensor:
    variance = torch.cov(x.T)
    # A sample has directions in which it hardly varies; they must not be blown up.
    variance = variance + 1e-3 * variance.diagonal().diag()
    return torch.linalg.inv(torch.linalg.cholesky(variance)).T


def _spread(part: torch.Tensor, head_dim: int, size: float = 0.0) -> torch.Tensor:
    """Queries or keys in heads of twice the width: their rotary pairs come first; the others are random, of `size`."""
    half = head_dim // 2
    first, second = part.unflatten(0, (-1, 2, half)).unbind(1)  # [heads, half, inputs]
    others = (size * torch.randn_like(part)).unflatten(0, (-1, 2, half)).unbind(1)
    return torch.cat([first, others[0], second, others[1]], dim=1).flatten(0, 1)
