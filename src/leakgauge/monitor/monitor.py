"""The monitor: takes what each training step releases, and says at any time what it reveals about the data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from leakgauge.core import Signal
from leakgauge.core.defaults import plain_defaults
from leakgauge.errors import BadInput
from leakgauge.measures.intervals import clopper_pearson
from leakgauge.measures.membership import Rate
from leakgauge.measures.sketch import SignBucket, Sketch, SketchPlan
from leakgauge.monitor.alarm import Alarm
from leakgauge.monitor.guard import Guard
from leakgauge.monitor.inputs import WIDTH, BatchFeatures
from leakgauge.monitor.leakage import VIEWS, Controls, Leakage, View
from leakgauge.monitor.prober import Prober
from leakgauge.monitor.properties import ShareColumn
from leakgauge.monitor.ring import Ring, Thinning
from leakgauge.monitor.stream import TEMPERATURES, BlockScores, Stream, is_sampled
from leakgauge.monitor.summary import summary
from leakgauge.monitor.whitebox import Pooled, WhiteBox

WINDOW = 256
"""Number of scored steps over which rates are reported."""
NOT_SHUFFLED = "batches repeat in the same order: the alarm needs a shuffled loader and has stopped betting"

Log = Callable[[dict[str, float], int], None]
"""Takes the flat scalars of :meth:`Leakage.scalars` and the step."""


@runtime_checkable
class ScalarWriter(Protocol):
    """TensorBoard's ``SummaryWriter``, by shape."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> object: ...


