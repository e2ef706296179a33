"""The laws that every attack, defense, channel and estimator obeys, for our own tests and for authors of new ones.

    def test_my_attack():
        check_attack(my_attack(steps=200), *tiny_case("cnn"))

Each ``check_…`` raises an ``AssertionError`` that says which law was broken.
"""

from __future__ import annotations

import dataclasses
import math
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from leakgauge.audit.null import null_run
from leakgauge.audit.scoring import score, score_text
from leakgauge.audit.tables import score_table
from leakgauge.channels import FedAvg, Gradient
from leakgauge.channels.rows import row_norms
from leakgauge.core import (
    Attack,
    Auxiliary,
    Category,
    Channel,
    Defense,
    Explains,
    Mode,
    NeedsVictim,
    Number,
    Observation,
    PerSample,
    Pixels,
    Reconstruction,
    Reveal,
    Series,
    Signal,
    Size,
    Table,
    Tokens,
    Victim,
    as_images,
    share,
)
from leakgauge.core.examples import Example, examples_of
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.measures.mutual_information import Estimate, Estimator
from leakgauge.models.cnn import CNN
from leakgauge.models.lenet import LeNet
from leakgauge.models.mlp import MLP
from leakgauge.models.seeded import seeded
from leakgauge.models.text import TextTransformer
from leakgauge.models.vit import ViT

SIDE = 12

TINY: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: MLP(shape=(1, SIDE, SIDE), hidden=(16,), classes=4),
    "lenet": lambda: LeNet(in_channels=1, side=SIDE, classes=4),
    "cnn": lambda: CNN(side=SIDE, classes=4, widths=(8, 8), strides=(1, 2)),
    "vit": lambda: ViT(side=SIDE, classes=4, patch=4, width=24, depth=1, heads=2),
    "vit_a": lambda: ViT(side=SIDE, classes=4, patch=4, width=24, depth=2, heads=2, residual=False, position_std=1.0),
}
"""Small networks, one per family, on which a law runs in a moment."""

WORDS, VOCAB = 8, 60

TINY_TEXT: dict[str, Callable[[], nn.Module]] = {
    "text": lambda: TextTransformer(vocab=VOCAB, length=WORDS, classes=4, width=24, depth=1, heads=2),
    "text_a": lambda: TextTransformer(
        vocab=VOCAB, length=WORDS, classes=4, width=24, depth=2, heads=2, residual=False, position_std=1.0
    ),
    "text_deep": lambda: TextTransformer(vocab=VOCAB, length=WORDS, classes=4, width=32, depth=3, heads=4),
}
"""The same for text: sentences of 8 tokens out of 60."""


LENGTH = 32


