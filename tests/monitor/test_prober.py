"""When the white-box probe runs, on which samples, and what it says where it cannot."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from leakgauge.monitor import MonitorWarning, watch
from leakgauge.monitor.prober import labels_from_gradient


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.05)


def steps(model, optimizer, criterion, pairs):
    for x, y in pairs:
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()


def why(monitor):
    return [note for note in monitor.compute().notes if note.startswith("white-box probe off")]


def test_a_probe_at_every_step_takes_the_members_of_the_step_before(model_of, train):
    model, criterion = model_of(), nn.CrossEntropyLoss()
    optimizer = sgd(model)
    monitor = watch(model, optimizer, loss=criterion, every=1, strict=True)
    train(model, optimizer, 1, criterion=criterion)
    assert "or there were none" in why(monitor)[0]
    train(model, optimizer, 3, criterion=criterion, seed=1)
    found = monitor.compute().whitebox
    assert found is not None
    assert (found.step, found.members, found.others) == (4, 10, 10)
    assert found.auc.value == 1.0


def test_samples_may_be_single_numbers():
    """Token numbers (n,), as an embedding of words or users takes them."""
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randperm(50, generator=rng), torch.randint(3, (50,), generator=rng)
    model, criterion = nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 3)), nn.CrossEntropyLoss()
    optimizer = sgd(model)
    monitor = watch(model, optimizer, loss=criterion, every=2, strict=True)
    steps(model, optimizer, criterion, zip(x.split(10)[:4], y.split(10)[:4], strict=True))
    found = monitor.compute().whitebox
    assert found is not None
    assert (found.members, found.others) == (10, 10)


@pytest.mark.parametrize(
    ("given", "reason"), [(True, "all candidates drawn were in the batch"), (False, "earlier batches had the same")]
)
def test_others_that_are_members_are_named_as_the_reason(model_of, data, given, reason):
    x, y = data[0][:10], data[1][:10]
    model, criterion = model_of(), nn.CrossEntropyLoss()
    optimizer = sgd(model)
    monitor = watch(model, optimizer, loss=criterion, every=2, candidates=(x, y) if given else None, strict=True)
    steps(model, optimizer, criterion, [(x, y)] * 2)
    assert reason in why(monitor)[0]


def test_images_that_are_not_numbers_are_told_in_words(model_of, data):
    x, y = data[0][:20].clone(), data[1][:20]
    x[13, 0, 0, 0] = torch.nan
    model, criterion = model_of(), nn.CrossEntropyLoss()
    optimizer = sgd(model)
    monitor = watch(model, optimizer, loss=criterion, every=2)
    with pytest.warns(MonitorWarning, match="not finite"):
        steps(model, optimizer, criterion, [(x[:10], y[:10]), (x[10:], y[10:])])
    assert why(monitor) == ["white-box probe off: it failed at step 2"]


def test_the_reason_stays_after_closing(model_of):
    model = model_of()
    with watch(model, sgd(model)) as monitor:
        before = why(monitor)
    assert why(monitor) == before == ["white-box probe off: not due yet"]


@pytest.mark.parametrize("classes", [2, 10, 40])
@pytest.mark.parametrize(
    "loss", [F.cross_entropy, partial(F.cross_entropy, label_smoothing=0.1)], ids=["plain", "smoothed"]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_labels_from_the_gradient_at_the_output(classes, loss, dtype):
    rng = torch.Generator().manual_seed(classes)
    scores = (3 * torch.randn(64, classes, generator=rng)).to(dtype).requires_grad_()
    y = torch.randint(classes, (64,), generator=rng)
    (7 * loss(scores, y)).backward()
    assert labels_from_gradient(loss, scores, scores.grad).tolist() == y.tolist()


def test_a_gradient_of_another_loss_has_no_labels():
    scores = torch.randn(16, 5, generator=torch.Generator().manual_seed(0)).requires_grad_()
    scores.square().mean().backward()
    assert labels_from_gradient(F.cross_entropy, scores, scores.grad) is None
    assert (
        labels_from_gradient(F.binary_cross_entropy_with_logits, scores, scores.grad) is None
    )  # takes no class labels
    assert labels_from_gradient(F.cross_entropy, scores[:, 0], scores.grad[:, 0]) is None


def test_forward_passes_that_share_a_backward_pass_keep_their_labels(model_of, data):
    """The gradients arrive last pass first."""
    x, y = data
    model = model_of()
    optimizer = sgd(model)
    monitor = watch(model, optimizer, every=2, strict=True)
    for start in (0, 20):
        optimizer.zero_grad()
        parts = [F.cross_entropy(model(x[rows]), y[rows]) for rows in torch.arange(start, start + 20).split(10)]
        torch.stack(parts).mean().backward()
        optimizer.step()
    found = monitor.compute().whitebox
    assert found.members == 20
    assert found.auc.value == 1.0


def test_labels_that_are_passed_are_not_read_again(model_of, data):
    x, y = data
    model = model_of()
    optimizer = sgd(model)
    monitor = watch(model, optimizer, every=2, loss=F.cross_entropy, strict=True)
    for start in (0, 20):
        optimizer.zero_grad()
        F.cross_entropy(model(x[start : start + 20]), y[start : start + 20]).backward()
        monitor.labels(y[start : start + 20])
        optimizer.step()
    assert monitor.compute().whitebox.auc.value == 1.0
