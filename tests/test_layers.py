import psutil
import pytest
import torch
from torch.nn.functional import linear, rms_norm

from vocabtrim_core import layers
from vocabtrim_core.errors import TooLargeError
from vocabtrim_core.layers import Linear, RmsNorm, as_float16, fused_linear, has_room

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)


@pytest.fixture(params=[True, False], ids=["fbgemm", "no fbgemm"])
def maybe_fbgemm(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether float16 has kernels: where it has, also as if it had none."""
    if not request.param:
        monkeypatch.setattr(layers, "_has_fbgemm", lambda: False)
    return layers.has_kernels(torch.float16)


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


@pytest.mark.parametrize("biased", [False, True])
@torch.no_grad()
def test_float16_weights_are_multiplied_in_float32(biased: bool, maybe_fbgemm: bool) -> None:
    """Bug: activations or sums rounded to float16, the bias lost, weights transposed; rounded again where there are no
    kernels; float16 not offered where there are none."""
    torch.manual_seed(0)
    weight, bias = torch.randn(48, 32).half(), torch.randn(48) if biased else None
    layer = Linear(weight, bias)
    for rows in (1, 2, 3, 7, 17, 300):
        x = 1000 * torch.randn(rows, 32)
        expected = linear(x.double(), weight.double(), None if bias is None else bias.double())
        torch.testing.assert_close(layer(x), expected.float(), rtol=1e-5, atol=1e-2)
        assert layer(x).dtype == torch.float32


def test_what_float16_cannot_hold_is_refused_with_its_name() -> None:
    """Bug: weights beyond 65,504 become infinite, or are cut off there, and the model writes nonsense."""
    weight = torch.tensor([[1.0, -65_504.0]])
    assert as_float16(weight, "it").tolist() == weight.tolist()
    with pytest.raises(TooLargeError, match="The model big has weights as large as 70,000, and float16 ends at 65,504"):
        as_float16(torch.tensor([[1.0, -70_000.0]]), "The model big")


@torch.no_grad()
def test_bfloat16_without_kernels_is_widened_for_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: a prompt of 300 tokens takes as long as 300 passes on a processor without bfloat16; the widened product has
    another dtype, or loses the bias."""
    monkeypatch.setattr(layers, "has_kernels", lambda dtype: False)
    torch.manual_seed(0)
    weight, bias = torch.randn(48, 32).bfloat16(), torch.randn(48).bfloat16()
    layer = Linear(weight, bias)
    for rows in (1, 8, 9, 300):
        x = torch.randn(rows, 32).bfloat16()
        exact = linear(x.float(), weight.float(), bias.float())
        assert layer(x).dtype == torch.bfloat16
        torch.testing.assert_close(layer(x).float(), exact, rtol=2**-7, atol=2**-7)
    called: list[torch.dtype] = []
    monkeypatch.setattr(torch.nn.functional, "linear", lambda x, *_: called.append(x.dtype) or linear(x, *_))
    layer = Linear(weight, bias)
    for rows in (8, 9):
        layer(torch.randn(rows, 32).bfloat16())
    assert called == [torch.bfloat16, torch.float32]


def test_the_block_of_a_linear_layer_holds_its_weights() -> None:
    """Bug: the address or size of something else is given to the system as the weights'."""
    weight = torch.randn(256, 512)
    address, size = Linear(weight).block
    assert address > 0
    assert weight.nbytes <= size < 2 * weight.nbytes
    assert Linear(weight.half()).block is None or not layers.has_kernels(torch.float16)
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
    every = [torch.nn.Linear(32, size, bias=size != 8) for size in (16, 8, 24)]
    x = torch.randn(3, 32)
    expected = torch.cat([layer(x) for layer in every], -1)
    torch.testing.assert_close(fused_linear(*every)(x), expected)
    torch.testing.assert_close(fused_linear(*every, weights=torch.float16)(x), expected, rtol=1e-3, atol=2e-3)


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
