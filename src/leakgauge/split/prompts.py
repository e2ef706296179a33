"""Prompts of a language model from the features at a cut, token by token, and what noise on the features costs and buys.

A decoder's feature at a place depends on the tokens up to it. Who knows the edge's weights runs candidates for the next token after the
prompt found so far, and takes the one whose feature is nearest to the one that was sent (SipIt, Nikolaou et al. 2025). From below, that
attack says how many tokens leak. From above a genie says it: one that knows all *other* tokens of the prompt, and that the true one is
among a few, decides by the likelihood of all features, with and without the model's own prediction. No attacker knows more than
that, so none names more tokens on average.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from leakgauge.core import Tokens, Victim
from leakgauge.core.randomness import private_randomness
from leakgauge.core.running import output_at
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.inversion.readers import SAME, UNABLE, Continues
from leakgauge.measures.intervals import clopper_pearson

Sent = Literal["float32", "bfloat16", "int8", "noise"]
FIRST, TRIED = 32, 512
"""Candidates, in the order of the probe, that are run first, and that are run at most where no feature fits exactly."""
FITS = 1e-5
"""A float32 feature fits if it differs from the one sent by less than this share of its length. The first token of a trained model has
long features that hardly depend on it, so this is close to rounding."""
ENTRIES = 0.99
"""Share of the entries of a feature in bfloat16 that must be what the candidate's would be rounded to."""
CAUSAL = 1e-5
"""Features that differ by less than this share do not depend on a token."""
GENIE = 32
"""Tokens that the genie chooses from: the true one and those with the nearest features."""
RIDGE = 1e-3
"""Weight of the penalty of the probe, as a share of the features' variance."""
ALONE = 2048
"""Single tokens that the probe of the first token is fitted on."""
BYTES = {"float32": 4, "bfloat16": 2, "int8": 1, "noise": 4}


@dataclass(frozen=True)
class Protection:
    """How features are sent.

    ``noise`` is the deviation of Gaussian noise, as a share of the size of a feature's entry (median over places).
    """

    sent: Sent = "float32"
    noise: float = 0.0

    def __post_init__(self) -> None:
        if (self.sent == "noise") != (self.noise > 0):
            raise BadInput(f"noise needs a positive size and only then has one, got {self.sent} with {self.noise}")

    def scale(self, features: Tensor) -> float:
        """Deviation of the noise, or of rounding, for features (..., width)."""
        size = float(features.norm(dim=-1).median()) / math.sqrt(features.shape[-1])
        if self.sent == "int8":
            return float(features.abs().max()) / 127 / math.sqrt(12)
        return {"noise": self.noise, "bfloat16": 2**-9, "float32": 2**-22}[self.sent] * size

    def deviation(self, sent: Tensor) -> float:
        """σ as an adversary estimates it from what was ``sent``, whose squared size the noise makes 1 + noise² times as large."""
        return self.scale(sent) / math.sqrt(1 + self.noise**2)

    def fits(self, made: Tensor, target: Tensor) -> Tensor:
        """Which of the features ``made`` (n, width) a sent one can only have come from; none where rounding or noise hides that."""
        away = (made - target).abs()
        if self.sent == "float32":
            return away.norm(dim=1) <= FITS * target.norm()
        if self.sent == "bfloat16":
            return (away <= 2**-8 * target.abs() + FITS * target.norm() / math.sqrt(len(target))).float().mean(
                1
            ) >= ENTRIES
        return torch.zeros(len(made), dtype=torch.bool, device=made.device)

    def __call__(self, features: Tensor, *, rng: torch.Generator) -> Tensor:
        """What arrives in the cloud."""
        if self.sent == "bfloat16":
            return features.bfloat16().to(features.dtype)
        if self.sent == "int8":
            step = features.abs().max() / 127
            return (features / step).round() * step
        if self.sent == "noise":
            drawn = torch.randn(features.shape, generator=rng, dtype=features.dtype)
            return features + self.scale(features) * drawn.to(features.device)
        return features


