"""Attaching to a training: what is seen, and that the training does not notice."""

import copy
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn

from leakgauge.models.cnn import CNN
from leakgauge.monitor import watch


@pytest.fixture
def spied():
    """Watches with ``strict`` and keeps, per step, the signal that the monitor was given and the size of its batch."""

    def make(model, optimizer, **options):
        monitor = watch(model, optimizer, strict=True, **options)
        seen = []
        finish = monitor.finish
        features = monitor._features

        def spy(signal):
            copied = {n: None if g is None else g.detach().clone() for n, g in signal.items()}
            seen.append((copied, features.size))
            finish(signal)

        monitor.finish = spy
        return monitor, seen

    return make


def sgd(model, lr=0.05):
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)


def flat(signal):
    return torch.cat([g.flatten() for g in signal.values()])


# the training does not notice


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("view", ["raw", "released"])
def test_training_is_bit_identical(model_of, train, data, dropout, view):
    trained = []
    for watched in (False, True):
        torch.manual_seed(3)  # dropout draws from the global generator
        model, criterion = model_of(dropout=dropout), nn.CrossEntropyLoss()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        if watched:
            monitor = watch(model, optimizer, loss=criterion, every=20, view=view, candidates=data, strict=True)
        train(model, optimizer, 70, criterion=criterion)
        trained.append({**model.state_dict(), "rng": torch.get_rng_state(), "next": torch.rand(3)})
    assert monitor.compute().whitebox is not None
    assert all(torch.equal(trained[0][name], trained[1][name]) for name in trained[0])


def test_workers_of_a_data_loader_get_the_same_seeds(model_of, train):
    trained = []
    for watched in (False, True):
        torch.manual_seed(3)
        model = model_of()
        optimizer = sgd(model)
        if watched:
            watch(model, optimizer, loss=nn.CrossEntropyLoss(), every=2, strict=True)
        train(model, optimizer, 3, workers=1)
        trained.append({**model.state_dict(), "rng": torch.get_rng_state()})
    assert all(torch.equal(trained[0][name], trained[1][name]) for name in trained[0])


def test_batch_statistics_are_not_touched(train):
    trained = []
    for watched in (False, True):
        model, criterion = CNN(side=8, classes=4, widths=(4, 4), strides=(1, 2)), nn.CrossEntropyLoss()
        optimizer = sgd(model)
        if watched:
            monitor = watch(model, optimizer, loss=criterion, every=5, strict=True)
        train(model, optimizer, 12, criterion=criterion)
        trained.append(copy.deepcopy(model.state_dict()))
    assert monitor.compute().whitebox is not None
    assert all(torch.equal(trained[0][name], trained[1][name]) for name in trained[0])


# which gradient is seen


@pytest.mark.parametrize(("view", "clipped"), [("raw", False), ("clipped", True), ("released", True)])
def test_views_see_before_or_after_clipping(model_of, train, spied, view, clipped):
    model = model_of()
    optimizer = sgd(model)
    _, seen = spied(model, optimizer, view=view)
    norms = []

    def clip():
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.01)))

    train(model, optimizer, 3, between=clip)
    for (signal, _), norm in zip(seen, norms, strict=True):
        assert float(flat(signal).norm()) == pytest.approx(0.01 if clipped else norm, rel=1e-3)


def test_released_is_what_is_applied(model_of, train, spied):
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    _, seen = spied(model, optimizer)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}

    def noise():
        for p in model.parameters():
            p.grad += 0.1

    train(model, optimizer, 1, between=noise)
    for name, p in model.named_parameters():
        torch.testing.assert_close(before[name] - p, seen[0][0][name])


@pytest.mark.parametrize("view", ["raw", "released"])
def test_accumulated_batches_are_one_step(model_of, batches, spied, view):
    model = model_of()
    optimizer = sgd(model)
    _, seen = spied(model, optimizer, view=view)
    stream = batches(5)
    parts = [next(stream) for _ in range(3)]
    for x, y in parts:
        (nn.functional.cross_entropy(model(x), y) / 3).backward()
    whole = {n: p.grad.clone() for n, p in model.named_parameters()}
    optimizer.step()
    assert len(seen) == 1
    assert seen[0][1] == 15
    torch.testing.assert_close(flat(seen[0][0]), flat(whole))


def test_raw_forgets_a_gradient_that_was_thrown_away(model_of, batches, spied):
    model = model_of()
    optimizer = sgd(model)
    _, seen = spied(model, optimizer, view="raw")
    stream = batches(5)
    for _ in range(2):
        x, y = next(stream)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
    whole = {n: p.grad.clone() for n, p in model.named_parameters()}
    optimizer.step()
    torch.testing.assert_close(flat(seen[0][0]), flat(whole))


@pytest.mark.parametrize("keyword", [False, True])
def test_a_closure_is_read_after_it_ran(model_of, batches, spied, keyword):
    model = model_of()
    optimizer = sgd(model)
    _, seen = spied(model, optimizer)
    stream = batches(5)
    grads = []
    for _ in range(2):
        x, y = next(stream)

        def closure(x=x, y=y):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            grads.append({n: p.grad.clone() for n, p in model.named_parameters()})
            return loss

        value = optimizer.step(closure=closure) if keyword else optimizer.step(closure)
        assert float(value.detach()) > 0
    for (signal, size), whole in zip(seen, grads, strict=True):
        assert size == 5
        assert torch.equal(flat(signal), flat(whole))


