import torch

from leakgauge.measures.membership import decode, decode_each


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


def test_signals_decoded_together_are_those_decoded_alone():
    rng = torch.Generator().manual_seed(0)
    rows, signals = torch.randn(6, 40, generator=rng), torch.randn(3, 40, generator=rng)
    signals[0] = rows[1] + 2 * rows[4]
    gram, cross, energy = rows @ rows.T, rows @ signals.T, signals.square().sum(1)
    together = decode_each(gram, cross, energy, 40)
    alone = torch.stack([decode(gram, cross[:, i], float(energy[i]), 40) for i in range(3)], 1)
    torch.testing.assert_close(together, alone)
    torch.testing.assert_close(together[:, 0], torch.tensor([0, 1, 0, 0, 2.0, 0]).double(), atol=1e-4, rtol=0)