@dataclass(frozen=True)
class PromptRisk:
    """What was found at one cut under one protection.

    Of ``tokens``, ``found`` were named right by the attack, ``genie`` by the genie, of ``asked`` that it was asked for; ``found_asked`` of
    those the attack found. ``agreement``: the share of places at which the cloud still predicts the same next token. ``bytes`` and
    ``flops`` are per token: sent, and spent on the edge. ``tried`` counts candidates that were run. ``recovered`` are the ids that the
    attack found, one row for each prompt.
    """

    cut: int
    protection: Protection
    tokens: int
    found: int
    exact_prompts: int
    prompts: int
    agreement: float
    bytes: int
    flops: int
    tried: int
    asked: int = 0
    genie: int = 0
    found_asked: int = 0
    recovered: tuple[tuple[int, ...], ...] = ()

    @property
    def rate(self) -> float:
        return self.found / self.tokens

    @property
    def genie_rate(self) -> float | None:
        return self.genie / self.asked if self.asked else None


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
        start, candidates, cut = ids[0, :-1], ids[:, -1].unique(), len(self.blocks)
        try:
            beside = self._beside(start, candidates, cut)
        except UNABLE:
            return False
        alone = self._alone(start, candidates, cut)
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
        return seen[0]

    def resume(self, ids: Tensor, cut: int, features: Tensor) -> Tensor:
        """The model's scores (n, length, vocab) if the cloud gets these features."""

        def put(module: nn.Module, given: Any, made: Any) -> Any:
            return (features, *made[1:]) if isinstance(made, tuple) else features

        handle = self.blocks[cut - 1].register_forward_hook(put)
        try:
            with torch.no_grad(), private_randomness(0, self.victim.device):
                return self.victim(self.victim.to_input(ids))
        finally:
            handle.remove()

    def after(self, start: Tensor, candidates: Tensor, cut: int) -> Tensor:
        """Features (n, width) of each of ``candidates`` (n,) at the place after ``start`` (k,)."""
        if len(start) == 0 or not self.continues:
            return self._alone(start, candidates, cut)
        return self._beside(start, candidates, cut)

    def _alone(self, start: Tensor, candidates: Tensor, cut: int) -> Tensor:
        rows = torch.cat([start.expand(len(candidates), -1), candidates[:, None]], 1)
        return torch.cat([self.features(part, cut)[:, -1] for part in rows.split(256)])

    def _beside(self, start: Tensor, candidates: Tensor, cut: int) -> Tensor:
        model: Any = self.victim.model
        memory = model.memory()
        self.features(start[None], cut, memory=memory, fill=True)
        parts = candidates.split(1024)
        return torch.cat([self.features(part[None], cut, memory=model.memory(memory))[0] for part in parts])


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


@dataclass(frozen=True, eq=False)
class Probe:
    """Orders the vocabulary by how near the embedding of a token is to a linear guess from the feature.

    The guess of the first token is made by ``first``: trained models give it features of another size.
    """

    weight: Tensor
    mean: Tensor
    table: Tensor
    centre: Tensor
    first: Probe | None = None

    def guess(self, feature: Tensor) -> Tensor:
        """The embedding of the token that has this feature, by the regression."""
        return self.centre + (feature - self.mean) @ self.weight

    def step(self, feature: Tensor, token: Tensor, own: Tensor) -> Tensor:
        """The same from a ``token`` with the feature ``own`` nearby: e + (z − z_own) W. What other tokens add to a feature cancels out."""
        return self.table[token] + (feature - own) @ self.weight

    def nearest(self, guess: Tensor, most: int, *, tested: Tensor) -> Tensor:
        """The ids of the ``most`` tokens with the nearest embeddings, without those that were ``tested`` (vocab,)."""
        far = (self.table - guess).square().sum(1).masked_fill(tested, math.inf)
        return far.topk(min(most, int((~tested).sum())), largest=False).indices


