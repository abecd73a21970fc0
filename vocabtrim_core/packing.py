"""Linear layers whose weights are laid out once as the processor's matrix kernels want them.

PyTorch's plain `linear` has oneDNN bring the weights into that layout at every call, which costs as much as reading
them twice more. Packed, a pass over a few rows takes about half the time; the sums are oneDNN's in both cases.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import torch

Linear = Callable[[torch.Tensor], torch.Tensor]  # [n, in] -> [n, out]

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
    """Whether a copy of `size` bytes takes less than half of the memory that is free."""
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not a POSIX system
        return True
    return size < free / 2


@torch.no_grad()
def linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    """`x @ weight.T + bias` for `weight` [out, in] and `bias` [out], with packed weights where that helps."""
    if not can_pack(weight):
        return lambda x: torch.nn.functional.linear(x, weight, bias)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _ROWS)
    multiply = torch.ops.mkldnn._linear_pointwise.default
    return lambda x: multiply(x, packed, bias, "none", [], "")


class PackedLinear(torch.nn.Module):
    """A linear layer that is only run, never trained, with a packed copy of its weights if that helps."""

    def __init__(self, layer: torch.nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self._run = linear(layer.weight.detach(), None if layer.bias is None else layer.bias.detach())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._run(x)


def pack(module: torch.nn.Module) -> None:
    """Pack every linear layer inside `module`."""
    for name, child in module.named_children():
        if type(child) is torch.nn.Linear:
            setattr(module, name, PackedLinear(child))
        else:
            pack(child)
