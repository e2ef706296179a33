"""The stream of (batch, gradient) pairs, cut into blocks; each block is scored before it is learned from.

Why the alarm is valid. Let B₁ … B_M be the batches of a block and gᵢ what was released at its step i. The candidates of step i
are the batches not used before: Bᵢ itself and the *later* ones of its block. The null hypothesis says that gᵢ reveals nothing
about Bᵢ beyond what the past reveals. The critic of a block was fitted on earlier blocks only. Condition on the earlier
blocks, B₁ … Bᵢ₋₁, g₁ … gᵢ, and the remaining batches Bᵢ … B_M as an unordered set. Under the null, and if the loader's order
is random (i.i.d. draws, or a shuffle within an epoch), each member of that set is equally likely to be Bᵢ. So the softmax over
the set, which sums to 1, has mean 1/(M-i+1) at Bᵢ, and the e-value

    eᵢ = (1-λ) + λ·(M-i+1)·softmax(scores)_true

has mean exactly 1 given all earlier e-values of the block, which are functions of the conditioned variables: a martingale, even
though decoys overlap. Earlier batches would not work as decoys: they have shaped the weights, hence gᵢ, and a critic could learn
to rule them out without any leak of Bᵢ. The weights are the same for all candidates, because there is only one gᵢ.

What it needs: a shuffled loader that does not depend on the model. If batches repeat in the same order the guarantee is lost;
this is detected and reported. Across the border of two epochs the order is random only up to what an epoch without replacement
reveals about its rest; call ``flush`` at the end of an epoch to be exact there.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from leakgauge.measures.betting import log_evalues
from leakgauge.monitor.critic import Critic
from leakgauge.monitor.ring import Ring

TEMPERATURES = (1.0, 2.0, 4.0, 10.0)
STAKE = 0.9
BLOCKS = (8, 8, 16, 16, 32, 32, 64)
"""Sizes of the blocks; the last size repeats. Short blocks come first, to find an early leak early."""
MEMORY = 96
"""Number of pairs that a critic learns from: the newest, because the weights change."""
NOISE = (1.0, 10.0)
"""Strengths of the noise control, relative to the sketch's norm."""
HASHES = 4096
REPEATS = 3


def is_sampled(step: int) -> bool:
    """Whether a step is used: the first 128, where leaks are largest, then every second, from 512 on every fourth.

    The rule is fixed in advance and does not depend on the data, so the alarm's guarantee is unchanged.
    """
    return step <= 128 or (step % 2 == 0 and (step <= 512 or step % 4 == 0))


@dataclass(frozen=True, eq=False)
class BlockScores:
    """The scores of one block, per step with enough candidates (n of them).

    ``nats`` (layers + 1, n): InfoNCE summands, joint critic first. ``hits`` (n,): 1/m if the true batch ranked first together
    with m − 1 others, and 0 if it did not; a critic that knows nothing scores all alike, which must not count. The controls:
    ``null`` (n,) from a critic trained and scored on shuffled pairs, ``decoy`` (n,) with a wrong batch declared true, ``noise``
    (levels, n) with noise added to the gradient. ``evalues`` (layers + 1, m, temperatures) and ``steps`` are for the alarm
    and cover all m steps.
    """

    nats: Tensor
    hits: Tensor
    null: Tensor
    decoy: Tensor
    noise: Tensor
    evalues: Tensor
    steps: list[int]


