"""Updates that were captured elsewhere: files of tensors by name, checked against the model before anything runs."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from leakgauge.audit.case import Case
from leakgauge.audit.setup import embedded
from leakgauge.channels import FedAvg, Gradient
from leakgauge.core import Assumption, Observation, Signal, Victim
from leakgauge.errors import BadInput
from leakgauge.families.nearest import nearest
from leakgauge.integrations.resolve import load_model
from leakgauge.models.pretrained import PRETRAINED

Holds = Literal["gradient", "delta", "weights"]
"""What an update file holds: gradients, new minus old weights, or the new weights themselves."""


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Tensors by name of a ``.safetensors`` file, or of a ``.pt`` / ``.pth`` file read without running any code in it."""
    if not path.is_file():
        raise BadInput(f"there is no file {path}; give a .safetensors or .pt file of tensors by name")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        found = torch.load(path, map_location="cpu", weights_only=True)
    except SafetensorError as error:
        raise BadInput(f"{path} is no safetensors file: {error}") from error
    except (pickle.UnpicklingError, RuntimeError, EOFError, KeyError, ValueError) as error:
        raise BadInput(
            f"{path} holds more than tensors, or is damaged; save a state dict with torch.save or safetensors"
        ) from error
    if isinstance(found, Mapping) and isinstance(found.get("state_dict"), Mapping):
        found = found["state_dict"]
    if not isinstance(found, Mapping) or not all(isinstance(v, Tensor) for v in found.values()) or not found:
        raise BadInput(
            f"{path} must hold tensors by name (a state dict), it holds a {type(found).__name__}; "
            "tensors by position have no names to check"
        )
    return {str(name): value for name, value in found.items()}


def with_weights(model: nn.Module, weights: Mapping[str, Tensor], *, source: str, hint: str = "") -> nn.Module:
    """The model with the given state; names and shapes must all fit. ``hint`` ends the complaint about a name."""
    state = model.state_dict()
    _check(weights, state, source=source, hint=hint)
    missing = [name for name in state if name not in weights]
    if missing:
        raise BadInput(f"{source} lacks {missing[0]!r} ({len(missing)} of {len(state)} names); is it of another model?")
    model.load_state_dict(dict(weights))
    return model


def _hint(case: Case) -> str:
    """The embedded model is taken where none is named, so a foreign update meets it by mistake."""
    return f" (the model is the embedded {case.model}; name your own as MODEL)" if case.model in PRETRAINED else ""


def _check(given: Mapping[str, Tensor], state: Mapping[str, Tensor], *, source: str, hint: str = "") -> None:
    for name, value in given.items():
        if name not in state:
            complaint = f"{source} names {name!r}, which the model does not have; {nearest(name, list(state))}"
            raise BadInput(f"{complaint}{hint}")
        if value.shape != state[name].shape:
            raise BadInput(
                f"{name} in {source} has shape {tuple(value.shape)}, the model's has {tuple(state[name].shape)}"
            )


def captured_victim(case: Case, weights: Path | None) -> Victim:
    """The case's model at the weights that the server sent out; its own where no file is given."""
    if case.model in PRETRAINED:
        victim = embedded(case).victim
        model, space, loss = victim.model, victim.space, victim.loss
    else:
        loaded = load_model(case.model, seed=case.seed, classes=case.classes)
        model, space, loss = loaded.model, loaded.space, loaded.loss
        if space is None:
            raise BadInput(
                f"{case.model} does not say which images it takes; return (model, Pixels((3, 32, 32))) from it, with your own channels, "
                "height and width (from leakgauge import Pixels)"
            )
    if weights is not None:
        model = with_weights(model, read_tensors(weights), source=str(weights), hint=_hint(case))
    return Victim(model.to(case.device), space, loss=loss, mode=case.mode, name=case.model)


def _refuse_the_other(sent: Signal, known: Signal, holds: str, *, source: str) -> None:
    """Whole weights lie near the model's own, their difference is short; taken for each other they would be attacked in vain.

    w' are weights where ‖w' − w‖ < ‖w‖ / 2: one round of training moves weights by less than their own length. They are a difference
    where ‖w'‖ < ‖w‖ / 2.
    """
    differences, own = [value - known[name] for name, value in sent.items()], [known[name] for name in sent]
    away, length, model_length = (
        sum(float(value.double().square().sum()) for value in values) ** 0.5
        for values in (differences, sent.values(), own)
    )
    if holds == "delta" and away < model_length / 2:
        raise BadInput(
            f"{source} holds whole weights (they are nearly the model's own), not their difference; add --update-holds weights"
        )
    if holds == "weights" and length < model_length / 2:
        raise BadInput(
            f"{source} holds no weights of this model (they are far shorter than the model's own); "
            "if it is a difference add --update-holds delta"
        )


def captured_observation(victim: Victim, update: Path, case: Case, *, holds: str = "delta") -> Observation:
    """What the server saw, from the file of one client's update.

    A single local step of plain SGD is turned into its gradient, Δ / −lr. Running statistics among the names, in a file of
    deltas or weights, are what the client shared of them.
    """
    if holds not in get_args(Holds):
        raise BadInput(f"an update holds {', '.join(get_args(Holds))}, got {holds!r}")
    given, parameters, buffers = read_tensors(update), victim.parameters(), victim.buffers()
    known = {name: value.detach() for name, value in victim.model.state_dict().items()}
    _check(given, known, source=str(update), hint=_hint(case))
    sent = {name: value.to(victim.device) for name, value in given.items()}
    if holds in ("weights", "delta"):
        _refuse_the_other({n: v for n, v in sent.items() if n in parameters}, known, holds, source=str(update))
    if holds == "weights":
        sent = {name: value - known[name] for name, value in sent.items()}
    signal = {name: value.to(parameters[name]) for name, value in sent.items() if name in parameters}
    if not any(bool(value.any()) for value in signal.values()):
        raise BadInput(f"{update} changes no trainable parameter; nothing can be read from it")
    shared = {name: buffers[name] + value.to(buffers[name]) for name, value in sent.items() if name in buffers}
    several = case.local_steps > 1
    if holds != "gradient" and not several:
        signal = {name: value / -case.local_lr for name, value in signal.items()}
    if holds == "gradient" and several:
        raise BadInput("a gradient comes from one step; for several local steps give the weights or their difference")
    told = [Assumption(f"batch size known ({case.batch_size})", "deployable")]
    if victim.mode == "eval" and victim.depends_on_mode():
        told.append(Assumption("client is taken to compute in eval mode (real training uses train mode)", "diagnostic"))
    if shared and holds != "gradient":
        told.append(Assumption("running statistics shared with the update", "deployable"))
    return Observation(
        signal=signal,
        channel=FedAvg(steps=case.local_steps, lr=case.local_lr) if several else Gradient(),
        size=case.batch_size,
        buffers={**buffers, **shared} if shared and holds != "gradient" else None,
        assumptions=tuple(told),
    )
