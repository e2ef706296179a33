"""Mods of a Flower client: save what it sends, to be attacked later, probe what that tells about its data, and stop what leaks."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from leakgauge.core import Loss, Mode
from leakgauge.errors import Inapplicable
from leakgauge.integrations.captured import COUNT
from leakgauge.integrations.captured_file import About, save_captured
from leakgauge.integrations.gate import Gate, Guarded, Refused
from leakgauge.monitor import Log
from leakgauge.monitor.guard import Guard
from leakgauge.monitor.whitebox import Protection, WhiteBox, probe

Pair = tuple[Tensor, Tensor]
Mod = Callable[[Any, Any, Callable[[Any, Any], Any]], Any]


def capture(
    folder: str | Path,
    *,
    batch_size: int | None = None,
    local_steps: int | None = None,
    local_lr: float | None = None,
    mode: Mode | None = None,
    names: Sequence[str] | None = None,
    strict: bool = False,
) -> Mod:
    """A Flower mod that saves every training reply, with what is needed to attack it, and passes it on unchanged.

        app = ClientApp(mods=[capture("captured"), LocalDpMod(…)])

    Each reply becomes ``folder/round-R-client-C/``, with ``update.safetensors`` (as it is sent, running statistics with it) and
    ``weights.safetensors`` (those of the request); ``leakgauge attack MODEL --update …/update.safetensors`` needs nothing else. The first
    mod is the outermost one: put before ``LocalDpMod`` it sees what leaves the device, after it what would have left.

    What is not given is taken from the messages: ``mode`` and ``local_steps`` from the batches that normalisation layers count,
    ``local_lr`` from ``lr`` of the configuration, ``batch_size`` from ``num-examples`` of a reply after one local step. What remains
    unknown is left out, and the attack asks for it. A client that sends arrays without names (``NumPyClient``) needs ``names``, such as
    ``list(model.state_dict())``. Trouble in saving is a warning, or raised if ``strict``.
    """
    guard, rounds = Guard(strict=strict), 0

    def mod(message: Any, context: Any, call_next: Callable[[Any, Any], Any]) -> Any:
        nonlocal rounds
        trains = _trains(message)
        before, number, lr = (_weights(message), _round(message), _said(message, "lr")) if trains else ({}, None, None)
        reply = call_next(message, context)
        if not trains or reply.has_error():
            return reply
        rounds += 1
        with guard.around("saving the update"):
            after, known = _weights(reply), before
            if names is not None:
                known, after = (dict(zip(names, each.values(), strict=True)) for each in (before, after))
            shared = [name for name in after if name in known]
            if not shared:
                raise Inapplicable("the reply has no array of a name that the request has; give names to capture()")
            is_difference = _is_difference(known, after, shared)
            counted = _counted(known, after, is_difference=is_difference)
            steps, examples = local_steps or counted, _said(reply, "num-examples", "num_examples")
            about = About(
                update_holds="delta" if is_difference else "weights",
                mode=mode or ("train" if counted else None),
                batch_size=batch_size or (int(examples) if examples and steps == 1 else None),
                local_steps=steps,
                local_lr=local_lr or lr,
            )
            client = context.node_config.get("partition-id", context.node_id)
            place = Path(folder) / f"round-{rounds if number is None else number}-client-{client}"
            save_captured(place, after, known, about)
        return reply

    return mod


def _counted(before: Mapping[str, Tensor], after: Mapping[str, Tensor], *, is_difference: bool) -> int | None:
    """Batches that the layer counted which is used least, once in a step; None where none counts, or noise has changed the counts."""
    names = [name for name in after if name.endswith(COUNT) and name in before]
    counts = [float(after[name] - (0 if is_difference else before[name])) for name in names]
    return min((int(count) for count in counts if count >= 1 and count.is_integer()), default=None)


def _said(message: Any, *names: str) -> float | None:
    """A number that a message carries beside its arrays, under one of these names."""
    for kind in (message.content.config_records, message.content.metric_records):
        for record in kind.values():
            for name in names:
                if isinstance(found := record.get(name), int | float) and not isinstance(found, bool):
                    return float(found)
    return None


def update_monitor(
    model: nn.Module,
    *,
    loss: Loss,
    members: Pair | Callable[[Any], Pair],
    others: Pair,
    log: Log,
    strict: bool = False,
    seed: int = 0,
) -> Mod:
    """A Flower mod that probes every training reply and gives ``privacy/…`` numbers to ``log(scalars, round)``.

        app = ClientApp(mods=[update_monitor(model, loss=…, members=…, others=…, log=…), LocalDpMod(…)])

    The update is the request's weights minus the reply's: a gradient, up to the learning rate, where the client takes
    one step, and a sum of gradients at moving weights where it takes more. The first mod is the outermost one, so the
    monitor is put *before* ``LocalDpMod`` to see what leaves the device, and after it to see what would have left.
    ``members`` are samples the client trains on (or a function of the context), ``others`` samples that it does not.
    ``model`` gives the architecture; its parameter names must be the arrays' keys. The message is passed on unchanged,
    and nothing is added to it: numbers about private data stay on the client unless ``log`` sends them. The round is the
    server's where its message says so, else the number of trainings that this process has seen.
    """
    guard = Guard(strict=strict)
    rounds = 0

    def mod(message: Any, context: Any, call_next: Callable[[Any, Any], Any]) -> Any:
        nonlocal rounds
        before, number = (_weights(message), _round(message)) if _trains(message) else (None, None)
        reply = call_next(message, context)
        if before is None or reply.has_error():
            return reply
        rounds += 1
        now = rounds if number is None else number
        with guard.around("probing the update"):
            pair = members(context) if callable(members) else members
            found = _probe(model, loss, before, _weights(reply), pair, others, step=now, seed=seed)
            log(
                {
                    "privacy/whitebox/auc": found.auc.value,
                    "privacy/whitebox/auc_low": found.auc.low,
                    "privacy/whitebox/auc_high": found.auc.high,
                    "privacy/whitebox/tpr_at_1pct_fpr": found.tpr.value,
                },
                now,
            )
        return reply

    return mod


REFUSED = 403
"""Code of the error that a server gets in place of an update that the gate refused."""


def gate(guarded: Guarded, keeper: Gate) -> Mod:
    """A Flower mod that attacks every training reply on the client before it leaves, and refuses one that leaks.

        app = ClientApp(mods=[gate(Guarded(model, Pixels(…), batch=(x, y)), Gate()), LocalDpMod(…)])

    The parameter names of the guarded model must be the arrays' keys. Put it first, so it sees what leaves. The server gets an error
    with code 403 for a refused update, without a reason: that would be a fact about private data. A gate with a budget sends weights
    with its noise in them; arrays that are no parameters (running statistics) are then set back to what the server sent, because no
    noise covers them.
    """

    def mod(message: Any, context: Any, call_next: Callable[[Any, Any], Any]) -> Any:
        before = _weights(message) if _trains(message) else None
        reply = call_next(message, context)
        if before is None or reply.has_error():
            return reply
        after = _weights(reply)
        sent = copy.deepcopy(guarded.model)
        sent.load_state_dict(before, strict=False)
        victim = guarded.victim(sent)
        names = [name for name in victim.parameters() if name in before and name in after]
        if not names:
            raise Inapplicable("the arrays of the message carry none of the model's parameter names")
        update = {name: after[name] - before[name] for name in names}
        try:
            allowed = keeper(victim, update, *guarded.trained_on(context), channel=guarded.channel)
        except Refused:
            from flwr.app import Error, Message

            return Message(error=Error(code=REFUSED, reason="not sent"), reply_to=message)
        if keeper.budget is not None:
            _replace(
                reply,
                {name: before[name] for name in after if name in before} | {n: before[n] + allowed[n] for n in names},
            )
        return reply

    return mod


def _replace(message: Any, arrays: Mapping[str, Tensor]) -> None:
    """Puts these values in place of the arrays of the same names."""
    from flwr.app import ArrayRecord

    for key, record in list(message.content.array_records.items()):
        old = record.to_torch_state_dict()
        message.content[key] = ArrayRecord({name: arrays.get(name, value) for name, value in old.items()})


def _probe(
    model: nn.Module,
    loss: Loss,
    before: dict[str, Tensor],
    after: dict[str, Tensor],
    members: Pair,
    others: Pair,
    *,
    step: int,
    seed: int,
) -> WhiteBox:
    names = [name for name, p in model.named_parameters() if p.requires_grad and name in before and name in after]
    if not names:
        raise Inapplicable("the arrays of the message carry none of the model's parameter names")
    if _is_difference(before, after, names):  # read as weights it would tell nothing
        raise Inapplicable("the reply holds no weights but a difference or a gradient; the probe needs the new weights")
    sent = copy.deepcopy(model)
    sent.load_state_dict(before, strict=False)
    update = {name: before[name] - after[name] for name in names}
    # all layers are read, because local steps, clipping and noise of unknown size may be in the update
    return probe(sent, loss, update, members, others, protection=Protection(), step=step, seed=seed, whole=True)


def _is_difference(before: Mapping[str, Tensor], after: Mapping[str, Tensor], names: Sequence[str]) -> bool:
    """Whether a reply holds no weights but their change: no training shortens weights by half."""
    length, new_length = (
        sum(float(values[name].double().square().sum()) for name in names) ** 0.5 for values in (before, after)
    )
    return new_length < length / 2


def _trains(message: Any) -> bool:
    return str(message.metadata.message_type).startswith("train")


def _round(message: Any) -> int | None:
    """The server's round, which strategies send with the configuration, or as the group of the messages."""
    for record in message.content.config_records.values():
        if isinstance(number := record.get("server-round"), int):
            return number
    group = str(message.metadata.group_id)
    return int(group) if group.isdecimal() else None


def _weights(message: Any) -> dict[str, Tensor]:
    """Copies of all arrays of a message by name."""
    found: dict[str, Tensor] = {}
    for record in message.content.array_records.values():
        found |= {name: torch.as_tensor(value).clone() for name, value in record.to_torch_state_dict().items()}
    return found