def fit_probe(blocks: DecoderBlocks, cut: int, public: Tensor, *, seed: int = 0) -> Probe:
    """Ridge regression from features to the embeddings of their tokens, on the adversary's own sentences ``public`` (n, length).

        W = (Zᵀ Z + λ I)⁻¹ Zᵀ E,   Z centred and of unit variance, E centred,   λ = RIDGE · number of features

    For the first token it is fitted on single tokens: those of ``public`` and others drawn from ``seed``, ``ALONE`` in all.
    """
    table = _token_table(blocks)
    vocab = blocks.space.vocab
    drawn = torch.randperm(vocab, generator=torch.Generator().manual_seed(seed)).to(public.device)
    single = torch.cat([public.unique()[: ALONE // 2], drawn])[:ALONE, None]
    alone = torch.cat([blocks.features(part, cut)[:, 0] for part in single.split(256)])
    first = _ridge(alone, single[:, 0], table)
    if public.shape[1] < 2:
        return replace(first, first=first)
    z = torch.cat([blocks.features(part, cut)[:, 1:].flatten(0, 1) for part in public.split(16)])
    return replace(_ridge(z, public[:, 1:].flatten(), table), first=first)


def _ridge(features: Tensor, ids: Tensor, table: Tensor) -> Probe:
    z, e = features.double(), table[ids.to(table.device)].double()
    mean, centre = z.mean(0), e.mean(0)
    size = (z - mean).std(0, correction=0).clamp_min(1e-12)
    z, e = (z - mean) / size, e - centre
    gram = z.T @ z
    gram.diagonal().add_(RIDGE * len(z))
    weight = torch.linalg.solve(gram, z.T @ e) / size[:, None]
    return Probe(weight.to(table.dtype), mean.to(table.dtype), table, centre.to(table.dtype))


def _token_table(blocks: DecoderBlocks) -> Tensor:
    for module in blocks.victim.model.modules():
        if isinstance(module, nn.Embedding) and module.num_embeddings == blocks.space.vocab:
            return module.weight.detach()
    raise Inapplicable("the model has no table of token embeddings")


@dataclass(frozen=True, eq=False)
class Recovered:
    """The prompt that was found, and how many candidates were run for it."""

    ids: Tensor
    tried: int


def find_prompt(
    blocks: DecoderBlocks, cut: int, sent: Tensor, protection: Protection, probe: Probe, *, tried: int = TRIED
) -> Recovered:
    """The prompt whose features (length, width) were ``sent``, token by token.

    For each place it runs candidates after the prompt found so far: the ``FIRST`` nearest to the probe's guess, then those nearest to a
    step from the best of them, and so on, more each time. It stops at one that fits up to rounding, after the whole vocabulary if need
    be. Where nothing can fit exactly it runs ``tried`` of them and takes the most likely one:
    −‖z − z(v)‖² / 2σ² + log p(v | found so far). σ, the size of the noise, and the model are public.
    """
    found, count = torch.zeros(0, dtype=torch.long, device=sent.device), 0
    exact = protection.sent in ("float32", "bfloat16")
    deviation = protection.deviation(sent)
    for target in sent:
        chosen = probe.first if probe.first is not None and len(found) == 0 else probe
        likely = _next_scores(blocks, found) if protection.sent == "noise" else None
        tested = torch.zeros(blocks.space.vocab, dtype=torch.bool, device=sent.device)
        best, nearest, guess = (-math.inf, -1), math.inf, chosen.guess(target)
        left, size = blocks.space.vocab if exact else min(tried, blocks.space.vocab), FIRST
        while left > 0:
            some = chosen.nearest(guess, min(size, left), tested=tested)
            tested[some] = True
            features = blocks.after(found, some, cut)
            count, left, size = count + len(some), left - len(some), 2 * size
            far = (features - target).double().square().sum(1)
            score = -far / (2 * deviation**2)
            score = score if likely is None else score + likely[some]
            at, close = int(score.argmax()), int(far.argmin())
            best = max(best, (float(score[at]), int(some[at])))
            if bool(protection.fits(features[at : at + 1], target)):
                break
            if float(far[close]) < nearest:
                nearest, guess = float(far[close]), chosen.step(target, some[close], features[close])
        found = torch.cat([found, found.new_tensor([best[1]])])
    return Recovered(found, count)


def _next_scores(blocks: DecoderBlocks, start: Tensor) -> Tensor:
    """log p(v | start) by the model itself; even for the first token."""
    vocab = blocks.space.vocab
    if len(start) == 0:
        return torch.zeros(vocab, device=start.device)
    with torch.no_grad(), private_randomness(0, blocks.victim.device):
        scores = blocks.victim(start[None])
    return scores[0, -1].log_softmax(-1)


def genie_finds(
    blocks: DecoderBlocks, cut: int, prompt: Tensor, place: int, sent: Tensor, protection: Protection
) -> bool:
    """Whether a genie that knows all tokens of ``prompt`` but the one at ``place``, and ``GENIE`` candidates for it, names it.

    Candidates are the true token and those with the nearest features at this place, among those with the nearest embeddings. That the
    true one is among them is more than any attacker knows. Its guess is the likeliest token given the features at this and all
    later places; it counts if it is right with or without the model's own prediction.
    """
    table = _token_table(blocks)
    close = (table - table[prompt[place]]).square().sum(1).argsort()[: 4 * GENIE]
    features = blocks.after(prompt[:place], close, cut)
    own = int((close == prompt[place]).nonzero()[0])
    near = close[(features - features[own]).square().sum(1).argsort()[:GENIE]]
    rows = prompt.repeat(len(near), 1)
    rows[:, place] = near
    made = torch.cat([blocks.features(part, cut) for part in rows.split(16)])[:, place:]
    likely = -(made - sent[place:]).double().square().sum((1, 2)) / (2 * protection.deviation(sent) ** 2)
    expected = _next_scores(blocks, prompt[:place])[near]
    right = near == prompt[place]
    return bool(right[likely.argmax()]) or bool(right[(likely + expected).argmax()])


def scan_prompts(
    victim: Victim,
    prompts: Sequence[Tensor],
    cuts: Sequence[int],
    protections: Sequence[Protection],
    *,
    public: Tensor,
    genie: int = 8,
    tried: int = TRIED,
    seed: int = 0,
    on_row: Callable[[PromptRisk], None] | None = None,
) -> tuple[PromptRisk, ...]:
    """Attacks every prompt (ids of any length) at every cut under every protection.

    ``public`` (n, length) are sentences of the adversary's own, for the probe. The genie is asked for ``genie`` places of each prompt under
    noise, drawn from ``seed``; 0 leaves it out. ``tried`` is as in :func:`find_prompt`.
    """
    if not prompts or any(len(one) < 1 for one in prompts):
        raise BadInput("a scan of prompts needs at least one prompt, each of at least one token")
    blocks, rows = DecoderBlocks(victim), list[PromptRisk]()
    for cut in cuts:
        blocks.refuse(cut)
    for cut in cuts:
        probe = fit_probe(blocks, cut, victim.to_input(public))
        clean = [blocks.features(victim.to_input(one[None]), cut)[0] for one in prompts]
        for protection in protections:
            rows.append(_risk(blocks, cut, protection, probe, prompts, clean, genie=genie, tried=tried, seed=seed))
            if on_row is not None:
                on_row(rows[-1])
    return tuple(rows)


def _risk(
    blocks: DecoderBlocks,
    cut: int,
    protection: Protection,
    probe: Probe,
    prompts: Sequence[Tensor],
    clean: Sequence[Tensor],
    *,
    genie: int,
    tried: int,
    seed: int,
) -> PromptRisk:
    rng = torch.Generator().manual_seed(seed)
    found = exact = runs = asked = named = found_asked = 0
    same, recovered = 0.0, list[tuple[int, ...]]()
    for one, features in zip(prompts, clean, strict=True):
        prompt = one.to(features.device)
        sent = protection(features, rng=rng)
        got = find_prompt(blocks, cut, sent, protection, probe, tried=tried)
        right = got.ids == prompt
        recovered.append(tuple(got.ids.tolist()))
        found, exact, runs = found + int(right.sum()), exact + int(right.all()), runs + got.tried
        before, after = (blocks.resume(prompt[None], cut, z[None])[0].argmax(-1) for z in (features, sent))
        same += float((before == after).float().sum())
        if protection.sent == "noise" and genie:
            places = torch.randperm(len(prompt), generator=rng)[:genie].tolist()
            asked += len(places)
            named += sum(genie_finds(blocks, cut, prompt, place, sent, protection) for place in places)
            found_asked += int(right[places].sum())
    tokens = sum(map(len, prompts))
    width = clean[0].shape[-1]
    return PromptRisk(
        cut=cut, protection=protection, tokens=tokens, found=found, exact_prompts=exact, prompts=len(prompts),
        agreement=same / tokens, bytes=width * BYTES[protection.sent], flops=blocks.edge_flops(cut), tried=runs,
        asked=asked, genie=named, found_asked=found_asked, recovered=tuple(recovered),
    )  # fmt: skip


def recommend(rows: Sequence[PromptRisk], *, most: float = 0.5, keep: float = 0.5) -> PromptRisk | None:
    """Where even the genie names at most ``most`` of the tokens and the cloud keeps at least ``keep`` of its predictions.

    The rate of the genie is the upper end of its 95 % interval, because it was asked for a few places only. Of these rows the one that
    keeps most, then the one with the least work on the device. None if nothing that was tried does; without noise
    there is no bound.
    """
    safe = [row for row in rows if row.asked and max(clopper_pearson(row.genie, row.asked)[1], row.rate) <= most]
    return max(
        (row for row in safe if row.agreement >= keep), key=lambda row: (row.agreement, -row.flops), default=None
    )
