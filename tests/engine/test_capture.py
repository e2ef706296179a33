"""The recorder of steps, with CUDA played by a stand-in: what runs eagerly, what is recorded, what happens on refusal."""

from contextlib import contextmanager, nullcontext

import pytest
import torch

from leakgauge.engine import RecordedStep
from leakgauge.engine.capture import WARM_UP


class Graph:
    """Remembers the step that was recorded and runs it on replay, as a real graph would."""

    def __init__(self) -> None:
        self.replays = 0

    def replay(self) -> None:
        self.replays += 1


class Generator:
    """Refuses to draw after a recording that failed, until it is given another state, as the real one does."""

    def __init__(self, fresh: bool = True) -> None:
        self.fresh = fresh

    def clone_state(self):
        return Generator()

    def graphsafe_set_state(self, other) -> None:
        self.fresh = other.fresh


class Stream:
    def wait_stream(self, other) -> None:
        pass


@pytest.fixture
def graphs(monkeypatch):
    made: list[Graph] = []

    def graph() -> Graph:
        made.append(Graph())
        return made[-1]

    @contextmanager
    def record(graph, stream=None):
        assert stream is not None, "warm-up and recording share a stream"
        yield

    monkeypatch.setattr(torch.cuda, "CUDAGraph", graph)
    monkeypatch.setattr(torch.cuda, "graph", record)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "default_generators", (Generator(),))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    return made


def test_warms_up_records_once_and_replays(graphs):
    calls = []
    step = RecordedStep(lambda: calls.append(1))
    for _ in range(WARM_UP + 4):
        step()
    assert len(calls) == WARM_UP + 1, "recorded steps run no Python any more"
    assert [graph.replays for graph in graphs] == [4], "the recording itself counts as a step only when replayed"
    assert step.note == "CUDA graph"


def test_a_step_that_cannot_be_recorded_goes_on_eagerly_and_says_why(graphs):
    calls = []

    def stubborn() -> None:
        calls.append(1)
        if len(calls) == WARM_UP + 1:
            raise RuntimeError("operation not permitted when stream is capturing\nmore")

    step = RecordedStep(stubborn)
    for _ in range(WARM_UP + 3):
        step()
    assert len(calls) == WARM_UP + 1 + 3, "the refused recording is run again as a plain step, then the others"
    assert step.note == "no CUDA graph (operation not permitted when stream is capturing)"


def test_a_step_that_could_not_be_recorded_can_still_draw_random_numbers(graphs):
    generator = torch.cuda.default_generators[0]
    calls = []

    def drawing() -> None:
        calls.append(1)
        assert generator.fresh, "the generator believes that it is being recorded"
        if len(calls) == WARM_UP + 1:
            generator.fresh = False
            raise RuntimeError("operation not permitted when stream is capturing")

    step = RecordedStep(drawing)
    for _ in range(WARM_UP + 2):
        step()
    assert len(calls) == WARM_UP + 3


def test_running_out_of_memory_while_recording_is_not_hidden(graphs):
    calls = []

    def large() -> None:
        calls.append(1)
        if len(calls) > WARM_UP:
            raise torch.OutOfMemoryError("too large")

    step = RecordedStep(large)
    for _ in range(WARM_UP):
        step()
    with pytest.raises(torch.OutOfMemoryError):
        step()
