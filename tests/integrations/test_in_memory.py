"""Audits of what is in memory: every kind of data, a run that can be read, shown and resumed by nobody else, and clear refusals."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from leakgauge import BadInput, Pixels, Run, Victim, run_audit, testing
from leakgauge.audit import Case, records, run_all
from leakgauge.audit.plan import read as read_plan
from leakgauge.audit.processes import Processes
from leakgauge.audit.session import Session
from leakgauge.errors import MissingExtra
from leakgauge.integrations import datasets
from leakgauge.integrations.in_memory import Held, hold

IMAGES = torch.rand(80, 3, 8, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(80) % 4


class Net(nn.Sequential):
    """Has no modes, so both are one case."""


def net() -> Net:
    torch.manual_seed(0)
    return Net(nn.Conv2d(3, 4, 3, stride=2), nn.Sigmoid(), nn.Flatten(), nn.Linear(36, 4))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A short audit of all four questions, and the model it was made of."""
    model, folder = net(), tmp_path_factory.mktemp("runs") / "own"
    before = {name: value.clone() for name, value in model.state_dict().items()}
    images = IMAGES.clone()
    run = run_audit(
        model, (images, LABELS), budget=None, options={"steps": 3}, training_steps=6, epochs=1, out=folder, seed=1
    )  # fmt: skip
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.training
    assert torch.equal(images, IMAGES)
    return run


def test_all_four_questions_are_answered(made):
    assert isinstance(made, Run)
    assert made.findings.unanswered == ()
    assert {record.status for record in made.records} == {"done"}
    own = [record for record in made.records if record.change is None]
    assert [(record.case.mode, record.case.batch_size) for record in own] == [("train", 1), ("train", 4)]
    assert made.advice


def test_a_case_in_memory_says_so_and_has_no_command(made):
    for record in made.records:
        assert (record.case.model, record.case.data, record.case.in_memory) == ("Net", "in memory", True)
        assert record.command == ""
    assert records.read(made.folder)[0].case == made.records[0].case
    for name in ("scan.json", "defenses.jsonl", "monitor.jsonl", "plan.json"):
        assert "leakgauge audit Net" not in (made.folder / name).read_text()
        assert "leakgauge attack Net" not in (made.folder / name).read_text()
    page = (made.folder / "report.html").read_text()
    assert "leakgauge attack Net" not in page
    assert "leakgauge audit Net" not in page


def test_no_command_line_resumes_it(made, tmp_path):
    from leakgauge.integrations.setups import find

    with pytest.raises(BadInput, match="the model Net was in memory, and no file says how to make it"):
        find(read_plan(made.folder).request.main)


def test_the_run_reads_well(made):
    said = str(made)
    assert said.startswith("What could be reconstructed from updates?")
    assert "What to do" in said
    assert made._repr_html_().startswith("<pre")


def test_rows_and_a_frame(made, monkeypatch):
    first, *_ = rows = made.rows()
    assert len(rows) == len(made.records)
    assert (first["model"], first["mode"], first["batch_size"], first["option_steps"]) == ("Net", "train", 1, 3)
    assert first["ssim"] == made.records[0].scores.mean("ssim")
    assert first["ssim_null"] == made.records[0].null.mean("ssim")
    assert {row["change"] for row in rows} >= {None, "true labels given"}
    json.dumps(rows)
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=lambda found: ("frame", found)))
    assert made.frame() == ("frame", rows)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtra, match="pandas is not installed"):
        made.frame()


def test_a_real_frame(made):
    pandas = pytest.importorskip("pandas")
    assert list(made.frame()["outcome"]) == [row["outcome"] for row in made.rows()]
    assert isinstance(made.frame(), pandas.DataFrame)


def test_the_report_and_a_notebook(made, tmp_path):
    assert made.report() == made.folder / "report.html"
    copy = made.report(tmp_path / "page.html")
    assert copy.read_bytes().startswith(b"<!doctype html>") or copy.read_bytes().startswith(b"<!DOCTYPE html>")
    shown = made.show()
    frame = shown._repr_html_()
    assert frame.startswith("<iframe srcdoc='&lt;!")
    assert frame.count("'") == 4  # nothing of the page ends the attribute
    assert "characters of HTML" in repr(shown)


def test_any_run_folder_can_be_opened(made):
    again = Run(str(made.folder))
    assert again.records == made.records
    assert Run(made.folder / "nothing").records == []


def test_a_folder_is_used_once(made):
    with pytest.raises(BadInput, match="already holds a run"):
        run_audit(net(), (IMAGES, LABELS), questions=["updates"], options={"steps": 1}, out=made.folder)


def test_or_overwritten(tmp_path):
    asked = {"questions": ["updates"], "mode": "eval", "batch_size": 1, "changes": False, "out": tmp_path}
    (first,) = run_audit(net(), (IMAGES, LABELS), options={"steps": 1}, **asked).records
    (again,) = run_audit(net(), (IMAGES, LABELS), options={"steps": 2}, **asked, overwrite=True).records
    assert (first.case.options["steps"], again.case.options["steps"]) == (1, 2)
    assert len(records.read(tmp_path)) == 1


def test_without_a_folder_a_temporary_one_is_made():
    run = run_audit(
        net(), (IMAGES, LABELS), questions=["updates"], options={"steps": 1}, mode="eval", batch_size=1, name="mine",
        defenses=["prune:0.9"], reveal=["labels"], attack="dlg", changes=False,
    )  # fmt: skip
    assert run.folder.is_dir()
    plain, pruned = run.records
    assert (plain.case.model, plain.case.attack, plain.case.reveal) == ("mine", "dlg", ("size", "labels"))
    assert pruned.case.defenses == ("prune:0.9",)


