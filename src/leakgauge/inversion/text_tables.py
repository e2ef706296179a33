"""The gradients of the two look-up tables of a text model, and the relation between them, tried on the adversary's own ids."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from leakgauge.channels import Gradient
from leakgauge.channels.facts import is_weight_update, local_steps
from leakgauge.core import Channel, Signal, Tokens, Victim
from leakgauge.core.randomness import private_randomness
from leakgauge.engine.reference import capturing
from leakgauge.errors import Inapplicable
from leakgauge.families import Roles, find_roles
from leakgauge.inversion.tied_output import Output, output_part

AGREEMENT = 1e-2
"""How well a relation must hold on the adversary's own ids before an attack is called applicable."""

ABOVE = 1.5
"""How many times the usual size of a row of noise a row must have to count as more than noise."""


@dataclass(frozen=True)
class TextModel:
    """Names in a victim that takes token ids: ``token`` and ``position`` are parameters; ``position`` is None without one."""

    space: Tokens
    roles: Roles
    layer: str
    token: str
    position: str | None
    padding: int | None
    """Id whose row is never learned."""


def text_model(victim: Victim) -> TextModel:
    """Refuses a victim that takes no ids, or that no family knows."""
    if not isinstance(victim.space, Tokens):
        raise Inapplicable("the victim takes images; this attack reads the token ids of a text model")
    roles = find_roles(victim.model)
    if roles.token_embedding is None:
        raise Inapplicable("the model has no token embedding that a family knows")
    layer = victim.model.get_submodule(roles.token_embedding)
    assert isinstance(layer, nn.Embedding)
    shared_as = {id(p): name for name, p in victim.model.named_parameters()}
    position = roles.position_embedding
    return TextModel(
        victim.space,
        roles,
        roles.token_embedding,
        shared_as[id(layer.weight)],
        None if position is None else shared_as[id(victim.model.get_parameter(position))],
        layer.padding_idx,
    )


def token_rows(model: TextModel, victim: Victim, signal: Signal) -> Tensor:
    """Gradient of the token embedding (vocabulary, width)."""
    if model.token not in victim.parameters():
        raise Inapplicable(f"the token embedding {model.token} is fixed, so its gradient is not shared")
    return _shared(signal, model.token)


def position_table(model: TextModel, victim: Victim, signal: Signal) -> Tensor:
    """Gradient of the position embedding (positions there are, width)."""
    if model.position is None:
        raise Inapplicable("the model has no learned position embedding, so no position has a gradient of its own")
    if model.position not in victim.parameters():
        raise Inapplicable(f"the position embedding {model.position} is fixed, so its gradient is not shared")
    return _shared(signal, model.position).flatten(0, -2)


def _shared(signal: Signal, name: str) -> Tensor:
    if name not in signal:
        raise Inapplicable(f"not shared: {name}")
    return signal[name]


@dataclass(frozen=True, eq=False)
class Probe:
    """What the adversary sees when it sends ids of its own, none of them padding and half of them repeated."""

    ids: Tensor
    signal: Signal
    places: Tensor
    """Row of the position table that each position of a sentence looks up."""
    inputs: Tensor | None
    """What entered the asked-for layer, (length, width)."""


def probe(model: TextModel, victim: Victim, *, seed: int, reads: str | None = None) -> Probe:
    """``reads`` names a layer whose input is wanted."""
    ids = model.space.start(1, torch.Generator().manual_seed(seed))
    half = model.space.length // 2
    ids[:, model.space.length - half :] = ids[:, :half]
    if model.padding is not None:
        ids[ids == model.padding] = (model.padding + 1) % model.space.vocab
    ids = victim.to_input(ids)
    table = (model.roles.position_embedding or "").removesuffix(".weight")
    looked_up = isinstance(_module(victim.model, table), nn.Embedding)
    names = [name for name in (table if looked_up else None, reads) if name is not None]
    with private_randomness(seed, victim.device), capturing(victim.model, names) as seen:
        with torch.no_grad():
            unlikely = victim(ids).argmin(-1)  # so that the gradient does not vanish
        signal = Gradient()(victim, ids, unlikely)
    places = seen[table].flatten() if looked_up else torch.arange(model.space.length, device=ids.device)
    return Probe(ids[0], signal, places, None if reads is None else seen[reads][0].detach())