class _Recurrent(nn.Module):
    """A GRU over time, and the classes from its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent, self.head = nn.GRU(2, 12, batch_first=True), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.recurrent(x.transpose(1, 2))[0][:, -1])


class _Attending(nn.Module):
    """Pieces of four values as tokens of a small transformer, and the classes from their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv1d(2, 16, 4, 4)
        self.place = nn.Parameter(0.02 * torch.randn(LENGTH // 4, 16))
        self.block = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(self.embed(x).transpose(1, 2) + self.place).mean(1))


TINY_SERIES: dict[str, Callable[[], nn.Module]] = {
    "series": lambda: nn.Sequential(
        nn.Conv1d(2, 8, 5, padding=2),
        nn.Sigmoid(),
        nn.Conv1d(8, 8, 5, 2, 2),
        nn.Sigmoid(),
        nn.Flatten(),
        nn.Linear(128, 4),
    ),
    "series_gru": _Recurrent,
    "series_transformer": _Attending,
}
"""The same for series of 2 channels and 32 values."""


TINY_TABLE = Table(
    (
        Number("age", 0, 100, mean=40, std=15, whole=True),
        Number("dose", 0, 8, mean=3, std=1.5),
        Category("ward", ("a", "b", "c")),
        Category("smoker", ("no", "yes"), mean=(0.7, 0.3), std=(0.46, 0.46)),
    )
)
"""Rows of two numbers and two categories."""


def tiny_victim(name: str, *, mode: Mode = "eval") -> Victim:
    """A small victim of the named family on 12×12 grey images, on sentences, on series, or on rows of a table, of 4 classes."""
    if name in TINY_TEXT:
        return Victim(TINY_TEXT[name](), Tokens(WORDS, VOCAB), mode=mode, name=name)
    if name in TINY_SERIES:
        with seeded(0):
            model = TINY_SERIES[name]()
        return Victim(model, Series(2, LENGTH, bounds=(-2, 2), std=(0.7,)), mode=mode, name=name)
    if name == "table":
        return Victim(MLP(shape=TINY_TABLE.shape, hidden=(16,), classes=4), TINY_TABLE, mode=mode, name=name)
    return Victim(TINY[name](), Pixels((1, SIDE, SIDE), mean=(0.4,), std=(0.3,)), mode=mode, name=name)


def tiny_images(count: int) -> tuple[Tensor, Tensor]:
    """Smooth pictures (a bright disc, each in another place) in [0, 1], with distinct labels as far as there are enough classes."""
    at = torch.linspace(-1, 1, SIDE)
    down, across = torch.meshgrid(at, at, indexing="ij")
    angles = 0.7 + 2.4 * torch.arange(count)
    discs = [torch.exp(-4 * ((down - 0.4 * a.sin()) ** 2 + (across - 0.4 * a.cos()) ** 2)) for a in angles]
    return torch.stack(discs)[:, None], torch.arange(count) % 4


def tiny_sentences(count: int) -> tuple[Tensor, Tensor]:
    """Sentences in which some tokens occur twice, with distinct labels as far as there are enough classes."""
    ids = (7 * torch.arange(WORDS)[None] ** 2 + 11 * torch.arange(count)[:, None] + 5) % VOCAB
    ids[:, 0] = ids[:, -1]
    return ids, torch.arange(count) % 4


def tiny_series(count: int) -> tuple[Tensor, Tensor]:
    """Two waves each, of other frequencies and phases, within [-2, 2], with distinct labels as far as there are enough classes."""
    at, number = torch.linspace(0, 6.283, LENGTH), torch.arange(count)[:, None]
    waves = [
        (1 + 0.3 * torch.sin(1.7 * number + k)) * torch.sin((1 + (number + k) % 3) * at + number + k) for k in (0, 1)
    ]
    return torch.stack(waves, 1), torch.arange(count) % 4


def tiny_rows(count: int) -> tuple[Tensor, Tensor]:
    """Different rows of ``TINY_TABLE``, with distinct labels as far as there are enough classes."""
    at = torch.arange(count, dtype=torch.float64)
    rows = torch.stack([(23 + 17 * at) % 90, (1.3 + 2.1 * at) % 7, at % 3, (at + 1) % 2], 1)
    return rows, torch.arange(count) % 4


def tiny_case(name: str, *, count: int = 1, mode: Mode = "eval") -> tuple[Victim, Tensor, Tensor]:
    """Victim, x (model space) and y."""
    victim = tiny_victim(name, mode=mode)
    if name == "table":
        rows, labels = tiny_rows(count)
        return victim, victim.space.encode(rows).float(), labels
    if name in TINY_SERIES:
        values, labels = tiny_series(count)
        return victim, victim.space.encode(values), labels
    samples, labels = tiny_sentences(count) if name in TINY_TEXT else tiny_images(count)
    return victim, victim.space.encode(samples), labels


@dataclass(frozen=True, eq=False)
class Home:
    """The small case that an attack's example names."""

    victim: Victim
    x: Tensor
    y: Tensor
    channel: Channel
    reveal: tuple[Reveal, ...]

    def seen(self) -> Observation:
        """What the attack is given."""
        return share(self.victim, self.channel, self.x, self.y, reveal=self.reveal)


def home(example: Example) -> Home:
    """The case of an example."""
    made, x, y = tiny_case(example.victim or "cnn")
    sent = made if example.server is None else example.server(made)
    own = (Auxiliary(made.space.encode(tiny_images(60)[0][10:])),) if example.auxiliary else ()
    return Home(sent, x, y, example.channel or Gradient(), (Size(), *own))


def check_examples(make: Callable[..., Attack]) -> None:
    """The laws of an attack on every example that it declares (:func:`leakgauge.core.examples.example`)."""
    examples = examples_of(make)
    assert examples, f"{make.__name__} declares no example; put @example(…) above it"
    for example in examples:
        case = home(example)
        attack = make(**example.options)
        check_attack(attack, case.victim, case.x, case.y, channel=case.channel, reveal=case.reveal)


@contextmanager
def untouched(victim: Victim) -> Iterator[None]:
    """Law: the block leaves weights, buffers, gradients, mode and hooks of the victim unchanged, even if it raises."""
    before = _fingerprint(victim.model)
    try:
        yield
    finally:
        after = _fingerprint(victim.model)
        added = next((name for name in after if name not in before), None)
        assert added is None, f"the victim was changed: {added} is new"
        for name, value in before.items():
            assert name in after, f"the victim was changed: {name} is gone"
            now = after[name]
            same = torch.equal(value, now) if isinstance(value, Tensor) and isinstance(now, Tensor) else value == now
            assert same, f"the victim was changed: {name}"


@contextmanager
def _global_randomness_kept() -> Iterator[None]:
    """Law: the global random generator does not advance; it belongs to the caller."""
    state = torch.get_rng_state()
    yield
    assert torch.equal(state, torch.get_rng_state()), "the global random generator was advanced"


def _fingerprint(model: nn.Module) -> dict[str, object]:
    state: dict[str, object] = {name: value.clone() for name, value in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        state[f"grad of {name}"] = None if parameter.grad is None else parameter.grad.clone()
        state[f"requires_grad of {name}"] = parameter.requires_grad
    for name, module in model.named_modules():
        state[f"mode of {name or 'the model'}"] = module.training
        hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
        state[f"hooks of {name or 'the model'}"] = tuple(len(h) for h in hooks)
    return state


def check_attack(
    attack: Attack,
    victim: Victim,
    x: Tensor,
    y: Tensor,
    *,
    channel: Channel | None = None,
    better_by: float = 1.0,
    reveal: Sequence[Reveal] = (Size(),),
) -> None:
    """Laws of an attack on a case that it should solve.

    It must beat its null run by ``better_by`` dB of PSNR; on text by ``better_by`` times a tenth of the tokens that occur, on tables by as
    many tenths of the cells.
    ``reveal`` is what it knows besides the signal.
    """
    seen = share(victim, channel or Gradient(), x, y, reveal=reveal)
    with untouched(victim), _global_randomness_kept():
        first = attack(victim, seen, seed=3)
    assert first.x.shape == x.shape, f"reconstruction has shape {tuple(first.x.shape)}, the data {tuple(x.shape)}"
    assert torch.isfinite(first.x).all(), "reconstruction holds NaN or Inf"
    if isinstance(victim.space, Tokens):
        assert first.x.dtype == x.dtype, "reconstruction does not hold token ids"
        assert torch.equal(victim.space.project(first.x), first.x), "reconstruction holds ids outside the vocabulary"
    elif isinstance(victim.space, Table):
        inside = victim.space.project(first.x)
        assert torch.allclose(inside, first.x, atol=1e-4), "reconstruction holds values outside their columns"
    else:
        shown = as_images(victim.space, first.x)
        assert shown.min() >= 0, "decoded reconstruction is below 0"
        assert shown.max() <= 1, "decoded reconstruction is above 1"
    assert first.candidates.shape[1:] == x.shape, "candidates must have shape (restarts, batch, ...)"
    assert len(first.losses) == len(first.candidates), "one loss per restart"
    assert first.loss == float(first.losses.min()), "the chosen restart must be the one with the lowest loss"
    assert torch.equal(first.x, attack(victim, seen, seed=3).x), "the same seed must give the same result"
    null = null_run(attack, victim, seen, seed=3)
    ours, nothing = (_quality(r, victim, x, y) for r in (first, null))
    assert ours >= nothing + better_by, f"{ours:.1f} {_unit(victim)} do not beat the null run's {nothing:.1f}"
    with untouched(victim):
        _refuses(attack, victim, dataclasses.replace(seen, size=None))
    check_part(attack)


def _unit(victim: Victim) -> str:
    if isinstance(victim.space, Tokens):
        return "tenths of the tokens"
    return "tenths of the cells" if isinstance(victim.space, Table) else "dB"


def _quality(result: Reconstruction, victim: Victim, x: Tensor, y: Tensor) -> float:
    """Mean PSNR in dB, or tenths of the tokens or cells found."""
    if isinstance(victim.space, Tokens):
        return 10 * score_text(result, x, y).recall
    if isinstance(victim.space, Table):
        return 10 * score_table(result, x, space=victim.space).accuracy
    return sum(score(result, x, y, space=victim.space).psnr) / len(x)


def _refuses(attack: Attack, victim: Victim, seen: object) -> None:
    try:
        attack(victim, seen)  # pyright: ignore[reportArgumentType]
    except Inapplicable:
        return
    raise AssertionError("an attack that does not know the batch size must raise Inapplicable")


def check_part(part: object) -> None:
    """Laws of every part: it pickles to an equal part, cannot be changed, and its repr names every option."""
    assert dataclasses.is_dataclass(part), f"{part!r} must be a frozen dataclass"
    try:
        copy = pickle.loads(pickle.dumps(part))  # noqa: S301 - our own object, made one line above
        same = bool(copy == part)
    except Exception as error:  # a part's own pickling and comparison may raise anything
        raise AssertionError(
            f"{part!r} does not survive pickling ({error}); use numbers, text and parts as fields"
        ) from error
    assert same, f"{part!r} does not survive pickling"
    assert repr(copy) == repr(part), f"{part!r} is printed differently after pickling"
    for field in dataclasses.fields(part):
        assert field.name in repr(part), f"repr of {type(part).__name__} does not name {field.name}"
        try:
            setattr(copy, field.name, None)
        except dataclasses.FrozenInstanceError:
            continue
        raise AssertionError(f"{type(part).__name__}.{field.name} can be changed")


def check_channel(channel: Channel, victim: Victim, x: Tensor, y: Tensor) -> None:
    """Laws of a channel: pure, finite, differentiable in x (unless x holds ids), with names of parameters (or of its own, if it sends
    one row per sample).
    """
    with untouched(victim), _global_randomness_kept():
        first, second = channel(victim, x, y), channel(victim, x, y)
        expected = channel.like(victim, len(x)) if isinstance(channel, PerSample) else victim.parameters()
    assert first, "the channel sends nothing"
    assert set(first) <= set(expected), "the names in a signal must be the model's parameters, or the tensors of a cut"
    for name, value in first.items():
        assert value.shape == expected[name].shape, f"{name} does not have the announced shape"
        assert torch.isfinite(value).all(), f"{name} holds NaN or Inf"
        assert torch.equal(value, second[name]), f"{name} differs between two calls"
    if x.is_floating_point():
        free = x.clone().requires_grad_()
        square = torch.stack([value.square().sum() for value in channel(victim, free, y).values()]).sum()
        assert square.requires_grad, "the signal cannot be differentiated by x; it was detached"
        (slope,) = torch.autograd.grad(square, free)
        assert slope.abs().sum() > 0, "the signal does not depend on x"
    check_part(channel)


def check_rows(channel: Channel, victim: Victim, x: Tensor, y: Tensor) -> None:
    """Law of a channel that sends one row per sample: a row depends only on its own sample, and not on the label."""
    whole = channel(victim, x, torch.zeros_like(y))
    for i in range(len(x)):
        alone = channel(victim, x[i : i + 1], y[i : i + 1])
        for name, value in whole.items():
            torch.testing.assert_close(value[i : i + 1], alone[name], atol=1e-5, rtol=1e-4, msg=f"row {i} of {name}")


def check_single_step(victim: Victim, x: Tensor, y: Tensor, *, lr: float = 0.1) -> None:
    """Law: one local step of federated averaging, divided by −lr, is the gradient.

    The tolerance is 1e-6, or the rounding of the parameter itself where that is coarser.
    """
    gradient, update = Gradient()(victim, x, y), FedAvg(steps=1, lr=lr)(victim, x, y)
    for name, parameter in victim.parameters().items():
        rounding = float(parameter.abs().max()) * torch.finfo(parameter.dtype).eps / lr
        torch.testing.assert_close(update[name] / -lr, gradient[name], atol=max(1e-6, rounding), rtol=1e-5)


def check_mean_of_singles(victim: Victim, x: Tensor, y: Tensor) -> None:
    """Law: in eval mode the gradient of a batch is the mean of the gradients of its samples."""
    whole = Gradient()(victim, x, y)
    singles = [Gradient()(victim, x[i : i + 1], y[i : i + 1]) for i in range(len(x))]
    for name, value in whole.items():
        mean = torch.stack([single[name] for single in singles]).mean(0)
        torch.testing.assert_close(value, mean, atol=1e-6, rtol=1e-4)


def check_defense(
    defense: Defense, neutral: Defense, victim: Victim, x: Tensor, y: Tensor, *, channel: Channel | None = None
) -> None:
    """Laws of a defense: no new names, shapes kept, input unchanged, repeatable, and the neutral setting is the identity."""
    signal = (channel or Gradient())(victim, x, y)
    before = {name: value.clone() for name, value in signal.items()}
    bound, nothing = (d.for_victim(victim) if isinstance(d, NeedsVictim) else d for d in (defense, neutral))
    with _global_randomness_kept():
        sent, again = (bound(signal, rng=torch.Generator().manual_seed(5)) for _ in range(2))
    assert set(signal) == set(before), "the defense changed the names in its input"
    assert set(sent) <= set(signal), "a defense may not add names"
    for name, value in sent.items():
        assert value.shape == signal[name].shape, f"the defense changed the shape of {name}"
        assert value.dtype == signal[name].dtype, f"the defense changed the type of {name}"
        assert torch.isfinite(value).all(), f"{name} holds NaN or Inf after the defense"
        assert torch.equal(value, again[name]), f"{name} differs between two runs with the same seed"
    for name, value in before.items():
        assert torch.equal(value, signal[name]), f"the defense changed its input {name}"
    same = nothing(signal, rng=torch.Generator().manual_seed(5))
    assert set(same) == set(signal), f"{neutral!r} is not the identity"
    for name, value in same.items():
        torch.testing.assert_close(value, signal[name], atol=0, rtol=0)
    other = bound(signal, rng=torch.Generator().manual_seed(6))
    if isinstance(bound, Explains) and all(torch.equal(value, sent[name]) for name, value in other.items()):  # no draws
        _check_explains(bound, signal, sent)
    check_part(defense)


def _check_explains(defense: Explains, signal: Signal, sent: Signal) -> None:
    """The true signal explains what was sent of it, and no signal is moved farther than to the true one."""
    true, rows = ({name: value[None].double() for name, value in one.items()} for one in (signal, sent))
    near = defense.nearest(true, rows)
    assert set(near) == set(sent), "the nearest signal must have the tensors that were sent"
    scale = max(float(value.abs().max()) for value in true.values()) or 1.0
    for name, value in near.items():
        torch.testing.assert_close(
            value, true[name], atol=1e-5 * scale, rtol=1e-4, msg=f"{name}: the truth explains itself"
        )
    rng = torch.Generator().manual_seed(7)
    other = {n: t + t.std(correction=0) * torch.randn(t.shape, generator=rng, dtype=t.dtype) for n, t in true.items()}
    moved = defense.nearest(other, rows)
    step, to_truth = (row_norms({n: one[n] - other[n] for n in sent}) for one in (moved, true))
    assert step <= to_truth * (1 + 1e-4), "the truth is nearer than what was called the nearest"


def gaussian_pairs(n: int, *, correlation: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Two columns of n standard normal values with the given correlation ρ: I = −½ log(1 − ρ²) nats."""
    rng = torch.Generator().manual_seed(seed)
    a, noise = torch.randn(2, n, 1, generator=rng, dtype=torch.float64)
    return a, correlation * a + math.sqrt(1 - correlation**2) * noise


def check_estimator(
    estimator: Estimator, *, n: int = 800, correlation: float = 0.8, tolerance: float = 0.15, seed: int = 1
) -> None:
    """Laws of an estimator of mutual information, on Gaussian pairs of known mutual information.

    It must read −½ log(1 − ρ²) within ``tolerance`` (an upper bound: at least that), about 0 on independent pairs, and no more
    after one side was processed. It is repeatable, leaves its input and the global generator unchanged, and refuses NaN.
    """
    truth = -0.5 * math.log(1 - correlation**2)
    a, b = gaussian_pairs(n, correlation=correlation, seed=seed)
    copies = (a.clone(), b.clone())
    with _global_randomness_kept():
        found = estimator(a, b, seed=seed)
    assert torch.equal(a, copies[0]), "the estimator changed its first side"
    assert torch.equal(b, copies[1]), "the estimator changed its second side"
    _sane(found, n)
    assert found == estimator(a, b, seed=seed), "the same seed must give the same estimate"
    assert found.nats >= truth - tolerance, f"{found.nats:.3f} nats are too few, the truth is {truth:.3f}"
    if found.bound != "upper":
        assert found.nats <= truth + tolerance, f"{found.nats:.3f} nats are too many, the truth is {truth:.3f}"
    alone = estimator(a, gaussian_pairs(n, correlation=0.0, seed=seed + 1)[1], seed=seed)
    _sane(alone, n)
    assert abs(alone.nats) <= tolerance, f"independent pairs read {alone.nats:.3f} nats"
    noise = gaussian_pairs(n, correlation=0.0, seed=seed + 2)[0]
    processed = estimator(a, (b + noise).round(), seed=seed)  # I(a; f(b)) ≤ I(a; b)
    _sane(processed, n)
    slack = tolerance / 2
    assert processed.nats <= found.nats + slack, f"processing raised {found.nats:.3f} to {processed.nats:.3f} nats"
    try:
        estimator(a, torch.full_like(b, torch.nan), seed=seed)
    except BadInput:
        check_part(estimator)
        return
    raise AssertionError("an estimator that is given NaN must raise BadInput")


def _sane(found: Estimate, n: int) -> None:
    values = (found.nats, found.low, found.high, found.in_sample)
    assert all(math.isfinite(value) for value in values), f"not finite: {found}"
    assert found.low <= found.nats <= found.high, f"the value is outside its interval: {found}"
    assert found.nats <= found.ceiling, f"the value is above its ceiling: {found}"
    assert 0 < found.n <= n, f"{found.n} of {n} pairs are held out; at least one must be"
