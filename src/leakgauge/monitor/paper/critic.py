"""The MINE network of the privacy-token paper: its training, and the numbers read from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from leakgauge.core.randomness import private_randomness
from leakgauge.errors import BadInput
from leakgauge.measures.mutual_information.dv import log_mean_exp
from leakgauge.monitor.paper.tokens import Token

EMBEDDING = 128
CHUNK = 64
"""How many pairs are read at once."""


@dataclass(frozen=True)
class TokenCriticFit:
    """N_MINE ``steps``, each on a ``fraction`` of the pairs; ``token_lr`` for the token network, ``lr`` for the rest.

    Ref: Meng et al. 2025, Appendix A — N_MINE = 200, 10 % batches, learning rates 1e-5 and 1e-4
    """

    steps: int = 200
    fraction: float = 0.1
    lr: float = 1e-4
    token_lr: float = 1e-5

    def __post_init__(self) -> None:
        if self.steps < 1 or not 0 < self.fraction <= 1 or min(self.lr, self.token_lr) <= 0:
            raise BadInput(f"the critic needs steps, a fraction in (0, 1] and positive learning rates, got {self}")


@dataclass(frozen=True)
class Gap:
    """What the critic T gives for true pairs (P) and mismatched ones (Q). **A critic gap, not a mutual information.**

    ``matched`` = E_P[T] − log E_Q[exp T] and ``mismatched`` = E_Q[T] − log E_Q[exp T] (never above 0, by Jensen) are what the
    paper calls I(X; G) and I(X; G'). In their difference, ``gap``, the logarithm cancels: E_P[T] − E_Q[T]. For the
    best critic that is the Jeffreys divergence KL(P‖Q) + KL(Q‖P), which exceeds the mutual information KL(P‖Q).

    ``each_matched`` and ``each_mismatched`` are the same per batch, with the log term over all; their means are the two above.
    """

    matched: float
    mismatched: float
    each_matched: tuple[float, ...] = field(default=(), repr=False)
    each_mismatched: tuple[float, ...] = field(default=(), repr=False)

    @property
    def gap(self) -> float:
        return self.matched - self.mismatched


class TokenCritic(nn.Module):
    """T(x, g): features and token each go through two linear layers to 128 values, then together through two more to a scalar.

    One value per sample of the batch: [T(x, g)]_i sees the features of sample i and the gradient of its whole batch.

    Ref: Meng et al. 2025, Appendix A — settings of the MINE network
    """

    def __init__(self, features: int, sizes: Sequence[int], token: Token) -> None:
        super().__init__()
        self.token = token.build(sizes)
        self.of_features = _two_layers(features, EMBEDDING)
        self.of_token = _two_layers(self.token.size, EMBEDDING)
        self.head = _two_layers(2 * EMBEDDING, 1)

    def forward(self, features: Tensor, layers: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Values (m, batch) for ``features`` (m, batch, d) and the gradients of m batches; and the token's own loss."""
        token, own_loss = self.token(layers)
        right = self.of_token(token)[:, None].expand(-1, features.shape[1], -1)
        both = torch.cat([self.of_features(features), right], 2)
        return self.head(both)[..., 0], own_loss


def _two_layers(start: int, end: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(start, EMBEDDING), nn.ReLU(), nn.Linear(EMBEDDING, end))


@dataclass
class CriticTrainer:
    """A critic and its optimizer, so training can continue where it stopped. Does not use the global generator."""

    network: TokenCritic
    optimizer: torch.optim.Optimizer
    training: TokenCriticFit
    rng: torch.Generator

    @classmethod
    def build(
        cls,
        features: int,
        sizes: Sequence[int],
        token: Token,
        training: TokenCriticFit,
        *,
        seed: int,
        device: torch.device,
    ) -> CriticTrainer:
        with private_randomness(seed, device):
            network = TokenCritic(features, sizes, token).to(device)
        rest = [p for name, p in network.named_parameters() if not name.startswith("token.")]
        groups = [{"params": network.token.parameters(), "lr": training.token_lr}, {"params": rest, "lr": training.lr}]
        return cls(network, torch.optim.Adam(groups), training, torch.Generator().manual_seed(seed))

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device

    def train(self, features: Tensor, layers: Sequence[Tensor], own: Tensor, other: Tensor) -> None:
        """Algorithm 1's MINE training: row i's features with the gradient in row ``own[i]``, against the one in ``other[i]``.

        Minimises −E_pos[T] + log E_neg[exp T], plus the token's own loss.

        Ref: Meng et al. 2025, Algorithm 1 — MINE network training
        """
        n = len(features)
        count = max(2, round(self.training.fraction * n))
        self.network.train()
        with private_randomness(int(torch.randint(1 << 31, (1,), generator=self.rng)), self.device):
            for _ in range(self.training.steps):
                positive, negative = (torch.randperm(n, generator=self.rng)[:count] for _ in range(2))
                matched, own_loss = self._values(features[positive], layers, own[positive])
                unmatched, _ = self._values(features[negative], layers, other[negative])
                loss = -matched.mean() + log_mean_exp(unmatched) + own_loss
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()

    def read(self, features: Tensor, layers: Sequence[Tensor], own: Tensor, other: Tensor) -> Gap:
        """Algorithm 1's estimate for matched pairs, and the same for mismatched ones; rows as in :meth:`train`.

        Ref: Meng et al. 2025, Algorithm 1 — mutual information estimation; section 4.2.1 — the difference that is reported
        """
        self.network.eval()
        chunks = torch.arange(len(features)).split(CHUNK)
        with torch.no_grad():
            matched, unmatched = (
                torch.cat([self._values(features[rows], layers, at[rows])[0].double().cpu() for rows in chunks])
                for at in (own, other)
            )
        log_term = float(log_mean_exp(unmatched))
        each, each_unmatched = ((values.mean(1) - log_term).tolist() for values in (matched, unmatched))
        return Gap(
            float(matched.mean()) - log_term, float(unmatched.mean()) - log_term, tuple(each), tuple(each_unmatched)
        )

    def _values(self, features: Tensor, layers: Sequence[Tensor], rows: Tensor) -> tuple[Tensor, Tensor]:
        return self.network(features.to(self.device), [layer[rows].to(self.device) for layer in layers])


def mismatch(groups: Tensor, rng: torch.Generator) -> Tensor:
    """For every row another row of the same group, each used once; a group of one row keeps its own."""
    partners = torch.arange(len(groups))
    for group in groups.unique():
        rows = torch.nonzero(groups == group)[:, 0]
        rows = rows[torch.randperm(len(rows), generator=rng)]
        partners[rows] = rows.roll(1)
    return partners
