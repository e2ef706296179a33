"""The plan files that ``leakgauge init`` writes: they run at once, on a small stand-in, and say which lines to replace."""

from __future__ import annotations

from dataclasses import dataclass

from leakgauge.errors import install

MARK = "# <- replace"


@dataclass(frozen=True)
class Template:
    """What differs from one kind of model to the next: the imports, the body of ``victim()`` and the extra it needs."""

    imports: str
    victim: str
    extra: str = ""
    above: str = ""


_SKELETON = '''"""An audit with leakgauge: what could be reconstructed from what this model shares? Run it again when the model changes.

    leakgauge audit {name}               the whole audit, report in leakgauge-runs/audit/report.html
    leakgauge attack {name}              one quick attack on one case

It runs as it is, on a small stand-in model. Replace the lines marked "{bare_mark}" with your own. Options on the command
line override this file.{install}
"""

{imports}

BUDGET = "5m"  # time for the whole audit; with more time attacks are stronger
# SKIP = ("training", "split")  # of the questions updates, training, split, defenses; or ONLY = ("updates",)
# FAIL_OVER = "partial"  # exit with 3 if a verdict is worse than this: "infeasible", "inconclusive" or "partial"

{above}
def victim():
    """The model as clients get it, and the images it takes: (channels, height, width), its mean and std."""
{victim}


def data():
    """Private images from 0 to 1 (before normalisation), shape (N, C, H, W), and labels (N,).

    Tensors or arrays; or a path: return "photos/" for a folder of images (a subfolder per class) or an .npz file.
    """
    return fashion("train")  {mark}


def cases():
    """The cases to attack, on victim() and data(). Without this function: both modes, batches of 1 and 4."""
    return [
        Case(mode="train", batch_size=4),  # as a client would train: one step, the gradient is sent
        # a client that takes several steps before it sends its weights, here on 3 batches of 4, each twice:
        # Case(mode="train", batch_size=4, local_steps=3, local_epochs=2, local_lr=0.1, optimizer="sgd:momentum=0.9"),
        Case(mode="train", batch_size=4, defenses=("gaussian_noise:relative=1",)),  # see `leakgauge list`
        Case(mode="eval", batch_size=1),  # easier for the adversary: an upper bound
    ]
'''

_PYTORCH = Template(
    imports="""from torch import nn

from leakgauge import Pixels
from leakgauge.audit import Case
from leakgauge.data import fashion""",
    victim="""    model = nn.Sequential(  {mark}: model = MyNet(); model.load_state_dict(torch.load("weights.pt"))
        nn.Conv2d(1, 8, 5, stride=2),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * 12 * 12, 10),
    )
    return model, Pixels((1, 28, 28), mean=(0.286,), std=(0.353,))  {mark}""",
)

_TIMM = Template(
    imports="""import timm

from leakgauge import Pixels
from leakgauge.audit import Case
from leakgauge.data import fashion""",
    victim="""    model = timm.create_model("test_resnet", num_classes=10, in_chans=1)  {mark}; add your checkpoint_path
    return model, Pixels((1, 28, 28), mean=(0.286,), std=(0.353,))  {mark}; see model.pretrained_cfg""",
    extra="timm",
)

_HUGGINGFACE = Template(
    imports="""from transformers import ViTConfig, ViTForImageClassification

from leakgauge import Pixels
from leakgauge.audit import Case
from leakgauge.data import fashion
from leakgauge.integrations.huggingface import Logits""",
    victim="""    # {bare_mark}: model = AutoModelForImageClassification.from_pretrained("path", attn_implementation="eager")
    config = ViTConfig(
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=96,
        image_size=28,
        patch_size=4,
        num_channels=1,
        num_labels=10,
        attn_implementation="eager",  # attacks differentiate twice, which faster ones do not support
    )
    model = ViTForImageClassification(config)
    return Logits(model), Pixels((1, 28, 28), mean=(0.5,), std=(0.5,))  {mark}; see preprocessor_config.json""",
    extra="huggingface",
)

_LIGHTNING = Template(
    imports="""import lightning
import torch
import torch.nn.functional as F
from torch import nn

from leakgauge import Pixels
from leakgauge.audit import Case
from leakgauge.data import fashion""",
    above='''
class Module(lightning.LightningModule):  {mark}: from my_package import Module
    """Only forward() and the weights count here: forward must return class scores."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 8, 5, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 12 * 12, 10)
        )

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, index):
        x, y = batch
        return F.cross_entropy(self(x), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

''',
    victim="""    model = Module()  {mark}: model = Module.load_from_checkpoint("last.ckpt", map_location="cpu")
    return model, Pixels((1, 28, 28), mean=(0.286,), std=(0.353,))  {mark}""",
    extra="lightning",
)

TEMPLATES = {"pytorch": _PYTORCH, "timm": _TIMM, "huggingface": _HUGGINGFACE, "lightning": _LIGHTNING}


def plan_text(kind: str, *, name: str = "audit.py") -> str:
    """The plan file for a kind of model (a key of ``TEMPLATES``), as it is written to ``name``."""
    template = TEMPLATES[kind]
    parts = {
        "imports": template.imports,
        "above": template.above,
        "victim": template.victim,
        "install": f"\nIt needs: {install(template.extra)}" if template.extra else "",
        "name": name,
        "mark": MARK,  # last: other parts hold it
        "bare_mark": MARK.removeprefix("# "),
    }
    text = _SKELETON
    for place, inserted in parts.items():
        text = text.replace(f"{{{place}}}", inserted)
    return text
