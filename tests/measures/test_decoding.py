import torch

from leakgauge.measures.decoding import decode


def case(noise: float, *, n: int = 12, d: int = 200):
    rng = torch.Generator().manual_seed(0)
    rows = torch.randn(n, d, generator=rng, dtype=torch.float64)
    truth = (torch.arange(n) < 5).double() / 5
    signal = truth @ rows + noise * torch.randn(d, generator=rng, dtype=torch.float64)
    return rows, truth, signal


def weights_of(rows, signal):
    return decode(rows @ rows.T, rows @ signal, float(signal @ signal), rows.shape[1])


def test_exact_without_noise():
    rows, truth, signal = case(0.0)
    torch.testing.assert_close(weights_of(rows, signal), truth, atol=1e-6, rtol=0)


def test_close_to_least_squares_with_a_little_noise():
    rows, _, signal = case(0.01)
    plain = torch.linalg.lstsq(rows.T, signal[:, None]).solution[:, 0]
    torch.testing.assert_close(weights_of(rows, signal), plain, atol=2e-3, rtol=0)


def test_shrinks_when_noise_drowns_the_signal():
    rows, truth, signal = case(30.0)
    found = weights_of(rows, signal)
    plain = torch.linalg.lstsq(rows.T, signal[:, None]).solution[:, 0]
    assert (found - truth).norm() < 0.7 * (plain - truth).norm()


def test_scale_of_the_signal_scales_the_weights():
    rows, _, signal = case(0.1)
    torch.testing.assert_close(weights_of(rows, 7 * signal), 7 * weights_of(rows, signal), rtol=1e-9, atol=0)


def test_equal_rows_share_their_weight():
    rows, truth, signal = case(0.0)
    doubled = torch.cat([rows, rows[:1]])
    found = weights_of(doubled, signal)
    assert torch.allclose(found[0], found[-1], atol=1e-5)
    assert torch.allclose(found[0] + found[-1], truth[0], atol=1e-6)