def test_mixed_precision_is_unscaled(model_of, batches, spied):
    x, y = next(batches(10))
    norms = {}
    for view in ("raw", "released", "plain"):
        model = model_of()
        optimizer = sgd(model)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        if view == "plain":
            nn.functional.cross_entropy(model(x), y).backward()
            norms[view] = float(flat({n: p.grad for n, p in model.named_parameters()}).norm())
            continue
        _, seen = spied(model, optimizer, view=view, scaler=scaler)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        norms[view] = float(flat(seen[0][0]).norm())
    assert norms["raw"] == pytest.approx(norms["plain"], rel=0.05)
    assert norms["released"] == pytest.approx(norms["plain"], rel=0.05)


def test_validation_is_not_part_of_a_step(model_of, batches, spied):
    model = model_of()
    optimizer = sgd(model)
    _, seen = spied(model, optimizer)
    stream = batches(5)
    for _ in range(2):
        x, y = next(stream)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            model(x)
        model.eval()
        model(x)
        model.train()
        optimizer.step()
    assert [size for _, size in seen] == [5, 5]


def test_under_ddp_raw_is_the_local_gradient(model_of, batches, spied, tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'rendezvous'}", rank=0, world_size=1)
    try:
        model = model_of()
        parallel = nn.parallel.DistributedDataParallel(model)
        optimizer = sgd(model)
        _, seen = spied(parallel, optimizer, view="raw", loss=nn.functional.cross_entropy)
        x, y = next(batches(5))
        nn.functional.cross_entropy(parallel(x), y).backward()
        whole = {n: p.grad.clone() for n, p in model.named_parameters()}
        optimizer.step()
        assert list(seen[0][0]) == list(whole)
        torch.testing.assert_close(flat(seen[0][0]), flat(whole))
        assert seen[0][1] == 5
    finally:
        dist.destroy_process_group()


# labels and candidates


@pytest.mark.parametrize("way", ["criterion", "by hand", "keyword"])
def test_the_probe_runs_when_labels_are_seen(model_of, batches, way):
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model_of()

        def forward(self, x, labels=None):
            return self.inner(x)

    model = model_of() if way != "keyword" else Named()
    optimizer, criterion = sgd(model), nn.CrossEntropyLoss()
    loss = criterion if way == "criterion" else nn.functional.cross_entropy
    monitor = watch(model, optimizer, loss=loss, every=4, strict=True)
    stream = batches(6)
    for _ in range(4):
        x, y = next(stream)
        optimizer.zero_grad()
        out = model(x, labels=y) if way == "keyword" else model(x)
        if way == "by hand":
            monitor.labels(y)
        criterion(out, y).backward()
        optimizer.step()
    found = monitor.compute()
    if way == "keyword":  # its forward pass takes more than a tensor
        assert found.whitebox is None
        assert any("more than one tensor" in note for note in found.notes)
    else:
        assert found.whitebox is not None
        assert (found.whitebox.auc.value, found.whitebox.members, found.whitebox.others) == (1.0, 6, 6)


def test_candidates_are_drawn_from_a_dataset_without_the_members(model_of, train, data):
    model, criterion = model_of(), nn.CrossEntropyLoss()
    optimizer = sgd(model)
    dataset = torch.utils.data.TensorDataset(*(t[:60] for t in data))
    monitor = watch(model, optimizer, loss=criterion, candidates=dataset, others=40, every=5, strict=True)
    train(model, optimizer, 1, criterion=criterion)
    first = monitor.compute().whitebox
    assert first is not None
    assert first.step == 1
    assert 30 <= first.others <= 40
    assert first.auc.value == 1.0


def squares(scores, labels):
    return (scores - nn.functional.one_hot(labels, scores.shape[1])).square().mean()


@pytest.mark.parametrize(
    ("options", "why"),
    [({}, "the loss is not cross entropy"), ({"loss": nn.functional.cross_entropy}, "cannot be read")],
)
def test_a_probe_that_is_off_says_why(model_of, train, options, why):
    model = model_of()
    optimizer = sgd(model)
    monitor = watch(model, optimizer, every=2, strict=True, **options)
    train(model, optimizer, 4, criterion=squares)
    found = monitor.compute()
    assert found.whitebox is None
    assert any("white-box probe off" in note and why in note for note in found.notes)
    assert why in monitor.report()


smoothed = partial(nn.functional.cross_entropy, label_smoothing=0.2)
weighted = partial(nn.functional.cross_entropy, weight=torch.arange(1.0, 5.0))
LOSSES = {
    "function": (nn.functional.cross_entropy, None),
    "function given": (nn.functional.cross_entropy, nn.functional.cross_entropy),
    "module": (nn.CrossEntropyLoss(), None),
    "log softmax": (lambda z, y: nn.functional.nll_loss(z.log_softmax(1), y), None),
    "scaled": (lambda z, y: 0.1 * nn.functional.cross_entropy(z, y), None),
    "smoothed": (smoothed, smoothed),
    "weighted": (weighted, weighted),
}


@pytest.mark.parametrize("which", LOSSES)
def test_labels_are_read_from_the_gradient_at_the_output(model_of, train, which):
    """The loop calls a function, which no hook can see."""
    called, given = LOSSES[which]
    model = model_of()
    optimizer = sgd(model)
    monitor = watch(model, optimizer, every=2, loss=given, strict=True)
    train(model, optimizer, 4, criterion=called)
    found = monitor.compute()
    assert found.whitebox is not None
    assert found.whitebox.auc.value > 0.9
    assert not any("white-box probe off" in note for note in found.notes)
