"""Whole weights in 16 bits: the stated share of rounding is the true one, and an update of rounding alone is refused."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from leakgauge.audit import Case, embedded
from leakgauge.channels import Gradient
from leakgauge.core import share
from leakgauge.errors import BadInput
from leakgauge.integrations.captured import captured_observation, captured_victim, rounding_told

RNG = torch.Generator().manual_seed(0)
KNOWN = {"a": torch.randn(4000, generator=RNG), "b": 0.01 * torch.randn(4000, generator=RNG)}


def moved(by: float, kind: torch.dtype) -> tuple[dict[str, torch.Tensor], float]:
    """New weights as they arrive, and the true share of the rounding in the length of what seems to have changed."""
    new = {name: w + by * torch.randn(len(w), generator=torch.Generator().manual_seed(1)) for name, w in KNOWN.items()}
    sent = {name: w.to(kind).float() for name, w in new.items()}
    error, away = (torch.cat([sent[n] - old[n] for n in sent]).norm() for old in (new, KNOWN))
    return sent, float(error / away)


@pytest.mark.parametrize(
    ("kind", "by"),
    [(torch.bfloat16, 0.01), (torch.bfloat16, 0.001), (torch.float16, 0.001), (torch.float16, 0.0002)],
)
def test_the_share_of_rounding_is_the_true_one(kind, by):
    sent, truth = moved(by, kind)
    (told,) = rounding_told(sent, KNOWN, source="new.pt")
    assert 0.05 < truth < 0.9
    assert int(re.search(r"about (\d+)%", told.what)[1]) / 100 == pytest.approx(truth, abs=0.02)
    assert str(kind).removeprefix("torch.") in told.what


def test_weights_of_32_bits_need_no_word():
    assert rounding_told(moved(0.001, torch.float32)[0], KNOWN, source="new.pt") == ()


def test_an_update_that_is_rounding_alone_is_refused():
    sent, truth = moved(0.0001, torch.bfloat16)
    assert truth > 0.99
    with pytest.raises(BadInput, match=r"new\.pt holds weights in bfloat16.* is rounding; save them in 32 bits"):
        rounding_told(sent, KNOWN, source="new.pt")


def test_a_client_that_trained_in_16_bits_is_told_so():
    before = {name: w.bfloat16().float() for name, w in KNOWN.items()}
    (told,) = rounding_told(moved(0.0001, torch.bfloat16)[0], before, source="new.pt")
    assert told.what == "the weights came in bfloat16: changes below its steps are lost"


def test_it_stands_in_the_observation(tmp_path):
    case = Case(model="cnn", mode="eval", batch_size=2, local_lr=0.05)
    setup = embedded(case)
    x, y = setup.private(case)
    victim = captured_victim(case, None)[0]
    gradient = share(victim, Gradient(), x, y).signal
    state = victim.model.state_dict()
    after = {name: (w - 0.05 * gradient[name] if name in gradient else w) for name, w in state.items()}
    halved = {name: w.bfloat16() if w.is_floating_point() else w for name, w in after.items()}
    save_file(halved, tmp_path / "new.safetensors")
    seen = captured_observation(victim, tmp_path / "new.safetensors", case, holds="weights")
    told = [a.what for a in seen.assumptions if "came in bfloat16" in a.what]
    true, read = (torch.cat([s[name].flatten() for name in gradient]) for s in (gradient, seen.signal))
    stated = int(re.search(r"about (\d+)%", told[0])[1]) / 100
    assert stated == pytest.approx(float((read - true).norm() / read.norm()), abs=0.05)
    assert F.cosine_similarity(read, true, 0) < 0.95  # so it had to be said
