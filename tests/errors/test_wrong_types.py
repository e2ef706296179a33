"""Every public function and class refuses an argument that it cannot use in one sentence; Python's own errors never get out."""

from __future__ import annotations

import inspect
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from torch import nn

import leakgauge
from leakgauge import LeakgaugeError, core, testing
from leakgauge.attacks import ATTACKS, fit_decoder, linear
from leakgauge.audit.case import REVEALS, AuxiliaryImages, Case, Change
from leakgauge.audit.evaluate import evaluate
from leakgauge.audit.scoring import score, score_text
from leakgauge.channels import CHANNELS, Features, Gradient
from leakgauge.core.examples import examples_of
from leakgauge.defenses import DEFENSES
from leakgauge.errors import BadInput
from leakgauge.errors.checked import checked
from leakgauge.integrations.in_memory import run_audit
from leakgauge.measures.mutual_information import ESTIMATORS
from leakgauge.monitor import watch
from leakgauge.monitor.whitebox import Protection
from leakgauge.servers import SERVERS, find_isolated

WRONG = (
    None, True, 0, -1, 1.5, float("nan"), float("inf"), 10**30, "", "text", b"bytes", (), [], [1, "a"], {}, {"a": None}, object(),
    int, len, torch.zeros(0), torch.full((2, 3), torch.nan), torch.zeros(2, dtype=torch.complex64), Path("x"), nn.Identity(),
)  # fmt: skip
ABSTRACT = {"Assumption", "Attack", "Channel", "Defense", "Signal", "Space", "Targets", "Result", "Run"}
"""Names of ``leakgauge.__all__`` that are types to annotate with, or that only leakgauge makes."""


def _good() -> dict[str, tuple]:
    """Every public callable with arguments that it takes."""
    victim, x, y = testing.tiny_case("mlp")
    seen = core.share(victim, Gradient(), x, y)
    found = linear()(victim, seen)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    made = {
        "Victim": (leakgauge.Victim, {"model": model, "space": leakgauge.Pixels((1, 2, 2))}),
        "Pixels": (leakgauge.Pixels, {"shape": (1, 2, 2)}),
        "Series": (leakgauge.Series, {"channels": 1, "length": 8}),
        "Tokens": (leakgauge.Tokens, {"length": 3, "vocab": 5}),
        "Table": (leakgauge.Table, {"columns": (leakgauge.Number("age", 0, 100),)}),
        "Number": (leakgauge.Number, {"name": "age", "low": 0.0, "high": 100.0}),
        "Category": (leakgauge.Category, {"name": "sex", "values": ("f", "m")}),
        "Assumption": (core.Assumption, {"what": "x", "kind": "diagnostic"}),
        "Observation": (core.Observation, {"signal": seen.signal, "channel": seen.channel}),
        "Auxiliary": (core.Auxiliary, {"images": x}),
        "NoisyCopy": (core.NoisyCopy, {"p": 0.5}),
        "Reconstruction": (
            core.Reconstruction,
            {n: getattr(found, n) for n in ("x", "y", "loss", "candidates", "losses", "made_by", "seconds")},
        ),
        "share": (core.share, {"victim": victim, "channel": Gradient(), "x": x, "y": y}),
        "evaluate": (evaluate, {"attack": linear(), "victim": victim, "channel": Gradient(), "x": x, "y": y}),
        "run_audit": (run_audit, {"model": victim, "data": (x, y)}),
        "score": (score, {"reconstruction": found, "x": x, "y": y, "space": victim.space}),
        "score_text": (score_text, {"reconstruction": found, "x": x, "y": y}),
        "watch": (watch, {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}),
        "Protection": (Protection, {}),
        "find_isolated": (find_isolated, {"victim": victim, "x": x, "y": y}),
        "fit_decoder": (fit_decoder, {"victim": victim, "channel": Features("body.0"), "public_data": x, "epochs": 1}),
        "Case": (Case, {}),
        "Change": (Change, {"name": "x", "kind": "relaxation"}),
        "AuxiliaryImages": (AuxiliaryImages, {}),
    }
    for registry in (ATTACKS, DEFENSES, CHANNELS, SERVERS, ESTIMATORS, REVEALS):
        for name, part in registry.items():
            declared = examples_of(part)
            made.setdefault(
                name, (part, dict(declared[0].options) if declared else {"p": 0.5} if name == "noisy_copy" else {})
            )
    return made


GOOD = _good()
TRIED = [
    (name, parameter)
    for name, (part, _) in GOOD.items()
    for parameter in inspect.signature(part).parameters
    if parameter != "self"
]


def test_every_public_name_is_tried():
    public = {
        name
        for name in leakgauge.__all__
        if callable(getattr(leakgauge, name)) and not name.endswith(("Error", "Input"))
    }
    assert public - ABSTRACT - {"Inapplicable"} - {"Size", "Labels", "Buffers"} <= GOOD.keys()
    assert len(TRIED) > 150


@pytest.mark.parametrize(("name", "parameter"), TRIED, ids=[f"{name}-{parameter}" for name, parameter in TRIED])
def test_a_wrong_argument_is_refused_in_a_sentence(name, parameter, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    part, good = GOOD[name]
    slow = name == "run_audit"  # a right value would start a whole audit
    for value in WRONG:
        if slow and not isinstance(value, bytes | type) and value not in (len,):
            continue
        with suppress(LeakgaugeError):
            made = part(**{**good, parameter: value})
            if name == "watch":
                made.close()


def test_the_sentence_says_what_was_given_and_expected():
    @checked
    def part(
        *, steps: int = 1, kind: str | None = None, weights: tuple[float, ...] = (), channel: core.Channel | None = None
    ):
        return steps

    assert part(steps=torch.tensor([3])[0].item(), weights=[1, 2.5]) == 3
    for given, said in [
        ({"steps": 1.5}, "part needs steps as a whole number, got 1.5"),
        ({"steps": True}, "part needs steps as a whole number, got True"),
        ({"kind": 3}, "part needs kind as text or None, got 3"),
        ({"weights": 3.0}, "part needs weights as a sequence of numbers, got 3.0"),
        ({"weights": [float("nan")]}, "part needs weights as a sequence of numbers, got a list with nan at 0"),
        ({"weights": torch.ones(2, 3)}, "part needs weights as a sequence of numbers, got a Tensor of shape (2, 3)"),
        ({"channel": Gradient}, "part needs channel as a Channel or None, got the class Gradient"),
    ]:
        with pytest.raises(BadInput) as refused:
            part(**given)
        assert str(refused.value) == said
    with pytest.raises(TypeError, match="unexpected keyword argument 'stesp'"):
        part(stesp=3)


def test_a_check_is_cheap():
    """About ten microseconds of CPU time, for what is called once per case."""
    began = time.process_time()
    for _ in range(1000):
        Case()
    assert (time.process_time() - began) / 1000 < 2e-3
