"""Which path a model takes, and that every path gives the reference's reconstruction."""

import gc
import weakref
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakgauge import testing
from leakgauge.attacks import inverting_gradients
from leakgauge.channels import DPSGD, SGD, FedAvg, Gradient
from leakgauge.core import Pixels, Victim, share
from leakgauge.engine import ByRules, Observed, Reference, VmapReplay, choose, memory
from leakgauge.engine.rules.products import compare_product
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.inversion import L1, L2, Adam, Cosine, Descent, Halving, Matching, TotalVariation, search
from leakgauge.inversion.draws import Draws
from leakgauge.inversion.solvers import Moving
from leakgauge.inversion.terms import Candidate
from reproductions.common.networks.resnet import ResNet18
from tests.engine.agreeing import agree


def chosen(victim: Victim, *, rows: int = 3, batch: int = 1, channel=Gradient(), classes: int = 4):  # noqa: B008
    rng = torch.Generator().manual_seed(0)
    y = torch.randint(classes, (rows, batch), generator=rng)
    seen = share(victim, channel, victim.space.project(victim.space.start(batch, rng)), y[0])
    x = torch.stack([victim.space.start(batch, rng) for _ in range(rows)])
    return choose(victim, channel, Observed.check(seen.signal, victim), x, y)


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("name", testing.TINY)
def test_our_models_run_by_rules(name, mode):
    assert chosen(testing.tiny_victim(name, mode=mode), batch=2).note == "replay: layer rules"


@pytest.mark.parametrize("pre_activation", [False, True])
@pytest.mark.parametrize("mode", ["eval", "train"])
def test_our_resnets_run_by_rules(pre_activation, mode):
    model = ResNet18(width=8, pre_activation=pre_activation)
    victim = Victim(model, Pixels((3, 32, 32)), mode=mode)
    assert chosen(victim, rows=2, batch=2).note == "replay: layer rules"


@pytest.mark.parametrize("clip", [1e-3, 1e3])
@pytest.mark.parametrize("own", [False, True])
def test_one_clipped_sample_runs_by_rules(clip, own):
    """A gradient longer than the bound is shortened, one that is shorter is left alone; both depend on the candidate."""
    assert chosen(testing.tiny_victim("cnn"), channel=DPSGD(clip=clip, noise=0.0)).note == "replay: layer rules"
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(8, 3))
    factors = agree(net, (1, 4, 4), rows=3, batch=1, own=own, clip=clip).factors
    assert bool((factors < 1).all()) == (clip < 1)


def test_several_clipped_samples_and_part_of_a_clipped_gradient_are_not_that_of_a_whole_one():
    victim = testing.tiny_victim("cnn")
    assert "layer rules" not in chosen(victim, batch=2, channel=DPSGD(noise=0.0)).note
    image = victim.space.project(victim.space.start(1, torch.Generator()))
    seen = share(victim, DPSGD(clip=1e-3), image, torch.tensor([0]))
    part = Observed(dict(list(seen.signal.items())[:-1]))
    x = victim.space.start(3, torch.Generator())[:, None]
    assert "layer rules" not in choose(victim, seen.channel, part, x, torch.zeros(3, 1, dtype=torch.long)).note


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("vit_base_patch16_224", {"img_size": 32, "embed_dim": 48, "depth": 2, "num_heads": 4}),
        ("swin_tiny_patch4_window7_224", {"img_size": 56, "embed_dim": 12, "depths": (2, 2), "num_heads": (2, 4)}),
        ("swinv2_tiny_window8_256", {"img_size": 64, "embed_dim": 12, "depths": (2, 2), "num_heads": (2, 4)}),
        ("convnext_tiny", {"depths": (1, 1, 1, 1), "dims": (8, 16, 24, 32)}),
        ("maxvit_tiny_tf_224", {"img_size": 64}),
    ],
)
@pytest.mark.parametrize("mode", ["eval", "train"])
def test_timm_models_run_by_rules(name, options, mode):
    """The architectures at their own layout, narrow and shallow where the constructor allows it."""
    from leakgauge.integrations.torchvision_guest import invite_torchvision

    invite_torchvision()
    import timm

    side = options.get("img_size", 64)
    model = timm.create_model(name, num_classes=4, **options)
    victim = Victim(model, Pixels((3, side, side)), mode=mode)
    assert chosen(victim, rows=2, batch=2).note == "replay: layer rules"


