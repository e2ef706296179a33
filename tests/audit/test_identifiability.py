"""The rank of the derivative equals what the closed forms state before they solve, and noise takes directions away."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from leakgauge import testing
from leakgauge.attacks import april_closed_form, r_gap
from leakgauge.audit.case import Case
from leakgauge.audit.identifiability import Identifiable, identify
from leakgauge.audit.records import read
from leakgauge.audit.run import run_all
from leakgauge.audit.session import Setup
from leakgauge.audit.wording import identifiable
from leakgauge.channels import DPSGD, Features, FedAvg, Gradient
from leakgauge.core import Pixels, Victim, share
from leakgauge.defenses import Clip, GaussianNoise, Prune, Quantize, Withhold
from leakgauge.errors import Inapplicable
from leakgauge.models import ViT
from leakgauge.report.page import render

SIDE = 8
CONVOLUTIONS = [  # channels, kernel, stride, padding, input channels
    (1, 3, 1, 1, 1), (1, 3, 2, 1, 1), (1, 4, 4, 0, 1), (2, 4, 4, 0, 1), (4, 4, 4, 0, 1), (1, 2, 2, 0, 1), (2, 2, 2, 0, 1),
    (3, 2, 2, 0, 1), (4, 2, 2, 0, 1), (1, 3, 2, 0, 2), (3, 3, 3, 0, 2), (6, 2, 2, 0, 2),
]  # fmt: skip
PATCHES = [  # patch, width, class token
    (4, 8, True), (4, 12, False), (4, 16, True), (4, 20, False), (2, 18, True), (2, 24, False), (2, 20, True), (4, 6, False),
]  # fmt: skip


def image(channels: int, seed: int) -> Tensor:
    return torch.rand(1, channels, SIDE, SIDE, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rank(victim: Victim, x: Tensor, withheld: tuple[str, ...] = ()) -> int:
    defenses = (Withhold(withheld),) if withheld else ()
    return identify(victim, Gradient(), x, torch.tensor([1]), defenses=defenses)[0].above


@pytest.mark.parametrize("layout", CONVOLUTIONS, ids=str)
def test_the_rank_is_what_r_gap_states(layout: tuple[int, ...]) -> None:
    channels, kernel, stride, padding, inputs = layout
    torch.manual_seed(0)
    side = (SIDE + 2 * padding - kernel) // stride + 1
    model = nn.Sequential(
        nn.Conv2d(inputs, channels, kernel, stride, padding), nn.Tanh(), nn.Flatten(), nn.Linear(channels * side**2, 5)
    ).double()
    victim, x = Victim(model, Pixels((inputs, SIDE, SIDE))), image(inputs, 1)
    stated = dict(r_gap()(victim, share(victim, Gradient(), x, torch.tensor([1]))).stated)
    determined, _, unknowns = stated["input of 0"].split()[:3]
    assert int(unknowns) == x.numel()
    assert rank(victim, x) == int(determined)


@pytest.mark.parametrize("layout", PATCHES, ids=str)
def test_the_rank_is_what_april_states(layout: tuple[int, int, bool]) -> None:
    """Without the gradient of the patch embedding, which the closed form does not use, the image enters through its patches' tokens."""
    patch, width, class_token = layout
    model = ViT(
        side=SIDE, classes=5, patch=patch, width=width, depth=2, heads=2, residual=False, position_std=1.0, class_token=class_token
    ).double()  # fmt: skip
    victim, x = Victim(model, Pixels((1, SIDE, SIDE))), image(1, 2)
    stated = dict(april_closed_form()(victim, share(victim, Gradient(), x, torch.tensor([1]))).stated)
    patches = (SIDE // patch) ** 2
    assert stated["rank of the tokens' gradient"].split()[0] == str(patches)
    assert rank(victim, x, ("patch_embedding",)) == patches * int(stated["rank of the patch embedding"].split()[0])


def tiny(noise: float = 0.0, **more: object) -> Identifiable:
    victim, x, y = testing.tiny_case("cnn")
    defenses = (GaussianNoise(std=noise),) if noise else ()
    return identify(victim, Gradient(), x, y, defenses=defenses)[0]


def test_noise_takes_directions_away() -> None:
    plain, little, much = tiny(), tiny(1e-3), tiny(1.0)
    assert (plain.source, little.source) == ("rounding", "defense")
    assert plain.above == plain.directions == 144
    assert plain.above >= little.above > much.above
    assert plain.psnr > little.psnr > much.psnr


def test_every_channel_and_its_pictures() -> None:
    victim, x, y = testing.tiny_case("cnn")
    found = {
        "gradient": identify(victim, Gradient(), x, y),
        "fedavg": identify(victim, FedAvg(steps=2, lr=0.1), x, y),
        "features": identify(victim, Features("features.0"), x, y),
        "dpsgd": identify(victim, DPSGD(clip=1.0, noise=1.0), x, y),
    }
    for facts, left, lost in found.values():
        assert facts.directions == 144
        assert left.shape == lost.shape == x.shape
        assert 0 <= float(lost.min()) <= float(lost.max()) <= 1
    facts, left, lost = found["gradient"]
    assert torch.allclose(left, victim.space.decode(x).double(), atol=1e-2)
    assert float(lost.max()) < 0.01
    assert found["dpsgd"][0].source == "defense"
    assert found["dpsgd"][0].above < found["gradient"][0].above


def test_what_defenses_leave() -> None:
    victim, x, y = testing.tiny_case("cnn")
    whole = identify(victim, Gradient(), x, y)[0]
    clipped = identify(victim, Gradient(), x, y, defenses=(Clip(1e-3),))[0]
    pruned = identify(victim, Gradient(), x, y, defenses=(Prune(0.99),))[0]
    assert clipped.largest < 0.1 * whole.largest
    assert clipped.above == whole.above
    assert pruned.above < whole.above
    with pytest.raises(Inapplicable, match="no useful derivative"):
        identify(victim, Gradient(), x, y, defenses=(Quantize(2),))


def test_a_record_holds_the_directions_and_the_page_shows_them(tmp_path: Path) -> None:
    victim, x, _ = testing.tiny_case("cnn", count=3)
    images = victim.space.decode(x)
    case = Case(model="mine", attack="inverting_gradients", options={"steps": 1}, in_memory=True)
    (made,) = run_all([case], load=lambda _: Setup(victim, images, torch.arange(3)), folder=tmp_path, directions=True)
    assert made.identifiable is not None
    assert made.identifiable.directions == 144
    assert {"kept", "lost"} <= set(made.pictures)
    assert read(tmp_path) == [made]
    assert identifiable(made) in render(tmp_path)
    coarse = replace(case, name="", defenses=("quantize:2",))
    (other,) = run_all(
        [coarse], load=lambda _: Setup(victim, images, torch.arange(3)), folder=tmp_path, directions=True
    )
    assert other.identifiable is None
    assert "directions were not measured" in other.notes[-1]


def test_a_cheap_negative_is_explained_without_being_asked(tmp_path: Path) -> None:
    victim, x, y = testing.tiny_case("cnn", count=4)
    setup = Setup(victim, victim.space.decode(x), y)
    hidden = Case(
        model="own",
        data="own",
        defenses=("gaussian_noise:relative=100.0",),
        attack="inverting_gradients",
        options={"steps": 1},
    )
    (negative,) = run_all([hidden], load=lambda case: setup, folder=tmp_path)
    assert negative.outcome is not None
    assert not negative.outcome.leaks
    assert negative.identifiable is not None
    assert negative.identifiable.above < negative.identifiable.directions
    assert {"kept", "lost"} <= negative.pictures.keys()
    assert victim.dtype == torch.float32  # the derivative is taken on a copy
    (silent,) = run_all([hidden], load=lambda case: setup, folder=tmp_path / "without", directions=False)
    assert silent.identifiable is None


def test_many_directions_are_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    victim, x, y = testing.tiny_case("cnn", count=4)
    defenses = (GaussianNoise(relative=0.3),)
    exact, kept, lost = identify(victim, Gradient(), x, y, defenses=defenses)
    monkeypatch.setattr("leakgauge.audit.identifiability.MOST_DIRECTIONS", 1)
    found, left, unknown = identify(victim, Gradient(), x, y, defenses=defenses)
    assert lost is not None
    assert unknown is None
    assert 0 < exact.above < exact.directions == found.directions
    assert exact.error == 0.0 < found.error
    assert abs(found.above - exact.above) <= 4 * found.error + 0.02 * exact.directions
    assert found.psnr == pytest.approx(exact.psnr, abs=0.3)
    assert found.largest == pytest.approx(exact.largest, rel=1e-6)
    assert torch.allclose(left, kept, atol=1e-2)
    with pytest.raises(Inapplicable, match="random products too"):
        identify(victim, Gradient(), x, y, defenses=defenses, most=1000)


def test_directions_that_random_products_do_not_resolve_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leakgauge.audit.identifiability.MOST_DIRECTIONS", 1)
    victim, x, y = testing.tiny_case("vit")
    with pytest.raises(Inapplicable, match="do not resolve"):
        identify(victim, Gradient(), x, y)
