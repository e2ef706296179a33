"""Attaching to a training that does not fit: set-ups are refused by name, and trouble never ends the training."""

import copy
import io
import math
import warnings

import pytest
import torch
from torch import nn

from leakgauge.errors import BadInput
from leakgauge.monitor import MonitorWarning, Protection, watch
from leakgauge.monitor.views import refuse_unsupported


def sgd(model, lr=0.05):
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)


# set-ups that are refused by name


def test_optimizer_without_parameters_of_the_model_is_refused(model_of):
    with pytest.raises(BadInput, match="no trainable parameter of this model"):
        watch(model_of(), sgd(model_of()))


def test_compiled_models_are_refused(model_of):
    model = model_of()
    with pytest.raises(BadInput, match=r"torch\.compile"):
        watch(torch.compile(model), sgd(model))
    model.compile()
    with pytest.raises(BadInput, match=r"torch\.compile"):
        watch(model, sgd(model))


def test_fsdp_is_refused(model_of):
    sharded = type("FullyShardedDataParallel", (nn.Sequential,), {})(model_of())
    with pytest.raises(BadInput, match="FSDP"):
        refuse_unsupported(sharded, sgd(sharded))


def test_lbfgs_is_refused(model_of):
    model = model_of()
    with pytest.raises(BadInput, match="LBFGS"):
        watch(model, torch.optim.LBFGS(model.parameters()))


@pytest.mark.parametrize(
    "options",
    [{"every": 0}, {"view": "other"}, {"choices": 1}, {"alpha": 0.0}, {"log": 3}, {"others": 0}, {"candidates": []}],
    ids=str,
)  # fmt: skip
def test_options_that_make_no_sense_are_refused(model_of, options):
    model = model_of()
    with pytest.raises(BadInput):
        watch(model, sgd(model), **options)
    assert not model._forward_pre_hooks


@pytest.mark.parametrize("options", [{"clip": 0.0}, {"noise": -1.0}], ids=str)
def test_a_protection_that_makes_no_sense_is_refused(options):
    with pytest.raises(BadInput, match="clip must be positive and noise at least 0"):
        Protection(**options)


def test_a_model_that_is_none_is_refused(model_of):
    with pytest.raises(BadInput, match=r"torch\.nn\.Module"):
        watch(lambda x: x, sgd(model_of()))


# training never dies


def test_a_closure_that_runs_twice_is_warned_about_once(model_of, batches):
    model = model_of()
    x, y = next(batches(5))

    class Twice(torch.optim.SGD):
        def step(self, closure=None):
            closure()
            return super().step(closure)

    optimizer = Twice(model.parameters(), lr=0.1)
    watch(model, optimizer)

    def closure():
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        return loss

    with pytest.warns(MonitorWarning, match="more than once"):
        optimizer.step(closure)


def test_no_gradient_and_no_forward_pass_are_warned_about_once(model_of, batches):
    model = model_of()
    optimizer = sgd(model)
    monitor = watch(model, optimizer)
    with pytest.warns(MonitorWarning, match="no gradient"):
        optimizer.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step()
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    with pytest.warns(MonitorWarning, match="no forward pass"):
        optimizer.step()
    assert monitor.compute().skipped == {"no gradient": 2, "no input": 1}


def test_gradients_that_are_not_numbers_are_not_scored(model_of, train):
    model = model_of()
    optimizer = sgd(model)
    monitor = watch(model, optimizer)
    start = copy.deepcopy(model.state_dict())
    optimizer.register_step_post_hook(lambda *_: model.load_state_dict(start))

    def spoil():
        if monitor.step % 3 == 0:
            model[0].weight.grad[0] = float("nan")

    with pytest.warns(MonitorWarning, match="not finite"):
        train(model, optimizer, 33, between=spoil)
    found = monitor.compute()
    assert found.skipped["not finite"] == 11
    assert monitor.step == 33
    assert math.isfinite(found.log_wealth)


def test_batches_of_one_are_scored(model_of, train):
    model, criterion = model_of(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    monitor = watch(model, optimizer, loss=criterion, every=20, strict=True)
    train(model, optimizer, 60, criterion=criterion, size=1)
    found = monitor.compute()
    assert found.whitebox is not None
    assert (found.whitebox.members, found.whitebox.auc.value) == (1, 1.0)
    assert found.whitebox.auc.low == pytest.approx(0.025, abs=1e-6)
    assert found.pairs > 0


def test_changing_shapes_stop_the_monitor_and_not_the_training(model_of):
    model = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(16, 2))
    optimizer = sgd(model)
    watch(model, optimizer)
    model(torch.rand(2, 1, 8, 8)).sum().backward()
    optimizer.step()
    with pytest.warns(MonitorWarning, match="shape changed"):
        model(torch.rand(2, 1, 9, 9)).sum().backward()
    optimizer.step()
    assert not model._forward_pre_hooks
    watch(model, optimizer, strict=True)
    model(torch.rand(2, 1, 8, 8))
    with pytest.raises(Exception, match="shape changed"):
        model(torch.rand(2, 1, 9, 9))


