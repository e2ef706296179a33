"""Mistakes by the dozen, in every command: one sentence on stderr that says what was wrong, exit code 2, and no file left.

Each line of a table is one mistake: the words after ``leakgauge``, and what the sentence must say. The fixture ``desk`` fills a
folder with what the words name: a model file, photos, files that are damaged or hold the wrong thing.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections import OrderedDict

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from leakgauge.audit import plan, records
from leakgauge.audit.questions import split_records, training

MORE_MODELS = """

def wrong_rank():
    return nn.Sequential(nn.Conv2d(3, 2, 3)), Pixels((3, 8, 8))


class Worded(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def forward(self, x):
        return "a cat"


def worded():
    return Worded(), Pixels((3, 8, 8))


def frozen():
    return make().requires_grad_(False), Pixels((3, 8, 8))


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def forward(self, image, age):
        return self.layer(age)


def two_inputs():
    return TwoInputs(), Pixels((3, 8, 8))


def needs_an_argument(size):
    return make()


def pair_the_wrong_way():
    return Pixels((3, 8, 8)), make()


threshold = 0.5
"""

SCRIPTS = {
    "no_optimizer.py": "print('nothing is trained here')",
    "leaves.py": "import sys\nsys.exit(4)",
    "typo.py": "import torch\ntorch.optimm",
    "syntax.py": "def broken(:\n    pass",
}


PLAN = """
import torch
from torch import nn
from leakgauge import Pixels


def victim():
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 3)), Pixels((3, 4, 4))


def data():
    return torch.rand(6, 3, 4, 4), torch.arange(6) % 3

