"""Watch a Lightning training: who was in the batch, as told by the gradients that leave the machine at every step?

    python examples/lightning_training.py [--quick] [--out FOLDER]   needs: pip install 'leakgauge[lightning]'

One callback is added to the Trainer; the training itself stays bit-identical. Look at the white-box AUC (can one who holds the
weights and a list of candidates say who was in the batch? 1 is always, 0.5 is guessing) and at the alarm. ``report.html`` has
the curves, each beside its controls. Full: 600 steps. Quick: 60. About 9 s, quick 6 to 8 s, on one core.
"""

from __future__ import annotations

import argparse
import logging
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from leakgauge import Pixels
from leakgauge.audit.questions import training
from leakgauge.data import MEAN, STD, fashion
from leakgauge.errors import MissingExtra
from leakgauge.integrations.lightning import lightning_monitor
from leakgauge.models import LeNet
from leakgauge.report import page


def trained(callback: Any, *, steps: int) -> None:
    """An ordinary Lightning training; it needs nothing of leakgauge but the callback."""
    import lightning  # here, so that a missing extra is told in one sentence by lightning_monitor

    class Classifier(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = LeNet(in_channels=1, side=28)

        def forward(self, x: Tensor) -> Tensor:
            return self.network(x)

        def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
            return nn.functional.cross_entropy(self(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), lr=9e-4)

    images, labels = fashion("train")
    data = TensorDataset(Pixels((1, 28, 28), mean=MEAN, std=STD).encode(images), labels)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    lightning.seed_everything(0, verbose=False)
    trainer = lightning.Trainer(
        max_steps=steps, callbacks=[callback], accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Classifier(), DataLoader(data, batch_size=20, shuffle=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="60 steps of training")
    parser.add_argument(
        "--out", type=Path, default=Path("leakgauge-runs/example-lightning_training"), help="run folder"
    )
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / training.FILE).unlink(missing_ok=True)  # of an earlier try

    try:
        callback = lightning_monitor(every=20, loss=nn.functional.cross_entropy)
    except MissingExtra as missing:
        parser.exit(2, f"{missing}\n")
    trained(callback, steps=60 if options.quick else 600)
    monitor = callback.monitor
    print(monitor.report())

    training.append(options.out, "run", {"training": "Lightning", "model": "LeNet", "optimizer": "Adam"})
    found = monitor.compute()
    for report in (*monitor.records(), found.record()):  # of two at one step the later one counts
        training.append(options.out, "report", report)
    training.append(options.out, "end", {"how": "finished", "step": monitor.step})
    print(f"report: {page.write(options.out)}")

    auc, told = found.whitebox.auc, "never" if found.alarm_at is None else f"at step {found.alarm_at}"
    print(
        f"Finding: at step {found.whitebox.step} of {found.step} the gradient told members of its batch from others with an AUC of "
        f"{auc.value:.2f} (at least {auc.low:.2f}; 0.5 is guessing), and the alarm fired {told}."
    )


if __name__ == "__main__":
    main()