class Pairs(Dataset):
    """Sorted by class, as folders of images are."""

    def __init__(self, make=lambda image, label: (image, label), count=80):
        self.make, self.count = make, count

    def __len__(self):
        return self.count

    def __getitem__(self, place):
        return self.make(IMAGES[place % 80], int(place * 4 // self.count))


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(IMAGES, LABELS, strict=True))


def picture(image):
    return Image.fromarray((image * 255).byte().permute(1, 2, 0).numpy())


@pytest.mark.parametrize(
    "data",
    [
        (IMAGES, LABELS),
        [IMAGES.numpy(), LABELS.numpy()],
        ((IMAGES * 255).byte(), LABELS),
        (IMAGES.permute(0, 2, 3, 1), LABELS.tolist()),
        TensorDataset(IMAGES, LABELS),
        Pairs(),
        Pairs(lambda image, label: (picture(image), label)),
        Pairs(lambda image, label: {"image": picture(image).convert("RGBA"), "label": label}),
        Stream(),
        DataLoader(TensorDataset(IMAGES, LABELS), batch_size=7, shuffle=True),
        DataLoader(Pairs(lambda image, label: {"pixel_values": image, "labels": label}), batch_size=7),
    ],
    ids=[
        "tensors", "arrays", "bytes", "channels last", "tensor dataset", "dataset", "pictures", "by name", "stream", "loader",
        "loader by name",
    ],
)  # fmt: skip
def test_every_kind_of_data(data):
    setup = hold(net(), data)
    assert setup.images.shape == (80, 3, 8, 8)
    assert sorted(setup.labels[:4].tolist()) == [0, 1, 2, 3]
    assert setup.labels.bincount().tolist() == [20] * 4
    apart = torch.cdist(setup.images.flatten(1), IMAGES.flatten(1)).min(1).values
    assert apart.max() < 0.05  # bytes are a little coarser
    assert setup.victim.name == "Net"


def test_images_on_disk_and_a_victim_that_normalises(tmp_path):
    for i in range(8):
        path = tmp_path / f"{'ab'[i % 2]}" / f"{i}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(np.full((16, 16, 3), 20 * i, np.uint8)).save(path)
    victim = Victim(net(), Pixels((3, 8, 8), mean=(0.5,), std=(0.2,)), name="normalised")
    with pytest.raises(BadInput, match="resize"):
        hold(victim, tmp_path)
    setup = hold(victim, str(tmp_path), resize=True)
    assert setup.images.shape == (8, 3, 8, 8)
    assert setup.labels.tolist() == [0, 1] * 4
    assert setup.victim.space.mean == (0.5,)
    assert setup.victim.name == "normalised"


def test_a_large_dataset_is_taken_evenly(monkeypatch):
    monkeypatch.setattr(datasets, "MOST", 12)
    setup = hold(net(), Pairs(count=6000))
    assert len(setup.images) == 12
    assert setup.labels.bincount().tolist() == [3] * 4
    assert len(hold(net(), DataLoader(Stream(), batch_size=5)).images) == 12


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((IMAGES * 3 - 1, LABELS), "values from 0 to 1 are expected.*mean and std belong to Pixels"),
        ((IMAGES, LABELS[:5]), "80 images but 5 labels"),
        ((IMAGES,), r"data in memory is \(images, labels\) or \(series, labels\), got 1"),
        ((IMAGES, LABELS + 4), "labels must be in 0..3|labels must lie in 0..3"),
        ((IMAGES[:, :, :6], LABELS), "does not take images of shape 3x6x8"),
        (Pairs(count=0), "the Pairs holds no image"),
        (TensorDataset(IMAGES, torch.zeros(80, 4)), r"gives a label of shape \(4,\); one class number per image"),
        (TensorDataset(IMAGES, LABELS + 0.5), r"gives a label 0\.5; one class number per image"),
        (Pairs(lambda image, label: image), r"must give pairs \(image, label\), it gave Tensor"),
        (Pairs(lambda image, label: {"a": image}), "the data gives a; name image and label as image and label or"),
        (Pairs(lambda image, label: (image[:, : 4 + label], label)), "the images differ in shape"),
    ],
)
def test_data_that_does_not_fit(data, message):
    with pytest.raises(BadInput, match=message) as caught:
        hold(net(), data)
    assert "\n" not in str(caught.value)


def test_what_is_asked_wrongly():
    data = (IMAGES, LABELS)
    with pytest.raises(BadInput, match=r"questions as a sequence of 'updates' or .*, got a list with 'cuts' at 0"):
        run_audit(net(), data, questions=["cuts"])
    with pytest.raises(BadInput, match="got none"):
        run_audit(net(), data, questions=[])
    with pytest.raises(BadInput, match="give a budget such as '10m'"):
        run_audit(net(), data, budget=None)
    with pytest.raises(BadInput, match="positive time such as 90s"):
        run_audit(net(), data, budget="soon")
    with pytest.raises(BadInput, match="did you mean prune"):
        run_audit(net(), data, defenses=["prun:0.9"])
    with pytest.raises(BadInput, match="an audit is about images or series, but the victim takes Tokens"):
        run_audit(testing.tiny_victim("text"), data)


def test_other_processes_do_not_get_it(tmp_path):
    setup = hold(net(), (IMAGES, LABELS))
    case = Case(model="Net", in_memory=True, options={"steps": 1})
    with pytest.raises(BadInput, match="a model in memory cannot be sent to other processes"):
        run_all([case], load=Session(Held(setup)), folder=tmp_path, map=Processes(2))
    assert [r.status for r in run_all([case], load=Session(Held(setup)), folder=tmp_path)] == ["done"]
