"""The bad inputs of a review as data: each is one sentence and exit code 2, or has the outcome that is written beside it.

No traceback, no empty answer, and no exit code 0 for something that was not done. The groups are those of the review; what belongs to
damaged run folders is tested with them.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

FAST = ("--option", "steps=2")


def each(words: str) -> list[str]:
    return words.split()


OPTIONS = {
    "--option": each(
        "lr=1e308 lr=0 lr=inf lr=nan lr=1e-400 lr=true lr='x' lr= tv=inf tv=None tv=nan tv=x restarts=1000000 restarts=1.5 restarts=-1 "
        "restarts=0 restarts= restarts=True steps=1e30 steps=2.5 steps=None steps=[] steps={} steps=0 =3 steps=2=3 steps==2 steps "
        "__class__=1 lr=__import__('os') lr=1j lr=b'x' nothing=1"
    ),
    "--defense": each(
        "prune:nan prune:1e309 prune: prune:: prune:fraction prune:fraction= prune:a=1 : , prunne gaussian_noise: "
        "gaussian_noise:relative=-1 gaussian_noise:relative=nan gaussian_noise:std=1,relative=1 quantize:1.5 quantize:None quantize:1 "
        "clip:inf clip:-1 clip:None clip:0 withhold: withhold:head+nothing withhold:1 mask_channels:2 mask_channels:[1] "
        "laplacian_noise:x=1 dpsgd:clip=1"
    ),
    "--channel": each(
        "dpsgd:clip=0 dpsgd:clip=nan dpsgd:noise=-1 dpsgd:noise=inf dpsgd:clip=inf dpsgd:: dpsgd:seed=x aggregate: aggregate:1.5 "
        "aggregate:-1 aggregate:clients=2,of=gradient shuffled_fedavg:epochs=0 shuffled_fedavg:lr=nan shuffled_fedavg:minibatch=0 "
        "features: features:nowhere features:cut=1 gradient fedavg:2 : dspgd"
    ),
    "--reveal": each(
        "labels:1 buffers:2 auxiliary:1e9 auxiliary:-1 auxiliary:0 auxiliary:x auxiliary:1.5 noisy_copy noisy_copy:nan noisy_copy:x "
        "noisy_copy:-1 size:3 : labels,buffers label"
    ),
    "--server": each(
        "imprint:bins=0 imprint:bins=1 imprint:bins=1.5 imprint:bins=1e12 imprint:bins=x trap_weights:share=2 trap_weights:share=nan "
        "fishing:target=-1 fishing:target=99 fishing:target=x nobody :"
    ),
    "--attack": ["", "nobody", ":", "dlg:lr=0", "dlg:lr=2,lr=3", "linear:x=1", "tag:lr=x", " dlg", "DLG", "dlg\n"],
    "--batch-size": ["0", "-1", "1e3", "x", "", "10000000000000000000000", "5000"],
    "--local-steps": ["0", "-1", "x", "1.5"],
    "--seed": ["-1", "99999999999", "x", "1.5", ""],
    "--first": ["-1", "999999", "10000000000000000000000000", "x"],
    "--classes": ["0", "-1", "1000000000", "x"],
    "--device": ["cuda:99", "cpu:5", "meta", "", "gpu", "tpu"],
    "--mode": ["", "TRAIN", " eval", "test"],
    "--fail-over": ["", "feasible", "maybe", "0"],
    "--json": ["", "nowhere/x.json", "."],
    "--junit": ["", "nowhere/x.xml", "/proc/x/y"],
    "--out": ["", "odd_models.py", "odd_models.py/run"],
    "--data": ["", "nowhere", "odd_models.py", "text.npz", "empty.npz", "one_name.npz", "objects.npz", "nan.npz", "/dev/null", "\x00"],
}  # fmt: skip
"""Values that ``leakgauge attack cnn`` refuses, by option."""

MODELS = [
    "", "odd_models.py", "odd_models.py:", ":make", "odd_models.py:make:x", "odd_models.py:SPACE", "odd_models.py:nn", "os:getcwd",
    "sys:exit", "/dev/null:x", "/dev/zero.py:x", ".", "..", "/", "~", "timm:", "timm:../x", "timm:resnet81", "timm32:nothing", "hf:",
    "hf:nowhere/x", "attention_first:", "attention_first:attention_first:vit", "attention_first:cnn", "cnn:make", "CNN", "\x00", "a" * 5000,
    "odd_models.py:" + "a" * 5000, "-", "http://x/y.py:z", "missing.py:make",
]  # fmt: skip
"""Words in the place of MODEL."""

EVERYWHERE = {
    "nothing": "must return class scores", "pair": "must return class scores", "named": "must return class scores",
    "first_only": "must return class scores", "complex_scores": "complex numbers", "one_class": "labels must be in 0..0",
    "no_class": "labels must be in 0..-1", "too_large": "does not take images", "stop_iteration": "does not take images",
    "out_of_memory": "does not take images", "asserts": "does not take images", "misses_a_file": "/no/such/vocabulary.txt",
    "recursive": "RecursionError", "leaves": "ended the program", "leaves_with_text": "ended the program",
    "generator_exit": "ended the program", "meta_weights": "on the meta device", "complex_weights": "complex numbers",
    "sparse_weights": "is sparse", "no_weights": "has no entries", "no_copy": "cannot be copied", "keeps_a_generator": "cannot be copied",
    "no_train": "train() raised", "huge": "at most", "identity": "no trainable parameter", "lazy": "lazy layers",
    "factory_leaves": "raised SystemExit", "factory_generator_exit": "raised GeneratorExit", "factory_gives_nothing": "got NoneType",
    "other_order": "got (Pixels, Base)", "tells_pixels": "ValueError: bad input …",
}  # fmt: skip
"""Models that every command refuses, and what it says."""
UPDATES = {
    "detached": "no gradient to share", "constant": "no gradient to share", "through_numpy": "no gradient to share",
    "integers": "floating-point type", "nan": "", "inf": "",
}  # fmt: skip
"""Models that share no gradient. A scan of features needs none."""
WORKING = ("subtracts", "rectifies", "prints", "halved", "draws", "half_weights", "double_weights")


@pytest.fixture
def desk(tmp_path):
    source = Path(__file__).with_name("odd_models.py")
    (tmp_path / "odd_models.py").write_text(source.read_text())
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (120, 8, 8, 3), dtype=np.uint8), np.arange(120) % 3
    np.savez(tmp_path / "data.npz", x=images, y=labels)
    (tmp_path / "text.npz").write_text("no array")
    np.savez(tmp_path / "empty.npz", x=images[:0], y=labels[:0])
    np.savez(tmp_path / "one_name.npz", x=images)
    np.savez(tmp_path / "objects.npz", x=np.array([{}], dtype=object), y=labels[:1], allow_pickle=True)
    np.savez(tmp_path / "nan.npz", x=np.full((4, 8, 8), np.nan), y=labels[:4])
    return tmp_path


PAIRS = [(option, value) for option, values in OPTIONS.items() for value in values]


@pytest.mark.parametrize(("option", "value"), PAIRS, ids=[f"{option} {value[:30]!r}" for option, value in PAIRS])
def test_options(option, value, leakgauge, desk):
    words = (option, value) if option == "--option" and value.startswith("steps") else (*FAST, option, value)
    assert len(leakgauge("attack", "cnn", *words).sentence) > 20


@pytest.mark.parametrize("model", MODELS, ids=[repr(model[:40]) for model in MODELS])
def test_words_for_a_model(model, leakgauge, desk):
    assert len(leakgauge("attack", model, "--data", "data.npz", *FAST).sentence) > 20


COMMANDS = {
    "attack": (*FAST, "--batch-size", "2"),
    "scan": ("--epochs", "0"),
    "inspect": ("--batch-size", "4"),
    "audit": ("--only", "updates", *FAST),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(("model", "said"), [*EVERYWHERE.items(), *UPDATES.items()])
def test_models_that_cannot_be_measured(command, model, said, leakgauge, desk):
    if command == "scan" and model in UPDATES:
        pytest.skip("features need no gradient")
    found = leakgauge(command, f"odd_models.py:{model}", "--data", "data.npz", "--quiet", *COMMANDS[command])
    assert said in found.sentence
    assert re.search(r"\d\.\d", found.sentence) is None  # no pixel


@pytest.mark.parametrize("command", ["attack", "scan", "inspect"])
@pytest.mark.parametrize("model", WORKING)
def test_models_that_are_odd_and_work(command, model, leakgauge, desk):
    found = leakgauge(command, f"odd_models.py:{model}", "--data", "data.npz", "--quiet", *COMMANDS[command])
    assert found.code in (0, 3), found.err
    assert found.err == ""


MONITOR = {
    "--every": ["0", "-1", "x", "1.5", "", "1e3"],
    "--view": ["", "seen", "RAW", "raw,clipped"],
    "--steps": ["0", "-1", "x", "1.5", ""],
    "--seed": ["-1", "x", ""],
    "--port": ["-1", "65536", "x", ""],
    "--out": ["", "odd_models.py", "odd_models.py/run"],
    "--loss": ["", "cross_entropy"],
    "--nothing": ["1"],
}
"""Values that ``leakgauge monitor`` refuses before it trains, by option."""
SCRIPTS = {
    "": "ended without a step of a torch optimizer", "x = 1": "ended without a step of a torch optimizer",
    "   x = 1": "raised IndentationError", "def f(:": "raised SyntaxError", "x = '\x00'": "null bytes",
    "import sys; sys.exit(3)": "ended with exit code 3", "import sys; sys.exit('bye')": "ended with SystemExit: bye",
    "import sys; sys.exit(True)": "ended with exit code 1", "import sys; sys.exit(-1)": "ended with exit code -1",
    "import sys; sys.exit(torch.ones(3))": "ended with SystemExit: …", "import sys; sys.exit()": "without a step",
    "raise GeneratorExit": "raised GeneratorExit in line", "raise BaseException('x')": "raised BaseException: x in line",
    "raise MemoryError": "raised MemoryError in line", "def f(): f()\nf()": "raised RecursionError",
    "raise ValueError(f'bad {torch.rand(3)}')": "raised ValueError: bad … in line", "raise ValueError('\x1b[2J[red]')": "\\x1b[2J[red]",
    "class E(Exception):\n    def __str__(self): raise ValueError\nraise E": "raised E: (its message cannot be shown: ValueError)",
    "class E(Exception):\n    def __str__(self): return 3\nraise E": "raised E: (its message cannot be shown: TypeError)",
    "open('nowhere')": "raised FileNotFoundError", "import nowhere_at_all": "raised ModuleNotFoundError",
    "criterion(model(x), y + 9).backward()": "raised IndexError", "criterion(model(x[:, :2]), y).backward()": "raised RuntimeError",
    "model.weight.grad = torch.ones_like(model.weight); optimizer.step()": "no single module that the script called",
    "model(x); torch.optim.SGD([torch.zeros(1, requires_grad=True)]).step()": "no single module that the script called",
    "model(x); torch.optim.LBFGS(model.parameters()).step(lambda: criterion(model(x), y))": "LBFGS evaluates many gradients",
    "model(x); optimizer.step(); torch.optim.Adam(model.parameters()).step()": "several optimizers (Adam, SGD)",
    "nn.DataParallel(model); torch.compile(model, backend='eager')(x)": "torch.compile traces through the monitor's hooks",
    "import warnings; warnings.simplefilter('error'); model(x); optimizer.step(); warnings.warn('late')": "raised UserWarning: late",
}  # fmt: skip
"""What a training script does after its start, and what ``leakgauge monitor`` says."""
TRAINS = """
import torch
from torch import nn