class PositionsOutermost(nn.Module):
    """Lays samples and positions out as one dimension, positions outermost: the restarts are not any more, and no size shows it."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(6, 6)
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        steps = x[:, 0, :3, :6].transpose(0, 1).flatten(0, 1)
        return self.head(torch.tanh(self.mix(steps)).view(3, len(x), 6).mean(0))


def test_a_model_that_hides_the_batch_is_noticed_and_mapped():
    victim = Victim(PositionsOutermost(), Pixels((1, 12, 12)))
    choice = chosen(victim, rows=3, batch=2)
    assert isinstance(choice.replay, VmapReplay)
    assert choice.note.startswith("replay: vmap; layer rules: ")


class OverTheBatch(nn.Module):
    """Normalises by hand with statistics of all it is given, and so of all restarts."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 3, 5, stride=2), nn.Linear(48, 4)

    def forward(self, x: Tensor) -> Tensor:
        maps = self.conv(x)
        centred = maps - maps.mean((0, 2, 3), keepdim=True)
        return self.head((centred / (centred.square().mean((0, 2, 3), keepdim=True) + 1e-5).sqrt()).flatten(1))


def test_a_model_that_mixes_restarts_is_noticed_although_all_start_alike():
    """As they do in ``many``, where every observation gets the starts that it would get alone."""
    victim = Victim(OverTheBatch(), Pixels((1, 12, 12)))
    x, y = torch.rand(1, 2, 1, 12, 12).expand(4, -1, -1, -1, -1), torch.tensor([[0, 1]]).expand(4, -1)
    seen = share(victim, Gradient(), torch.rand(2, 1, 12, 12), y[0])
    choice = choose(victim, Gradient(), Observed.check(seen.signal, victim), x, y)
    assert isinstance(choice.replay, VmapReplay), choice.note


class OfTwo(nn.Module):
    """Insists on the client's two samples."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(144, 4)

    def forward(self, x: Tensor) -> Tensor:
        assert len(x) == 2
        return self.head(torch.tanh(x.flatten(1)))


def test_a_model_whose_assertion_fails_on_many_restarts_is_mapped():
    choice = chosen(Victim(OfTwo(), Pixels((1, 12, 12))), rows=3, batch=2)
    assert isinstance(choice.replay, VmapReplay)
    assert "layer rules: AssertionError" in choice.note


class Large(nn.Module):
    """Runs out of memory on more than four images."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(144, 4)

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > 4:
            raise torch.OutOfMemoryError("full")
        return self.head(torch.tanh(x.flatten(1)))


def test_restarts_that_do_not_fit_into_the_comparison_go_in_chunks_of_the_fast_path():
    victim = Victim(Large(), Pixels((1, 12, 12)))
    seen = share(victim, Gradient(), torch.rand(1, 1, 12, 12), torch.tensor([1]))
    found = inverting_gradients(steps=2, restarts=8)(victim, seen)
    assert found.notes == ("replay: layer rules", "in 2 chunks of at most 4 rows")


class LooksAtValues(nn.Module):
    """Branches on data, which neither rules over all rows nor vmap can follow row by row."""

    def __init__(self, limit: float) -> None:
        super().__init__()
        self.head, self.limit = nn.Linear(144, 4), limit

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.flatten(1)) * (2.0 if x.sum() > self.limit else 1.0)


@pytest.mark.parametrize(
    "limit", [0.0, 1e9]
)  # also where no candidate tried before the start would take the other branch
def test_a_model_that_looks_at_values_takes_the_reference_and_says_why(limit):
    victim = Victim(LooksAtValues(limit), Pixels((1, 12, 12)))
    choice = chosen(victim, rows=2)
    assert isinstance(choice.replay, Reference)
    assert "layer rules: RuntimeError: the model reads values of its data" in choice.note
    assert "vmap: " in choice.note


def test_one_restart_on_a_cpu_takes_the_reference():
    assert isinstance(chosen(testing.tiny_victim("cnn"), rows=1).replay, Reference)


@pytest.mark.parametrize("name", testing.TINY)
def test_several_local_steps_are_mapped_and_equal_the_reference(name):
    victim, x, y = testing.tiny_case(name, count=2, mode="train")
    channel = FedAvg(steps=3, lr=0.1, minibatch=1, optimizer=SGD(momentum=0.5))
    choice = chosen(victim, rows=3, batch=2, channel=channel)
    assert isinstance(choice.replay, VmapReplay)
    observed = Observed.check(share(victim, channel, x, y).signal, victim)
    at = torch.stack([x + 0.3, x - 0.2]).requires_grad_()
    paths = [VmapReplay(victim, channel, observed), Reference(victim, channel, observed)]
    for term in (Cosine(), L2(), L1()):
        ours, theirs = (term(Candidate(at, victim, path(at, y.expand(2, -1)))) for path in paths)
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
        ours, theirs = (torch.autograd.grad(v.sum(), at)[0].flatten() for v in (ours, theirs))
        assert F.cosine_similarity(ours, theirs, 0) > 0.999


