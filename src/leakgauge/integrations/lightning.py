"""The monitor as a callback of Lightning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from leakgauge.errors import BadInput, MissingExtra, one_line
from leakgauge.integrations.recorded import Watched
from leakgauge.integrations.torchvision_guest import invite_torchvision
from leakgauge.monitor import Monitor


def lightning_monitor(*, out: str | Path | None = None, **options: Any) -> Any:
    """A ``lightning.Callback`` that watches a fit; ``options`` are those of :func:`leakgauge.monitor.watch`.

        callback = lightning_monitor(every=50, loss=torch.nn.functional.cross_entropy, out="runs/watched")
        lightning.Trainer(callbacks=[callback]).fit(module)
        print(callback.monitor.report())

    ``out`` is a new folder, which gets ``monitor.jsonl`` while the fit runs and ``report.html`` at its end; only the first process of
    several writes.

    Batches come from ``on_train_batch_start``; of a batch (x, y) the labels are taken too. Lightning runs backward
    inside ``optimizer.step(closure)``, and clips there: the gradient is read after the closure, as it is applied. Blocks
    end with the epoch. A fit resumed from a checkpoint continues from its step, its alarm and its reports. Without ``log``
    the numbers go to the trainer's own logger. Automatic optimisation with one optimizer is needed.
    """
    invite_torchvision()  # torchmetrics, which Lightning brings, imports it
    try:
        import lightning
    except ImportError as error:
        raise MissingExtra("lightning", "lightning") from error

    class LeakageMonitor(lightning.Callback):
        monitor: Monitor | None = None
        _watched: Watched | None = None
        _resumed: dict[str, Any] | None = None
        _labels: Tensor | None = None

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            if not pl_module.automatic_optimization or len(trainer.optimizers) != 1:
                kind = "" if pl_module.automatic_optimization else ", by manual optimisation"
                raise BadInput(
                    f"the monitor follows automatic optimisation with one optimizer, this module has "
                    f"{len(trainer.optimizers)}{kind}; call leakgauge.monitor.watch for the one to look at"
                )
            given = dict(options)
            if given.get("log") is None and trainer.logger is not None:
                given["log"] = trainer.logger.log_metrics
            self._watched = Watched(
                pl_module,
                trainer.optimizers[0],
                out=out if trainer.is_global_zero else None,
                trainer="Lightning",
                options={"batches": "given", **given},
            )
            self.monitor = self._watched.monitor
            if self._resumed:
                self.monitor.load_state_dict(self._resumed)
                self._resumed = None

        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
            self._labels = None
            if self.monitor is not None and self.monitor.looking:
                with self.monitor.guard.around("reading the batch", then=self.monitor.close):
                    x, self._labels = _pair(batch)
                    self.monitor.see(x)

        def on_before_backward(self, trainer: Any, pl_module: Any, loss: Tensor) -> None:
            y, self._labels = self._labels, None
            if self.monitor is not None and y is not None:  # a loss that is a module has given them by now
                with self.monitor.guard.around("reading the labels", then=self.monitor.close):
                    self.monitor.labels(y, unless_seen=True)

        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            if self._watched is not None:
                self._watched.end_epoch()

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            if self._watched is not None:
                self._watched.finish()

        def state_dict(self) -> dict[str, Any]:
            return {} if self.monitor is None else self.monitor.state_dict()

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            self._resumed = (
                state_dict  # Lightning restores callbacks before training starts, when there is no monitor yet
            )

        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            if self._watched is not None:
                stopped = isinstance(exception, KeyboardInterrupt)
                self._watched.finish("interrupted" if stopped else "failed", one_line(exception))

    return LeakageMonitor()


def _pair(batch: Any) -> tuple[Tensor, Tensor | None]:
    """The samples of a batch, and their labels where it is a pair."""
    if isinstance(batch, Tensor):
        return batch, None
    if isinstance(batch, list | tuple) and batch and isinstance(batch[0], Tensor):
        second = batch[1] if len(batch) == 2 and isinstance(batch[1], Tensor) else None
        return batch[0], second
    raise BadInput(f"the monitor reads batches that are a tensor or start with one, got {type(batch).__name__}")
