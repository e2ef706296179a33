"""The blocks of a decoder, and its features after each of them for any tokens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from leakgauge.core import Tokens, Victim
from leakgauge.core.randomness import private_randomness
from leakgauge.core.running import output_at
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.inversion.readers import SAME, UNABLE, Continues

CAUSAL = 1e-5
"""Features that differ by less than this share do not depend on a token."""
BESIDE = 256
"""Candidates for one place that are run beside each other. Each attends to all of them, so more would cost more."""
STARTS = 128
"""Beginnings, or sentences, that are run at once."""


class DecoderBlocks:
    """The blocks of a decoder, found by running it, and its features after each of them."""

    def __init__(self, victim: Victim) -> None:
        if not isinstance(victim.space, Tokens):
            raise Inapplicable("prompts are searched in the features of a text model, but the victim takes images")
        self.victim: Victim = victim
        self.space: Tokens = victim.space
        lists = [(name, m) for name, m in victim.model.named_modules() if isinstance(m, nn.ModuleList) and len(m) > 0]
        if not lists:
            raise Inapplicable("the model has no list of blocks to be cut between")
        name, blocks = max(lists, key=lambda one: sum(p.numel() for p in one[1].parameters()))
        self.name: str = name
        self.blocks: list[nn.Module] = list(blocks)
        probe = victim.to_input(victim.space.start(2, torch.Generator().manual_seed(0)))
        features = self.features(probe, len(self.blocks))
        if features.shape[:2] != probe.shape:
            raise Inapplicable(f"the blocks in {self.name} do not give one feature per token")
        if features.shape[1] > 1:
            changed = probe.clone()
            changed[:, -1] = probe.flip(0)[:, -1]
            same = self.features(changed, len(self.blocks))[:, :-1]
            if float((same - features[:, :-1]).norm()) > CAUSAL * float(features.norm()):
                raise Inapplicable("the model reads tokens that follow, so prompts cannot be found token by token")
        self.continues: bool = self._goes_on(probe)

    def _goes_on(self, ids: Tensor) -> bool:
        """Whether candidates run beside each other after a memory have the features that each has by itself."""
        model = self.victim.model
        if ids.shape[1] < 2 or not (isinstance(model, Continues) and model.continues):
            return False
        starts, candidates, cut = ids[:, :-1], ids[:, -1].expand(2, -1), len(self.blocks)
        try:
            beside = self._beside(starts, candidates, cut)
        except UNABLE:
            return False
        alone = self._alone(starts, candidates, cut)
        return beside.shape == alone.shape and float((beside - alone).norm()) <= SAME * float(alone.norm())

    def __len__(self) -> int:
        return len(self.blocks)

    def refuse(self, cut: int) -> None:
        if not 1 <= cut <= len(self):
            raise BadInput(f"the model can be cut after block 1 to {len(self)}, got {cut}")

    def cut_name(self, cut: int) -> str:
        """The name of the cut, as the exporter of halves takes it."""
        return f"{self.name}.{cut - 1}"

    def edge_flops(self, cut: int) -> int:
        """Of the linear layers on the edge, for one token; attention adds a little for each token before."""
        return sum(2 * p.numel() for block in self.blocks[:cut] for p in block.parameters() if p.dim() > 1)

    def token_table(self) -> Tensor:
        """Embeddings of all tokens (vocab, width)."""
        for module in self.victim.model.modules():
            if isinstance(module, nn.Embedding) and module.num_embeddings == self.space.vocab:
                return module.weight.detach()
        raise Inapplicable("the model has no table of token embeddings")

    def features(self, ids: Tensor, cut: int, *, memory: Any = None, fill: bool = False) -> Tensor:
        """After ``cut`` blocks, (n, length, width); with a ``memory`` as :class:`~leakgauge.inversion.readers.Continues` describes it."""
        with (
            torch.no_grad(),
            private_randomness(0, self.victim.device),
            _output(self.blocks[cut - 1]) as (seen, ending),
        ):
            try:
                given = () if memory is None else (memory, fill)
                output_at(self.victim.model, self.victim.buffers(), self.victim.to_input(ids), *given)
            except _Enough as end:
                if end is not ending:
                    raise
                end.__traceback__ = None  # it refers to this frame: a cycle that would keep all tensors of the pass
        return seen[0]

    def predicted(self, ids: Tensor, *, cut: int | None = None, features: Tensor | None = None) -> Tensor:
        """The next token at each place (n, length) that the model predicts, or the cloud if it gets these ``features`` at a cut."""

        def put(module: nn.Module, given: Any, made: Any) -> Any:
            return (features, *made[1:]) if isinstance(made, tuple) else features

        handle = None if cut is None else self.blocks[cut - 1].register_forward_hook(put)
        try:
            with torch.no_grad(), private_randomness(0, self.victim.device):
                return self.victim(self.victim.to_input(ids)).argmax(-1)
        finally:
            if handle is not None:
                handle.remove()

    def next_scores(self, starts: Tensor) -> Tensor:
        """log p(v | start) by the model itself for ``starts`` (n, k), (n, vocab); the same for all if k = 0."""
        if starts.shape[1] == 0:
            return torch.zeros(len(starts), self.space.vocab, device=starts.device)
        with torch.no_grad(), private_randomness(0, self.victim.device):
            return torch.cat([self.victim(part)[:, -1].log_softmax(-1) for part in starts.split(STARTS)])

    def after(self, starts: Tensor, candidates: Tensor, cut: int) -> Tensor:
        """Features (n, m, width) of each of ``candidates`` (n, m) at the place after its start, of ``starts`` (n, k)."""
        if starts.shape[1] == 0 or not self.continues:
            return self._alone(starts, candidates, cut)
        return self._beside(starts, candidates, cut)

    def _alone(self, starts: Tensor, candidates: Tensor, cut: int) -> Tensor:
        rows = torch.cat([starts.repeat_interleave(candidates.shape[1], 0), candidates.reshape(-1, 1)], 1)
        found = torch.cat([self.features(part, cut)[:, -1] for part in rows.split(2 * STARTS)])
        return found.view(*candidates.shape, -1)

    def _beside(self, starts: Tensor, candidates: Tensor, cut: int) -> Tensor:
        model: Any = self.victim.model
        found: list[Tensor] = []
        for some, tried in zip(starts.split(STARTS), candidates.split(STARTS), strict=True):
            memory = model.memory()
            self.features(some, cut, memory=memory, fill=True)
            parts = [self.features(part, cut, memory=model.memory(memory)) for part in tried.split(BESIDE, 1)]
            found.append(torch.cat(parts, 1))
        return torch.cat(found)


class _Enough(Exception):
    """The features have been seen."""


@contextmanager
def _output(block: nn.Module) -> Iterator[tuple[list[Tensor], _Enough]]:
    seen, ending = list[Tensor](), _Enough()

    def keep(module: nn.Module, given: Any, made: Any) -> None:
        seen.append((made[0] if isinstance(made, tuple) else made).detach())
        raise ending

    handle = block.register_forward_hook(keep)
    try:
        yield seen, ending
    finally:
        handle.remove()
