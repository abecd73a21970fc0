import psutil
import pytest
import torch
from torch.nn.functional import linear, rms_norm

from vocabtrim_core.layers import Linear, RmsNorm, fused_linear, has_room

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)


@DTYPES
@pytest.mark.parametrize("biased", [False, True])
@torch.no_grad()
def test_a_linear_layer_is_torchs(dtype: torch.dtype, biased: bool) -> None:
    """Bug: packing transposes, drops the bias, or is tried for a dtype that has none."""
    torch.manual_seed(0)
    weight, bias = torch.randn(48, 32, dtype=dtype), torch.randn(48, dtype=dtype) if biased else None
    layer = Linear(weight, bias)
    for rows in (1, 5, 17):
        x = torch.randn(rows, 32, dtype=dtype)
        torch.testing.assert_close(layer(x), linear(x, weight, bias))


def test_the_block_of_a_linear_layer_holds_its_weights() -> None:
    """Bug: the address or size of something else is given to the system as the weights'."""
    weight = torch.randn(256, 512)
    address, size = Linear(weight).block
    assert address > 0
    assert weight.nbytes <= size < 2 * weight.nbytes
    double = weight.double()  # not packed
    assert Linear(double).block == (double.data_ptr(), double.nbytes)


def test_memory_that_holds_cached_files_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: only memory that nothing is in counts, so that weights are not packed after large files have been read."""
    memory = psutil.virtual_memory()._replace(free=10**6, available=10**9)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    assert has_room(4 * 10**8)
    assert not has_room(6 * 10**8)


@torch.no_grad()
def test_fused_layers_give_what_each_gives() -> None:
    """Bug: outputs in another order; the bias of one is another's, or lost where one has none."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(32, size, bias=size != 8) for size in (16, 8, 24)]
    x = torch.randn(3, 32)
    torch.testing.assert_close(fused_linear(*layers)(x), torch.cat([layer(x) for layer in layers], -1))


@DTYPES
@torch.no_grad()
def test_the_norm_is_torchs(dtype: torch.dtype) -> None:
    """Bug: eps outside of the root, or the mean over the wrong dimension; sums in less precision than the input's."""
    torch.manual_seed(0)
    weight = torch.randn(576, dtype=dtype)
    norm = RmsNorm(weight, 0.1)
    for scale in (1e-2, 1, 30):
        x = scale * torch.randn(7, 576, dtype=dtype)
        expected = rms_norm(x.double(), [576], weight.double(), 0.1)
        tolerance = {torch.bfloat16: 2**-8, torch.float32: 1e-5, torch.float64: 1e-12}[dtype]
        torch.testing.assert_close(norm(x).double(), expected, rtol=tolerance, atol=tolerance / 10)
        assert norm(x).dtype == dtype


@torch.no_grad()
def test_a_rows_norm_has_the_same_bits_beside_any_rows() -> None:
    """Bug: sums in an order that depends on the number of rows, so that a draft changes bfloat16 text now and then."""
    torch.manual_seed(0)
    norm = RmsNorm(torch.randn(576), 1e-5)
    for rows in range(2, 20):
        x, order = torch.randn(rows, 576), torch.randperm(rows)
        assert torch.equal(norm(x)[order], norm(x[order]))
        assert torch.equal(norm(x)[:1], norm(x[:1]))
