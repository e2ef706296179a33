"""A step as a CUDA graph: recorded once, replayed without Python and without waiting for the host."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

WARM_UP = 3
"""Steps that run eagerly first, on a stream of their own, as PyTorch asks for before a capture. They count."""


class Captured:
    """Calls ``step`` until it is warm, then records it and replays the recording.

    The step must read and write the same tensors every time. If it cannot be recorded (it synchronises with the host,
    say), it goes on eagerly and ``note`` says why.
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
            with _nothing_collected(), torch.cuda.graph(graph, stream=self._stream):
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
    """A recording that failed leaves the generator believing that it is recorded, and it then refuses to draw: give it a fresh state."""
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    generator.graphsafe_set_state(generator.clone_state())


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """An older recording that is destroyed while another one is made disturbs it: collect before, and not within."""
    gc.collect()
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
