"""A step of an attack can be recorded as a CUDA graph: nothing in it waits for the device or comes from the host."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from leakgauge.attacks import april, inverting_gradients, tag
from leakgauge.core import Pixels, Victim
from leakgauge.engine import Observed
from leakgauge.engine.fast import ByRules
from leakgauge.integrations.huggingface import KeptMask, keep_window_masks
from leakgauge.inversion import Descent, Matching
from leakgauge.inversion.known_targets import OfKnownTargets
from leakgauge.inversion.terms import Candidate
from leakgauge.models.vit import ViT
from reproductions.common.networks.detection_loss import DetectionLoss
from reproductions.common.networks.yolo import YOLO
from tests.engine.recordable import NotRecordable, only_on_the_device


def moved_once(victim: Victim, rows: int = 2, batch: int = 1) -> None:
    """Replay, objective and its derivative for candidates without values; the first pass may prepare what stays."""
    signal = {name: torch.empty_like(value) for name, value in victim.parameters().items()}
    replay, whole = ByRules(victim, Observed(signal)), dict.fromkeys(signal, 1.0)
    x = torch.empty(rows, batch, *victim.space.shape, device="meta").requires_grad_()
    y = torch.zeros(rows, batch, dtype=torch.long, device="meta")

    def step() -> None:
        found = replay(x, y)
        torch.autograd.grad((found.dot(whole) / found.square(whole).sqrt()).sum(), x)

    step()
    with only_on_the_device():
        step()


def a_step(attack: Matching, victim: Victim, count: int) -> Callable[[], None]:
    """A step of the attack on ``count`` observations, without the optimizer."""
    signal = {name: value.new_empty(count, *value.shape) for name, value in victim.parameters().items()}
    replay = ByRules(victim, Observed(signal, per_row=True))
    x = torch.zeros(count, 1, *victim.space.shape, device=victim.device).requires_grad_()
    y = torch.zeros(count, 1, dtype=torch.long, device=victim.device)
    assert isinstance(attack.solver, Descent)
    maps, project = attack.solver.gradient, attack.solver.project

    def step() -> None:
        (slope,) = torch.autograd.grad(attack.objective(Candidate(x, victim, replay(x, y), 1)).sum(), x)
        for change in maps:
            slope = change(slope)
        if project:
            victim.space.project(x.detach() - slope)

    return step


@pytest.mark.parametrize("attack", [april(), inverting_gradients(), tag()], ids=lambda attack: attack.name)
def test_attacks_on_many_images_at_once(attack):
    """Nothing waits for the host, and more images are not more operations."""
    victim = Victim(ViT(side=8, width=16, depth=2, heads=2).to("meta"), Pixels((1, 8, 8)))
    a_step(attack, victim, 2)()
    counts: list[int] = []
    for images in (2, 9):
        step = a_step(attack, victim, images)
        with only_on_the_device():
            step()
        with Counted() as counted:
            step()
        counts.append(counted.operations)
    assert counts[0] == counts[1] > 100


class Counted(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.operations = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.operations += 1
        return func(*args, **(kwargs or {}))


class OnEncoder(nn.Module):
    """torch's encoder on the rows of an image, samples or positions first."""

    def __init__(self, *, batch_first: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=batch_first)
        self.encoder, self.first = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), batch_first

    def forward(self, x):
        tokens = x[:, 0] if self.first else x[:, 0].transpose(0, 1)
        return self.encoder(tokens).mean(1 if self.first else 0)


@pytest.mark.parametrize("batch_first", [True, False])
def test_an_encoder_in_either_layout(batch_first):
    moved_once(Victim(OnEncoder(batch_first=batch_first).to("meta"), Pixels((1, 8, 8))))


KNOWN = {
    "boxes": torch.empty(3, 4, device="meta"),
    "classes": torch.empty(3, dtype=torch.long, device="meta"),
    "image": torch.empty(3, dtype=torch.long, device="meta"),
}


@pytest.mark.parametrize(("variant", "mode"), [("canonical", "train"), ("basic_block", "eval")])
def test_the_detector_and_its_loss(variant, mode):
    model = YOLO(classes=3, width=4, variant=variant).to("meta")
    moved_once(Victim(model, Pixels((3, 64, 64)), loss=OfKnownTargets(DetectionLoss(64), KNOWN), mode=mode))


@pytest.mark.parametrize(
    "careless",
    [
        lambda x, known: x.sum() * known["boxes"][known["classes"] > 0].sum(),
        lambda x, known: x.sum() * torch.tensor([1.0, 2.0]).to(x.device).sum(),
        lambda x, known: x.sum() * torch.tensor(2.0, device=x.device),
        lambda x, known: torch.where(x > 0, x, torch.tensor(0.5)).sum(),
    ],
    ids=["mask", "copy", "number copied", "number chosen"],
)
def test_what_cannot_be_recorded_is_found(careless):
    x = torch.empty(2, 3, device="meta")
    with pytest.raises(NotRecordable), only_on_the_device():
        careless(x, KNOWN)


class Layer(nn.Module):
    """A shifted-window layer that makes its mask on the host, as transformers did."""

    def __init__(self) -> None:
        super().__init__()
        self.window_size, self.shift_size, self.made = 2, 1, 0
        self.linear = nn.Linear(3, 3)

    def get_attn_mask(self, height, width, dtype):
        self.made += 1
        return torch.arange(height * width, dtype=dtype).view(height, width)

    def forward(self, x):
        mask = self.get_attn_mask(*x.shape[1:3], dtype=x.dtype)
        return self.linear(x) + mask.to(x.device)[None, :, :, None]


def test_masks_are_made_once_and_stay_on_the_device():
    model = nn.Sequential(Layer()).to("meta")
    x = torch.empty(1, 4, 4, 3, device="meta")
    with pytest.raises(NotRecordable), only_on_the_device():
        model(x)
    keep_window_masks(model)
    model(x)
    made = model[0].made
    with only_on_the_device():
        model(x)
    assert model[0].made == made
    model(torch.empty(1, 2, 4, 3, device="meta"))
    assert model[0].made == made + 1


def test_kept_masks_change_nothing_on_the_cpu_and_go_with_a_copy():
    model = nn.Sequential(Layer())
    x = torch.rand(1, 4, 4, 3)
    before = model(x)
    keep_window_masks(model)
    assert torch.equal(model(x), before)
    other = copy.deepcopy(model)
    mask = other[0].get_attn_mask
    assert isinstance(mask, KeptMask)
    assert mask.layer is other[0]
    assert torch.equal(other(x), before)


def test_layers_that_are_told_the_device_are_left_alone():
    class Told(Layer):
        def get_attn_mask(self, height, width, dtype, device=None):
            return None

    model = nn.Sequential(Told())
    keep_window_masks(model)
    assert "get_attn_mask" not in vars(model[0])
