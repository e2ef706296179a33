"""When the white-box probe runs, on which samples, and what it says where it cannot."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from leakgauge.errors import BadInput
from leakgauge.monitor import MonitorWarning, watch
from leakgauge.monitor.keywords import Packing
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


class Sentences(nn.Module):
    """Takes batches by name and returns its own loss, of one label a sentence or of every token, as Hugging Face models do."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(50, 8), nn.Linear(8, 50)

    def forward(self, input_ids, labels, attention_mask=None):
        features = self.table(input_ids)
        if labels.dim() == 1:
            mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
            features = (features * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return {"loss": F.cross_entropy(self.head(features).flatten(0, -2), labels.flatten())}


def filled(sentences, length, *, filler, left, single, mask=True):
    """One batch, as a tokenizer with this padding id fills it up to ``length``."""

    def fill(rows, value):
        many = [F.pad(row, (length - len(row), 0) if left else (0, length - len(row)), value=value) for row in rows]
        return torch.stack(many)

    labels = torch.tensor([int(one[0]) for one in sentences]) if single else fill(sentences, -100)
    given = {"input_ids": fill(sentences, filler), "labels": labels}
    return given | {"attention_mask": fill([torch.ones_like(one) for one in sentences], 0)} if mask else given


def by_name(batches, **options):
    torch.manual_seed(0)
    model = Sentences()
    optimizer = sgd(model)
    monitor = watch(model, optimizer, every=2, strict=True, **options)
    for batch in batches:
        optimizer.zero_grad()
        model(**batch)["loss"].backward()
        optimizer.step()
    return monitor


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("first", [8, 5])
def test_a_sentence_is_recognised_however_its_batch_was_filled_up(first, left, single):
    """Else members of the step that were in the batch before too, filled up to another length, would be scored as non-members."""
    rng = torch.Generator().manual_seed(0)
    drawn = [torch.randint(3, 50, (3 + k % 3,), generator=rng) for k in range(7)]
    how = {"filler": 2, "left": left, "single": single}
    batches = [filled(drawn[:4], first, **how), filled(drawn[2:4] + drawn[5:], 13 - first, **how)]
    found = by_name(batches).compute().whitebox
    assert (found.members, found.others) == (4, 2)
    assert "earlier batches had the same" in why(by_name([filled(drawn[:4], n, **how) for n in (first, 13 - first)]))[0]


def test_places_added_to_a_batch_without_a_mask_would_be_read():
    rng = torch.Generator().manual_seed(0)
    drawn = [torch.randint(3, 50, (5,), generator=rng) for _ in range(8)]
    how = {"filler": 2, "left": False, "single": True, "mask": False}
    assert Packing.of(filled(drawn, 5, **how)) is not None
    assert by_name([filled(drawn[:4], 5, **how), filled(drawn[4:], 5, **how)]).compute().whitebox is not None
    monitor = by_name([filled(drawn[:4], 5, **how), filled(drawn[4:], 7, **how)])
    assert monitor.compute().whitebox is None
    assert "different lengths without an attention mask" in why(monitor)[0]
    long = filled(drawn[4:], 7, **how)
    others = [{name: long[name][k] for name in long} for k in range(4)]
    with pytest.raises(BadInput, match="7 places, batches 5"):
        by_name([filled(drawn[:4], 5, **how)], candidates=others)


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
