"""Sums over known participants, round after round: which clients' own updates follow from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.errors import BadInput

ALONE = 1e-6
"""A client whose direction is within this of the span of the participant lists follows from the sums."""


@dataclass(frozen=True, eq=False)
class Unmixed:
    """``updates`` maps a client to its update by name, for every client that the sums determine; ``hidden`` are the others. ``misfit`` is
    the share of the sums' length that equal updates in all rounds leave unexplained: from 0.1 on, say, clients did not send the same.
    ``gain`` maps a client to the factor by which independent noise on the sums becomes larger (or smaller) in its update.
    """

    updates: Mapping[int, Mapping[str, Tensor]]
    hidden: tuple[int, ...]
    misfit: float
    gain: Mapping[int, float]


def unmix(participants: Sequence[Sequence[int]], sums: Sequence[Mapping[str, Tensor]]) -> Unmixed:
    """What each client sent, from the sums Σ_{k in P_r} u_k over the participants P_r of round r, if its update is the same in all rounds.

    With A_rk = 1 where client k took part in round r, the sums are A·u, and û = A⁺·sums. Client k is determined if and only if e_k lies in
    the row space of A: ‖(I − A⁺A)·e_k‖ = 0. That is so where A has full column rank, but also for single clients where it has not. Noise
    of standard deviation σ on each sum has σ·‖row k of A⁺‖ in û_k.

    >>> ones = {"w": torch.ones(2)}
    >>> found = unmix([(0, 1), (0,)], [{"w": torch.tensor([3.0, 5.0])}, ones])
    >>> found.updates[1]["w"].tolist(), found.hidden
    ([2.0, 4.0], ())
    >>> unmix([(0, 1), (0, 1, 2)], [ones, ones]).hidden
    (0, 1)

    Ref: Lam et al. 2021, disaggregation — updates from sums and a participant matrix
    """
    if not sums or len(sums) != len(participants):
        raise BadInput(f"unmix needs the participants of every sum, got {len(participants)} lists for {len(sums)} sums")
    names = list(sums[0])
    if not names or any(list(one) != names for one in sums):
        raise BadInput("the sums of all rounds must hold the same tensors")
    if any(not those or min(those) < 0 or len(set(those)) < len(those) for those in participants):
        raise BadInput("every round needs at least one participant, numbered from 0, and each only once")
    clients = sorted({client for those in participants for client in those})
    taking = torch.zeros(len(sums), len(clients), dtype=torch.float64)
    for number, those in enumerate(participants):
        taking[number, [clients.index(client) for client in those]] = 1
    inverse = torch.linalg.pinv(taking)
    lost = (torch.eye(len(clients), dtype=torch.float64) - inverse @ taking).norm(dim=0)
    stacked = {name: torch.stack([one[name] for one in sums]).double().flatten(1) for name in names}
    solved = {name: inverse.to(rows.device) @ rows for name, rows in stacked.items()}
    left = [rows - taking.to(rows.device) @ solved[name] for name, rows in stacked.items()]
    length = sum(float(rows.square().sum()) for rows in stacked.values())
    misfit = (sum(float(rows.square().sum()) for rows in left) / length) ** 0.5 if length else 0.0
    known = {client: k for k, client in enumerate(clients) if float(lost[k]) <= ALONE}
    return Unmixed(
        updates={
            client: {name: solved[name][k].view_as(sums[0][name]).to(sums[0][name]) for name in names}
            for client, k in known.items()
        },
        hidden=tuple(client for client in clients if client not in known),
        misfit=misfit,
        gain={client: float(inverse[k].norm()) for client, k in known.items()},
    )