model, criterion = nn.Linear(6, 3), nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = torch.randn(8, 6), torch.arange(8) % 3
"""
MONITORED = [(option, value) for option, values in MONITOR.items() for value in values]


@pytest.mark.parametrize(("option", "value"), MONITORED, ids=[f"{option} {value!r}" for option, value in MONITORED])
def test_options_of_the_monitor(option, value, leakgauge, desk):
    watch = ("--watch",) if option == "--port" else ()
    assert len(leakgauge("monitor", "--steps", 2, *watch, option, value).sentence) > 20


@pytest.mark.parametrize(
    "loss", ["nothing", "math:tau", "nowhere.py:x", ":", "os:nothing", "odd_models.py:SPACE", "odd_models.py:"]
)
def test_losses_of_a_script(loss, leakgauge, desk):
    (desk / "train.py").write_text(TRAINS)
    assert len(leakgauge("monitor", "--loss", loss, "train.py").sentence) > 20


@pytest.mark.parametrize(("script", "said"), SCRIPTS.items(), ids=[repr(script[:40]) for script in SCRIPTS])
def test_scripts(script, said, leakgauge, desk):
    (desk / "train.py").write_text(script if script.startswith(" ") else TRAINS + script)
    assert said in leakgauge("monitor", "--out", "run", "train.py").sentence


PLAN = """
import sys
import torch
from torch import nn
from leakgauge import Pixels
from leakgauge.audit import Case

