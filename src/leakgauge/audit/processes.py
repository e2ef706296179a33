"""Cases in processes of their own: a crash or a kill of one costs the case it was at, and that is tried again."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess

from leakgauge.audit.case import Case
from leakgauge.audit.records import Record
from leakgauge.audit.run import Runner
from leakgauge.errors import BadInput

PRELOADED = ["torch", "torch.optim", "leakgauge.audit.run", "leakgauge.attacks"]
"""What every case needs and what is slow to import. None of them may touch a GPU on import: a fork could not use it then."""


@dataclass(frozen=True)
class Processes:
    """A map for ``run_all``: ``workers`` processes, each with one case at a time; records come as they are done.

    A worker that dies (killed, out of memory) is replaced, and its case is run ``attempts`` times in all before it becomes
    an error record. An exception that a case raises, such as ``BadInput``, ends the map as it would end a plain one.
    """

    workers: int = 2
    attempts: int = 2

    def __post_init__(self) -> None:
        if self.workers < 1 or self.attempts < 1:
            raise BadInput(f"Processes needs at least 1 worker and 1 attempt, got {self}")

    def __call__(self, run: Runner, cases: Iterable[Case]) -> Iterator[Record]:
        waiting = deque((case, 1) for case in cases)
        crew: dict[Connection, _Worker] = {}
        try:
            while waiting or crew:
                while waiting and len(crew) < self.workers:
                    worker = _Worker.started(run)
                    crew[worker.pipe] = worker.at(*waiting.popleft())
                for pipe in wait(list(crew)):
                    assert isinstance(pipe, Connection)
                    worker = crew.pop(pipe)
                    answer = worker.answer()
                    if answer is None:
                        waiting, record = self._lost(worker, waiting, run)
                    elif isinstance(answer, BaseException):
                        raise answer
                    else:
                        record = answer
                        if waiting:
                            crew[pipe] = worker.at(*waiting.popleft())
                        else:
                            worker.ended()
                    if record is not None:
                        yield record
        finally:
            for worker in crew.values():
                worker.ended(now=True)

    def _lost(
        self, worker: _Worker, waiting: deque[tuple[Case, int]], run: Runner
    ) -> tuple[deque[tuple[Case, int]], Record | None]:
        case, attempt = worker.case, worker.attempt
        worker.ended(now=True)
        if attempt < self.attempts:
            waiting.appendleft((case, attempt + 1))
            return waiting, None
        return waiting, run.failed(case, f"its process died {attempt} times (exit code {worker.process.exitcode})")


class _Worker:
    """A process and the pipe to it; ``case`` is what it is at."""

    case: Case
    attempt: int

    def __init__(self, process: BaseProcess, pipe: Connection) -> None:
        self.process, self.pipe = process, pipe

    @classmethod
    def started(cls, run: Callable[[Case], Record]) -> _Worker:
        context = _context()
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(run, theirs, dict(os.environ)), daemon=True)
        process.start()
        theirs.close()  # then a dead worker is an end of file
        return cls(process, ours)

    def at(self, case: Case, attempt: int) -> _Worker:
        self.case, self.attempt = case, attempt
        with suppress(BrokenPipeError):  # it died before its work; the wait sees the end of file
            self.pipe.send(case)
        return self

    def answer(self) -> Record | BaseException | None:
        """What came back; None when the process is dead."""
        try:
            return self.pipe.recv()
        except (EOFError, ConnectionResetError):
            return None

    def ended(self, *, now: bool = False) -> None:
        self.pipe.close()
        if now:
            self.process.kill()
        self.process.join()


def _context() -> ForkServerContext | SpawnContext:
    """Workers are forks of a server that has imported torch and done nothing else, so all but the first start at once.

    A fork of this process would copy torch's threads and locks. Where there is no fork every worker is a new interpreter.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def _portable(error: BaseException) -> BaseException:
    """The error, or its words where it cannot travel to another process."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - bytes of our own
    except Exception:  # noqa: BLE001 - a class of the user's may fail in any way
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _work(run: Callable[[Case], Record], pipe: Connection, environment: dict[str, str]) -> None:
    """Runs in the worker until the driver is gone. Ctrl-C is the driver's, which ends its workers."""
    os.environ.clear()  # the server's are those of its start
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        try:
            case = pipe.recv()
        except EOFError:
            return
        try:
            answer: Record | BaseException = run(case)
        except BaseException as error:  # noqa: BLE001 - carried to the driver, which raises it
            answer = _portable(error)
        try:
            pipe.send(answer)
        except BrokenPipeError:  # the driver was killed
            return
