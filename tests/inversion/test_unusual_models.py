"""Models as people write them: outputs in a dict, heads that take no part, recurrent layers, one logit, checkpoints, wrappers."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from leakgauge.attacks import dlg, idlg, inverting_gradients
from leakgauge.channels import DPSGD, FedAvg, Gradient
from leakgauge.core import Labels, Pixels, Size, Victim, share
from leakgauge.engine import Observed
from leakgauge.engine.choose import choose
from leakgauge.errors import BadInput, Inapplicable


class Answers(nn.Module):
    """Logits in a dict, or first in a tuple."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.head = kind, nn.Linear(36, 4)

    def forward(self, x):
        logits = self.head(torch.tanh(x.flatten(1)))
        return {"logits": logits, "mean": x.mean((1, 2, 3))} if self.kind == "dict" else (logits, x)


class TwoHeads(nn.Module):
    """An auxiliary head that is registered last and not run."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.fc, self.auxiliary = nn.Linear(36, 12), nn.Linear(12, 4), nn.Linear(12, 7)

    def forward(self, x):
        return self.fc(torch.sigmoid(self.first(x.flatten(1))))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows, self.head = nn.GRU(6, 8, batch_first=True), nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.rows(x[:, 0])[0][:, -1])


class Checkpointed(nn.Module):
    """``reentrant`` is how it checkpoints; None: not at all."""

    def __init__(self, reentrant: bool | None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.head = nn.Sequential(nn.Linear(36, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh()), nn.Linear(8, 4)
        self.reentrant = reentrant

    def forward(self, x):
        x = x.flatten(1)
        if self.reentrant is None:
            return self.head(self.first(x))
        return self.head(checkpoint(self.first, x, use_reentrant=self.reentrant))


def taken(kind: str):
    key = "logits" if kind == "dict" else 0
    return lambda out, y: F.cross_entropy(out[key], y)


@pytest.mark.parametrize("kind", ["dict", "tuple"])
def test_a_loss_that_picks_from_the_output_is_replayed_by_rules(kind, victim_of, batch_of):
    victim, (x, y) = victim_of(Answers(kind), loss=taken(kind)), batch_of(2)
    seen = share(victim, Gradient(), x, y, reveal=(Size(), Labels()))
    rows, labels = torch.stack([x, 1 - x, 0.3 * x]), torch.stack([y] * 3)
    chosen = choose(victim, seen.channel, Observed.check(seen.signal, victim), rows, labels)
    assert chosen.note == "replay: layer rules"
    for found in (inverting_gradients(steps=3, restarts=3)(victim, seen), dlg(steps=3)(victim, seen)):
        assert bool(torch.isfinite(found.losses).all())


def test_the_head_is_the_one_that_runs(victim_of, batch_of):
    victim, (x, _) = victim_of(TwoHeads()), batch_of(1)
    y = torch.tensor([2])
    seen = share(victim, Gradient(), x, y)
    assert idlg(steps=2)(victim, seen).y.tolist() == [2]  # read off fc, although the last layer is another
    assert dlg(steps=2)(victim, seen).y.max() < 4


def test_what_cannot_be_mapped_is_taken_sample_by_sample(victim_of, batch_of, same):
    victim, (x, y) = victim_of(Recurrent()), batch_of(3)
    found = DPSGD(clip=0.1, noise=0.0)(victim, x, y)
    alone = [Gradient()(victim, x[i : i + 1], y[i : i + 1]) for i in range(3)]
    lengths = [torch.cat([g.flatten() for g in one.values()]).norm() for one in alone]
    expected = {
        name: sum(one[name] * min(1.0, 0.1 / float(n)) for one, n in zip(alone, lengths, strict=True)) / 3
        for name in found
    }
    same(found, expected, tolerance=1e-5)


@pytest.mark.parametrize(
    ("head", "loss", "said"),
    [
        (1, lambda out, y: F.binary_cross_entropy_with_logits(out[:, 0], y.float()), "a single output"),
        (4, lambda out, y: F.nll_loss(out.log_softmax(1), y), "takes no class probabilities"),
    ],
)
def test_labels_are_not_optimised_where_the_loss_has_no_place_for_them(head, loss, said, victim_of, batch_of):
    victim = victim_of(nn.Sequential(nn.Flatten(), nn.Linear(36, head)), loss=loss)
    x, y = batch_of(1)[0], torch.tensor([1])
    with pytest.raises(Inapplicable, match=said):
        dlg(steps=2)(victim, share(victim, Gradient(), x, y))
    told = share(victim, Gradient(), x, y, reveal=(Size(), Labels()))
    assert bool(torch.isfinite(dlg(steps=2)(victim, told).losses).all())


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (lambda out, y: F.cross_entropy(out, y, reduction="none"), r"got shape \(2,\)"),
        (lambda out, y: (F.cross_entropy(out, y), out), "got tuple"),
    ],
)
def test_a_loss_that_is_no_single_number_is_refused(loss, said, victim_of, batch_of):
    victim, (x, y) = victim_of(nn.Sequential(nn.Flatten(), nn.Linear(36, 4)), loss=loss), batch_of(2)
    with pytest.raises(BadInput, match=said):
        share(victim, Gradient(), x, y)


def test_a_single_number_per_sample_is_searched_together_with_it(victim_of, batch_of):
    victim = victim_of(nn.Sequential(nn.Flatten(), nn.Linear(36, 1), nn.Flatten(0)), loss=F.mse_loss)
    x, y = batch_of(2)[0], torch.tensor([0.3, -1.0])
    found = dlg(steps=2)(victim, share(victim, Gradient(), x, y))
    assert found.y is not None
    assert found.y.shape == y.shape
    assert not torch.equal(found.y, y)  # searched, not looked up
    revealed = dlg(steps=2)(victim, share(victim, Gradient(), x, y, reveal=(Size(), Labels())))
    assert revealed.y is not None
    assert torch.equal(revealed.y, y)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_model_that_keeps_a_tensor_of_its_last_pass_says_what_to_do():
    model = nn.Sequential(nn.Flatten(), nn.utils.weight_norm(nn.Linear(36, 4)))
    model(torch.rand(1, 1, 6, 6))
    with pytest.raises(BadInput, match=r"inside torch.no_grad\(\) first"):
        Victim(model, Pixels((1, 6, 6)))
    with torch.no_grad():
        model(torch.rand(1, 1, 6, 6))
    Victim(model, Pixels((1, 6, 6)))


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_change_no_number(reentrant, victim_of, batch_of):
    """Run again after the first local step, a checkpointed layer would find the old weights."""
    with_checkpoints, plain = victim_of(Checkpointed(reentrant)), victim_of(Checkpointed(None))
    x, y = batch_of(1)
    for channel in (Gradient(), FedAvg(steps=3, lr=1.0)):
        seen, expected = (share(victim, channel, x, y) for victim in (with_checkpoints, plain))
        for name, value in expected.signal.items():
            torch.testing.assert_close(seen.signal[name], value)
        found, wanted = (inverting_gradients(steps=2)(v, s) for v, s in ((with_checkpoints, seen), (plain, expected)))
        torch.testing.assert_close(found.x, wanted.x)


def test_users_own_checkpoints_still_work_afterwards(victim_of, batch_of):
    usual = torch.utils.checkpoint.CheckpointFunction
    victim, (x, y) = victim_of(Checkpointed(False)), batch_of(1)
    share(victim, Gradient(), x, y)
    with pytest.raises(RuntimeError):
        victim(x.flatten(1)[:, :5])
    assert torch.utils.checkpoint.CheckpointFunction is usual


class Tied(nn.Module):
    """A layer with normalisation that stands at two places, and an output that has the first layer's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(36, 8)
        self.one = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
        self.again = self.one
        self.last = nn.Linear(36, 8)
        self.last.weight = self.first.weight

    def forward(self, x):
        x = x.flatten(1)
        return self.again(torch.tanh(self.one(torch.tanh(self.first(x))))) + self.last(x)


def test_a_module_at_two_places_is_trained_as_torch_does_and_left_as_it_was(victim_of, batch_of):
    victim, (x, y) = victim_of(Tied(), mode="train"), batch_of(4)
    before = {name: value.clone() for name, value in victim.model.state_dict().items()}
    update = share(victim, FedAvg(steps=3, lr=0.5), x, y).signal
    for name, value in victim.model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(isinstance(p, nn.Parameter) for p in victim.model.parameters())
    model = copy.deepcopy(victim.model)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(3):
        optimiser.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimiser.step()
    for name, trained in model.named_parameters():
        torch.testing.assert_close(update[name], trained.detach() - before[name])


@pytest.mark.parametrize(
    ("wrap", "said"),
    [
        (nn.DataParallel, "pass the module inside, model.module"),
        (torch.jit.script, "pass the nn.Module it was made from"),
        (lambda model: nn.Sequential(model, nn.LazyLinear(4)), "run one batch through it first"),
    ],
)
def test_modules_that_cannot_run_on_given_weights(wrap, said):
    with pytest.raises(BadInput, match=said):
        Victim(wrap(nn.Sequential(nn.Flatten(), nn.Linear(36, 4))), Pixels((1, 6, 6)))
