"""The white-box probe as a mod of a Flower client: what does the update that leaves the client tell about its data?"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from leakgauge.core import Loss
from leakgauge.errors import Inapplicable
from leakgauge.monitor import Log
from leakgauge.monitor.guard import Guard
from leakgauge.monitor.whitebox import Protection, WhiteBox, probe

Pair = tuple[Tensor, Tensor]
Mod = Callable[[Any, Any, Callable[[Any, Any], Any]], Any]


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
    length, new_length = (
        sum(float(values[name].double().square().sum()) for name in names) ** 0.5 for values in (before, after)
    )
    if new_length < length / 2:  # no training shortens weights by half; a difference read as weights would tell nothing
        raise Inapplicable("the reply holds no weights but a difference or a gradient; the probe needs the new weights")
    sent = copy.deepcopy(model)
    sent.load_state_dict(before, strict=False)
    update = {name: before[name] - after[name] for name in names}
    # all layers are read, because local steps, clipping and noise of unknown size may be in the update
    return probe(sent, loss, update, members, others, protection=Protection(), step=step, seed=seed, whole=True)


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
