"""Halves as files: loaded again, run one after the other, they are the model; otherwise there are no files."""

from __future__ import annotations

import json
import sys
from collections import OrderedDict

import numpy as np
import onnxruntime
import pytest
import torch

from leakgauge.core import Pixels, Victim
from leakgauge.errors import BadInput, Inapplicable, MissingExtra
from leakgauge.split import export
from leakgauge.split.export import export_halves
from tests.zoo import SmallResNet, TakesLength


@pytest.fixture(scope="module")
def written(victim, tmp_path_factory):
    folder = tmp_path_factory.mktemp("halves")
    return folder, export_halves(victim, "features.pool1", folder)


def test_both_formats_are_the_model(written):
    folder, found = written
    assert {path.name for path in folder.iterdir()} == {
        "edge.pt2", "cloud.pt2", "edge.onnx", "cloud.onnx", "split.json",
    }  # fmt: skip
    assert set(found.errors) == {"pt2", "onnx"}
    assert max(found.errors.values()) < 1e-5
    assert found.checked == (1, 2, 5)
    told = json.loads((folder / "split.json").read_text())
    assert told["tensors"] == [{"name": "features.pool1", "shape": [6, 4, 4], "dtype": "float32"}]
    assert told["files"] == ["edge.pt2", "cloud.pt2", "edge.onnx", "cloud.onnx"]


def test_the_files_need_nothing_of_us(written, victim):
    folder, _ = written
    x = np.random.default_rng(0).random((7, 1, 8, 8), dtype=np.float32)  # a batch size that was not checked
    edge, cloud = (onnxruntime.InferenceSession(str(folder / f"{half}.onnx")) for half in ("edge", "cloud"))
    sent = edge.run(None, {edge.get_inputs()[0].name: x})
    scores = cloud.run(None, {cloud.get_inputs()[0].name: sent[0]})[0]
    assert sent[0].shape == (7, 6, 4, 4)
    with torch.no_grad():
        np.testing.assert_allclose(scores, victim(torch.from_numpy(x)).numpy(), atol=1e-5)
    first, second = (torch.export.load(folder / f"{half}.pt2").module() for half in ("edge", "cloud"))
    torch.testing.assert_close(
        second(*first(torch.from_numpy(x))).detach(), torch.from_numpy(scores), atol=1e-5, rtol=0
    )


def test_what_is_sent_has_one_name(written):
    folder, _ = written
    edge, cloud = (onnxruntime.InferenceSession(str(folder / f"{half}.onnx")) for half in ("edge", "cloud"))
    assert [one.name for one in edge.get_outputs()] == [one.name for one in cloud.get_inputs()] == ["features.pool1"]


def test_a_cut_that_is_called_like_something_in_the_graph(tmp_path):
    """Otherwise two values of the file would have one name."""
    torch.manual_seed(0)
    layers = {
        "relu_1": torch.nn.Conv2d(1, 2, 3),
        "a": torch.nn.ReLU(),
        "relu": torch.nn.ReLU(),
        "f": torch.nn.Flatten(),
    }
    model = torch.nn.Sequential(OrderedDict(**layers, head=torch.nn.Linear(72, 3)))
    export_halves(Victim(model, Pixels((1, 8, 8))), "relu", tmp_path)
    edge, cloud = (onnxruntime.InferenceSession(str(tmp_path / f"{half}.onnx")) for half in ("edge", "cloud"))
    names = [one.name for one in edge.get_outputs()]
    assert names == [one.name for one in cloud.get_inputs()]
    assert (
        names == [one["name"] for one in json.loads((tmp_path / "split.json").read_text())["tensors"]] == ["relu_sent"]
    )


def test_several_tensors_and_a_fixed_batch(tmp_path):
    inside = Victim(SmallResNet(), Pixels((3, 16, 16)))
    found = export_halves(inside, "layer1.0.conv1", tmp_path / "two", formats=["pt2"])
    assert found.errors["pt2"] < 1e-5
    assert len(json.loads((tmp_path / "two" / "split.json").read_text())["tensors"]) == 2
    fixed = Victim(TakesLength(side=8, patch=4, width=8, depth=1, heads=2, classes=3), Pixels((1, 8, 8)))
    found = export_halves(fixed, "blocks.0", tmp_path / "one", formats=["pt2"])
    assert not found.any_batch
    assert found.checked == (1,)


def test_halves_that_are_not_the_model_are_not_left(victim, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "_check", lambda *given: 0.5)
    with pytest.raises(BadInput, match=r"pt2 halves at features.pool1 differ from the model by 5.0e-01"):
        export_halves(victim, "features.pool1", tmp_path, formats=["pt2"])
    assert list(tmp_path.iterdir()) == []


def test_refusals(victim, tmp_path, monkeypatch):
    with pytest.raises(BadInput, match="pt2 and onnx, got tflite"):
        export_halves(victim, "features.pool1", tmp_path, formats=["tflite"])
    with pytest.raises(BadInput, match="there is no cut"):
        export_halves(victim, "features.pool9", tmp_path)

    class Asking(torch.nn.Sequential):
        def forward(self, x):
            return super().forward(x) * float(x.detach().sum() > -1e9)

    asking = Victim(Asking(torch.nn.Flatten(), torch.nn.Linear(64, 3)), Pixels((1, 8, 8)))
    with pytest.raises(Inapplicable, match="only be cut by module hooks"):
        export_halves(asking, "0", tmp_path)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtra, match=r"pip install '\.\[split\]'"):
        export_halves(victim, "features.pool1", tmp_path, formats=["onnx"])
    assert list(tmp_path.iterdir()) == []


class Spectrum(torch.nn.Module):
    """Singular values, which ONNX has no operation for."""

    def __init__(self):
        super().__init__()
        self.stem, self.head = torch.nn.Conv2d(1, 2, 3, padding=1), torch.nn.Linear(16, 3)

    def forward(self, x):
        return self.head(torch.linalg.svdvals(self.stem(x)).flatten(1))


def test_what_onnx_does_not_know_is_said_in_one_sentence(tmp_path):
    with pytest.raises(Inapplicable, match=r"PyTorch cannot write this half as ONNX \(.*svd.*pt2") as caught:
        export_halves(Victim(Spectrum(), Pixels((1, 8, 8))), "stem", tmp_path, formats=["pt2", "onnx"])
    assert "\n" not in str(caught.value)
    double = Victim(torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.Flatten()).double(), Pixels((1, 8, 8)))
    with pytest.raises(Inapplicable, match=r"onnxruntime cannot run this half \(Could not find .*float32"):
        export_halves(double, "0", tmp_path, formats=["onnx"])
    assert list(tmp_path.iterdir()) == []
