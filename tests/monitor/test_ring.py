import torch

from leakgauge.monitor.ring import Ring, Thinning


def test_ring_keeps_the_newest_in_order():
    ring, every = Ring(5, (2,)), torch.arange(24.0).view(12, 2)
    for start, stop in ((0, 3), (3, 4), (4, 8), (8, 12)):
        ring.append(every[start:stop])
        assert torch.equal(ring.values(), every[max(0, stop - 5) : stop])
    ring.append(torch.arange(40.0).view(20, 2))
    assert torch.equal(ring.values(), torch.arange(40.0).view(20, 2)[-5:])


def test_ring_takes_its_memory_once_and_forgets_on_clear():
    ring = Ring(3, (4,))
    before = ring.nbytes()
    ring.append(torch.ones(10, 4))
    assert ring.nbytes() == before == 3 * 4 * 4
    ring.clear()
    assert len(ring) == 0
    assert ring.values().shape == (0, 4)


def test_values_are_a_copy():
    ring = Ring(3, (1,))
    ring.append(torch.ones(2, 1))
    ring.values().zero_()
    assert ring.values().sum() == 2


def test_history_keeps_both_ends_and_stays_short():
    history = Thinning(10)
    for i in range(1000):
        history.append(i)
    kept = list(history)
    assert kept[0] == 0
    assert kept[-1] == 999
    assert len(kept) <= 11
    assert kept == sorted(set(kept))
