"""Mistakes in samples and targets end in one sentence, not in PyTorch's own words."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from leakgauge import evaluate, run_audit
from leakgauge.attacks import inverting_gradients
from leakgauge.channels import DPSGD, Aggregate, FedAvg, Gradient, ShuffledFedAvg
from leakgauge.core import Pixels, Victim, share
from leakgauge.core.running import explaining_mistakes, refuse_targets
from leakgauge.data.arrays import read_npz
from leakgauge.errors import BadInput
from leakgauge.split import cuts
from tests.zoo import SmallDetector, box_loss

X = torch.rand(2, 3, 2, 2, generator=torch.Generator().manual_seed(0))


def victim(loss=F.cross_entropy) -> Victim:
    return Victim(nn.Sequential(nn.Flatten(), nn.Linear(12, 5)), Pixels((3, 2, 2)), loss=loss)


@pytest.mark.parametrize("channel", [Gradient(), FedAvg(steps=2), ShuffledFedAvg(), Aggregate(), DPSGD()], ids=repr)
@pytest.mark.parametrize("loss", [F.cross_entropy, nn.CrossEntropyLoss(label_smoothing=0.1)])
@pytest.mark.parametrize(
    ("y", "sentence"),
    [
        (torch.tensor([0, 5]), "labels must be in 0..4 for a model with 5 classes, the batch has 0..5"),
        (torch.tensor([-1, 0]), "labels must be in 0..4 .* the batch has -1..0"),
        (torch.tensor([0.0, 1.0]), "labels must be torch.int64, got torch.float32; pass y.long"),
        (torch.tensor([0]), r"labels must have shape \(2,\), or \(2, 5\) for class probabilities, got \(1,\)"),
        (torch.tensor([0, 1, 2]), r"got \(3,\)"),
        (torch.rand(2, 4), r"got \(2, 4\)"),
        ([0, 1], r"share needs y as a torch.Tensor or a mapping from text to a torch.Tensor, got a list of 2"),
    ],
)
def test_wrong_labels(channel, loss, y, sentence):
    with pytest.raises(BadInput, match=sentence):
        share(victim(loss), channel, X, y)


def test_labels_of_32_bits():
    with pytest.raises(BadInput, match=r"got torch.int32; pass y.long"):
        share(victim(), Gradient(), X, torch.tensor([0, 1], dtype=torch.int32))


def test_right_labels_pass_also_where_they_are_looked_at_beforehand():
    """As on a GPU, where a label out of range could not be told afterwards."""
    one = victim()
    for y in (torch.tensor([0, 4]), torch.tensor([0, -100]), torch.rand(2, 5).softmax(1)):
        refuse_targets(lambda: one(X), one.loss, X, y)
    ignoring = victim(nn.CrossEntropyLoss(ignore_index=-1))
    seen = share(ignoring, Gradient(), X, torch.tensor([0, -1])).signal
    first_alone = share(ignoring, Gradient(), X[:1], torch.tensor([0])).signal
    torch.testing.assert_close(seen["1.weight"], first_alone["1.weight"])


def test_looking_beforehand_tells_the_same_and_changes_nothing():
    """The way of a GPU, on the CPU: nothing was run when the mistake is told, and right targets pass."""
    one, ran = victim(), []
    for y, sentence in ((torch.tensor([0, 5]), "labels must be in 0..4"), (torch.tensor([0, 1]), None)):
        told = explaining_mistakes(lambda: one(X), one.loss, X, y, dtype=one.dtype, before=True)
        if sentence is None:
            with told:
                ran.append(y)
        else:
            with pytest.raises(BadInput, match=sentence), told:
                ran.append(y)
    assert [y.tolist() for y in ran] == [[0, 1]]


def test_a_loss_of_the_users_own_may_take_what_it_likes():
    signal = share(victim(lambda scores, y: scores.mean() * y), Gradient(), X, torch.tensor(7.0)).signal
    torch.testing.assert_close(signal["1.bias"], torch.full((5,), 7 / 5))


def test_a_mistake_in_the_users_loss_stays_its_own():
    def broken(scores, y):
        raise IndexError("mine")

    with pytest.raises(IndexError, match="mine"):
        share(victim(broken), Gradient(), X, torch.tensor([0, 1]))


def test_wrong_samples():
    with pytest.raises(BadInput, match=r"share needs x as a torch.Tensor, got a list"):
        share(victim(), Gradient(), X.tolist(), torch.tensor([0, 1]))  # type: ignore[arg-type]
    with pytest.raises(BadInput, match=r"takes torch.float32, but the samples are torch.float64; pass victim.to"):
        share(victim(), Gradient(), X.double(), torch.tensor([0, 1]))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"image": torch.tensor([0, 1, 2])}, "'image' of an object must be in 0..1 for a batch of 2, .* 0..2"),
        ({"classes": torch.tensor([0, 1])}, "list 3 objects in 'image' but 2 in 'classes'"),
    ],
)
def test_wrong_boxes(change, sentence):
    boxes = torch.tensor([[5.0, 5, 40, 50], [1, 1, 20, 20], [10, 10, 60, 60]])
    right = {"boxes": boxes, "classes": torch.tensor([0, 1, 2]), "image": torch.tensor([0, 0, 1])}
    detector = Victim(SmallDetector(), Pixels((3, 64, 64)), loss=box_loss)
    with pytest.raises(BadInput, match=sentence):
        share(detector, Gradient(), torch.rand(2, 3, 64, 64), {**right, **change})


@pytest.mark.parametrize(
    "model", [nn.Sequential(nn.Flatten(), nn.Linear(12, 5)), nn.Sequential(nn.Conv2d(3, 5, 2), nn.Flatten())]
)
@pytest.mark.parametrize("kind", [torch.uint8, torch.int64])
def test_images_of_bytes_are_told_what_to_give(model, kind):
    with pytest.raises(
        BadInput, match=rf"the samples are {kind}; for images of bytes pass space\.encode\(images / 255\)"
    ):
        share(Victim(model, Pixels((3, 2, 2))), Gradient(), (255 * X).to(kind), torch.tensor([0, 1]))


def test_a_single_number_is_no_batch():
    with pytest.raises(BadInput, match="got a single number"):
        share(victim(), Gradient(), torch.tensor(3.0), torch.tensor([0]))


class Wrapped(nn.Module):
    """Gives its scores in something else, as models of Hugging Face do."""

    def __init__(self, kind) -> None:
        super().__init__()
        self.inner, self.kind = nn.Sequential(nn.Flatten(), nn.Linear(12, 3)), kind

    def forward(self, x):
        return self.kind(logits=self.inner(x))


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (
            SimpleNamespace,
            "returns Hugging Face's SimpleNamespace; wrap the model in Logits, or for text in TextLogits",
        ),
        (dict, "the model returns a dict; give Victim a loss that takes it"),
    ],
)
def test_a_model_that_gives_no_plain_scores(kind, sentence):
    with pytest.raises(BadInput, match=sentence):
        share(Victim(Wrapped(kind), Pixels((3, 2, 2))), Gradient(), X, torch.tensor([0, 1]))


SENTENCE = r"holds float32 images with values from {} to {}; values from 0 to 1 are expected, so scale them first \(mean and std belong to"


@pytest.mark.parametrize(
    ("x", "low", "high"), [(X * 255, r"\S+", r"2\d\d\.?\d*"), ((X - 0.5) / 0.25, r"-1\.\d+", r"1\.\d+")]
)
def test_images_out_of_range_are_refused_as_on_the_command_line(x, low, high, tmp_path):
    """Bytes as floats, and images that were normalised where the victim knows no mean: by share, evaluate, run_audit and the reader."""
    y, sentence = torch.tensor([0, 1]), SENTENCE.format(low, high)
    np.savez(tmp_path / "d.npz", x=x.numpy(), y=y.numpy())
    for use in (
        lambda: share(victim(), Gradient(), x, y),
        lambda: evaluate(victim(), Gradient(), x, y, attack=inverting_gradients(steps=1)),
        lambda: run_audit(victim(), (x, y)),
        lambda: run_audit(victim(), DataLoader(TensorDataset(x, y))),
        lambda: read_npz(tmp_path / "d.npz"),
    ):
        with pytest.raises(BadInput, match=sentence):
            use()


def test_images_are_judged_by_the_victims_own_range():
    y = torch.tensor([0, 1])
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 5))
    normalised = Pixels((3, 2, 2), mean=(0.5, 0.4, 0.3), std=(0.2, 0.2, 0.2))
    share(Victim(model, normalised), Gradient(), normalised.encode(X), y)
    share(Victim(model.bfloat16(), normalised), Gradient(), normalised.encode(X.round()).bfloat16(), y)
    bytes_as_floats = Pixels((3, 2, 2), bounds=(0, 255))
    share(Victim(model.float(), bytes_as_floats), Gradient(), X * 255, y)
    with pytest.raises(BadInput, match="values from 0 to 255 are expected"):
        share(Victim(model, bytes_as_floats), Gradient(), X * 300, y)


class TwoInputs(nn.Linear):
    def forward(self, image, age):
        return super().forward(image.flatten(1)) + age


class Filled(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = TwoInputs(12, 5)

    def forward(self, image, *more, scale=1.0):
        return self.inner(image, scale)


@pytest.mark.parametrize(
    "use",
    [
        lambda model: Victim(model, Pixels((3, 2, 2))),
        lambda model: run_audit(model, (X, torch.tensor([0, 1]))),
        lambda model: cuts(model, (3, 2, 2)),
    ],
)
def test_a_model_of_two_inputs(use):
    with pytest.raises(
        BadInput, match=r"needs 2 inputs \(image, age\), but one is private.*wrap it in a module"
    ) as refusal:
        use(TwoInputs(12, 5))
    assert "\n" not in str(refusal.value)
    share(Victim(Filled(), Pixels((3, 2, 2))), Gradient(), X, torch.tensor([0, 1]))
