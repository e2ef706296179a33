"""A scan into a folder: resumed it gives the same, what fails at one cut leaves the others alone, and the words agree."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import nn

from leakgauge.audit.case import Case
from leakgauge.audit.findings import Split, split_of
from leakgauge.audit.questions import split_records as store
from leakgauge.audit.questions.split import Asked, ScanRun, parted, placed, plan_scan
from leakgauge.audit.questions.split_records import DECODER, RIDGE, Conclusion, conclude, straight
from leakgauge.audit.session import Setup
from leakgauge.audit.wording import on_split, split_notes
from leakgauge.core import Pixels, Victim
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.inversion import progress
from leakgauge.report.page import write
from leakgauge.split import RidgeInverter
from leakgauge.split.whitebox import LEAST_SQUARES
from leakgauge.split.zone import Zone

CASE = Case(model="vgg", seed=3)


def net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
    )


@pytest.fixture
def setup() -> Setup:
    rng = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    labels = torch.arange(90) % 3
    blobs = torch.rand(3, 1, 2, 2, generator=rng)[labels] * 0.4 + 0.3 * torch.rand(90, 1, 2, 2, generator=rng)
    images = nn.functional.interpolate(blobs, 8, mode="bilinear") + 0.3 * torch.rand(90, 1, 8, 8, generator=rng)
    return Setup(Victim(net(), Pixels((1, 8, 8)), name="small"), images, labels)


@dataclasses.dataclass(frozen=True)
class Blunt:
    """Ends at the mean image plus what is left after so many epochs; refuses or diverges at a shape."""

    diverges_at: int = 0

    def __call__(self, features, images, /, *, epochs, seed):
        if features[0].numel() == self.diverges_at:
            raise Inapplicable("training diverged: the loss is NaN")
        return lambda sent: images.mean(0).expand(len(sent), -1, -1, -1)


def scanned(setup, folder, asked, *, inverter=None):
    folder.mkdir()
    plan = plan_scan(setup, CASE, asked, folder, command="leakgauge scan")
    run = ScanRun(setup, plan, folder, inverter=inverter or Blunt())
    return run, run()


def facts(run: ScanRun, found: Conclusion) -> Split:
    known = split_of(run.plan, list(run.known.values()), found)
    assert isinstance(known, Split)
    return known


def test_images_are_parted_class_by_class(setup):
    order = setup.labels.argsort(stable=True)  # a folder of classes comes like this
    auxiliary, test = parted(Setup(setup.victim, setup.images[order], setup.labels[order]))
    assert (len(auxiliary.images), len(test.images)) == (72, 18)
    assert test.labels.bincount().tolist() == [6, 6, 6]
    together = torch.cat([auxiliary.images, test.images]).flatten(1)
    assert len(together.unique(dim=0)) == 90


def test_of_many_images_every_class_is_attacked(setup):
    labels = torch.arange(10).repeat_interleave(400)  # 80 of each are kept: more than the 500 that are attacked
    auxiliary, test = parted(Setup(setup.victim, torch.arange(4000.0).view(-1, 1, 1, 1), labels))
    assert test.labels.bincount().tolist() == [50] * 10
    assert not set(test.images.flatten().tolist()) & set(auxiliary.images.flatten().tolist())
    assert test.labels[:20].tolist() == [*range(10), *range(10)]


def test_images_without_classes_have_no_accuracy(setup, tmp_path):
    same = Setup(setup.victim, setup.images, torch.zeros_like(setup.labels))
    run, found = scanned(same, tmp_path / "run", Asked(threshold=0.4, epochs=0))
    assert all(record.risk["accuracy"] is None for record in run.known.values())
    assert any("no classes" in note for note in split_notes(facts(run, found)))
    page = write(run.folder).read_text()
    assert "Exact t-SNE of the features of 18 attacked images. Close" in page


@pytest.mark.parametrize("in_place", [False, True])  # it turns a dropout of the exported graph into a clone
def test_a_cut_behind_dropout_is_attacked_or_left_out_but_never_taken_for_safe(setup, tmp_path, in_place):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(in_place), nn.Dropout(), nn.Flatten(), nn.Linear(256, 3)
    )
    dropping = Setup(Victim(model, setup.victim.space, name="small"), setup.images, setup.labels)
    run, found = scanned(dropping, tmp_path / "named", Asked(threshold=0.5, epochs=1, names=("2", "4")))
    assert [key[0] for key in run.known if key[1] == RIDGE] == ["2", "4"]
    assert found.recommended != "2"
    run, found = scanned(dropping, tmp_path / "every", Asked(threshold=0.5, epochs=1, every=True))
    assert [str(cut["name"]) for cut in run.plan.cuts] == ["0", "1", "3", "4"]
    assert {key[0] for key in run.known if key[1] == RIDGE} == set(run.names)
    assert "1 of 5 cuts were left out: they send the same numbers as the cut before." in facts(run, found).notes


class Skipping(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.inner, self.head = nn.Conv2d(1, 2, 3, padding=1), nn.Conv2d(2, 2, 1), nn.Linear(128, 3)

    def forward(self, x):
        x = self.stem(x)
        return self.head((x + self.inner(x)).flatten(1))


def test_a_cut_of_several_tensors_is_scanned_if_it_is_named(setup, tmp_path):
    torch.manual_seed(0)
    residual = Setup(Victim(Skipping(), setup.victim.space, name="small"), setup.images, setup.labels)
    run, _ = scanned(residual, tmp_path / "run", Asked(threshold=0.5, epochs=0, names=("inner", "head")))
    assert [(cut["name"], cut["shape"], cut["bytes"]) for cut in run.plan.cuts] == [
        ("inner", [256], 1024), ("head", [3], 12),
    ]  # fmt: skip
    assert 0 < run.known["inner", RIDGE, 0].fvu < run.known["head", RIDGE, 0].fvu
    assert "inner" in write(run.folder).read_text()
    run, _ = scanned(residual, tmp_path / "all", Asked(threshold=0.5, epochs=0, every=True))
    assert "inner" not in run.names


class Breaking(Skipping):
    """Has infinite features between two places where they are finite."""

    def forward(self, x):
        x = self.inner(self.stem(x)) / 0.0
        return self.head(torch.nan_to_num(x, posinf=1.0, neginf=-1.0).flatten(1))


@pytest.mark.parametrize("epochs", [0, 1])
def test_a_cut_where_every_attack_refused_is_not_recommended(setup, tmp_path, epochs):
    torch.manual_seed(0)
    breaking = Setup(Victim(Breaking(), setup.victim.space, name="small"), setup.images, setup.labels)
    asked = Asked(threshold=0.3, epochs=epochs, names=("stem", "div", "head"))
    run, found = scanned(breaking, tmp_path / "run", asked)
    assert run.known["div", RIDGE, 0].risk["refusal"]
    assert run.known["stem", RIDGE, 0].fvu < 0.3 < run.known["head", RIDGE, 0].fvu
    assert found.recommended == "head"
    assert "div" not in found.front


def test_too_few_images(setup):
    with pytest.raises(BadInput, match=r"at least 50 images .* holds 40"):
        parted(Setup(setup.victim, setup.images[:40], setup.labels[:40]))


def test_a_scan_concludes(setup, tmp_path):
    run, found = scanned(setup, tmp_path / "run", Asked(threshold=0.4, epochs=2), inverter=Stopping())
    names = [cut["name"] for cut in run.plan.cuts]
    assert names == ["1", "3", "5"]
    lines = store.read(tmp_path / "run")
    assert [r.cut for r in lines if r.attack == RIDGE] == names
    assert found.recommended in names
    known = facts(run, found)
    assert known.recommended == found.recommended
    assert (known.threshold, known.auxiliary, known.tested, known.scanned) == (0.4, 72, 18, 3)
    assert known.decoder_epochs == found.epochs_spent > 0
    place = names.index(found.recommended)
    assert found.candidate == found.recommended
    assert not found.undertrained
    assert found.envelope[place] >= 0.4
    assert all(found.envelope[i] < 0.4 or names[i] in known.blurred for i in range(place))
    assert [r.cut for r in lines if r.attack == LEAST_SQUARES] == [found.recommended]
    assert found.by_depth == pytest.approx(straight([found.envelope[0], 0, found.envelope[-1]]))
    assert store.read_conclusion(tmp_path / "run") == found
    assert not (tmp_path / "run" / "features").exists()
    assert all((tmp_path / "run" / r.picture).is_file() for r in lines)
    assert all(len(r.map) == 18 for r in lines if r.attack == RIDGE)


def test_a_killed_scan_goes_on_where_it_was(setup, tmp_path):
    asked = Asked(threshold=0.4, epochs=2)
    _, whole = scanned(setup, tmp_path / "whole", asked)
    folder = tmp_path / "killed"
    folder.mkdir()
    plan = plan_scan(setup, CASE, asked, folder, command="leakgauge scan")

    def killed(record):
        if record.cut == "3":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ScanRun(setup, plan, folder, on_record=killed, inverter=Blunt())()
    assert [r.cut for r in store.read(folder)] == ["1", "3"]
    again = []
    run = ScanRun(setup, store.read_plan(folder), folder, on_record=again.append, inverter=Blunt())
    assert run() == whole
    assert [r.cut for r in again if r.attack == RIDGE] == ["5"]

    def without_time(path):
        lines = store.read(path)
        return [dataclasses.replace(r, risk={**r.risk, "seconds": 0}) for r in lines]

    assert without_time(folder) == without_time(tmp_path / "whole")


def test_a_decoder_that_diverges_is_recorded_and_passed_over(setup, tmp_path):
    run, found = scanned(setup, tmp_path / "run", Asked(threshold=0.4, epochs=2), inverter=Blunt(diverges_at=3))
    refused = [r for r in store.read(tmp_path / "run") if r.risk["refusal"]]
    assert {(r.cut, r.attack) for r in refused} == {("5", DECODER)}
    assert all(math.isnan(r.fvu) for r in refused)
    assert found.recommended is None
    assert [(attack, cut) for attack, cut, _ in facts(run, found).refused] == [(DECODER, "5")]
    assert "training diverged" in facts(run, found).refused[0][2]
    assert len([k for k in run.known if k[1] == RIDGE]) == 3


@dataclasses.dataclass(frozen=True)
class Stopping:
    """Ridge as a decoder of one epoch after another, which stops after the first if it may."""

    stops: bool = False

    def until(self, fvu, /):
        return Stopping(stops=True)

    def __call__(self, features, images, /, *, epochs, seed):
        for epoch in range(1, (1 if self.stops else epochs) + 1):
            progress.report(epoch, epochs)
        return RidgeInverter()(features, images, epochs=epochs, seed=seed)


def test_a_decoder_that_stops_early_is_recorded_with_the_epochs_it_took(setup, tmp_path):
    """Ridge again breaks nothing that ridge did not: every decoder stops, is then trained to its end, and holds."""
    run, found = scanned(setup, tmp_path / "run", Asked(threshold=0.4, epochs=6), inverter=Stopping())
    trained = [record for record in store.read(tmp_path / "run") if record.attack == DECODER]
    assert [(record.allowed, record.epochs) for record in trained] == [(6, 1 + 6), (3, 1 + 3)]
    assert found.epochs_spent == 11
    assert (facts(run, found).decoded, facts(run, found).epochs_here) == (1, 7)
    again = ScanRun(setup, run.plan, tmp_path / "run", inverter=Blunt(diverges_at=1))  # nothing is left to train
    assert again() == found
    assert facts(run, found).stopped == ()


def test_cuts_whose_leak_was_only_shown_are_named(setup, tmp_path):
    run, _ = scanned(setup, tmp_path / "run", Asked(threshold=0.4, epochs=6))
    shown = store.CutRecord("3", DECODER, 2, {"fvu": 0.39}, allowed=6)
    every = [*run.known.values(), shown]
    found = split_of(run.plan, every, conclude(run.plan, every, None))
    assert isinstance(found, Split)
    assert found.stopped == ("3",)
    assert "Decoders at 3 stopped once they had shown the leak; more epochs would show more." in split_notes(found)


def test_requirements_decide_behind_the_zone(setup, tmp_path):
    run, found = scanned(setup, tmp_path / "a", Asked(epochs=0, require="fvu>=0.01, bytes<=12"))
    assert found.recommended == "5"  # three class scores
    assert not facts(run, found).decoders
    other, none = scanned(setup, tmp_path / "b", Asked(epochs=0, require="fvu>=0.01, bytes<=4"))
    assert (none.recommended, none.met) == (None, False)
    assert "No cut of 3 keeps an FVU of 0.01 and meets fvu>=0.01, bytes<=4." in on_split(facts(other, none)).text


def test_more_bytes_than_the_image_are_told(setup, tmp_path):
    run, found = scanned(setup, tmp_path / "run", Asked(epochs=0, threshold=1e-9, names=("1",)))
    assert found.recommended is None  # it is undone, and its images are re-identified
    assert "No cut of this network protects by itself" in on_split(facts(run, found)).text
    found = dataclasses.replace(found, recommended="1")
    assert facts(run, found).larger == facts(run, found).larger_than_jpeg == ("1",)
    statement = on_split(facts(run, found))
    assert (statement.tone, "That is 16.0 times the raw image" in statement.text) == ("partly", True)
    _, first, second, *_ = split_notes(facts(run, found))
    assert first.startswith("1 sends 1024 bytes as fp32: more than the raw image (64) and its JPEG (")
    assert second == "1 of 1 cut sends more than the raw image: 1."


def test_epochs_are_planned_from_a_budget(setup, tmp_path):
    run, _ = scanned(setup, tmp_path / "run", Asked(threshold=1e-4, budget=1e4))
    assert run.plan.epochs == 200  # nothing costs anything here, so the most
    assert store.read_plan(tmp_path / "run").epochs == 200


def test_defenses_act_on_what_is_sent(setup, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    case = dataclasses.replace(CASE, defenses=("gaussian_noise:relative=5.0",), name="")
    plan = plan_scan(setup, case, Asked(epochs=0), folder, command="leakgauge scan")
    noisy = ScanRun(setup, plan, folder).ridge()
    _, clean = scanned(setup, tmp_path / "clean", Asked(epochs=0))
    assert noisy[0] > 2 * clean.envelope[0]


def test_missing_classes_are_told(setup, tmp_path):
    two = setup.labels < 2
    few = Setup(setup.victim, setup.images[two].repeat(2, 1, 1, 1), setup.labels[two].repeat(2))
    run, _ = scanned(few, tmp_path / "run", Asked(epochs=0))
    assert "1 of the model's 3 classes have no image in the data." in run.plan.notes


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"names": ("2x",)}, "there is no cut '2x'"),
        ({"threshold": 1.5}, "between 0"),
        ({"threshold": 0.2, "require": "fvu >= 0.3"}, "differ"),
        ({"epochs": -1}, "at least 0"),
        ({"epochs": 1, "budget": 3.0}, "either --epochs or --attack-budget"),
        ({"numbers": "int4"}, "fp32, fp16, int8"),
        ({"require": "speed<=3"}, "not a constraint"),
    ],
)
def test_mistakes(setup, tmp_path, asked, sentence):
    with pytest.raises(BadInput, match=sentence):
        plan_scan(setup, CASE, Asked(**asked), tmp_path, command="")
    assert not (tmp_path / store.PLAN).exists()


def test_few_points_or_equal_points_have_no_map():
    assert placed(torch.rand(5, 3)) == ()
    assert placed(torch.ones(12, 3)) == ()
    assert len(placed(torch.rand(12, 3))) == 12


def test_a_decoder_that_does_worse_than_regression_recommends_nothing(setup, tmp_path):
    run, found = scanned(setup, tmp_path / "run", Asked(threshold=0.4, epochs=2))  # the mean image
    assert (found.recommended, found.candidate, found.undertrained) == (None, "5", True)
    statement = on_split(facts(run, found))
    assert (statement.badge, "trained too little" in statement.text) == ("Not attacked enough", True)
    assert store.read_conclusion(tmp_path / "run") == found


def test_half_of_the_epochs_are_tried_too_where_a_cut_holds(setup, tmp_path):
    run, found = scanned(setup, tmp_path / "run", Asked(threshold=0.4, epochs=8))
    tried = [r.allowed for r in run.known.values() if (r.cut, r.attack) == (found.candidate, DECODER)]
    assert sorted(tried) == [4, 8]


@pytest.mark.parametrize(
    ("half", "full", "learning"), [(0.62, 0.50, True), (0.52, 0.50, False), (0.38, 0.50, True), (None, 0.50, False)]
)
def test_a_decoder_that_is_still_learning_recommends_nothing(setup, tmp_path, half, full, learning):
    """0.50 after a gain of 0.12 would be 0.38 after the next one, below the threshold of 0.4."""
    run, _ = scanned(setup, tmp_path / "run", Asked(threshold=0.4, epochs=0))
    trained = [
        store.CutRecord("3", DECODER, epochs, {"cut": "3", "fvu": fvu, "reidentified": 0.0}, allowed=epochs)
        for epochs, fvu in ((4, half), (8, full))
        if fvu is not None
    ]
    every = [*run.known.values(), *trained]
    zone = Zone("3", ("1", "3"), 0.4, (), 12, 24)
    found = conclude(run.plan, every, zone)
    assert (found.candidate, found.learning, found.undertrained) == ("3", learning, learning)
    assert found.recommended == (None if learning else "3")
    known = split_of(run.plan, every, found)
    assert isinstance(known, Split)
    statement = on_split(known)
    assert (statement.badge == "Not attacked enough") is learning
    assert ("still learning" in statement.text) is learning


def test_images_that_are_named_are_a_leak_whatever_the_fvu(setup, tmp_path):
    run, found = scanned(setup, tmp_path / "run", Asked(threshold=0.01, epochs=1), inverter=Stopping())
    assert run.plan.recognised == pytest.approx(0.2 + 3 / 18)
    assert found.recommended not in ("1", "3")
    known = facts(run, found)
    assert set(known.blurred) & {"1", "3"}
    assert any("re-identified more often than 37 %" in note for note in split_notes(known))


def test_what_would_protect_is_said_where_no_cut_does(setup, tmp_path):
    run, found = scanned(setup, tmp_path / "run", Asked(epochs=0, names=("1", "3")))
    assert found.recommended is None
    assert found.remedy is not None
    assert found.remedy.cut in ("1", "3")
    assert 0 < found.remedy.width < 18
    statement = on_split(facts(run, found))
    assert "No cut of this network protects by itself" in statement.text
    assert f"With at most {found.remedy.width} numbers per image" in statement.text
    if found.remedy.noise is not None:
        assert f"gaussian_noise:relative={found.remedy.noise:g}" in statement.text
    assert store.read_conclusion(tmp_path / "run") == found
