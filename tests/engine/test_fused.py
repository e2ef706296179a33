"""Chains that run as one kernel: the same numbers, checked when first used, and nothing changed on a CPU."""

from contextlib import ExitStack

import pytest
import torch
from torch.overrides import BaseTorchFunctionMode

from leakgauge.channels import Gradient
from leakgauge.core import Pixels, Victim, share
from leakgauge.engine import TF32, BFloat16, ByRules, Exact, Fused, Observed, fused
from leakgauge.engine.fused import precision_name, rounds
from leakgauge.errors import Inapplicable
from leakgauge.models.vit import ViT


@pytest.fixture
def traced(monkeypatch):
    """Chains are traced as for a GPU, and run by PyTorch's own operations."""
    monkeypatch.setattr(fused, "DEVICES", {"cpu"})
    monkeypatch.setattr(fused, "BACKEND", "aot_eager")


def slope_of(distance: str, width: int = 96) -> torch.Tensor:
    """The slope of a distance in the candidates, on a small ViT whose large weights are compared one by one."""
    torch.manual_seed(0)
    vit = ViT(
        in_channels=1,
        side=12,
        patch=4,
        width=width,
        depth=2,
        heads=max(2, (width - 96) // 2),
        classes=4,
        position_std=1.0,
    )
    victim = Victim(vit, Pixels((1, 12, 12)))
    x, y = torch.rand(2, 1, 1, 12, 12), torch.tensor([[0], [1]])
    replay = ByRules(victim, Observed.check(share(victim, Gradient(), x[0], y[0]).signal, victim))
    at = (x + 0.1 * torch.randn(x.shape)).requires_grad_()
    replayed = replay(at, y)
    weights = dict.fromkeys(replayed.names, 1.0)
    if distance == "cosine":
        return torch.autograd.grad((replayed.dot(weights) / replayed.square(weights).sqrt()).sum(), at)[0]
    total = replayed.l2(weights) + (0.1 * replayed.l1(weights) if distance == "both" else 0)
    return torch.autograd.grad(total.sum(), at)[0]


@pytest.mark.parametrize(("distance", "width"), [("l2", 100), ("both", 104), ("cosine", 108)])
def test_fused_chains_give_the_same_slope(distance, width, traced, monkeypatch):
    """Each with shapes of its own, since a kernel is compared once only."""
    expected, used = slope_of(distance, width), []
    compared = fused.compare
    monkeypatch.setattr(fused, "compare", lambda a, b, name: (used.append(name), compared(a, b, name)))
    with Fused().inside(torch.device("cpu")):
        found = slope_of(distance, width)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    wanted = {"_slope", "_slopes_of_slope", "_both_slopes", "_slopes_of_gelu_slope", "_between_products"}
    assert wanted <= set(used)
    assert ("_subtract" in used) == (distance != "cosine")


def test_a_cpu_runs_every_chain_as_it_is(monkeypatch):
    used = []
    monkeypatch.setattr(fused, "compare", lambda found, expected, name: used.append(name))
    expected = slope_of("l2")
    with Fused(TF32()).inside(torch.device("cpu")):
        assert torch.equal(slope_of("l2"), expected)
    assert not used


def test_a_kernel_that_is_off_is_refused():
    right = (torch.ones(3), torch.zeros(2))
    fused.compare(right, right, "chain")
    with pytest.raises(Inapplicable, match=r"the fused kernel of chain is off by 1\.0e-02; leave Fused"):
        fused.compare((torch.tensor([1, 1, 1.01]), torch.zeros(2)), right, "chain")
    with pytest.raises(Inapplicable, match="off by nan"):
        fused.compare((torch.tensor([1, 1, torch.nan]), torch.zeros(2)), right, "chain")


def test_a_kernel_of_bfloat16_may_round_less_often_than_its_chain():
    right = torch.ones(3, dtype=torch.bfloat16)
    fused.compare(torch.tensor([1, 1, 1.02]).bfloat16(), right, "chain")
    with pytest.raises(Inapplicable, match="off by"):
        fused.compare(torch.tensor([1, 1, 1.1]).bfloat16(), right, "chain")


def test_one_process_may_attack_any_number_of_shapes(traced):
    """PyTorch gives up after eight kernels of one function."""
    doubled = fused.chain(lambda x, of: x + of * x)
    with Fused().inside(torch.device("cpu")):
        for dims in range(1, 12):
            x = torch.rand([2] * dims)
            torch.testing.assert_close(doubled(x, 1), 2 * x)
            torch.testing.assert_close(doubled(x, 2), 3 * x)


def test_kernels_do_not_depend_on_the_shapes_before(traced, monkeypatch):
    """A kernel for any shape may add up in another order."""
    seen, plain = [], torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **how: (seen.append(how["dynamic"]), plain(f, **how))[1])
    doubled = fused.chain(lambda x: x + x)
    with Fused().inside(torch.device("cpu")):
        for size in (3, 4, 5, 4):
            doubled(torch.rand(size))
    assert seen == [False] * 3


def test_a_default_device_does_not_keep_chains_from_being_fused(traced, monkeypatch):
    """To PyTorch it is a mode, and inside other modes nothing is fused."""
    used = []
    monkeypatch.setattr(fused, "compare", lambda *args: used.append(args))
    doubled = fused.chain(lambda x: x + x)
    with Fused().inside(torch.device("cpu")), torch.device("cpu"):
        with BaseTorchFunctionMode():
            doubled(torch.ones(2))
        assert not used
        doubled(torch.ones(2))
    assert used


def test_a_gpu_without_triton_is_told_in_one_sentence(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with (
        pytest.raises(Inapplicable, match="need Triton, which is not installed"),
        Fused().inside(torch.device("cuda")),
    ):
        pass


def test_what_is_fused_is_as_exact_as_what_it_is_of():
    assert [rounds(one) for one in (Exact(), Fused(), TF32(), Fused(TF32()))] == [False, False, True, True]
    assert [precision_name(one) for one in (TF32(), Fused(BFloat16()))] == ["TF32", "BFloat16, fused kernels"]


def test_the_switch_goes_back_also_after_an_error():
    with pytest.raises(ValueError, match="stop"), Fused().inside(torch.device("cpu")):
        raise ValueError("stop")
    assert not fused._Switch.inside


def test_the_switch_stays_on_for_who_leaves_last():
    """As attacks in two threads may."""
    first, second = ExitStack(), ExitStack()
    first.enter_context(Fused().inside(torch.device("cpu")))
    second.enter_context(Fused().inside(torch.device("cpu")))
    first.close()
    assert fused._Switch.inside == 1
    second.close()
    assert not fused._Switch.inside
