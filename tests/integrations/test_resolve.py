from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

from leakgauge.core import Pixels
from leakgauge.errors import BadInput
from leakgauge.integrations.resolve import load_model

GOOD = """
from dataclasses import dataclass
from torch import nn
from leakgauge.core import Pixels
import neighbour
import helpers_of_mine.inner

@dataclass
class Settings:
    width: "int" = 4

def make_model():
    return nn.Linear(Settings().width, neighbour.CLASSES)

def with_pixels():
    return nn.Linear(4, 2), Pixels((1, 2, 2))

def late_neighbour():
    import latecomer
    return nn.Linear(1, latecomer.N)

class Net(nn.Linear):
    def __init__(self):
        super().__init__(4, 3)

ready = nn.Linear(5, 6)
number = 3
def fails(): raise KeyError("two\\nlines")
def needs(width): return nn.Linear(width, 1)
def returns_text(): return "a model"
def returns_three(): return nn.Linear(1, 1), 2, 3
def returns_pair(): return nn.Linear(1, 1), "pixels"
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "mine.py").write_text(GOOD)
    (tmp_path / "neighbour.py").write_text("CLASSES = 2")
    (tmp_path / "latecomer.py").write_text("N = 9")
    (tmp_path / "helpers_of_mine").mkdir()
    (tmp_path / "helpers_of_mine" / "__init__.py").write_text("")
    (tmp_path / "helpers_of_mine" / "inner.py").write_text("")
    return tmp_path / "mine.py"


@pytest.mark.parametrize(
    ("factory", "shape", "space"),
    [
        ("make_model", (2, 4), None),
        ("with_pixels", (2, 4), Pixels((1, 2, 2))),
        ("late_neighbour", (9, 1), None),
        ("Net", (3, 4), None),
        ("ready", (6, 5), None),
    ],
)
def test_a_file(file, factory, shape, space):
    found = load_model(f"{file}:{factory}")
    assert isinstance(found.model, nn.Module)
    assert found.model.weight.shape == shape
    assert found.space == space


def test_a_file_leaves_nothing_behind_but_a_private_name(file):
    path, modules = list(sys.path), set(sys.modules)
    load_model(f"{file}:late_neighbour")
    assert sys.path == path
    assert all(name.startswith("_leakgauge_model_") for name in set(sys.modules) - modules)
    with pytest.raises(BadInput):
        load_model(f"{file}:fails")
    assert sys.path == path
    assert all(name.startswith("_leakgauge_model_") for name in set(sys.modules) - modules)


def test_a_file_that_fails_leaves_nothing_at_all(tmp_path):
    (tmp_path / "broken.py").write_text("import sys; sys.path.append('/nowhere'); import companion; 1 / 0")
    (tmp_path / "companion.py").write_text("")
    path, modules = list(sys.path), set(sys.modules)
    with pytest.raises(BadInput, match=r"broken\.py raised ZeroDivisionError: division by zero when it was") as e:
        load_model(f"{tmp_path / 'broken.py'}:make")
    assert isinstance(e.value.__cause__, ZeroDivisionError)
    assert (sys.path, set(sys.modules)) == (path, modules)


def test_a_file_with_a_syntax_error(tmp_path):
    (tmp_path / "half.py").write_text("def make(:")
    with pytest.raises(BadInput, match=r"half\.py raised SyntaxError: invalid syntax"):
        load_model(f"{tmp_path / 'half.py'}:make")


def test_a_file_sees_a_relative_path(file, monkeypatch):
    monkeypatch.chdir(file.parent)
    assert load_model("mine.py:Net").model.weight.shape == (3, 4)


def test_same_seed_same_weights_and_no_global_randomness(file):
    before = torch.get_rng_state()
    weights = [load_model(f"{file}:make_model", seed=seed).model.weight for seed in (1, 1, 2)]
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_an_edited_file_is_read_again(tmp_path):
    for width in (3, 17):  # of different length, for Python tells a stale cache by time and size
        (tmp_path / "edited.py").write_text(f"from torch import nn\ndef make(): return nn.Linear({width}, 1)")
        assert load_model(f"{tmp_path / 'edited.py'}:make").model.in_features == width


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("make_modle", r"mine\.py has no 'make_modle'; did you mean make_model\?"),
        ("zzzzzz", r"has no 'zzzzzz'; known: dataclass, "),
        ("number", "'number' in .* is a int; a function that returns a model is needed"),
        ("fails", r"fails\(\) in .*mine\.py raised KeyError: 'two"),
        ("needs", r"needs\(\) in .* raised TypeError: .*missing 1 required positional argument: 'width'"),
        ("returns_text", r"a module and its Pixels \(or Series, Table, Tokens\), a Victim or a LanguageModel; got str"),
        ("returns_three", r"got \(Linear, int, int\)"),
        ("returns_pair", r"got \(Linear, str\)"),
    ],
)
def test_bad_factories(file, factory, message):
    with pytest.raises(BadInput, match=message) as raised:
        load_model(f"{file}:{factory}")
    assert "\n" not in str(raised.value)


def test_the_cause_of_a_failing_factory_is_kept(file):
    with pytest.raises(BadInput) as raised:
        load_model(f"{file}:fails")
    assert isinstance(raised.value.__cause__, KeyError)


@pytest.mark.parametrize("spec", ["lenet", "", ":", "mine.py:", ":make", "timm:", "hf:"])
def test_unreadable_specs(spec):
    with pytest.raises(BadInput, match=r"cannot read .* as a model; .*file\.py:factory"):
        load_model(spec)


def test_missing_file():
    with pytest.raises(BadInput, match=r"there is no file nowhere/mine\.py"):
        load_model("nowhere/mine.py:make")


def test_a_package(tmp_path, monkeypatch):
    (tmp_path / "pack_of_mine").mkdir()
    (tmp_path / "pack_of_mine" / "__init__.py").write_text("")
    (tmp_path / "pack_of_mine" / "net.py").write_text("from torch import nn\ndef make(): return nn.Linear(2, 3)")
    (tmp_path / "pack_of_mine" / "bad.py").write_text("import a_package_nobody_has")
    (tmp_path / "pack_of_mine" / "worse.py").write_text("raise OSError")
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    try:
        assert load_model("pack_of_mine.net:make").model.weight.shape == (3, 2)
        with pytest.raises(BadInput, match=r"pack_of_mine\.bad raised ModuleNotFoundError: No module named 'a_package"):
            load_model("pack_of_mine.bad:make")
        with pytest.raises(BadInput, match=r"pack_of_mine\.worse raised OSError when it was imported"):
            load_model("pack_of_mine.worse:make")
        with pytest.raises(BadInput, match=r"there is no module pack_of_mine\.none; install it"):
            load_model("pack_of_mine.none:make")
    finally:
        for name in [name for name in sys.modules if name.startswith("pack_of_mine")]:
            del sys.modules[name]
    assert sys.path == path


def test_missing_package():
    with pytest.raises(BadInput, match=r"there is no module no_such_package; install it, or name a file"):
        load_model("no_such_package.models:make")


def test_timm_and_hugging_face(small_config):
    found = load_model("timm:test_vit", seed=1, classes=4)
    assert found.model.num_classes == 4
    assert found.space.shape == (3, 160, 160)
    folder = small_config("vit", num_labels=5)
    drawn = load_model(f"hf:{folder}", seed=1)
    assert drawn.space.shape == (3, 32, 32)
    drawn.model.model.save_pretrained(folder)
    restored = load_model(f"hf:{folder}", seed=2)
    assert torch.equal(drawn.model.model.classifier.weight, restored.model.model.classifier.weight)


@pytest.mark.parametrize("spec", ["timm:no_such_net", "hf:no_such_net"])
def test_unknown_names(spec):
    with pytest.raises(BadInput, match="no_such_net"):
        load_model(spec)
