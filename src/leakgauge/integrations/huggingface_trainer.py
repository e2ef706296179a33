"""The monitor as a callback of the Hugging Face Trainer."""

from __future__ import annotations

from typing import Any

from leakgauge.integrations.huggingface import _transformers
from leakgauge.monitor import Monitor, watch


def trainer_monitor(**options: Any) -> Any:
    """A ``transformers.TrainerCallback`` that watches a training; ``options`` are those of :func:`leakgauge.monitor.watch`.

        callback = trainer_monitor(every=50, log=jsonl_log("monitor.jsonl"))
        Trainer(…, callbacks=[callback]).train()

    It attaches when training begins, reads inputs by a hook on the model (with accumulation, those of all parts of a
    step), and the gradient as it is applied, after clipping. A callback cannot reach the Trainer's own reports in time;
    give ``log=trainer.log`` or a logger. Blocks end with the epoch.
    """
    transformers = _transformers(extra="trainer")

    class LeakageMonitor(transformers.TrainerCallback):
        monitor: Monitor | None = None

        def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            if self.monitor is not None:
                self.monitor.close()  # a training that was broken off has not ended, and its hooks are still there
            self.monitor = watch(given["model"], given["optimizer"], **options)

        def on_epoch_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            if self.monitor is not None:
                with self.monitor.guard.around("scoring the last block", then=self.monitor.close):
                    self.monitor.flush()

        def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            if self.monitor is not None:
                self.monitor.close()

    return LeakageMonitor()
