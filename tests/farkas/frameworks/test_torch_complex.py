"""Complex numbers and Fourier transforms in ``torch.compile(backend="farkas")`` beside torch."""

from __future__ import annotations

from typing import Any

import pytest

import farkas as fk
from tests.farkas.frameworks.torch_checks import agrees, torch

pytestmark = pytest.mark.usefixtures("fresh_torch")


def numbers(*shape: int, dtype: Any = torch.complex128) -> Any:
    return torch.randn(shape, dtype=dtype)


def test_arithmetic() -> None:
    def f(x: Any, y: Any) -> Any:
        z = x * y.conj() + x / (y + 2) - 3j * x + x * 2
        return torch.cat([z.abs() + z.angle(), z.real, (x.exp() @ y.mT).imag, z.sgn().real])

    agrees(f, numbers(3, 3), numbers(3, 3))


def test_elements_of_real_and_complex_tensors() -> None:
    def f(x: Any, y: Any) -> Any:
        z = torch.complex(x, y)
        return torch.stack([z, torch.polar(x, y), x + z]).cumsum(1).sum(0).to(torch.complex128)

    agrees(f, numbers(3, 4).real, numbers(3, 4).real)
    agrees(lambda x: torch.where(x.real > 0, x, x.real), numbers(5), back=False)
    agrees(lambda x: x.to(torch.bool), torch.tensor([0, 1j, 2]), back=False)


def test_moves_of_complex_tensors() -> None:
    def f(x: Any) -> Any:
        y = torch.nn.functional.pad(x.transpose(0, 1)[1:, ::2].reshape(-1, 2), (1, 1))
        return y.flip(0) + torch.ones_like(y) + y.new_zeros(y.shape)

    agrees(f, numbers(4, 5, 2))
    agrees(lambda x: x.index_select(0, torch.tensor([2, 0])), numbers(3, 2))


def test_how_complex_tensors_lie_in_memory() -> None:
    x = numbers(2, 3, 4, dtype=torch.complex64)

    def f(a: Any) -> Any:
        return a * 2j

    for given in (x[:0], x.permute(2, 0, 1), x.conj(), x[:, ::2], x.mT.conj()):
        found = torch.compile(f, backend="farkas")(given)
        torch.testing.assert_close(found, f(given))
    assert not any(r.left for r in fk.torch.reports)


@pytest.mark.parametrize("length", [1, 97, 660])
def test_lengths(length: int) -> None:
    def f(x: Any) -> Any:
        half = torch.fft.rfft(x.real)
        whole = torch.fft.irfft(half + half.abs(), n=length)
        return torch.cat([torch.fft.fft(x), torch.fft.ifft(x), half, whole], 1)

    agrees(f, numbers(2, length), back=False)


def test_gradients() -> None:
    agrees(lambda x: torch.fft.rfft2(x, norm="ortho"), numbers(3, 6, 5).real)
    agrees(lambda x: torch.fft.irfftn(x, s=(4, 7), dim=(1, 0), norm="forward"), numbers(5, 4, 2))


def test_a_spectrogram() -> None:
    window = torch.hann_window(16)

    def f(x: Any) -> Any:
        return torch.stft(x, 16, 4, window=window, return_complex=True).abs()

    agrees(f, torch.randn(2, 64))


def test_a_transform_whose_batch_changes() -> None:
    call = torch.compile(lambda x: torch.fft.rfft(x).abs(), backend="farkas")
    for batch in (3, 5):
        x = torch.randn(batch, 12)
        torch._dynamo.mark_dynamic(x, 0)
        torch.testing.assert_close(call(x), torch.fft.rfft(x).abs())
    assert not any(r.left for r in fk.torch.reports)


def test_what_stays_with_torch() -> None:
    x = numbers(131)
    torch.testing.assert_close(
        torch.compile(lambda y: torch.fft.fft(y.tan()), backend="farkas")(x),
        torch.fft.fft(x.tan()),
    )
    (report,) = fk.torch.reports
    assert "aten.tan.default stays with torch: complex128 elements" in str(report)
    assert "a Fourier transform of a length with the prime factor 131" in str(report)


def test_an_exported_transform() -> None:
    class Spectrum(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return torch.fft.rfft(x).abs()

    class Transform(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return torch.fft.rfft(x)

    x = torch.randn(4, 20)
    (found,) = fk.compile_torch(torch.export.export(Spectrum(), (x,))).run({"x": x}).values()
    torch.testing.assert_close(found, torch.fft.rfft(x).abs())
    with pytest.raises(fk.ModelError, match="complex inputs, outputs or weights"):
        fk.compile_torch(torch.export.export(Transform(), (x,)))
