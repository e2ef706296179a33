"""Runs cases on a Ray cluster, with the same records as here."""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from leakgauge.audit.case import Case
from leakgauge.audit.records import Record
from leakgauge.audit.run import Runner
from leakgauge.errors import BadInput, MissingExtra


@dataclass(frozen=True)
class OnRay:
    """A map for ``run_all``: every case is one Ray task with ``cpus`` and ``gpus``; records come as they are done.

    Ray hides every GPU from a task that asks for none, so without ``gpus`` a case on a GPU asks for one.

    Without ``address`` a cluster that is already connected is used, else a local one is started and stopped again. A
    worker that dies is retried by Ray ``retries`` times, then its case becomes an error record. Pictures are written by the
    workers, so the run folder must be one that all nodes see.
    """

    address: str | None = None
    cpus: float = 1
    gpus: float | None = None
    retries: int = 1

    def __post_init__(self) -> None:
        if self.cpus < 0 or (self.gpus or 0) < 0 or self.retries < 0:
            raise BadInput(f"OnRay needs resources and retries that are not negative, got {self}")

    def check(self) -> None:
        """Whether Ray is installed, asked before anything is planned."""
        _ray()

    def _gpus_for(self, case: Case) -> float:
        return float(case.device.startswith("cuda")) if self.gpus is None else self.gpus

    def __call__(self, run: Runner, cases: Iterable[Case]) -> Iterator[Record]:
        ray = _ray()
        ours = not ray.is_initialized()
        if ours:
            with warnings.catch_warnings():
                warnings.simplefilter(
                    "ignore", FutureWarning
                )  # of Ray's, on GPUs that a task without any may see one day
                ray.init(address=self.address, log_to_driver=False, logging_level="warning", include_dashboard=False)
        try:
            task = ray.remote(num_cpus=self.cpus, max_retries=self.retries)(_run)
            shared, mark = ray.put(run), uuid.uuid4().hex
            under_way: dict[Any, Case] = {
                task.options(num_gpus=self._gpus_for(case)).remote(shared, mark, case): case for case in cases
            }
            while under_way:
                done, _ = ray.wait(list(under_way), num_returns=1)
                case = under_way.pop(done[0])
                try:
                    record = ray.get(done[0])
                except ray.exceptions.RayTaskError as error:  # the case raised it: a plain map would raise it too
                    raise error.cause from None
                except (ray.exceptions.WorkerCrashedError, ray.exceptions.OutOfMemoryError) as lost:
                    record = run.failed(case, f"its worker died ({type(lost).__name__})")
                yield record
        finally:
            if ours:
                ray.shutdown()


_runners: dict[str, Runner] = {}
"""In a worker: the runner of the map it works for, with the model and data it has loaded. A task alone would bring a fresh one."""


def _run(run: Runner, mark: str, case: Case) -> Record:
    if mark not in _runners:
        _runners.clear()
    return _runners.setdefault(mark, run)(case)


def _ray() -> ModuleType:
    try:
        import ray
        import ray.exceptions
    except ModuleNotFoundError as error:
        raise MissingExtra("ray", "ray") from error
    return ray