def test_a_probe_that_breaks_is_warned_about_and_strict_raises(model_of, train):
    def broken(out, y):
        raise RuntimeError("no loss today")

    for strict in (False, True):
        model, criterion = model_of(), nn.CrossEntropyLoss()
        optimizer = sgd(model)
        monitor = watch(model, optimizer, loss=broken, every=2, strict=strict)
        criterion.register_forward_pre_hook(lambda _, args, m=monitor: m.labels(args[1]))
        if strict:
            with pytest.raises(RuntimeError, match="no loss today"):
                train(model, optimizer, 4, criterion=criterion)
        else:
            with pytest.warns(MonitorWarning, match="no loss today"):
                train(model, optimizer, 4, criterion=criterion)
            assert monitor.step == 4


def test_a_logger_that_raises_is_silenced(model_of, train):
    calls = []

    def log(scalars, step):
        calls.append(step)
        raise OSError("disk full")

    model = model_of()
    optimizer = sgd(model)
    watch(model, optimizer, every=2, log=log)
    with pytest.warns(MonitorWarning, match="disk full"):
        train(model, optimizer, 6)
    assert calls == [2]
    model = model_of()
    optimizer = sgd(model)
    watch(model, optimizer, every=2, log=log, strict=True)
    with pytest.raises(OSError, match="disk full"):
        train(model, optimizer, 6)


def test_the_users_own_error_passes_through(model_of):
    model = model_of()
    optimizer = sgd(model)
    watch(model, optimizer)

    def closure():
        raise KeyError("theirs")

    with pytest.raises(KeyError, match="theirs"):
        optimizer.step(closure)


def test_sparse_gradients_stop_the_monitor_and_leave_other_hooks_alone():
    model = nn.Sequential(nn.Embedding(50, 4, sparse=True), nn.Flatten(), nn.Linear(12, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor, fired = watch(model, optimizer), []
    for number in (1, 2):
        optimizer.register_step_pre_hook(lambda *_, n=number: fired.append(n))
    model(torch.randint(50, (2, 3))).sum().backward()
    with pytest.warns(MonitorWarning, match="sparse"):
        optimizer.step()
    optimizer.step()
    assert fired == [1, 2, 1, 2]
    assert not model._forward_pre_hooks
    monitor.close()
    assert len(optimizer._optimizer_step_pre_hooks) == 2


@pytest.mark.parametrize("tokens", [False, True])
def test_an_empty_batch_is_skipped(model_of, tokens):
    """Poisson sampling draws one now and then."""
    if tokens:
        model, empty = (
            nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(12, 2)),
            torch.zeros(0, 3, dtype=torch.long),
        )
    else:
        model, empty = model_of(), torch.zeros(0, 1, 8, 8)
    optimizer = sgd(model)
    monitor = watch(model, optimizer, loss=nn.functional.cross_entropy, every=1)
    model(empty).sum().backward()
    monitor.labels(torch.zeros(0, dtype=torch.long))
    with pytest.warns(MonitorWarning, match="no forward pass"):
        optimizer.step()
    assert monitor.compute().skipped == {"no input": 1}
    assert model._forward_pre_hooks  # it goes on


@pytest.mark.parametrize("copy_of", [copy.deepcopy, lambda model: _saved_and_loaded(model)])
def test_a_watched_model_can_be_saved_and_copied(copy_of):
    """The copy takes neither the monitor nor what it saw along; the watched one is watched on."""
    model = nn.Sequential(nn.Linear(4, 3))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = watch(model, optimizer, loss=criterion, view="raw", strict=True)
    copied = copy_of(model)
    copy_of(criterion)(copied(torch.zeros(2, 4)), torch.tensor([0, 1])).backward()
    torch.optim.SGD(copied.parameters(), lr=0.1).step()
    assert monitor.step == 0
    criterion(model(torch.zeros(2, 4)), torch.tensor([0, 1])).backward()
    optimizer.step()
    assert monitor.step == 1
    monitor.close()


def _saved_and_loaded(module):
    file = io.BytesIO()
    torch.save(module, file)
    assert b"Monitor" not in file.getvalue()
    file.seek(0)
    return torch.load(file, weights_only=False)


def test_warnings_as_errors_do_not_end_a_training(caplog):
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with watch(model, optimizer) as monitor:
            for step in range(40):
                x = torch.full((2, 4), torch.nan if step > 10 else 1.0 * step)
                model(x).sum().backward()
                optimizer.step()
            assert monitor.step == 40
            assert any("not finite" in note for note in monitor.compute().notes)
    assert "not finite" in caplog.text