class Monitor:
    """Measures what the released gradients of a training reveal about its batches. The only stateful object of the package.

    :func:`leakgauge.monitor.watch` creates one and attaches it. By hand: call ``update(x, y, signal)`` once per optimizer step with
    the step's batch and what was released, and ``compute()`` at any time. ``prober`` runs the white-box probe, ``epsilon`` returns
    the ε spent so far, for the reports. ``has`` says which samples of a batch have a property, (n,): then a probe of the updates is asked
    whether more of them than usual have it.

    Everything it holds (sketches, features, recent samples, and the numbers themselves) derives from private data. ``state_dict()``
    only includes buffers on request, and logging the numbers off-site is a release.
    """

    def __init__(
        self,
        *,
        every: int = 50,
        view: View = "released",
        log: Log | ScalarWriter | None = None,
        strict: bool = False,
        seed: int = 0,
        alpha: float = 0.05,
        choices: int = 16,
        sketch: Sketch | None = None,
        prober: Prober | None = None,
        epsilon: Callable[[], float] | None = None,
        has: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        if every < 1:
            raise BadInput(f"every must be at least 1, the number of optimizer steps between reports; got {every}")
        if view not in VIEWS:
            raise BadInput(f"view must be one of {', '.join(VIEWS)}; got {view!r}")
        if not 2 <= choices <= 64:
            raise BadInput(f"choices must be from 2 to 64, the number of candidate batches; got {choices}")
        if not 0 < alpha < 1:
            raise BadInput(f"alpha must be between 0 and 1, the false-alarm rate; got {alpha}")
        if log is not None and not isinstance(log, ScalarWriter) and not callable(log):
            raise BadInput(f"log must be a callable log(scalars, step) or a SummaryWriter, got {type(log).__name__}")
        self.view: View = view
        self.every: int = every
        self.alpha: float = alpha
        self.choices: int = choices
        self.seed: int = seed
        self.guard: Guard = Guard(strict=strict)
        self._log: Log | None = as_log(log)
        self._sketch: Sketch = SignBucket() if sketch is None else sketch
        self._prober: Prober | None = prober
        self._without_prober: str = "no model to probe"
        self._epsilon: Callable[[], float] | None = epsilon
        self._has: Callable[[Tensor], Tensor] | None = has
        self._closing: list[Callable[[], None]] = []
        self._saved: dict[str, Any] | None = None
        self.reset()

    def reset(self) -> None:
        """Forgets everything it saw. Hooks stay attached."""
        self.step: int = 0
        self.looking: bool = True
        """Whether the current step is used: by the stream, which samples steps, or by the probe."""
        self._differentiated: bool = False  # a backward pass came after the last batch of the step
        self._unsure: bool = False  # a batch came after that: it is not yet known whether both belong to the step
        self._plan: SketchPlan | None = None
        self._layers: tuple[str, ...] = ()
        self._features = BatchFeatures(self.seed, self._has)
        self._shares: ShareColumn | None = None
        self._stream: Stream | None = None
        self._shuffled: bool = True
        self._alarm: Alarm | None = None
        self._window: Ring | None = None
        self._history: Thinning[dict[str, Any]] = Thinning()
        self._whitebox: WhiteBox | None = None
        self._pooled = Pooled()
        self._skipped: dict[str, int] = {"no gradient": 0, "no input": 0}
        if self._prober is not None:
            self._prober.forget()

    # what comes in

    @plain_defaults()
    def update(self, x: Tensor, y: Tensor | None, signal: Signal) -> None:
        """One optimizer step: its batch ``x``, ``y`` and the released ``signal``."""
        self.see(x)
        if y is not None:
            self.labels(y)
        self.finish(signal)

    def see(self, x: Tensor, *, repeatable: bool = True, named: Mapping[str, Any] | None = None) -> bool:
        """The batch of one forward pass; several before a step are parts of one batch.

        ``named`` is all that the model was given by name, with labels, if it computes its own loss; returns whether the probe took these.
        """
        if self._differentiated:
            self._differentiated, self._unsure = False, True
            self._features.mark()
            if self._prober is not None:
                self._prober.mark()
        if is_sampled(self.step + 1):
            self._features.add(x)
        if self._prober is None or not self._prober.wants(self.step + 1):
            return False
        if named is not None and self._prober.see_named(named):
            return True
        self._prober.see(x, repeatable=repeatable)
        return False

    def labels(self, y: Tensor, *, unless_seen: bool = False) -> None:
        """The labels of the forward pass, for the white-box probe, if no hook can see them.

        ``unless_seen``: ignored if a hook on the loss has already seen the labels of every batch.
        """
        if self._prober is not None and self._prober.wants(self.step + 1):
            self._prober.see_labels(y, unless_seen=unless_seen)

    def expect_output(self) -> Callable[[Tensor, Tensor], None] | None:
        """Where to send the output of the newest forward pass and its gradient, for the white-box probe; None if it needs none."""
        wanted = self._prober is not None and self._prober.wants(self.step + 1)
        return self._prober.expect_output() if wanted and self._prober is not None else None

    def differentiate(self, fresh: Callable[[], bool]) -> bool:
        """Called when a backward pass begins. If ``fresh()``, gradients are empty although one was computed since the last step.

        Then it was discarded, as GradScaler does after an overflow, and its batches are discarded too; returns whether that happened.
        """
        thrown_away = self._unsure and fresh()
        self._differentiated, self._unsure = True, False
        if thrown_away:
            self._features.drop_marked()
            if self._prober is not None:
                self._prober.drop_marked()
        return thrown_away

    def skip(self) -> None:
        """Ends a step that is not used."""
        self.step += 1
        self._end_step()

    def plan(self, shapes: Mapping[str, tuple[int, ...]], device: torch.device) -> SketchPlan:
        """The sketch for these parameters, created once."""
        if self._plan is None:
            plan = self._sketch.plan(shapes, device=device, seed=self.seed)
            self._plan, self._layers = plan, plan.layers
            count = len(plan.layers)
            self._stream = Stream(count, plan.width, WIDTH, choices=self.choices, seed=self.seed, device=device)
            self._alarm = Alarm(self.alpha, count, len(TEMPERATURES))
            self._window = Ring(WINDOW, (count + 6,), dtype=torch.float64)
            if self._saved is not None:
                self._restore(self._saved)
        return self._plan

    def finish(self, signal: Mapping[str, Tensor | None]) -> None:
        """Ends a step that released ``signal``, by name; None for a parameter without a gradient."""
        self.step += 1
        batch = self._features.take()
        shared = {name: g for name, g in signal.items() if g is not None}
        if not is_sampled(self.step):
            pass  # only the probe needed this step
        elif not shared:
            self._skipped["no gradient"] += 1
            self.guard.say("gradient", "leakgauge monitor: a step had no gradient at all and was not scored")
        elif batch is None:
            self._skipped["no input"] += 1
            self.guard.say(
                "input",
                "leakgauge monitor: a step had no forward pass of the model, or an empty batch, and was not scored",
            )
        else:
            self._take(batch, shared)
        if self._prober is not None:
            with self.guard.around("the white-box probe", then=self._prober.forget):
                found = self._prober.finish(self.step, signal)
                if found is not None:
                    self._whitebox, self._pooled = found, self._pooled.add(found)
        self._end_step()

    @plain_defaults()
    def flush(self) -> None:
        """Scores the current block now. Call it at the end of an epoch to keep the alarm's guarantee exact."""
        if self._stream is not None:
            self._score(self._stream)

    def _end_step(self) -> None:
        self._differentiated = self._unsure = False
        if self.step % self.every == 0:
            self._report_step()
        self.looking = self._looks_at(self.step + 1)

    def _looks_at(self, step: int) -> bool:
        return is_sampled(step) or (self._prober is not None and self._prober.wants(step))

    def _take(self, batch: tuple[Tensor, int], shared: Mapping[str, Tensor]) -> None:
        if self._plan is None:
            self.plan({name: tuple(g.shape) for name, g in shared.items()}, next(iter(shared.values())).device)
        assert self._plan is not None
        assert self._stream is not None
        sketch = self._plan(shared)
        features, size = batch
        if self._has is not None and self._features.share is not None:
            self._shares = self._shares or ShareColumn(seed=self.seed)
            self._shares.add(sketch, shared, self._features.share)
        if self._stream.add(self.step, sketch, features.to(sketch.device), size):
            self._score(self._stream)

    def _score(self, stream: Stream) -> None:
        scored = stream.score()
        self._skipped["not finite"] = stream.not_finite
        if stream.not_finite:
            self.guard.say("finite", "leakgauge monitor: a gradient or input was not finite; such steps are not scored")
        self._shuffled = stream.shuffled
        if not stream.shuffled:
            self.guard.say("order", f"leakgauge monitor: {NOT_SHUFFLED}")
        if scored is None:
            return
        assert self._alarm is not None
        assert self._window is not None
        if stream.shuffled:
            self._alarm.bet(scored.evalues, scored.steps)
        self._window.append(_table(scored))

    # what comes out

    @plain_defaults()
    def compute(self) -> Leakage:
        """The current state of the measurement."""
        table = torch.empty(0, 0) if self._window is None else self._window.values()
        infonce = top1 = controls = None
        layers: dict[str, float] = {}
        if len(table) > 1:
            top1 = _hit_rate(table[:, 0])
            infonce = _mean(table[:, 5])
            noise = tuple(table[:, 3:5].mean(0).tolist())
            controls = Controls(null=_mean(table[:, 1]), decoy=_mean(table[:, 2]), noise=noise)
            layers = dict(zip(self._layers, table[:, 6:].mean(0).tolist(), strict=True))
        epsilon = None
        if self._epsilon is not None:
            with self.guard.around("reading epsilon"):
                epsilon = self._epsilon()
        return Leakage(
            step=self.step,
            view=self.view,
            choices=self.choices,
            pairs=len(table),
            infonce=infonce,
            top1=top1,
            controls=controls,
            layers=layers,
            log_wealth=0.0 if self._alarm is None else self._alarm.log_wealth,
            alpha=self.alpha,
            alarm_at=None if self._alarm is None else self._alarm.fired_at,
            whitebox=self._whitebox,
            epsilon=epsilon,
            peak_wealth=0.0 if self._alarm is None else self._alarm.peak,
            members=self._pooled.auc,
            probes=self._pooled.probes,
            told=None if self._shares is None else self._shares.auc(),
            notes=self._notes(),
            skipped={what: n for what, n in self._skipped.items() if n},
        )

    def report(self) -> str:
        """A plain-text summary: the curve so far, and the latest numbers with their controls."""
        return summary(self.compute(), list(self.records()))

    def records(self) -> Iterator[dict[str, Any]]:
        """The reports so far as JSON-ready dictionaries, oldest first; in a long training only every n-th."""
        yield from self._history

    def state_bytes(self) -> int:
        """Memory that the monitor holds between steps, in bytes."""
        parts = (self._plan, self._stream, self._alarm, self._window, self._shares, self._features, self._prober)
        return sum(part.nbytes() for part in parts if part is not None)

    def state_dict(self, *, private: bool = False) -> dict[str, Any]:
        """The step, the alarm, the reports, and whether batches were shuffled.

        With ``private`` also sketches and features, which derive from data.
        """
        state: dict[str, Any] = {
            "step": self.step,
            "alarm": None if self._alarm is None else self._alarm.state_dict(),
            "records": list(self.records()),
            "shuffled": self._shuffled,
            "pooled": asdict(self._pooled),
        }
        if private and self._stream is not None and self._window is not None:
            state["private"] = {"stream": self._stream.state_dict(), "window": self._window.values()}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from a saved state. Without private buffers the critic starts from scratch; the alarm keeps its evidence."""
        missing = {"step", "alarm", "records"} - set(state)
        if missing:
            raise BadInput(f"this is not the state of a monitor: {', '.join(sorted(missing))} is missing")
        self.step = int(state["step"])
        self.looking = self._looks_at(self.step + 1)
        self._history = Thinning()
        for record in state["records"]:
            self._history.append(record)
        self._pooled = Pooled(**state.get("pooled", {}))
        self._saved = dict(state)
        if self._plan is not None:
            self._restore(self._saved)

    def on_close(self, callback: Callable[[], None]) -> None:
        """Calls ``callback`` each time the monitor is closed; :func:`watch` removes its hooks this way."""
        self._closing.append(callback)

    def close(self) -> None:
        """Removes all hooks and releases all buffers. Reports stay readable."""
        for callback in self._closing:
            callback()
        if self._prober is not None:
            self._without_prober = self._prober.off or "not due yet"
        self._plan, self._stream, self._prober = None, None, None
        self._features = BatchFeatures(self.seed)

    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _restore(self, state: dict[str, Any]) -> None:
        self._saved = None
        if self._alarm is not None and state["alarm"] is not None:
            self._alarm.load_state_dict(state["alarm"])
        if self._stream is not None:  # an unshuffled loader stays unshuffled: betting does not resume
            self._stream.shuffled = self._shuffled = bool(state.get("shuffled", True))
        if self._window is not None:
            self._window.clear()
        private = state.get("private")
        if private is not None and self._stream is not None and self._window is not None:
            self._stream.load_state_dict(private["stream"])
            self._window.append(private["window"])

    def _report_step(self) -> None:
        leakage = self.compute()
        self._history.append(leakage.record())
        if self._log is not None:
            with self.guard.around("the logger", then=self._silence):
                self._log(leakage.scalars(), self.step)

    def _silence(self) -> None:
        self._log = None

    def _notes(self) -> tuple[str, ...]:
        notes = list(self.guard.said.values())
        if self._stream is not None and self._stream.blocks > 3 and self._window is not None and not len(self._window):
            notes.append(
                f"InfoNCE needs {self.choices} steps between two ends of an epoch, but there were fewer; "
                f"set a smaller choices=, or call flush() less often"
            )
        if self._whitebox is None:
            why = self._without_prober if self._prober is None else self._prober.off or "not due yet"
            notes.append(f"white-box probe off: {why}")
        else:
            notes += self._whitebox.notes
        return tuple(notes)


def _table(scored: BlockScores) -> Tensor:
    """One row per scored step: hit, null, decoy, two noise levels, joint nats, nats per layer."""
    columns = [scored.hits[None].double(), scored.null[None], scored.decoy[None], scored.noise, scored.nats]
    return torch.cat([c.double() for c in columns]).T


def _hit_rate(hits: Tensor) -> Rate:
    """Mean with an exact 95 % interval, for hits of which ties share one.

    A shared hit varies less than a whole one, so the sum is rounded outwards: down for the lower end, up for the upper one.
    """
    total, trials = float(hits.sum()), len(hits)
    low, _ = clopper_pearson(math.floor(total + 1e-9), trials)
    _, high = clopper_pearson(math.ceil(total - 1e-9), trials)
    return Rate(total / trials, low, high)


def _mean(values: Tensor) -> Rate:
    """Mean with its 95 % Student interval. Steps are treated as independent, which is approximate because the weights drift."""
    mean = float(values.mean())
    from scipy.special import stdtrit  # here, because scipy is slow to import

    half = float(stdtrit(len(values) - 1, 0.975) * values.std() / len(values) ** 0.5)
    return Rate(mean, mean - half, mean + half)


def as_log(log: Log | ScalarWriter | None) -> Log | None:
    """``log`` as a callable."""
    if not isinstance(log, ScalarWriter):
        return log
    writer = log

    def write(scalars: dict[str, float], step: int) -> None:
        for name, value in scalars.items():
            writer.add_scalar(name, value, step)

    return write
