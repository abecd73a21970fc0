"""Layers that are only run, never trained, in the fewest calls and with weights as the processor's kernels want them.

PyTorch's plain `linear` has oneDNN bring the weights into that layout at every call, which costs as much as reading
them twice more. Packed, a pass over a few rows takes about half the time; the sums are oneDNN's in both cases.

Weights in float16 are multiplied with float32 activations, by fbgemm: half the bytes of float32, and its precision but
for the rounding of the weights. Processors with AVX2 have the instructions for that, and none for bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import psutil
import torch

from vocabtrim_core.errors import TooLargeError

# The number of rows that the layout is chosen for. One row's own layout is slower for float32 from three rows on.
_ROWS = 8
# Without bfloat16 kernels a product's time grows with its rows; from so many on it is faster to widen the weights on
# the way to float32.
_WIDENED_ROWS = 9


def has_kernels(dtype: torch.dtype) -> bool:
    """Whether PyTorch has kernels for weights of this dtype on this processor."""
    if dtype == torch.float32:
        return torch.backends.mkldnn.is_available()
    if dtype == torch.bfloat16:
        return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float16 and _has_fbgemm()


@cache
def _has_fbgemm() -> bool:
    # Listed where PyTorch was built with it; whether this processor can run it shows when it is asked.
    if "fbgemm" not in torch.backends.quantized.supported_engines:
        return False
    try:
        torch.ops.quantized.linear_prepack_fp16(torch.zeros(8, 8), None)
    except RuntimeError:
        return False
    return True


def can_pack(weight: torch.Tensor) -> bool:
    """Whether packing is known to help here: on a CPU that has kernels for this dtype, with room for the copy."""
    return weight.device.type == "cpu" and has_kernels(weight.dtype) and has_room(weight.nbytes)


def copies(weight: torch.Tensor) -> bool:
    """Whether a `Linear` of `weight` holds a copy of it, in another layout or dtype."""
    return can_pack(weight) or weight.dtype == torch.float16


def has_room(size: int) -> bool:
    """Whether a copy of `size` bytes takes less than half of the memory that can be had without swapping."""
    return size < psutil.virtual_memory().available / 2


def activations_of(weights: torch.dtype) -> torch.dtype:
    """The dtype that is computed in with weights of this dtype."""
    return torch.float32 if weights == torch.float16 else weights


def as_float16(weight: torch.Tensor, name: str) -> torch.Tensor:
    """`weight` in float16. Raises `TooLargeError`, which calls it `name`, where a number is too large for that."""
    rounded = weight.to(torch.float16)
    if bool(rounded.isinf().any()):
        raise TooLargeError(
            f"{name} has weights as large as {float(weight.abs().max()):,.0f}, and float16 ends at 65,504. Choose "
            "another number format: float32 or bfloat16."
        )
    return rounded


Multiply = Callable[[torch.Tensor], torch.Tensor]


class Linear:
    """`x @ weight.T + bias`, [n, in] to [n, out], for `weight` [out, in] and `bias` [out]; packed where that helps.

    With a float16 `weight`, `x`, `bias` and the result are float32; where there are no kernels for it, a float32 copy
    of the weight is multiplied with.

    `block` is the address and the bytes of the weights as they are read, None where that is not known.
    """

    @torch.no_grad()
    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        if weight.dtype == torch.float16 and not can_pack(weight):
            weight = weight.float()
        self.block: tuple[int, int] | None
        self._multiply: Multiply
        if not can_pack(weight):
            self._multiply, self.block = _plain(weight, bias), (weight.data_ptr(), weight.nbytes)
        elif weight.dtype == torch.float16:
            self._multiply, self.block = _packed_float16(weight, bias), None
        else:
            self._multiply, self.block = _packed(weight, bias)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._multiply(x)


def _packed(weight: torch.Tensor, bias: torch.Tensor | None) -> tuple[Multiply, tuple[int, int]]:
    """By oneDNN; and the block of the packed weight."""
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _ROWS)
    # Looked up here, since not every build of PyTorch has it.
    multiply = torch.ops.mkldnn._linear_pointwise.default
    block = torch.ops.mkldnn.data_ptr(packed), torch.ops.mkldnn._nbytes(packed)
    return lambda x: multiply(x, packed, bias, "none", [], ""), block


def _packed_float16(weight: torch.Tensor, bias: torch.Tensor | None) -> Multiply:
    """By fbgemm."""
    packed = torch.ops.quantized.linear_prepack_fp16(weight.float(), bias)
    multiply = torch.ops.quantized.linear_dynamic_fp16.default
    return lambda x: multiply(x, packed)


def _plain(weight: torch.Tensor, bias: torch.Tensor | None) -> Multiply:
    linear = torch.nn.functional.linear
    if weight.dtype != torch.bfloat16 or weight.device.type != "cpu" or has_kernels(weight.dtype):
        return lambda x: linear(x, weight, bias)
    wide_bias = None if bias is None else bias.float()

    def multiply(x: torch.Tensor) -> torch.Tensor:
        if len(x) < _WIDENED_ROWS:
            return linear(x, weight, bias)
        return linear(x.float(), weight.float(), wide_bias).to(x.dtype)

    return multiply


def fused_linear(*layers: torch.nn.Linear, weights: torch.dtype | None = None) -> Linear:
    """One layer that gives the outputs of all, one after the other. A missing bias is zero where one has one.

    `weights` is the dtype to hold the weights in, their own by default.
    """
    weight = torch.cat([layer.weight.detach() for layer in layers])
    weight = weight if weights is None else weight.to(weights)
    if all(layer.bias is None for layer in layers):
        return Linear(weight)
    biases = [p.weight.new_zeros(len(p.weight)) if p.bias is None else p.bias.detach() for p in layers]
    return Linear(weight, torch.cat(biases).to(activations_of(weight.dtype)))


class RmsNorm:
    """`torch.nn.functional.rms_norm` over the last dimension, in half as many calls. A row's bits do not depend on the
    rows beside it, which they would if a matrix product summed the squares."""

    @torch.no_grad()
    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self._weight = weight.to(torch.promote_types(weight.dtype, torch.float32))  # [H]
        self._eps = self._weight.new_full((1, 1), eps)
        self._share = 1 / len(weight)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[n, H]"""
        wide = x.to(self._weight.dtype)
        length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)  # [n, 1]
        scale = torch.addcmul(self._eps, length, length, value=self._share).rsqrt_()
        return (wide * scale).mul_(self._weight).to(x.dtype)
