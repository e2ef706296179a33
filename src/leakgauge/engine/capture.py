"""A step as a CUDA graph: recorded once, then replayed without Python and without waiting for the host."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

WARM_UP = 3
"""Eager steps before recording, on a separate stream, as PyTorch requires. They count as steps."""


class RecordedStep:
    """Calls ``step`` until it is warm, then records it and replays the recording.

    The step must read and write the same tensors every time. If it cannot be recorded (for example because it synchronises
    with the host), it continues eagerly and ``note`` says why.
    """

    def __init__(self, step: Callable[[], None]) -> None:
        self.step = step
        self.note = "CUDA graph"
        self._calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._eager = False
        self._stream: torch.cuda.Stream | None = None

    def __call__(self) -> None:
        if self._graph is not None:
            self._graph.replay()
        elif self._eager:
            self.step()
        elif self._calls < WARM_UP:
            self._calls += 1
            self._aside()
        else:
            self._record()

    def _aside(self) -> None:
        self._stream = self._stream or torch.cuda.Stream()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            self.step()
        torch.cuda.current_stream().wait_stream(self._stream)

    def _record(self) -> None:
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        try:
            with _no_garbage_collection(), torch.cuda.graph(graph, stream=self._stream):
                self.step()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as refusal:
            self._eager = True
            self.note = f"no CUDA graph ({next(iter(str(refusal).splitlines()), '')})"
            torch.cuda.synchronize()
            _random_numbers_again()
            self.step()
            return
        self._graph = graph
        graph.replay()


def _random_numbers_again() -> None:
    """Give the generator a fresh state: after a failed recording it still believes it is being recorded and refuses to draw."""
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    generator.graphsafe_set_state(generator.clone_state())


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Collect garbage before the block and not inside: destroying an older recording would disturb the one being made."""
    gc.collect()
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
