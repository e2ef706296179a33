"""The vocabulary: the victim that is never touched, and what is shared under which assumptions."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from leakgauge import testing
from leakgauge.channels import SGD, FedAvg, Gradient
from leakgauge.core import (
    Assumption,
    Buffers,
    Labels,
    NoisyCopy,
    Observation,
    Pixels,
    Size,
    Tokens,
    Victim,
    share,
)
from leakgauge.core.randomness import own_stream, private_randomness
from leakgauge.defenses import GaussianNoise
from leakgauge.errors import BadInput

# --- Victim ----------------------------------------------------------------------------------------------------------


def state_of(model: nn.Module) -> dict:
    """Everything about a module that an outsider could notice to have changed."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return {
        "values": {n: t.clone() for n, t in model.state_dict().items()},
        "identity": {n: id(p) for n, p in model.named_parameters()},
        "grads": {n: None if p.grad is None else p.grad.clone() for n, p in model.named_parameters()},
        "wanted": {n: p.requires_grad for n, p in model.named_parameters()},
        "mode": {n: m.training for n, m in model.named_modules()},
        "hooks": {n: [len(getattr(m, hook)) for hook in hooks] for n, m in model.named_modules()},
    }


def assert_unchanged(before: dict, after: dict) -> None:
    for part in ("identity", "wanted", "mode", "hooks"):
        assert before[part] == after[part], part
    for part in ("values", "grads"):
        for name, value in before[part].items():
            assert (value is None) == (after[part][name] is None), name
            assert value is None or torch.equal(value, after[part][name]), name


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("channel", [Gradient(), FedAvg(steps=2, lr=0.5, optimizer=SGD(momentum=0.9))])
def test_the_users_model_is_never_touched(mode, channel, tiny, batch_of):
    x, y = batch_of(3)
    model = tiny(dropout=0.3).train(mode == "eval")  # the opposite of what the victim wants
    model[0].weight.requires_grad_(False)
    model[0].bias.grad = torch.ones(3)
    model[0].register_forward_hook(lambda *_: None)
    before = state_of(model)
    victim = Victim(model, Pixels((1, 6, 6)), mode=mode)
    own = state_of(victim.model)
    share(victim, channel, x, y, reveal=(Size(), Labels(), Buffers(), NoisyCopy(0.5)))
    assert_unchanged(before, state_of(model))
    assert_unchanged(own, state_of(victim.model))
    assert victim.model[0].bias.grad is None
    assert victim.model.training is (mode == "train")


def test_a_victim_keeps_its_weights_when_the_user_goes_on_training(tiny, batch_of):
    model = tiny()
    victim = Victim(model, Pixels((1, 6, 6)))
    x, _ = batch_of(2)
    before = victim(x).detach()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(1)
    assert torch.equal(before, victim(x).detach())


def test_victim_parameters_are_the_trainable_ones_and_buffers_are_copies(tiny):
    model = tiny()
    model[0].weight.requires_grad_(False)
    victim = Victim(model, Pixels((1, 6, 6)))
    assert list(victim.parameters()) == [n for n, p in model.named_parameters() if p.requires_grad]
    victim.buffers()["1.running_mean"].fill_(99)
    assert torch.equal(victim.buffers()["1.running_mean"], model[1].running_mean)


def test_victim_runs_at_given_parameters(tiny, batch_of):
    model, (x, _) = tiny(), batch_of(2)
    other = tiny(seed=5).eval()
    victim = Victim(model, Pixels((1, 6, 6)))
    buffers = {n: b.clone() for n, b in other.named_buffers()}
    found = victim(x, parameters=dict(other.named_parameters()), buffers=buffers)
    torch.testing.assert_close(found, other(x))
    assert victim.name == "Sequential"
    assert victim.device == torch.device("cpu")