class Stream:
    """Holds the pairs of the current block and of the past, in fixed memory."""

    def __init__(
        self, layers: int, width: int, features: int, *, choices: int, seed: int, device: torch.device
    ) -> None:
        self.choices = choices
        self._rng = torch.Generator().manual_seed(seed)
        self._sketches = torch.zeros(BLOCKS[-1], layers, width, device=device)
        self._features = torch.zeros(BLOCKS[-1], features, device=device)
        self._sizes: list[int] = []
        self._steps: list[int] = []
        self._past_sketches = Ring(MEMORY, (layers, width))
        self._past_features = Ring(MEMORY, (features,))
        self._seen: OrderedDict[int, None] = OrderedDict()
        self._again = 0
        self.blocks = 0
        self._log_scores = torch.zeros(layers + 2, len(TEMPERATURES), dtype=torch.float64)
        self.not_finite = 0
        self.shuffled = True

    def add(self, step: int, sketch: Tensor, features: Tensor, size: int) -> bool:
        """Adds the pair of one step; returns whether the block is full and ready for :meth:`score`."""
        at = len(self._steps)
        self._sketches[at], self._features[at] = sketch, features
        self._steps.append(step)
        self._sizes.append(size)
        return at + 1 >= BLOCKS[min(self.blocks, len(BLOCKS) - 1)]

    def score(self) -> BlockScores | None:
        """Scores the block with the critic of the past, then adds it to the past. None if there was nothing to score."""
        count = len(self._steps)
        if count == 0:
            return None
        sketches, features = self._sketches[:count].cpu(), self._features[:count].cpu()
        steps, sizes = self._steps, torch.tensor(self._sizes)
        self._steps, self._sizes = [], []
        self.blocks += 1
        finite = sketches.flatten(1).isfinite().all(1) & features.isfinite().all(1)
        self.not_finite += int((~finite).sum())
        keep = (finite & _of_usual_size(sizes)).nonzero().flatten()
        sketches, features, steps = sketches[keep], features[keep], [steps[i] for i in keep.tolist()]
        self._look_for_repeats(features)
        known = len(self._past_sketches)
        scored = None
        if known >= 4 and len(steps) > 1:
            shuffle = torch.randperm(known, generator=self._rng)
            critic = Critic.of(self._past_sketches.values(), self._past_features.values(), shuffle)
            scored = self._score_block(critic, sketches, features, steps)
        self._past_sketches.append(sketches)
        self._past_features.append(features)
        return scored

    def _score_block(self, critic: Critic, sketches: Tensor, features: Tensor, steps: list[int]) -> BlockScores:
        count = len(steps)
        scores = critic.scores(sketches, features)
        truth = torch.arange(count)
        later = torch.ones(count, count).triu().bool()
        bets = self._evalues(scores[:-1], truth, later)
        # controls and the reported numbers use the same number of candidates everywhere
        rows = truth[: max(0, count - self.choices + 1)]
        some = self._draw(later[rows])
        decoys = some.clone()
        decoys[rows, rows] = False
        wrong = self._one_of(decoys)
        noise = self._noise(sketches)
        drowned = torch.cat([critic.joint_scores(sketches + level * noise, features) for level in NOISE])
        best = self._log_scores.argmax(-1)  # the best temperature on earlier blocks, per component

        def nats(scores: Tensor, truth: Tensor, allowed: Tensor, best: Tensor) -> Tensor:
            found = self._evalues(scores, truth, allowed)
            return found.gather(-1, best[:, None, None].expand(*found.shape[:-1], 1)).squeeze(-1)

        joint = best[:1]
        scored = BlockScores(
            nats=nats(scores[:-1, rows], rows, some, best[:-1]),
            hits=_ranked_first(scores[0, rows].masked_fill(~some, -torch.inf), rows),
            null=nats(scores[-1:, rows], self._one_of(some), some, best[-1:])[0],
            decoy=nats(scores[:1, rows], wrong, decoys, joint)[0],
            noise=nats(drowned[:, rows], rows, some, joint.expand(len(NOISE))),
            evalues=bets,
            steps=steps,
        )
        self._log_scores[:-1] += bets.sum(1)
        self._log_scores[-1] += self._evalues(scores[-1:], self._one_of(later), later)[0].sum(0)
        return scored

    def _evalues(self, scores: Tensor, truth: Tensor, allowed: Tensor) -> Tensor:
        temperatures = torch.tensor(TEMPERATURES, dtype=scores.dtype)
        return log_evalues(scores, truth, allowed=allowed, temperatures=temperatures, stake=STAKE)

    def _draw(self, later: Tensor) -> Tensor:
        """For each row, ``choices - 1`` of its later batches at random and the true one, which is on the diagonal."""
        keys = torch.rand(later.shape, generator=self._rng).masked_fill(~later, -1.0)
        keys.fill_diagonal_(2.0)
        chosen = keys.topk(min(self.choices, later.shape[1]), dim=1).indices
        return torch.zeros_like(later).scatter_(1, chosen, True)

    def _one_of(self, allowed: Tensor) -> Tensor:
        return torch.rand(allowed.shape, generator=self._rng).masked_fill(~allowed, -1.0).argmax(1)

    def _noise(self, sketches: Tensor) -> Tensor:
        """Gaussian noise with the sketch's norm, layer by layer."""
        length = sketches.norm(dim=-1, keepdim=True) / sketches.shape[-1] ** 0.5
        return length * torch.randn(sketches.shape, generator=self._rng)

    def _look_for_repeats(self, features: Tensor) -> None:
        """Counts consecutive batches that were seen before: a fixed order, or the same batch again and again."""
        for row in features.numpy():
            key = hash(row.tobytes())
            self._again = self._again + 1 if key in self._seen else 0
            self.shuffled = self.shuffled and self._again < REPEATS
            self._seen[key] = None
            if len(self._seen) > HASHES:
                self._seen.popitem(last=False)

    def state_dict(self) -> dict[str, Any]:
        """Everything but the unfinished block; its steps are not scored after loading."""
        return {
            "sketches": self._past_sketches.values(),
            "features": self._past_features.values(),
            "blocks": self.blocks,
            "log_scores": self._log_scores.clone(),
            "rng": self._rng.get_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._past_sketches.clear()
        self._past_features.clear()
        self._past_sketches.append(state["sketches"])
        self._past_features.append(state["features"])
        self.blocks, self._log_scores = state["blocks"], state["log_scores"].clone()
        self._rng.set_state(state["rng"])

    def nbytes(self) -> int:
        own = self._sketches.nbytes + self._features.nbytes + self._log_scores.nbytes
        return own + self._past_sketches.nbytes() + self._past_features.nbytes() + HASHES * 16


def _of_usual_size(sizes: Tensor) -> Tensor:
    """Drops the shorter batch at the end of an epoch, because its position is not random.

    The rule does not depend on the order: if three quarters of a block have the same size the others are dropped; if sizes vary
    by chance (Poisson sampling) all are kept.
    """
    usual = sizes.mode().values
    same = sizes == usual
    return same if bool(same.double().mean() >= 0.75) else torch.ones_like(same)


def _ranked_first(scores: Tensor, truth: Tensor) -> Tensor:
    """(n,): the chance that the true column of ``scores`` (n, candidates) is chosen if ties at the top are broken at random."""
    top = scores == scores.amax(1, keepdim=True)
    return top.gather(1, truth[:, None])[:, 0].double() / top.sum(1)