def double(victim: Victim) -> Victim:
    return replace(victim, model=victim.model.double())


def final(victim: Victim, replay, start: Tensor, y: Tensor) -> Tensor:
    x = start.clone().requires_grad_()
    objective = Cosine() + 0.01 * TotalVariation()

    def losses(c, logits, rows):
        return objective(Candidate(c, victim, replay(c, y)))

    move = Descent(Adam(0.05), 50).begin(Moving(x=x, losses=losses, space=victim.space, draws=Draws.of(len(x))))
    for number in range(50):
        move(number)
    return victim.space.decode(x.detach())


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("name", testing.TINY)
def test_fifty_steps_end_at_the_same_images(name, mode):
    """In float64, where rounding cannot grow into another image; the figures in float32 are in docs/engine.md."""
    victim, x, y = testing.tiny_case(name, count=2, mode=mode)
    victim, x = double(victim), x.double()
    observed = Observed.check(share(victim, Gradient(), x, y).signal, victim)
    start = x + torch.randn(3, *x.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    paths = [ByRules(victim, observed), Reference(victim, Gradient(), observed)]
    ours, theirs = (final(victim, path, start, y.expand(3, -1)) for path in paths)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


@pytest.mark.parametrize("term", [Cosine(), L2(), L1()], ids=repr)
@pytest.mark.parametrize("name", testing.TINY)
def test_near_the_solution_the_direction_is_the_references(name, term):
    victim, x, y = testing.tiny_case(name, count=2)
    observed = Observed.check(share(victim, Gradient(), x, y).signal, victim)
    near = (x + 1e-3 * torch.randn(2, *x.shape, generator=torch.Generator().manual_seed(0))).requires_grad_()
    paths = [ByRules(victim, observed), Reference(victim, Gradient(), observed)]
    values = [term(Candidate(near, victim, path(near, y.expand(2, -1)))).sum() for path in paths]
    ours, theirs = (torch.autograd.grad(v, near)[0].flatten(1).double() for v in values)
    assert F.cosine_similarity(ours, theirs).min() > 0.999


def test_many_observations_at_once_are_each_attacked_as_if_alone():
    victim, x, y = testing.tiny_case("cnn", count=3)
    attack = inverting_gradients(steps=25, restarts=2)
    seen = [share(victim, Gradient(), x[i : i + 1], y[i : i + 1]) for i in range(3)]
    together = attack.many(victim, seen, seed=5)
    for one, result in zip(seen, together, strict=True):
        alone = attack(victim, one, seed=5)
        assert torch.equal(result.y, alone.y)
        assert result.candidates.shape == alone.candidates.shape
        torch.testing.assert_close(result.losses, alone.losses, atol=2e-2, rtol=0.1)


def test_observations_that_do_not_belong_together_are_refused():
    victim, x, y = testing.tiny_case("cnn", count=2)
    seen = [share(victim, channel, x, y) for channel in (Gradient(), FedAvg(steps=2))]
    with pytest.raises(BadInput, match="same channel"):
        inverting_gradients(steps=2).many(victim, seen)
    with pytest.raises(BadInput, match="no observation"):
        inverting_gradients(steps=2).many(victim, [])


def test_rows_that_do_not_fit_go_in_chunks(monkeypatch):
    victim, x, y = testing.tiny_case("mlp")
    seen = share(victim, Gradient(), x, y)
    attack = inverting_gradients(steps=5, restarts=5)
    whole = attack(victim, seen)
    monkeypatch.setattr(search, "rows_that_fit", lambda rows, per_row, device: 2)
    pieces = attack(victim, seen)
    assert "in 3 chunks of at most 2 rows" in pieces.notes
    torch.testing.assert_close(pieces.losses, whole.losses, atol=1e-4, rtol=1e-3)


def test_clipped_samples_of_many_observations_go_in_chunks(monkeypatch):
    victim, x, y = testing.tiny_case("mlp", count=3)
    seen = [share(victim, DPSGD(clip=1e-2, noise=0.1, seed=i), x[i : i + 1], y[i : i + 1]) for i in range(3)]
    attack = inverting_gradients(steps=5, restarts=2)
    whole = attack.many(victim, seen)
    monkeypatch.setattr(search, "rows_that_fit", lambda rows, per_row, device: 4)
    pieces = attack.many(victim, seen)
    assert "replay: layer rules" in pieces[0].notes
    for one, other in zip(pieces, whole, strict=True):
        torch.testing.assert_close(one.losses, other.losses, atol=1e-4, rtol=1e-3)


def test_running_out_of_memory_halves_the_chunk_and_loses_nothing(monkeypatch):
    victim, x, y = testing.tiny_case("mlp")
    seen = share(victim, Gradient(), x, y)
    attack = inverting_gradients(steps=5, restarts=5)
    whole = attack(victim, seen)
    judged = search.Search.losses

    def tight(self, candidates, logits, rows):
        if len(candidates) > 2:
            raise torch.OutOfMemoryError("not enough")
        return judged(self, candidates, logits, rows)

    monkeypatch.setattr(search.Search, "losses", tight)
    pieces = attack(victim, seen)
    torch.testing.assert_close(pieces.losses, whole.losses, atol=1e-4, rtol=1e-3)
    monkeypatch.setattr(search.Search, "losses", lambda *_: (_ for _ in ()).throw(torch.OutOfMemoryError("none")))
    with pytest.raises(torch.OutOfMemoryError):
        attack(victim, seen)


def test_memory_is_counted_once_per_storage():
    x = torch.randn(100, 100, requires_grad=True)
    assert memory.saved_bytes(lambda: (x * x).sum()) == x.numel() * 4
    row, target = x[:1], torch.randn(100, 100)
    assert memory.saved_bytes(lambda: (row * target[:1]).sum()) == target.numel() * 4  # of the whole, through the view
    assert memory.saved_bytes(lambda: (row * target[:1]).sum(), besides=[target]) == 0
    assert memory.rows_that_fit(8, 1, torch.device("cpu")) == 8
    assert memory.rows_that_fit(8, 2**60, torch.device("cpu")) == 1


def test_nothing_stays_in_memory_after_counting():
    """A comparison saves its own result: if that were kept as it is, its graph would hold itself."""
    x, target, entered = torch.randn(1, 5, 4, requires_grad=True), torch.zeros(4, 4), []

    def evaluate() -> Tensor:
        a = x.sin()
        entered.append(weakref.ref(a))
        return compare_product(a, a, target)[0]

    gc.collect()
    gc.disable()
    try:
        assert memory.saved_bytes(evaluate) > 0
        assert entered[0]() is None
    finally:
        gc.enable()


def test_a_second_derivative_can_be_counted():
    x, found = torch.randn(7, requires_grad=True), []

    def evaluate() -> Tensor:
        (slope,) = torch.autograd.grad(x.exp().square().sum(), x, create_graph=True)
        found.append(torch.autograd.grad(slope.sum(), x)[0])
        return slope

    memory.saved_bytes(evaluate)
    torch.testing.assert_close(found[0], 4 * (2 * x).exp())


def test_halving_drops_restarts_and_keeps_what_they_found():
    victim, x, y = testing.tiny_case("cnn")
    seen = share(victim, Gradient(), x, y)
    attack = replace(inverting_gradients(steps=40, restarts=4), halving=Halving(at=(0.5,), keep=0.5))
    result, all_the_way = attack(victim, seen), inverting_gradients(steps=40, restarts=4)(victim, seen)
    early = all_the_way.trace.losses[: 20 + 1].min(0).values
    dropped = early.argsort()[2:]
    stopped = result.losses[dropped]
    torch.testing.assert_close(stopped, result.trace.losses[:20, dropped].min(0).values)
    assert (result.trace.losses[-1, dropped] == result.trace.losses[20, dropped]).all()
    assert result.loss <= float(early.min())


def test_halving_is_refused_where_it_cannot_work():
    from leakgauge.inversion import LBFGS

    with pytest.raises(BadInput, match="moves all restarts together"):
        Matching(Cosine(), solver=LBFGS(), halving=Halving())
    with pytest.raises(BadInput, match="between 0 and 1"):
        Halving(keep=1.5)
    victim, x, y = testing.tiny_case("cnn")
    seen = share(victim, Gradient(), x, y)
    with pytest.raises(BadInput, match="one by one"):
        replace(inverting_gradients(steps=2), halving=Halving()).many(victim, [seen, seen])


def test_a_coarse_replay_is_judged_in_float32():
    from leakgauge.engine import BFloat16

    victim, x, y = testing.tiny_case("mlp")
    seen = share(victim, Gradient(), x, y)
    attack = replace(inverting_gradients(steps=10, restarts=2), precision=BFloat16())
    result = attack(victim, seen)
    assert any("judged in float32" in note for note in result.notes)
    observed = Observed.check(seen.signal, victim)
    exact = attack.objective(
        Candidate(result.x[None], victim, Reference(victim, Gradient(), observed)(result.x[None], y[None]))
    )
    assert float(exact) == pytest.approx(result.loss, abs=1e-6)


def test_an_empty_signal_is_refused():
    victim = testing.tiny_victim("mlp")
    with pytest.raises(Inapplicable, match="empty"):
        Observed.check({}, victim)