def test_whether_the_mode_matters(tiny):
    space = Pixels((1, 6, 6))
    assert Victim(tiny(), space).depends_on_mode()
    assert Victim(tiny(norm=False, dropout=0.1), space).depends_on_mode()
    assert not Victim(tiny(norm=False), space).depends_on_mode()  # a dropout layer that drops nothing
    assert not Victim(nn.Sequential(nn.Flatten(), nn.Linear(36, 2)), space).depends_on_mode()
    for layer, matters in (
        (nn.InstanceNorm2d(1, track_running_stats=True), True),
        (nn.InstanceNorm2d(1, affine=True), False),
        (nn.MultiheadAttention(6, 2, dropout=0.1), True),
        (nn.MultiheadAttention(6, 2), False),
    ):
        assert Victim(nn.Sequential(layer, nn.Linear(6, 2)), space).depends_on_mode() == matters


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (lambda x: x, {}, "torch.nn.Module"),
        (nn.Linear(2, 2), {"mode": "test"}, "'train' or 'eval'"),
        (nn.Linear(2, 2).requires_grad_(False), {}, "no trainable parameter"),
        (nn.ReLU(), {}, "no trainable parameter"),
        (torch.compile(nn.Linear(2, 2)), {}, r"compiled.* model\._orig_mod"),
        (nn.Sequential(torch.compile(nn.Linear(2, 2))), {}, "compiled"),
    ],
)
def test_victim_refuses(model, options, message):
    with pytest.raises(BadInput, match=message):
        Victim(model, Pixels((1, 6, 6)), **options)


# --- share -----------------------------------------------------------------------------------------------------------


class Scale:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, signal, /, *, rng):
        return {n: t * self.factor for n, t in signal.items()}


class Shift(Scale):
    def __call__(self, signal, /, *, rng):
        return {n: t + self.factor for n, t in signal.items()}


def test_defenses_act_in_the_given_order(victim_of, batch_of, same):
    victim, (x, y) = victim_of(), batch_of(2)
    plain = share(victim, Gradient(), x, y).signal
    same(
        share(victim, Gradient(), x, y, defenses=(Scale(2), Shift(1))).signal, {n: 2 * t + 1 for n, t in plain.items()}
    )
    same(
        share(victim, Gradient(), x, y, defenses=(Shift(1), Scale(2))).signal, {n: 2 * t + 2 for n, t in plain.items()}
    )


def test_nothing_is_known_that_was_not_revealed(victim_of, batch_of):
    x, y = batch_of(3)
    seen = share(victim_of(mode="train"), Gradient(), x, y, reveal=())
    assert (seen.size, seen.labels, seen.buffers, seen.near) == (None, None, None, None)
    assert seen.assumptions == ()
    assert not any(t.requires_grad for t in seen.signal.values())


def test_every_revealed_thing_is_written_down_in_order(victim_of, batch_of):
    x, y = batch_of(3)
    seen = share(victim_of(), Gradient(), x, y, reveal=(Size(), Labels(), Buffers(), NoisyCopy(0.25)))
    assert seen.size == 3
    assert torch.equal(seen.labels, y)
    assert [a.kind for a in seen.assumptions] == ["diagnostic", "deployable", "diagnostic", "deployable", "diagnostic"]
    for assumption, word in zip(
        seen.assumptions, ("eval mode", "batch size known (3)", "labels", "statistics", "25%"), strict=True
    ):
        assert word in assumption.what


def test_eval_mode_is_an_assumption_only_where_the_mode_matters(victim_of, batch_of):
    x, y = batch_of(1)
    plain = nn.Sequential(nn.Flatten(), nn.Linear(36, 4))
    known = (Assumption("batch size known (1)", "deployable"),)
    assert share(victim_of(plain), Gradient(), x, y).assumptions == known
    assert share(victim_of(mode="train"), Gradient(), x, y).assumptions == known


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_a_noisy_copy_replaces_that_share_of_the_pixel_positions(p):
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 40 * 40, 2))
    victim = Victim(model, Pixels((3, 40, 40)))
    x = torch.rand(4, 3, 40, 40)
    seen = share(victim, Gradient(), x, torch.tensor([0, 1, 0, 1]), reveal=(NoisyCopy(p),), seed=1)
    changed = seen.near != x
    assert torch.equal(changed[:, 0], changed[:, 1])  # a position, not a channel of it
    assert torch.equal(changed[:, 0], changed[:, 2])
    assert float(changed.double().mean()) == pytest.approx(p, abs=0.03)
    if p:
        assert float(seen.near[changed].std()) == pytest.approx(1, abs=0.05)
        assert float(seen.near[changed].mean()) == pytest.approx(0, abs=0.05)