{constant}

def victim():
    return {victim}

def data():
    return {data}

def cases():
    {cases}
"""
GOOD = {
    "constant": "ONLY = ('updates',)", "victim": "nn.Sequential(nn.Flatten(), nn.Linear(48, 3)), Pixels((3, 4, 4))",
    "data": "torch.rand(6, 3, 4, 4), torch.arange(6) % 3", "cases": "return [Case(options={'steps': 1})]",
}  # fmt: skip
FIELDS = [
    "options=5", "options=None", "options=[1]", "options='steps=2'", "options={1: 2}", "options={'steps': 'x'}", "options={'steps': 0}",
    "options={'nothing': 1}", "options={'steps': float('nan')}", "batch_size=1.5", "batch_size='2'", "batch_size=None", "batch_size=-1",
    "batch_size=10**30", "batch_size=True", "batch_size=99", "attack=None", "attack=''", "attack='nobody'", "mode='x'", "mode=None",
    "defenses='prune:0.5'", "defenses=('nobody',)", "defenses=(3,)", "defenses=None", "reveal='labels'", "reveal=(1,)",
    "reveal=('nobody',)",
    "seed=-1", "seed=1.5", "seed=10**40", "first=-1", "first=99", "first='x'", "name=3", "channel='nobody'", "channel=None",
    "server='nobody'", "server=3", "local_steps=0", "local_lr=float('nan')", "device='tpu'", "device=3", "nothing=1", "model='vgg'",
    "optimizer='x'", "local_epochs=0",
]  # fmt: skip
"""Arguments of ``Case`` in a plan file."""
PLANS = {
    "constant": [
        "BUDGET = 5", "BUDGET = 'soon'", "BUDGET = ''", "ONLY = 3", "ONLY = ('x',)", "ONLY = (3,)", "ONLY = ('',)",
        "SKIP = ('updates', 'training', 'split', 'defenses')", "FAIL_OVER = 3", "FAIL_OVER = ''", "FAIL_OVER = True",
        "FAILOVER = 'partial'",
        "fail_over = 'partial'", "budget = '5m'", "import nowhere_at_all", "sys.exit(0)", "raise GeneratorExit", "def x(:", "x = '\x00'",
    ],
    "victim": [
        "None", "1, 2, 3", "Pixels((3, 4, 4)), nn.Linear(48, 3)", "nn.Linear, Pixels((3, 4, 4))", "nn.Flatten(), (3, 4, 4)", "sys.exit(0)",
        "{}['x']", "(yield 3)",
    ],
    "data": [
        "None", "torch.rand(6, 3, 4, 4)", "1, 2, 3", "torch.full((6, 3, 4, 4), torch.nan), torch.arange(6)", "'nowhere'", "''",
        "torch.rand(6, 3, 4, 4) * 300, torch.arange(6) % 3", "torch.rand(6, 3, 4, 4), torch.arange(6) + 7", "sys.exit(0)",
        "torch.rand(6, 3, 4, 4), torch.arange(6) - 7", "torch.rand(6, 3, 4, 4), torch.rand(6)", "torch.rand(6, 3, 4, 4), torch.eye(6)",
        "torch.rand(6, 3, 5, 5), torch.arange(6) % 3", "torch.rand(0, 3, 4, 4), torch.arange(0)", "['a'], ['b']", "[[1], [1, 2]], [0, 1]",
        "torch.rand(6, 3, 4, 4, dtype=torch.complex64), torch.arange(6) % 3", "torch.rand(6, 3, 4, 4, device='meta'), torch.arange(6) % 3",
        "torch.rand(6, 48), torch.arange(6) % 3", "torch.rand(6, 3, 4, 4), torch.arange(4) % 3",
    ],
    "cases": [
        *(f"return [Case({words})]" for words in FIELDS), "pass", "return 'Case()'", "return {'a': Case()}", "return [Case]", "return []",
        "yield Case(); 1 / 0", "while True: yield Case()", "sys.exit()", "raise GeneratorExit", "return cases", "return 3",
    ],
}  # fmt: skip
"""What is wrong in a plan file, by the part of it that is replaced."""
PLANNED = [(part, text) for part, texts in PLANS.items() for text in texts]


@pytest.mark.parametrize(("part", "text"), PLANNED, ids=[f"{part}: {text[:50]!r}" for part, text in PLANNED])
def test_plan_files(part, text, leakgauge, desk):
    (desk / "audit.py").write_text(PLAN.format(**GOOD | {part: text}))
    assert len(leakgauge("audit", "audit.py", "--out", "run").sentence) > 20
    assert not (desk / "run").exists()


def test_the_plan_file_is_good_otherwise(leakgauge, desk):
    (desk / "audit.py").write_text(PLAN.format(**GOOD))
    assert leakgauge("audit", "audit.py", "--out", "run", "-q").code == 0


def test_the_list_is_long():
    models = len(COMMANDS) * (len(EVERYWHERE) + len(UPDATES)) + 3 * len(WORKING)
    tried = len(PAIRS) + len(MODELS) + models + len(MONITORED) + len(SCRIPTS) + len(PLANNED)
    assert tried > 500
