"""Layers that are only run, never trained, in the fewest calls and with weights as the processor's kernels want them.

PyTorch's plain `linear` has oneDNN bring the weights into that layout at every call, which costs as much as reading
them twice more. Packed, a pass over a few rows takes about half the time; the sums are oneDNN's in both cases.
"""

from __future__ import annotations

import psutil
import torch

# The number of rows that the layout is chosen for. One row's own layout is slower for float32 from three rows on.
_ROWS = 8
_DTYPES = (torch.float32, torch.bfloat16)


def can_pack(weight: torch.Tensor) -> bool:
    """Whether packing is known to help here: on a CPU that oneDNN computes this dtype on, with room for the copy."""
    if weight.device.type != "cpu" or weight.dtype not in _DTYPES or not torch.backends.mkldnn.is_available():
        return False
    if weight.dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    return has_room(weight.nbytes)


def has_room(size: int) -> bool:
    """Whether a copy of `size` bytes takes less than half of the memory that can be had without swapping."""
    return size < psutil.virtual_memory().available / 2


class Linear:
    """`x @ weight.T + bias`, [n, in] to [n, out], for `weight` [out, in] and `bias` [out]; packed where that helps."""

    @torch.no_grad()
    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self._weight, self._bias = weight, bias
        self._multiply = None
        if can_pack(weight):
            self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _ROWS)
            # Looked up here, since not every build of PyTorch has it.
            self._multiply = torch.ops.mkldnn._linear_pointwise.default

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self._multiply is not None:
            return self._multiply(x, self._weight, self._bias, "none", [], "")
        return torch.nn.functional.linear(x, self._weight, self._bias)

    @property
    def block(self) -> tuple[int, int]:
        """Address and bytes of the weights as they are read."""
        if self._multiply is not None:
            return torch.ops.mkldnn.data_ptr(self._weight), torch.ops.mkldnn._nbytes(self._weight)
        return self._weight.data_ptr(), self._weight.nbytes


def fused_linear(*layers: torch.nn.Linear) -> Linear:
    """One layer that gives the outputs of all, one after the other. A missing bias is zero where one has one."""
    weight = torch.cat([layer.weight.detach() for layer in layers])
    if all(layer.bias is None for layer in layers):
        return Linear(weight)
    biases = [p.weight.new_zeros(len(p.weight)) if p.bias is None else p.bias.detach() for p in layers]
    return Linear(weight, torch.cat(biases))


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