def test_share_draws_nothing_from_the_global_generator(victim_of, batch_of):
    x, y = batch_of(3)
    before = torch.get_rng_state()
    share(victim_of(mode="train", dropout=0.5), Gradient(), x, y, reveal=(Size(), NoisyCopy(0.5)))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("seed", [0, 7, 2**40, -3])
def test_private_randomness_draws_as_a_plain_seed_and_restores_even_after_an_error(seed):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        expected = torch.rand(5)
    before = torch.get_rng_state()
    with private_randomness(seed, torch.device("cpu")):
        drawn = torch.rand(5)
    with pytest.raises(BadInput), private_randomness(seed, torch.device("cpu")):
        Pixels((1, 2, 2), std=(torch.rand(1).item() - 2,))  # draws, then raises
    assert torch.equal(drawn, expected)
    assert torch.equal(torch.get_rng_state(), before)


def test_private_randomness_of_the_cpu_leaves_other_devices_alone(monkeypatch):
    called = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", called.append)
    with private_randomness(0, torch.device("cpu")):
        pass
    assert not called


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_private_randomness_seeds_and_restores_the_gpu():
    device = torch.device("cuda")
    with torch.random.fork_rng(devices=[device]):
        torch.manual_seed(7)
        expected = torch.rand(5, device=device)
    before = torch.cuda.get_rng_state(device)
    with private_randomness(7, device):
        drawn = torch.rand(5, device=device)
    assert torch.equal(drawn, expected)
    assert torch.equal(torch.cuda.get_rng_state(device), before)


def test_dropout_follows_the_seed_alone(victim_of, batch_of, same):
    victim, (x, y) = victim_of(mode="train", dropout=0.5), batch_of(3)
    first = share(victim, Gradient(), x, y, seed=1).signal
    torch.rand(7)
    same(share(victim, Gradient(), x, y, seed=1).signal, first, tolerance=0)
    assert not torch.equal(share(victim, Gradient(), x, y, seed=2).signal["5.weight"], first["5.weight"])


def noise_on_the_first_layer(victim, x, y, **seeds):
    """Noise of deviation 1 that a defense put on a matrix of weights."""
    clean, noisy = (share(victim, Gradient(), x, y, defenses=d, **seeds).signal for d in ([], [GaussianNoise(std=1.0)]))
    name = next(iter(clean))
    return noisy[name] - clean[name]


@pytest.mark.parametrize("seed", [0, 1, 7])
def test_a_defense_draws_from_another_stream_than_the_attack(seed, victim_of, batch_of):
    """What the adversary draws from the same seed, even and normal, tells nothing of the noise."""
    victim = victim_of(nn.Sequential(nn.Flatten(), nn.Linear(36, 400)))
    noise = noise_on_the_first_layer(victim, *batch_of(1), seed=seed)
    drawn = [draw(noise.shape, generator=torch.Generator().manual_seed(seed)) for draw in (torch.randn, torch.rand)]
    found = torch.corrcoef(torch.stack([noise.flatten(), *(one.flatten() for one in drawn)]))[0, 1:]
    assert noise.numel() == 14_400
    assert float(found.abs().max()) < 5 / 120  # five deviations of the correlation of independent draws


def test_a_given_secret_is_the_stream_of_the_clients_draws(victim_of, batch_of):
    victim, (x, y) = victim_of(nn.Sequential(nn.Flatten(), nn.Linear(36, 4))), batch_of(1)
    noise = noise_on_the_first_layer(victim, x, y, secret=3)
    torch.testing.assert_close(noise, torch.randn(4, 36, generator=torch.Generator().manual_seed(3)), rtol=0, atol=1e-6)
    assert torch.equal(noise, noise_on_the_first_layer(victim, x, y, secret=3, seed=5))


def test_dropout_masks_come_from_another_stream_than_the_attacks(victim_of, batch_of):
    victim, (x, y) = victim_of(mode="train", dropout=0.5), batch_of(3)
    for seed in range(3):
        with private_randomness(seed, victim.device):
            guessed = Gradient()(victim, x, y)
        assert not torch.equal(share(victim, Gradient(), x, y, seed=seed).signal["5.weight"], guessed["5.weight"])


def test_streams_of_one_seed_are_apart():
    """torch's generator on the CPU reads the lower 32 bits of a seed."""
    seeds = [seed for n in range(1000) for seed in (n, own_stream(n, "client"), own_stream(n, "public images"))]
    assert len({seed % 2**32 for seed in seeds}) == 3000


