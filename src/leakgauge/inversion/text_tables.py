"""The gradients of a text model's two look-up tables, and the relation between them, tested on the adversary's own ids."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from leakgauge.channels import Gradient
from leakgauge.channels.facts import is_weight_update, local_steps, require_shared
from leakgauge.core import Channel, Signal, Tokens, Victim
from leakgauge.core.randomness import private_randomness
from leakgauge.engine.reference import capturing
from leakgauge.errors import Inapplicable
from leakgauge.families import Roles, find_roles

AGREEMENT = 1e-2
"""How well a relation must hold on the adversary's own ids for an attack to apply."""

ABOVE = 1.5
"""A row counts as more than noise if it is this many times as large as a typical row of noise."""


@dataclass(frozen=True)
class TextModel:
    """Names in a victim that takes token ids. ``token`` and ``position`` are parameters; ``position`` is None if there is none."""

    space: Tokens
    roles: Roles
    layer: str
    token: str
    position: str | None
    padding: int | None
    """The id of which the row is never trained."""


def token_space(victim: Victim) -> Tokens:
    if not isinstance(victim.space, Tokens):
        raise Inapplicable("this attack reads token ids of a text model, but the victim takes images")
    return victim.space


def text_model(victim: Victim) -> TextModel:
    """Refuses a victim that does not take ids, or a model of an unknown family."""
    space = token_space(victim)
    roles = find_roles(victim.model)
    if roles.token_embedding is None:
        raise Inapplicable("the model has no token embedding of a known family")
    layer = victim.model.get_submodule(roles.token_embedding)
    assert isinstance(layer, nn.Embedding)
    shared_as = {id(p): name for name, p in victim.model.named_parameters()}
    position = roles.position_embedding
    return TextModel(
        space,
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
    return require_shared(signal, model.token)


def position_table(model: TextModel, victim: Victim, signal: Signal) -> Tensor:
    """Gradient of the position embedding (positions, width)."""
    if model.position is None:
        raise Inapplicable("the model has no learned position embedding, so there is no gradient per position")
    if model.position not in victim.parameters():
        raise Inapplicable(f"the position embedding {model.position} is fixed, so its gradient is not shared")
    return require_shared(signal, model.position).flatten(0, -2)


@dataclass(frozen=True, eq=False)
class Probe:
    """What the adversary sees when it sends its own ids, none of them padding and half of them repeated."""

    ids: Tensor
    signal: Signal
    places: Tensor
    """The row of the position table for each position of a sentence."""
    inputs: Tensor | None
    """Input of the requested layer, (length, width)."""


def probe(model: TextModel, victim: Victim, *, seed: int, reads: str | None = None) -> Probe:
    """``reads`` names a layer of which the input is recorded."""
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
            unlikely = victim(ids).argmin(-1)  # so the gradient does not vanish
        signal = Gradient()(victim, ids, unlikely)
    places = seen[table].flatten() if looked_up else torch.arange(model.space.length, device=ids.device)
    return Probe(ids[0], signal, places, None if reads is None else seen[reads][0].detach())


def _module(model: nn.Module, name: str) -> nn.Module | None:
    return dict(model.named_modules()).get(name) if name else None


def is_sparse(model: TextModel, tried: Probe) -> bool:
    """Whether the gradient of the token embedding has nonzero rows exactly for the tokens that were sent."""
    rows = tried.signal[model.token].abs().amax(1)
    others = torch.ones_like(rows, dtype=torch.bool)
    others[tried.ids] = False
    return not bool((rows[others] > 0).any())


def output_of(model: TextModel, rows: Tensor, tried: Probe, slots: int) -> Output | None:
    """What an output layer tied to the token embedding adds to its gradient ``rows``; None if there is no such layer.

    Refuses a model where the adversary's own ids are not recovered after removing that part.
    """
    if is_sparse(model, tried):
        return None
    own = tried.signal[model.token]
    part = output_part(own, model.space.length)
    found = sent_ids(part.without(own), part.floor)
    if not torch.equal(found, tried.ids.unique()):
        raise Inapplicable(
            f"the gradient of {model.token} has rows for tokens that were not sent, and these cannot be separated from the "
            "others: a tied output layer predicts as many places as the model is wide, or the table has another use"
        )
    return output_part(rows, slots)


def require_sums(model: TextModel, victim: Victim, tried: Probe) -> None:
    """Refuses a model where a token's gradient row is not the sum of the rows of its positions."""
    rows = token_rows(model, victim, tried.signal).double()
    parts = position_table(model, victim, tried.signal).double()[tried.places]
    output = output_of(model, rows.to(victim.dtype), tried, model.space.length)
    if output is not None:
        rows, parts = output.without(rows), output.without(parts)
    if not agree(torch.zeros_like(rows).index_add(0, tried.ids, parts), rows):
        raise Inapplicable(
            f"the gradient of {model.token} is not made of sums of rows of {model.position}: token and position embedding are "
            "not simply added, or one of them has another use"
        )


def agree(a: Tensor, b: Tensor) -> bool:
    return bool((a - b).norm() <= AGREEMENT * b.norm())


def noise_size(rows: Tensor, slots: int) -> float:
    """Size of a row that belongs to no token: 0, unless more rows differ from zero than ``slots`` tokens can fill.

    In that case all rows but the ``slots`` largest hold only noise, and their median is its size.
    """
    sizes = rows.norm(dim=1).sort().values
    idle = sizes[: max(0, len(sizes) - slots)]
    return float(idle.median()) if int((sizes > 0).sum()) > slots else 0.0


def sent_ids(rows: Tensor, noise: float) -> Tensor:
    """Ids with a gradient row larger than ``noise`` explains, or nonzero if there is no noise."""
    return (rows.norm(dim=1) > ABOVE * noise).nonzero().flatten()


def row_rounding(rows: Tensor, table: Tensor, channel: Channel, size: int) -> tuple[float, float]:
    """Relative and absolute rounding of a row: each local step of a weight update rounds the weights it changes."""
    eps = torch.finfo(rows.dtype).eps
    if not is_weight_update(channel):
        return 16 * eps, 0.0
    return 16 * eps, eps * local_steps(channel, size) ** 0.5 * float(table.norm(dim=1).max())


def require_one_sentence(size: int) -> None:
    """Refuse a batch of several sentences."""
    if size != 1:
        raise Inapplicable(
            f"the rows of the {size} sentences of a batch are summed by position, so no order can be read; "
            "bag_of_tokens still finds which tokens occur"
        )


RANK = 100
"""Singular values below this many rounding errors of the largest count as zero."""

STANDS_OUT = 10
"""Rows that have this many times what rounding left of rows that were not sent may be of tokens that were."""

SHOWING = 16
"""How many rows per dimension are enough to find the span; a large vocabulary has many more."""


@dataclass(frozen=True, eq=False)
class Output:
    """Of a token embedding that is also the output layer: the output's part of its gradient spans few directions.

    ``basis`` (width, rank) spans that part; ``floor`` is the most that rounding can leave of it in a row. ``idle`` is what it did leave in
    rows of tokens that were not sent, as a share of their size.
    """

    basis: Tensor
    floor: float
    idle: float = 0.0

    def without(self, rows: Tensor) -> Tensor:
        """Rows (N, width), in float64, without their part in those directions."""
        wide = rows.double()
        return wide - (wide @ self.basis) @ self.basis.T

    def doubtful(self, rows: Tensor) -> int:
        """Rows that stand out from those of tokens that were not sent, but not from what rounding can do at worst."""
        left, sizes = self.without(rows).norm(dim=1), rows.double().norm(dim=1)
        return int(((left <= ABOVE * self.floor) & (left > STANDS_OUT * self.idle * sizes)).sum())


def output_part(rows: Tensor, slots: int) -> Output:
    """Finds the directions of the output layer in the gradient of a table E that embeds tokens and scores them.

        ∂l/∂E_v = Σ_{p: t_p = v} δ_p  +  Σ_s (prob_s(v) − [v is the target at s]) h_s

    h_s are the features before the output layer, at most one per place out of ``slots``. A token that was not sent has only
    the second sum, so its row is in the span of the h_s, and there are many such tokens. The rows of sent tokens, at most
    ``slots``, are larger. So the ``2 slots`` largest are left out, and the others, scaled to length one, give the span.
    Orthogonal to it only the first sum remains.
    """
    width, eps = rows.shape[1], torch.finfo(rows.dtype).eps
    sizes = rows.double().norm(dim=1)
    idle = sizes.argsort()[: max(0, len(rows) - 2 * slots)]
    idle = idle[sizes[idle] > 0]
    idle = idle[:: max(1, len(idle) // (SHOWING * width))]
    if len(idle) < width:
        raise Inapplicable(
            f"the token embedding is also the output layer, and {len(rows)} tokens are too few to separate its {width} "
            "directions"
        )
    scaled = rows[idle].double() / sizes[idle, None]
    _, values, directions = torch.linalg.svd(scaled, full_matrices=False)
    rank = int((values > RANK * eps * values[0]).sum())
    if rank >= width:
        raise Inapplicable(
            f"the token embedding is also the output layer, and its gradient fills all {width} directions: more places are "
            "predicted than the model is wide, or there is noise"
        )
    slip = eps * float(values[0] / values[rank - 1])  # how far rounding turns the weakest direction
    basis = directions[:rank].T
    left = float((scaled - (scaled @ basis) @ basis.T).norm(dim=1).max())
    return Output(basis, 10 * slip * float(sizes.max()), left)
