"""A gradient that is thrown away before the step takes its batch with it; one that is accumulated keeps it."""

import pytest
import torch
from torch import nn

from leakgauge.monitor import watch


def trained(model, data, rounds, *, view, none, late=False, accumulate=1):
    """Runs ``rounds``: True steps, False throws the gradient away. The signals seen, those applied, and the monitor."""
    optimizer, criterion = torch.optim.SGD(model.parameters(), lr=0.05), nn.CrossEntropyLoss()
    monitor = watch(model, optimizer, loss=criterion, every=len(rounds), view=view, candidates=data, strict=True)
    seen, applied, finish = [], [], monitor.finish

    def spy(signal):
        seen.append((torch.cat([g.flatten() for g in signal.values()]), monitor._features.size))
        finish(signal)

    monitor.finish = spy
    rows = torch.arange(10 * accumulate * len(rounds)).split(10)
    for number, steps in enumerate(rounds):
        for part, index in enumerate(rows[number * accumulate : (number + 1) * accumulate]):
            if part == 0 and not late:
                optimizer.zero_grad(set_to_none=none)
            loss = criterion(model(data[0][index]), data[1][index])
            if part == 0 and late:
                optimizer.zero_grad(set_to_none=none)
            loss.backward()
        if steps:
            applied.append(torch.cat([p.grad.flatten().clone() for p in model.parameters()]))
            optimizer.step()
    return seen, applied, monitor


@pytest.mark.parametrize("view", ["raw", "released"])
@pytest.mark.parametrize("none", [True, False])
@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_batches_of_a_gradient_that_was_thrown_away_are_not_members(model_of, data, view, none, late, accumulate):
    rounds = [True, False, False, True]
    seen, applied, _ = trained(model_of(), data, rounds, view=view, none=none, late=late, accumulate=accumulate)
    assert [size for _, size in seen] == [10 * accumulate] * 2
    for (signal, _), true in zip(seen, applied, strict=True):
        torch.testing.assert_close(signal, true)


def test_the_probe_takes_the_members_of_the_step_alone(model_of, data):
    model = model_of()
    optimizer, criterion = torch.optim.SGD(model.parameters(), lr=0.05), nn.CrossEntropyLoss()
    monitor = watch(model, optimizer, loss=criterion, every=2, candidates=(data[0][200:], data[1][200:]), strict=True)
    for number in range(3):
        index = slice(10 * number, 10 * number + 10)
        optimizer.zero_grad()
        criterion(model(data[0][index]), data[1][index]).backward()
        if number != 1:
            optimizer.step()
    found = monitor.compute().whitebox
    assert found is not None
    assert (found.step, found.members, found.auc.value) == (2, 10, 1.0)


def test_a_scaler_that_overflows_is_such_a_case(model_of, data):
    """GradScaler begins with a scale that is too large and leaves steps out until it fits."""
    model = model_of()
    optimizer, criterion = torch.optim.SGD(model.parameters(), lr=0.05), nn.CrossEntropyLoss()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=1000)
    monitor = watch(model, optimizer, loss=criterion, strict=True)
    sizes, finish = [], monitor.finish
    monitor.finish = lambda signal: (sizes.append(monitor._features.size), finish(signal))
    for index in torch.arange(200).split(10):
        optimizer.zero_grad()
        scaler.scale(100.0 * criterion(model(data[0][index]), data[1][index])).backward()
        scaler.step(optimizer)
        scaler.update()
    assert 0 < len(sizes) < 20  # some were left out
    assert set(sizes) == {10}


def test_two_forward_passes_before_one_backward_stay_one_batch(model_of, data):
    model = model_of()
    optimizer, criterion = torch.optim.SGD(model.parameters(), lr=0.05), nn.CrossEntropyLoss()
    monitor = watch(model, optimizer, strict=True)
    sizes, finish = [], monitor.finish
    monitor.finish = lambda signal: (sizes.append(monitor._features.size), finish(signal))
    x, y = data
    for _ in range(2):
        optimizer.zero_grad()
        (criterion(model(x[:10]), y[:10]) + criterion(model(x[10:20]), y[10:20])).backward()
        optimizer.step()
    assert sizes == [20, 20]