"""
PLANS = {
    "no_victim.py": PLAN.replace("victim", "model"),
    "both.py": PLAN + "ONLY = ('updates',)\nSKIP = ('split',)",
    "slip.py": PLAN + "BUGDET = '5m'",
    "number.py": PLAN + "def cases():\n    return 3",
    "no_case.py": PLAN + "def cases():\n    return []",
    "few_labels.py": PLAN.replace("arange(6)", "arange(4)"),
}


class Payload:
    """Runs code when it is unpickled: it must never be."""

    def __reduce__(self):
        return (open, ("unpickled", "w"))


@pytest.fixture
def desk(tmp_path, model, photos):
    """A folder with what a user would have lying around, much of it unfit."""
    with (tmp_path / model).open("a") as file:
        file.write(MORE_MODELS)
    for name, text in {**SCRIPTS, **PLANS}.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "a_file").write_text("I am a file")
    (tmp_path / "empty").mkdir()
    (tmp_path / "half/class0").mkdir(parents=True)
    (tmp_path / "half/class1").mkdir()
    (tmp_path / "half/class0/0.png").write_bytes((tmp_path / "photos/class0/0.png").read_bytes())
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut/0.png").write_bytes((tmp_path / "photos/class0/0.png").read_bytes()[:90])
    _write_arrays(tmp_path)
    _write_updates(tmp_path)
    _write_runs(tmp_path)
    return tmp_path


def _write_arrays(folder):
    images, labels = np.zeros((4, 8, 8, 3), np.uint8), np.arange(4) % 3
    np.savez(folder / "unnamed.npz", images)
    np.savez(folder / "no_labels.npz", x=images)
    np.savez(folder / "few_labels.npz", x=images, y=labels[:2])
    np.savez(folder / "half_labels.npz", x=images, y=labels + 0.5)
    np.savez(folder / "flat.npz", x=images.reshape(4, -1), y=labels)
    np.savez(folder / "bright.npz", x=images.astype(np.float32) + 300, y=labels)
    np.savez(folder / "hole.npz", x=np.full((4, 8, 8, 3), np.nan, np.float32), y=labels)
    np.savez(folder / "many_classes.npz", x=images, y=labels + 7)
    np.savez(folder / "pickled.npz", x=np.array([Payload()] * 4, dtype=object), y=labels, allow_pickle=True)
    (folder / "torn.npz").write_bytes((folder / "few_labels.npz").read_bytes()[:200])
    (folder / "data_batch_1.bin").write_bytes(b"\x00" * 100)
    (folder / "images-idx3-ubyte").write_bytes(b"\x00\x00\x08\x03" + b"\x00\x00\x00\x02" * 3 + b"\x01")
    (folder / "labels-idx1-ubyte").write_bytes(b"\x00\x00\x08\x01" + b"\x00\x00\x00\x02" + b"\x01\x02")


def _write_updates(folder):
    """Files that a client of ``my_model.py:sized`` might have sent, none of them usable."""
    shapes = {"1.weight": (12, 192), "1.bias": (12,), "3.weight": (3, 12), "3.bias": (3,)}
    state = {name: torch.ones(shape) for name, shape in shapes.items()}
    first = "1.weight"
    save_file(state | {first: torch.zeros(2, 2)}, folder / "shape.safetensors")
    save_file(state | {first: torch.full_like(state[first], torch.nan)}, folder / "nan.safetensors")
    save_file(state | {f"{first}x": torch.ones(3)}, folder / "names.safetensors")
    save_file({name: torch.zeros_like(value) for name, value in state.items()}, folder / "still.safetensors")
    save_file({first: state[first]}, folder / "part.safetensors")
    (folder / "torn.safetensors").write_bytes((folder / "still.safetensors").read_bytes()[:300])
    torch.save([torch.zeros(3)], folder / "list.pt")
    torch.save(OrderedDict(a="text"), folder / "text.pt")
    (folder / "payload.pt").write_bytes(pickle.dumps({"w": Payload()}))


def _write_runs(folder):
    for name, file, text in (
        ("torn_plan", plan.FILE, '{"request": {'),
        ("list_plan", plan.FILE, "[1, 2]"),
        ("old_plan", plan.FILE, "{}"),
        ("torn_records", records.FILE, '{"key": 1\n{"key": 2}\n'),
        ("binary_records", records.FILE, "\x00\x01\x02\n"),
        ("torn_monitor", training.FILE, "{]\n"),
        ("torn_scan", split_records.PLAN, "{"),
    ):
        (folder / name).mkdir()
        (folder / name / file).write_text(text)


MODEL, SIZED = ("my_model.py:make", "--data"), ("my_model.py:sized",)
PART = (*SIZED, "--update", "part.safetensors")

MISTAKES = {
    "audit": [
        (["my_model.py:needs_an_argument", "--data", "photos"], "needs_an_argument() in my_model.py raised TypeError"),
        (["my_model.py:two_inputs"], "needs 2 inputs (image, age), but one is private"),
        (["my_model.py:sized", "--size", "8"], "--size is for models of timm (timm:NAME), and my_model.py:sized is none"),
        (["my_model.py:sized", "--weights", "nowhere.pt"], "there is no file nowhere.pt"),
        (["my_model.py:sized", "--data", "photos", "--window", "4095"], "a window is written BLACK:WHITE"),
        (["my_model.py:sized", "--window", "0:4095"], "the embedded photographs need no window"),
        (["my_model.py:pair_the_wrong_way"], "a Victim or a LanguageModel; got (Pixels, Sequential)"),
        (["my_model.py:frozen"], "no trainable parameter"),
        (["my_model.py:wrong_rank"], "my_model.py:wrong_rank"),
        (["my_model.py:worded"], "my_model.py:worded"),
        (["my_model.py:threshold"], "'threshold' in my_model.py is a float; a function that returns a model is needed"),
        (["syntax.py:make"], "syntax.py raised SyntaxError"),
        (["no_such_package.models:make"], "there is no module no_such_package"),
        (["timm:resnet81"], "timm has no model 'resnet81'; did you mean"),
        (["timm:"], "cannot read 'timm:' as a model"),
        (["attention_first:cnn"], "attention_first: needs a vision transformer"),
        (["vti"], "did you mean vit"),
        ([*MODEL, "unnamed.npz"], "unnamed.npz holds the arrays arr_0; images and labels are expected as"),
        ([*MODEL, "no_labels.npz"], "no_labels.npz holds the arrays x"),
        ([*MODEL, "few_labels.npz"], "holds 4 images but 2 labels"),
        ([*MODEL, "half_labels.npz"], "labels that are not class numbers"),
        ([*MODEL, "flat.npz"], "holds images of shape (4, 192)"),
        ([*MODEL, "bright.npz"], "values from 300 to 300"),
        ([*MODEL, "hole.npz"], "values that are not finite"),
        ([*MODEL, "many_classes.npz"], "labels must be in 0..2"),
        ([*MODEL, "pickled.npz"], "pickled.npz cannot be read as a plain .npz file"),
        ([*MODEL, "torn.npz"], "torn.npz cannot be read as a plain .npz file"),
        ([*MODEL, "data_batch_1.bin"], "has 100 bytes, which is not a multiple of 3073"),
        ([*MODEL, "images-idx3-ubyte"], "the file is incomplete"),
        ([*MODEL, "a_file"], "a_file is not of a known kind"),
        ([*MODEL, "half"], "half/class1 holds no images"),
        ([*MODEL, "cut"], "0.png cannot be read as an image"),
        (["--local-lr", "nan", "--local-steps", "2"], "positive learning rate, got nan"),
        (["--attack", "dlg", "--option", "lr=-1"], "positive learning rate, got -1"),
        (["--option", "steps=many"], "attack strongest takes a number as steps, got 'many'"),
        (["--attack", "inverting_gradients", "--option", "tv=[1]"], "inverting_gradients needs tv as a number, got a list of 1"),
        (["--attack", "inverting_gradients", "--option", "tv=strong"], "attack inverting_gradients takes a number as tv, got 'strong'"),
        (["--defense", "gaussian_noise:-1"], "at least 0"),
        (["--defense", "quantize:1"], "at least 2 bits"),
        (["--defense", "clip:0"], "positive norm, got 0"),
        (["--defense", "prune:0.5,fraction=0.6"], "gives fraction twice"),
        (["--defense", "prune:half"], "defense prune takes a number as fraction, got 'half'"),
        (["--defense", "withhold"], "keeps nothing back without a role; say which, e.g. withhold:head"),
        (["--defense", "dpsgd:clip=1"], "not a change of it; use --channel dpsgd:clip=1"),
        (["--channel", "dpsgd:seed=None"], "draws no noise, since it has no seed"),
        (["--channel", "dspgd"], "unknown channel 'dspgd'; did you mean dpsgd"),
        (["--channel", "dpsgd:noise=loud"], "channel dpsgd takes a number as noise, got 'loud'"),
        (["--channel", "fedavg:steps=5,lr=0.1,minibatch=32"], "write --batch-size 32 --local-steps 5 --local-lr 0.1 (in a plan"),
        (["--optimizer", "adm"], "unknown optimizer 'adm'; did you mean adam"),
        (["--local-epochs", "0"], "local epochs must be at least 1, got 0"),
        (["--channel", "dpsgd", "--local-steps", "2"], "drop local steps, epochs, learning rate and optimizer"),
        (["--channel", "aggregate:0"], "at least 1 client, got 0"),
        (["--channel", "aggregate:4", "--batch-size", "3"], "aggregate:4 needs a batch of at least 4, got 3"),
        (["--reveal", "auxiliary:0"], "at least 1, got 0"),
        (["--reveal", "noisy_copy:2"], "between 0 and 1, got 2"),
        (["--workers", "0"], "Invalid value for '--workers': "),
        (["--seed", "-1"], "Invalid value for '--seed': "),
        (["--device", "cuda:x"], "device"),
        (["--budget", "-5m"], "positive time such as 90s"),
        (["--budget", "nan"], "positive time such as 90s"),
        (["--fail-over", "maybe"], "--fail-over takes infeasible, inconclusive or partial"),
        (["--json", "nowhere/x.json"], "there is no folder nowhere"),
        (["--junit", "empty"], "empty is a folder; name the file to write"),
        (["--resume", "--out", "torn_plan"], "plan.json cannot be read"),
        (["--resume", "--out", "list_plan"], "plan.json cannot be read"),
        (["--resume", "--out", "old_plan"], "plan.json cannot be read"),
        (["--out", "torn_records"], "torn_records already holds a run"),
        (["--only", "updates", "--only", "privacy"], "--only takes a question"),
    ],
    "audit ": [  # plan files
        (["no_victim.py"], "no_victim.py has no victim(), which a plan file needs"),
        (["both.py"], "both.py sets ONLY and SKIP"),
        (["slip.py"], "slip.py has BUGDET, which means nothing here; did you mean BUDGET?"),
        (["number.py"], "must return a list of Case, got int"),
        (["no_case.py"], "returned no case"),
        (["few_labels.py"], "holds 6 images but 4 labels"),
        (["missing_plan.py"], "there is no file missing_plan.py"),
    ],
    "attack": [
        (["--first", "-1"], "at least 0, got -1"),
        (["--first", "999999"], "but the data holds 1000"),
        ([*SIZED, "--update", "missing.safetensors"], "there is no file missing.safetensors"),
        ([*SIZED, "--update", "shape.safetensors"], "has shape (2, 2)"),
        ([*SIZED, "--update", "nan.safetensors"], "NaN"),
        ([*SIZED, "--update", "names.safetensors"], "which the model does not have; did you mean"),
        ([*SIZED, "--update", "still.safetensors"], "changes no trainable parameter"),
        ([*SIZED, "--update", "torn.safetensors"], "is no safetensors file"),
        ([*SIZED, "--update", "list.pt"], "must hold tensors by name"),
        ([*SIZED, "--update", "text.pt"], "must hold tensors by name"),
        ([*SIZED, "--update", "payload.pt"], "holds more than tensors, or is damaged"),
        ([*SIZED, "--update", "empty"], "there is no file empty"),
        ([*PART, "--update-holds", "gradients"], "an update holds gradient, delta, weights, got 'gradients'"),
        ([*PART, "--weights", "part.safetensors"], "part.safetensors lacks"),
        ([*PART, "--update-holds", "gradient", "--local-steps", "3"], "a gradient comes from one step"),
        ([*PART, "--defense", "prune:0.9"], "it cannot be combined with --first, --server, --defense or --directions"),
        ([*PART, "--fail-over", "partial"], "the options for CI need a verdict"),
        ([*PART, "--truth", "missing.npz"], "missing.npz does not exist"),
        ([*PART, "--truth", "no_labels.npz"], "images and labels are expected"),
        ([*PART, "--truth", "many_classes.npz"], "holds 4 images, where the update was made from 1"),
        ([*PART, "--truth", "many_classes.npz", "--batch-size", "4"], "labels must be in 0..2"),
        ([*PART, "--truth", "photos/class0/0.png"], "holds images without labels"),
        ([*PART, "--truth", "photos/class0"], "holds images without labels"),
        (["--truth", "few_labels.npz"], "--truth belongs to --update"),
        (["--weights", "part.safetensors"], "part.safetensors names '1.weight', which the model does not have"),
        ([*PART, "--reveal", "labels"], "labels cannot be revealed, auxiliary:64 can"),
        ([*PART, "--reveal", "auxiliary:8"], "belong to --reveal auxiliary:64; give both or none"),
        ([*PART, "--reveal", "auxiliary:999", "--data", "photos"], "wants 999 auxiliary images, but the data holds"),
        ([*PART, "--channel", "features:1"], "features:1 sends no update"),
        ([*PART, "--channel", "dpsgd:clip=1"], "dpsgd:clip=1 sends a gradient; save that"),
        ([*PART, "--local-epochs", "2", "--update-holds", "gradient"], "a gradient comes from one step"),
        ([*PART, "--channel", "aggregate:clients=4"], "needs a batch of at least 4"),
    ],
    "scan": [
        (["--cut", "features.9.nowhere"], "there is no cut 'features.9.nowhere'"),
        (["--require", "fvu"], "'fvu' is not a constraint"),
        (["--require", "fvu>=0.5", "--require", "fvu>=0.6"], "constrains fvu twice"),
        (["--require", "fvu>=0.5", "--threshold", "0.3"], "differ; give one of them"),
        (["--threshold", "nan"], "the threshold is an FVU between 0"),
        (["--epochs", "-2"], "epochs must be at least 0, got -2"),
        (["--epochs", "2", "--attack-budget", "5m"], "give either --epochs or --attack-budget"),
        (["my_model.py:mkae", "--epochs", "2", "--attack-budget", "5m"], "give either --epochs"),  # before anything is loaded
        (["--numbers", "fp64"], "numbers must be sent as one of fp32, fp16, int8, got 'fp64'"),
        (["--defense", "withhold:head"], "mask channels instead"),
        (["--device", "gpu"], "the device must be cpu or cuda, got 'gpu'"),
        (["--resume", "--out", "torn_scan"], "torn_scan"),
        (["--out", "a_file"], "cannot make the output folder a_file"),
        (["my_model.py:make", "--data", "empty"], "empty holds no images"),
        (["my_model.py:mkae"], "did you mean make"),
    ],
    "monitor": [
        (["--every", "0"], "--every counts optimizer steps"),
        (["--view", "secret"], "--view must be one of"),
        (["--steps", "0"], "--steps must be at least 1, got 0"),
        (["--steps", "3", "no_optimizer.py"], "--steps and --paper belong to the embedded training"),
        (["--watch", "--port", "70000"], "port"),
        (["--watch", "--port", "-1"], "port"),
        (["missing.py"], "there is no file missing.py"),
        (["no_optimizer.py"], "ended without a step of a torch optimizer"),
        (["leaves.py"], "leaves.py ended with exit code 4"),
        (["typo.py"], "typo.py raised AttributeError"),
        (["syntax.py"], "syntax.py raised SyntaxError"),
        (["--out", "a_file", "--steps", "1"], "cannot make the output folder a_file"),
    ],
    "report": [
        (["nowhere"], "nowhere is not a run folder"),
        (["a_file"], "a_file"),
        (["empty"], "empty is not a run folder"),
        (["torn_records"], "line 1 of torn_records/records.jsonl cannot be read"),
        (["binary_records"], "line 1 of binary_records/records.jsonl cannot be read"),
        (["torn_monitor"], "line 1 of torn_monitor/monitor.jsonl"),
        (["torn_scan"], "torn_scan"),
    ],
    "compare": [
        (["empty", "nowhere"], "there is no run folder nowhere"),
        (["empty", "a_file"], "a_file"),
        (["torn_records", "empty"], "line 1 of torn_records/records.jsonl cannot be read"),
    ],
    "init": [
        (["--for", "kears"], "--for takes pytorch"),
        (["--out", "my_model.py"], "my_model.py already exists and was not changed"),
        (["--out", "empty"], "empty"),
    ],
}  # fmt: skip

# The words are the parser's own, and differ from one version of typer to the next; what is meant is named by all of them.
PARSER = [
    (["audit", "--batch-size", "many"], "Invalid value for '--batch-size': "),
    (["audit", "--local-lr", "fast"], "Invalid value for '--local-lr': "),
    (["audit", "--seed", "1.5"], "Invalid value for '--seed': "),
    (["audit", "--bugdet", "5m"], "--budget"),
    (["audit", "cnn", "vit"], "(vit); see leakgauge audit --help"),
    (["scan", "--threshold", "low"], "Invalid value for '--threshold': "),
    (["monitor", "--port", "http"], "Invalid value for '--port': "),
    (["monitor", "--every"], "requires an argument"),
    (["report"], "Missing argument 'RUN'"),
    (["compare", "empty"], "Missing argument 'RUN_B'"),
    (["list", "attacks"], "(attacks); see leakgauge list --help"),
    (["init", "--fro", "timm"], "--for"),
    (["adit"], "No such command 'adit'. Did you mean 'audit'?; see leakgauge --help"),
]
ALL = [([command.strip(), *words], said) for command, lines in MISTAKES.items() for words, said in lines] + PARSER


def test_every_mistake_is_another():
    assert len({tuple(words) for words, _ in ALL}) == len(ALL) >= 60
    assert {words[0] for words, _ in ALL} >= {"audit", "attack", "scan", "monitor", "report", "list", "init", "compare"}


def _files(folder):
    """Every file and what it holds; Python's own cache of the user's module aside."""
    return {str(p): p.read_bytes() for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts}


@pytest.mark.parametrize(("words", "said"), ALL, ids=[" ".join(words) for words, _ in ALL])
def test_one_sentence_and_no_file(words, said, leakgauge, desk):
    before = _files(desk)
    assert said in leakgauge(*words).sentence
    assert _files(desk) == before


def test_a_missing_extra_is_told_before_anything_is_planned(leakgauge, desk, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    before = _files(desk)
    assert (
        "install it with: pip install '.[ray]' in your clone of leakgauge"
        in leakgauge("audit", "--ray", "--out", "run").sentence
    )
    assert _files(desk) == before


@pytest.mark.parametrize("words", [["audit", "--bugdet", "5m"], ["report", "nowhere"]])
def test_in_a_process_of_its_own(words, tmp_path):
    command = [sys.executable, "-m", "leakgauge", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("leakgauge: ")
    assert not list(tmp_path.iterdir())
