"""The core works with its requirements alone; what is missing beyond them is said in one sentence that names the extra."""

import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from leakgauge.core import Pixels, Victim
from leakgauge.errors import MissingExtra

ROOT = Path(__file__).parents[2]

IMPORT_ALL = """
import importlib, importlib.abc, json, pkgutil, sys

allowed = set(json.loads(sys.argv[1])) | set(sys.stdlib_module_names) | {"leakgauge"}

class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in allowed and not name.startswith("_sysconfigdata"):  # Python's own, named by platform
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
import leakgauge
names = [m.name for m in pkgutil.walk_packages(leakgauge.__path__, "leakgauge.") if not m.name.endswith("__main__")]
for name in names:
    importlib.import_module(name)
print(len(names))
"""


def closure(requirements):
    """All packages that these requirements bring, by name as in the metadata."""
    found, waiting = set(), list(requirements)
    while waiting:
        name = re.match(r"[\w.-]+", waiting.pop())[0].lower().replace("_", "-")
        if name in found:
            continue
        found.add(name)
        try:
            needs = importlib.metadata.requires(name) or ()
        except importlib.metadata.PackageNotFoundError:  # e.g. a part of torch for another platform
            continue
        waiting += [need for need in needs if "extra ==" not in need]
    return found


def test_the_core_imports_with_its_requirements_alone():
    """Every module, with an import hook that hides all packages which an installation of the core would not bring."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    core = closure(project["dependencies"])
    places = importlib.metadata.packages_distributions().items()
    modules = [name for name, owners in places if core & {o.lower().replace("_", "-") for o in owners}]
    assert not {"timm", "ray", "optuna", "onnx", "sklearn", "pytest"} & set(modules)
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, json.dumps(modules)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) > 150


def _tiny():
    from torch import nn

    return Victim(nn.Sequential(nn.Flatten(), nn.Linear(12, 3), nn.ReLU(), nn.Linear(3, 2)), Pixels((3, 2, 2)))


def use_timm(folder):
    from leakgauge.integrations.resolve import load_model

    load_model("timm:resnet18")


def use_dicom(folder):
    from leakgauge.data import read

    (folder / "a.dcm").write_bytes(bytes(128) + b"DICM")
    read(folder)


def use_huggingface(folder):
    from leakgauge.integrations.resolve import load_model

    load_model("hf:vit")


def use_trainer(folder):
    from leakgauge.integrations.huggingface_trainer import trainer_monitor

    trainer_monitor()


def use_lightning(folder):
    from leakgauge.integrations.lightning import lightning_monitor

    lightning_monitor()


def use_split(folder):
    from leakgauge.split.export import export_halves

    export_halves(_tiny(), "2", folder / "halves")


def use_tune(folder):
    from leakgauge.audit.tune import _optuna

    _optuna()


def use_ray(folder):
    from leakgauge.integrations.ray import OnRay

    next(OnRay()(lambda case: None, []))


def use_tensorboard(folder):
    from leakgauge.integrations.loggers import tensorboard_log

    tensorboard_log(folder)


def use_mlflow(folder):
    from leakgauge.integrations.loggers import mlflow_log

    mlflow_log()


def use_wandb(folder):
    from leakgauge.integrations.loggers import wandb_log

    wandb_log(None)


@pytest.mark.parametrize(
    ("package", "extra", "use"),
    [
        ("timm", "timm", use_timm),
        ("pydicom", "dicom", use_dicom),
        ("transformers", "huggingface", use_huggingface),
        ("transformers", "trainer", use_trainer),
        ("lightning", "lightning", use_lightning),
        ("onnx", "split", use_split),
        ("onnxscript", "split", use_split),
        ("onnxruntime", "split", use_split),
        ("optuna", "tune", use_tune),
        ("ray", "ray", use_ray),
        ("tensorboard", "loggers", use_tensorboard),
        ("mlflow", "loggers", use_mlflow),
        ("wandb", "loggers", use_wandb),
    ],
)
def test_a_missing_extra_is_named(package, extra, use, monkeypatch, tmp_path):
    for name in [n for n in sys.modules if n.partition(".")[0] == package or n == f"torch.utils.{package}"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra) as raised:
        use(tmp_path)
    assert (
        str(raised.value)
        == f"{package} is not installed; install it with: pip install '.[{extra}]' in your clone of leakgauge"
    )
    assert not list(tmp_path.rglob("*.pt2*")), "a half-written export was left"
    provides = importlib.metadata.metadata("leakgauge").get_all("Provides-Extra")
    assert extra in provides