def _module(model: nn.Module, name: str) -> nn.Module | None:
    return dict(model.named_modules()).get(name) if name else None


def is_sparse(model: TextModel, tried: Probe) -> bool:
    """Whether the gradient of the token embedding has rows for the tokens that were sent, and for no others."""
    rows = tried.signal[model.token].abs().amax(1)
    others = torch.ones_like(rows, dtype=torch.bool)
    others[tried.ids] = False
    return not bool((rows[others] > 0).any())


def output_of(model: TextModel, rows: Tensor, tried: Probe, slots: int) -> Output | None:
    """What an output layer tied to the token embedding adds to its gradient ``rows``; None where there is no such layer.

    Refuses a model in which the adversary's own ids do not come out when that is taken away.
    """
    if is_sparse(model, tried):
        return None
    own = tried.signal[model.token]
    part = output_part(own, model.space.length)
    found = sent(part.without(own), part.floor)
    if not torch.equal(found, tried.ids.unique()):
        raise Inapplicable(
            f"the gradient of {model.token} has rows for tokens that were not sent, and these cannot be told from those that "
            "were: an output layer tied to it predicts as many places as the model is wide, or the table is used elsewhere too"
        )
    return output_part(rows, slots)


def require_sums(model: TextModel, victim: Victim, tried: Probe) -> None:
    """Refuses a model in which a token's row of the gradient is not the sum of the rows of its positions."""
    rows = token_rows(model, victim, tried.signal).double()
    parts = position_table(model, victim, tried.signal).double()[tried.places]
    output = output_of(model, rows.to(victim.dtype), tried, model.space.length)
    if output is not None:
        rows, parts = output.without(rows), output.without(parts)
    if not agree(torch.zeros_like(rows).index_add(0, tried.ids, parts), rows):
        raise Inapplicable(
            f"the gradient of {model.token} is not made of sums of rows of {model.position}: token and position embedding are "
            "not simply added, or one of them is used elsewhere too"
        )


def agree(a: Tensor, b: Tensor) -> bool:
    return bool((a - b).norm() <= AGREEMENT * b.norm())


def noise_size(rows: Tensor, slots: int) -> float:
    """Size of a row that stands for no token: 0, unless more rows differ from zero than ``slots`` tokens can fill.

    At least all rows but the ``slots`` largest hold nothing but noise then, and their median tells its size.
    """
    sizes = rows.norm(dim=1).sort().values
    idle = sizes[: max(0, len(sizes) - slots)]
    return float(idle.median()) if int((sizes > 0).sum()) > slots else 0.0


def sent(rows: Tensor, noise: float) -> Tensor:
    """Ids whose row of the gradient is larger than ``noise`` makes it, or not zero where there is none."""
    return (rows.norm(dim=1) > ABOVE * noise).nonzero().flatten()


def rounding(rows: Tensor, table: Tensor, channel: Channel, size: int) -> tuple[float, float]:
    """Relative and absolute rounding of a row: each local step of a weight update rounds the weights it changes."""
    eps = torch.finfo(rows.dtype).eps
    if not is_weight_update(channel):
        return 16 * eps, 0.0
    return 16 * eps, eps * local_steps(channel, size) ** 0.5 * float(table.norm(dim=1).max())


def one_sentence(size: int) -> None:
    """Refuses a batch of several sentences."""
    if size != 1:
        raise Inapplicable(
            f"the rows of the {size} sentences of a batch are added position by position, so no order can be read; "
            "bag_of_tokens still tells which tokens occur"
        )