def test_revealed_buffers_are_those_of_a_plain_forward_pass(tiny, victim_of, batch_of, same):
    x, y = batch_of(5)
    plain = tiny().train()
    plain(x)
    seen = share(victim_of(mode="train"), Gradient(), x, y, reveal=(Buffers(),))
    same(seen.buffers, dict(plain.named_buffers()))
    assert int(seen.buffers["1.num_batches_tracked"]) == 1


def test_revealed_buffers_in_eval_mode_are_the_public_ones(tiny, victim_of, batch_of, same):
    seen = share(victim_of(), Gradient(), *batch_of(5), reveal=(Buffers(),))
    same(seen.buffers, dict(tiny().named_buffers()), tolerance=0)


def dropout_before_norm() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.BatchNorm1d(36), nn.Linear(36, 4))


def test_revealed_buffers_come_from_the_pass_that_made_the_signal(victim_of, batch_of, same):
    """Statistics after dropout depend on the mask; they must be those of the seed, and no global draw may be made."""
    x, y = batch_of(5)
    victim = victim_of(dropout_before_norm(), mode="train")
    before = torch.get_rng_state()
    first = share(victim, Gradient(), x, y, reveal=(Buffers(),), seed=4)
    assert torch.equal(before, torch.get_rng_state())
    torch.rand(3)
    same(share(victim, Gradient(), x, y, reveal=(Buffers(),), seed=4).buffers, first.buffers, tolerance=0)


class NoBuffers:
    def __call__(self, victim, x, y, /):
        return Gradient()(victim, x, y)


@pytest.mark.parametrize(
    ("count", "shape", "options", "message"),
    [
        (0, (1, 6, 6), {}, "at least one sample"),
        (2, (1, 6, 5), {}, r"shape \(1, 6, 6\), got \(1, 6, 5\)"),
        (2, (1, 6, 6), {"reveal": (NoisyCopy(1.5),)}, "between 0 and 1"),
        (2, (1, 6, 6), {"reveal": (Buffers(),), "channel": NoBuffers()}, "no buffers to reveal"),
    ],
)
def test_share_refuses(count, shape, options, message, victim_of):
    x, y = torch.rand(count, *shape), torch.zeros(count, dtype=torch.long)
    channel = options.pop("channel", Gradient())
    with pytest.raises(BadInput, match=message):
        share(victim_of(), channel, x, y, **options)


def test_an_observation_can_be_copied(victim_of, batch_of, same):
    seen = share(victim_of(), Gradient(), *batch_of(1))
    twin = copy.deepcopy(seen)
    assert isinstance(twin, Observation)
    same(seen.signal, twin.signal, tolerance=0)


def test_ids_are_shared_like_images_and_keep_their_type():
    model = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(12, 3))
    victim = Victim(model, Tokens(3, vocab=9))
    x = torch.tensor([[1, 8, 8], [0, 1, 5]])
    assert victim.to_input(x).dtype == torch.long
    assert victim.to_input(torch.rand(2, dtype=torch.float64)).dtype == torch.float32
    for channel in (Gradient(), FedAvg(steps=2, minibatch=1)):
        seen = share(victim, channel, x, torch.tensor([0, 1]), reveal=(Size(), Labels(), Buffers()))
        assert seen.signal["0.weight"].abs().sum(1).nonzero().flatten().tolist() == [0, 1, 5, 8]
    with pytest.raises(BadInput, match="samples of shape"):
        share(victim, Gradient(), x[:, :2], torch.tensor([0, 1]))
    with pytest.raises(BadInput, match="these samples are token ids"):
        share(victim, Gradient(), x, torch.tensor([0, 1]), reveal=(NoisyCopy(0.5),))


def test_a_defense_may_work_in_place():
    """The gradients of a class token and of its position are the same numbers, but not the same memory."""

    def doubled(signal, *, rng):
        for value in signal.values():
            value.mul_(2)
        return signal

    victim, x, y = testing.tiny_case("vit")
    plain = share(victim, Gradient(), x, y).signal
    for name, value in share(victim, Gradient(), x, y, defenses=[doubled]).signal.items():
        torch.testing.assert_close(value, 2 * plain[name])
