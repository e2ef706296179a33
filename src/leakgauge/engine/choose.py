"""Chooses how to replay candidates, and verifies the choice on the real shapes before the first step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from leakgauge.channels.dpsgd import DPSGD
from leakgauge.channels.facts import is_gradient
from leakgauge.core import Channel, PerSample, Victim
from leakgauge.engine.clipped import Clipped
from leakgauge.engine.fast import ByRules
from leakgauge.engine.observed import Observed
from leakgauge.engine.precision import Exact
from leakgauge.engine.reference import Reference, Replay
from leakgauge.engine.vmapped import StackedReplay, VmapReplay
from leakgauge.errors import LeakgaugeError

TOLERANCE = 2e-3
"""Largest accepted deviation of a tensor's dot and norm from the reference, relative to the whole signal."""

RULES_PAY_FROM = 2_000_000
"""From this number of parameters on, rules are faster for a single restart on a CPU: 1.3 to 1.5 times on ViT and ResNet18, but
0.7 to 0.9 times on networks with a tenth of a million (measured with one thread)."""

Replayer = Callable[[Tensor, Tensor], Replay]


@dataclass(frozen=True)
class Choice:
    """How to replay, and one sentence on which path was taken and why not a faster one."""

    replay: Replayer
    note: str


def choose(
    victim: Victim,
    channel: Channel,
    observed: Observed,
    x: Tensor,
    y: Tensor,
    *,
    capture: tuple[str, ...] = (),
    gradients: bool = False,
) -> Choice:
    """The fastest path that agrees with the reference on candidates ``x`` (R, B, ...) and targets ``y``.

    ``gradients``: whether whole gradients are needed. A single restart on a CPU uses the reference directly where that is
    faster: for whole gradients, for small models, and for channels that only vmap could map.
    """
    reference = Reference(victim, channel, observed, capture)
    small = sum(p.numel() for p in victim.parameters().values()) < RULES_PAY_FROM
    clip = _clip_of_one(victim, channel, observed, samples=x.shape[1])
    as_gradient = is_gradient(channel, victim.mode) or clip is not None  # compared with the reference, as everything is
    if len(x) == 1 and x.device.type == "cpu" and (gradients or small or not as_gradient):
        return Choice(reference, "replay: reference (a single restart)")
    reasons: list[str] = []
    if isinstance(channel, PerSample) and not capture:
        reason = _disagreement(BatchedReplay(victim, channel, observed), reference, x, y)
        if reason is None:
            return Choice(BatchedReplay(victim, channel, observed), "replay: all restarts as one batch")
        reasons.append(f"one batch: {reason}")
    if as_gradient:
        by_rules = ByRules(victim, observed, capture) if clip is None else Clipped(victim, observed, capture, clip=clip)
        reason = _disagreement(by_rules, reference, x, y)
        if reason is None:
            return Choice(by_rules, "replay: layer rules")
        reasons.append(f"layer rules: {reason}")
    if not capture:
        reason = _disagreement(VmapReplay(victim, channel, observed), reference, x, y)
        if reason is None:
            return Choice(VmapReplay(victim, channel, observed), "; ".join(["replay: vmap", *reasons]))
        reasons.append(f"vmap: {reason}")
    return Choice(reference, "; ".join(["replay: reference", *reasons]))


def _clip_of_one(victim: Victim, channel: Channel, observed: Observed, *, samples: int) -> float | None:
    """The bound of the length where the signal is the whole gradient of one sample, clipped."""
    if isinstance(channel, DPSGD) and samples == 1 and observed.signal.keys() == victim.parameters().keys():
        return channel.clip
    return None


DROPPING: dict[object, int] = {F.multi_head_attention_forward: 10, F.scaled_dot_product_attention: 4}
"""Attention functions that drop weights themselves, with the position of ``dropout_p`` among their arguments."""


class _WithoutDropout(TorchFunctionMode):
    """Disables dropout and stochastic depth: they draw for every row, so rows cannot be compared with them."""

    def __torch_function__(
        self, func: object, types: object, args: tuple[object, ...] = (), kwargs: dict[str, object] | None = None
    ) -> object:
        if func is F.dropout:
            return args[0]
        if func in DROPPING:  # by position or by name
            place, kwargs = DROPPING[func], {**(kwargs or {})}
            if len(args) > place:
                args = (*args[:place], 0.0, *args[place + 1 :])
            elif "dropout_p" in kwargs:
                kwargs["dropout_p"] = 0.0
        if func is Tensor.bernoulli_:  # a mask of its mean: after the usual division by p it is 1
            return args[0].fill_(args[1])  # pyright: ignore[reportAttributeAccessIssue]
        return func(*args, **(kwargs or {}))  # pyright: ignore[reportCallIssue]


def _make_rows_differ(x: Tensor) -> Tensor:
    """Candidates that differ between rows. Rows may start equal (a constant image, or observations with one seed), and on equal rows
    a model that mixes them, for example through batch statistics, gives the same result as on each row alone.
    """
    noise = torch.randn(x.shape[1:], generator=torch.Generator().manual_seed(0)).to(x)
    share = torch.linspace(0.1, 0.2, len(x), dtype=x.dtype, device=x.device)
    return x + share.view(-1, *[1] * noise.dim()) * noise


def _disagreement(trial: Replayer, reference: Reference, x: Tensor, y: Tensor) -> str | None:
    """None if ``trial`` matches the reference's dot and norm for the first and the last row, tensor by tensor."""
    ends = [0] if len(x) == 1 else [0, len(x) - 1]
    with torch.no_grad(), Exact().inside(x.device), _WithoutDropout():
        x = _make_rows_differ(x)
        try:
            found = trial(x, y)
            ours = {n: torch.stack([found.dot({n: 1.0}), found.square({n: 1.0})])[:, ends] for n in found.names}
        except LeakgaugeError:
            raise
        except (
            RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError, ArithmeticError,
        ) as error:  # fmt: skip
            if isinstance(error, torch.OutOfMemoryError) and len(x) > 1:
                raise  # the path itself is fine: fewer rows at a time may fit
            return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
        exact = reference.rows(x[ends], y[ends], ends)
    theirs = {n: torch.stack([exact.dot({n: 1.0}), exact.square({n: 1.0})]) for n in exact.names}
    whole = dict.fromkeys(exact.names, 1.0)
    squares = exact.square(whole)
    scale = torch.stack([(squares * exact.observed_square(whole)).sqrt(), squares])
    for name, value in theirs.items():
        off = (ours[name] - value).abs() / scale.clamp_min(torch.finfo(scale.dtype).tiny)
        if not bool((off <= TOLERANCE).all()):
            return f"{name} differs from the reference by {float(off.max()):.1e}"
    return None


@dataclass(frozen=True, eq=False)
class BatchedReplay:
    """Replays ``channel`` once on the samples of all rows."""

    victim: Victim
    channel: Channel
    observed: Observed

    def __call__(self, x: Tensor, y: Tensor) -> Replay:
        signal = self.channel(self.victim, x.flatten(0, 1), y.flatten(0, 1))
        rows = {name: signal[name].unflatten(0, x.shape[:2]) for name in self.observed.signal}
        return StackedReplay(rows, self.observed)
