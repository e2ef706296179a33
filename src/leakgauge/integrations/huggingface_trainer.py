"""The monitor as a callback of the Hugging Face Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from leakgauge.integrations.huggingface import transformers_package
from leakgauge.integrations.recorded import Watched
from leakgauge.monitor import Monitor

STATE = "leakgauge_monitor.pt"
"""The monitor's file in a checkpoint of the Trainer."""


def trainer_monitor(*, out: str | Path | None = None, **options: Any) -> Any:
    """A ``transformers.TrainerCallback`` that watches a training; ``options`` are those of :func:`leakgauge.monitor.watch`.

        callback = trainer_monitor(every=50, out="runs/watched")
        Trainer(…, callbacks=[callback]).train()

    ``out`` is a new folder, which gets ``monitor.jsonl`` while the training runs and ``report.html`` at its end; only the first process
    of several writes.

    It attaches when training begins, reads inputs by a hook on the model (with accumulation, those of all parts of a
    step), and the gradient as it is applied, after clipping. A callback cannot reach the Trainer's own reports in time;
    give ``log=trainer.log`` or a logger. Blocks end with the epoch. Checkpoints get a small file with the monitor's step, alarm
    and reports (nothing that derives from data), and a training resumed from one in ``output_dir`` continues from there.
    """
    transformers = transformers_package(extra="trainer")
    prefix = transformers.trainer_utils.PREFIX_CHECKPOINT_DIR

    def path_of(args: Any, state: Any) -> Path:
        """The monitor's file in the checkpoint of this step."""
        return Path(args.output_dir) / f"{prefix}-{state.global_step}" / STATE

    class LeakageMonitor(transformers.TrainerCallback):
        monitor: Monitor | None = None
        _watched: Watched | None = None

        def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            if self._watched is not None:  # a training that was broken off has not ended, and its hooks are still there
                self._watched.finish("failed", "the training was broken off")
            first = state is None or state.is_world_process_zero
            self._watched = Watched(
                given["model"],
                given["optimizer"],
                out=out if first else None,
                trainer="the Hugging Face Trainer",
                options=options,
            )
            self.monitor = self._watched.monitor
            if state is not None and state.global_step:
                with self.monitor.guard.around("resuming", then=self.monitor.close):
                    self.monitor.load_state_dict(_saved(path_of(args, state), step=state.global_step))

        def on_save(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            if self.monitor is not None and state.is_world_process_zero:
                with self.monitor.guard.around("saving the monitor"):
                    path = path_of(args, state)
                    torch.save(self.monitor.state_dict(), path.with_suffix(".part"))
                    path.with_suffix(".part").replace(path)

        def on_epoch_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            if self._watched is not None:
                self._watched.end_epoch()

        def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            if self._watched is not None:
                self._watched.finish()

    return LeakageMonitor()


def _saved(path: Path, *, step: int) -> dict[str, Any]:
    """What the monitor was at a checkpoint; where it was not there, or the checkpoint is kept elsewhere, the step alone."""
    if path.is_file():
        return torch.load(path, map_location="cpu", weights_only=True)
    return {"step": step, "alarm": None, "records": []}
