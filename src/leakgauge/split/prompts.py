"""Prompts of a language model from the features at a cut, token by token, and what noise on the features costs and buys.

A decoder's feature at a place depends on the tokens up to it. Who knows the edge's weights runs candidates for the next token after the
prompt found so far, and takes the one whose feature is nearest to the one that was sent (SipIt, Nikolaou et al. 2025). From below, that
attack says how many tokens leak. From above a genie is the reference: it knows all *other* tokens of the prompt, and that the true one is
among a few, and decides by the likelihood of all features, with and without the model's own prediction from the tokens before. That is
more than an attacker knows, but no proven bound: what the later tokens make likely is left out of its decision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from leakgauge.core import Victim
from leakgauge.errors import BadInput
from leakgauge.measures.intervals import clopper_pearson
from leakgauge.split.decoder import STARTS, DecoderBlocks

Sent = Literal["float32", "bfloat16", "int8", "noise"]
FIRST, MOST, TRIED = 32, 4096, 512
"""Candidates, in the order of the probe, that are run first, at once at most, and in all where no feature can fit exactly."""
FITS = 1e-5
"""A float32 feature fits if it differs from the one sent by less than this share of its length. The first token of a trained model has
long features that hardly depend on it, so this is close to rounding."""
ENTRIES = 0.99
"""Share of the entries of a feature in bfloat16 that must be what the candidate's would be rounded to."""
FLIPPED = math.log(1e-5)
"""Log-likelihood of an int8 entry that is not what the candidate's rounds to: float rounding at the edge of a step, which is rare."""
GENIE = 32
"""Tokens that the genie chooses from: the true one and those with the nearest features; all of a smaller vocabulary."""
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
        """Deviation of the noise, or of rounding, for features (length, width); for int8 the step between two levels."""
        if self.sent == "int8":
            return float(features.abs().max()) / 127
        size = float(features.norm(dim=-1).median()) / math.sqrt(features.shape[-1])
        return {"noise": self.noise, "bfloat16": 2**-9, "float32": 2**-22}[self.sent] * size

    def deviation(self, sent: Tensor) -> float:
        """``scale`` as an adversary estimates it from what was ``sent``, whose squared size the noise makes 1 + noise² times as large."""
        return self.scale(sent) / math.sqrt(1 + self.noise**2)

    def likelihood(self, made: Tensor, target: Tensor, deviation: Tensor) -> Tensor:
        """Log-likelihood, by entry, of features ``target`` if those before were ``made``; ``deviation`` as estimated from what was sent."""
        if self.sent == "int8":
            return FLIPPED * ((made / deviation).round() != (target / deviation).round())
        return -((made - target) / deviation).square() / 2

    def fits(self, made: Tensor, target: Tensor) -> Tensor:
        """Which features ``target`` (n, width) can only have come from ``made``; none where rounding or noise hides that."""
        away, size = (made - target).abs(), target.norm(dim=1)
        if self.sent == "float32":
            return away.norm(dim=1) <= FITS * size
        if self.sent == "bfloat16":
            near = 2**-8 * target.abs() + FITS * size[:, None] / math.sqrt(target.shape[1])
            return (away <= near).float().mean(1) >= ENTRIES
        return torch.zeros(len(made), dtype=torch.bool, device=made.device)

    def __call__(self, features: Tensor, *, rng: torch.Generator) -> Tensor:
        """What arrives in the cloud of the features of one prompt, (length, width)."""
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

    def guess(self, features: Tensor) -> Tensor:
        """The embeddings of the tokens that have these features (n, width), by the regression."""
        return self.centre + (features - self.mean) @ self.weight

    def step(self, features: Tensor, tokens: Tensor, own: Tensor) -> Tensor:
        """The same from ``tokens`` with features ``own`` nearby: e + (z − z_own) W. What other tokens add to a feature cancels out."""
        return self.table[tokens] + (features - own) @ self.weight

    def nearest(self, guesses: Tensor, most: int, *, tested: Tensor) -> Tensor:
        """For each guess the ids of the ``most`` tokens with the nearest embeddings, without those that were ``tested`` (n, vocab)."""
        far = torch.cdist(guesses, self.table).masked_fill(tested, math.inf)
        return far.topk(min(most, int((~tested[0]).sum())), largest=False).indices


def fit_probe(blocks: DecoderBlocks, cut: int, public: Tensor, *, seed: int = 0) -> Probe:
    """Ridge regression from features to the embeddings of their tokens, on the adversary's own sentences ``public`` (n, length).

        W = (Zᵀ Z + λ I)⁻¹ Zᵀ E,   Z centred and of unit variance, E centred,   λ = RIDGE · number of features

    For the first token it is fitted on single tokens: those of ``public`` and others drawn from ``seed``, ``ALONE`` in all.
    """
    table = blocks.token_table()
    drawn = torch.randperm(blocks.space.vocab, generator=torch.Generator().manual_seed(seed)).to(public.device)
    single = torch.cat([public.unique()[: ALONE // 2], drawn])[:ALONE, None]
    alone = torch.cat([blocks.features(part, cut)[:, 0] for part in single.split(2 * STARTS)])
    first = _ridge(alone, single[:, 0], table)
    if public.shape[1] < 2:
        return replace(first, first=first)
    z = torch.cat([blocks.features(part, cut)[:, 1:].flatten(0, 1) for part in public.split(STARTS // 4)])
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


def find_prompts(
    blocks: DecoderBlocks,
    cut: int,
    sent: Sequence[Tensor],
    protection: Protection,
    probe: Probe,
    *,
    tried: int = TRIED,
) -> tuple[list[Tensor], int]:
    """The prompts with the features that were ``sent``, each (length, width), token by token; and how many candidates were run.

    All prompts are searched at once. For each place it runs candidates after the prompt found so far: the ``FIRST`` nearest to the
    probe's guess, then those nearest to a step from the best of them, and so on, more each time. It stops at one that fits up to
    rounding, after the whole vocabulary if need be. Where nothing can fit exactly it runs ``tried`` of them and takes the most likely one:
    −‖z − z(v)‖² / 2σ² + log p(v | found so far). σ, the size of the noise, and the model are public.
    """
    lengths = torch.tensor([len(one) for one in sent], device=sent[0].device)
    deviations = sent[0].new_tensor([protection.deviation(one) for one in sent])
    targets = pad_sequence(list(sent), batch_first=True)
    found = torch.zeros(targets.shape[:2], dtype=torch.long, device=targets.device)
    count = 0
    for place in range(targets.shape[1]):
        rows = (lengths > place).nonzero().flatten()
        found[rows, place], runs = _next_tokens(
            blocks,
            cut,
            found[rows, :place],
            targets[rows, place],
            deviations[rows, None, None],
            protection,
            probe,
            tried,
        )
        count += runs
    return [row[:length] for row, length in zip(found, lengths.tolist(), strict=True)], count


def _next_tokens(
    blocks: DecoderBlocks,
    cut: int,
    starts: Tensor,
    targets: Tensor,
    deviations: Tensor,
    protection: Protection,
    probe: Probe,
    tried: int,
) -> tuple[Tensor, int]:
    """The token after each of ``starts`` (n, k) that has the feature in ``targets`` (n, width), and how many candidates were run."""
    probe = probe.first if probe.first is not None and starts.shape[1] == 0 else probe
    exact, vocab = protection.sent in ("float32", "bfloat16"), blocks.space.vocab
    expected = None if exact else blocks.next_scores(starts)
    tested = torch.zeros(len(starts), vocab, dtype=torch.bool, device=targets.device)
    best = targets.new_full((len(starts),), -math.inf, dtype=torch.double)
    nearest, tokens, guess = -best, torch.zeros_like(best, dtype=torch.long), probe.guess(targets)
    left, size, count = vocab if exact else min(tried, vocab), FIRST, 0
    active = torch.arange(len(starts), device=targets.device)
    while left > 0 and len(active):
        some = probe.nearest(guess[active], min(size, left), tested=tested[active])
        tested[active[:, None], some] = True
        features, target = blocks.after(starts[active], some, cut), targets[active]
        count, left, size = count + some.numel(), left - some.shape[1], min(2 * size, MOST)
        far = (features - target[:, None]).double().square().sum(2)
        score = protection.likelihood(features, target[:, None], deviations[active]).double().sum(2)
        score = score if expected is None else score + expected[active].gather(1, some)
        value, at = score.max(1)
        better = value > best[active]
        best[active[better]], tokens[active[better]] = value[better], some.gather(1, at[:, None])[better, 0]
        away, close = far.min(1)
        rows = torch.arange(len(active), device=active.device)
        step, nearer = probe.step(target, some[rows, close], features[rows, close]), away < nearest[active]
        nearest[active[nearer]], guess[active[nearer]] = away[nearer], step[nearer]
        active = active[~protection.fits(features[rows, at], target)]
    return tokens, count


def genie_finds(
    blocks: DecoderBlocks,
    cut: int,
    prompts: Tensor,
    place: int,
    sent: Sequence[Tensor],
    protection: Protection,
) -> Tensor:
    """Whether a genie that knows all tokens of a prompt but the one at ``place``, and ``GENIE`` candidates for it, names it, (n,).

    ``prompts`` (n, length) are filled up to the longest, ``sent`` are the features of each. Candidates are the true token and those with
    the nearest features at this place, among those with the nearest embeddings. That the true one is among them is more than any
    attacker knows. Its guess is the likeliest token given the features at this and all later places, the true one if several are; it
    counts if it is right with or without log p(token | tokens before), the model's own prediction. The probability of the later tokens
    after each candidate is left out: it would take a pass through the whole model for each.
    """
    table, true = blocks.token_table(), prompts[:, place, None]
    some = min(GENIE, len(table))
    far = torch.cdist(table[true[:, 0]], table).scatter(1, true, -1.0)
    close = far.topk(min(4 * GENIE, len(table)), largest=False).indices
    features = blocks.after(prompts[:, :place], close, cut)
    order = (features - features[:, :1]).square().sum(2).scatter(1, torch.zeros_like(true), -1.0)
    near = close.gather(1, order.topk(some, largest=False).indices)  # the true one first
    rows = prompts.repeat_interleave(some, 0)
    rows[:, place] = near.flatten()
    made = torch.cat([blocks.features(part, cut)[:, place:] for part in rows.split(2 * STARTS)])
    deviations = made.new_tensor([protection.deviation(one) for one in sent])[:, None, None, None]
    targets = pad_sequence([one[place:] for one in sent], batch_first=True)
    there = pad_sequence([torch.ones_like(one[place:, 0]) for one in sent], batch_first=True)[:, None]
    made = made.view(len(prompts), some, *made.shape[1:])[:, :, : targets.shape[1]]
    likely = (protection.likelihood(made, targets[:, None], deviations).double().sum(3) * there).sum(2)
    expected = blocks.next_scores(prompts[:, :place]).gather(1, near)
    return (likely.argmax(1) == 0) | ((likely + expected).argmax(1) == 0)


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
    noise and int8, drawn from ``seed``; 0 leaves it out. ``tried`` is as in :func:`find_prompts`.
    """
    if not prompts or any(len(one) < 1 for one in prompts):
        raise BadInput("a scan of prompts needs at least one prompt, each of at least one token")
    blocks, rows = DecoderBlocks(victim), list[PromptRisk]()
    for cut in cuts:
        blocks.refuse(cut)
    private = _Private.of(blocks, prompts)
    for cut in cuts:
        probe = fit_probe(blocks, cut, victim.to_input(public))
        clean = torch.cat([blocks.features(part, cut) for part in private.ids.split(STARTS // 4)])
        for protection in protections:
            rows.append(_risk(blocks, cut, protection, probe, private, clean, genie=genie, tried=tried, seed=seed))
            if on_row is not None:
                on_row(rows[-1])
    return tuple(rows)


@dataclass(frozen=True, eq=False)
class _Private:
    """The prompts (n, longest), filled up at their ends, which a decoder does not see; their lengths, and what the model predicts."""

    ids: Tensor
    lengths: list[int]
    predicted: Tensor

    @classmethod
    def of(cls, blocks: DecoderBlocks, prompts: Sequence[Tensor]) -> _Private:
        ids = blocks.victim.to_input(pad_sequence(list(prompts), batch_first=True))
        predicted = torch.cat([blocks.predicted(part) for part in ids.split(STARTS // 4)])
        return cls(ids, [len(one) for one in prompts], predicted)

    @property
    def there(self) -> Tensor:
        """Which places (n, longest) are of the prompt."""
        return torch.arange(self.ids.shape[1], device=self.ids.device) < self.ids.new_tensor(self.lengths)[:, None]


def _risk(
    blocks: DecoderBlocks,
    cut: int,
    protection: Protection,
    probe: Probe,
    private: _Private,
    clean: Tensor,
    *,
    genie: int,
    tried: int,
    seed: int,
) -> PromptRisk:
    rng = torch.Generator().manual_seed(seed)
    sent = [protection(z[:length], rng=rng) for z, length in zip(clean, private.lengths, strict=True)]
    found, runs = find_prompts(blocks, cut, sent, protection, probe, tried=tried)
    right = (pad_sequence(found, batch_first=True) == private.ids) & private.there
    arrived = pad_sequence(sent, batch_first=True)
    parts = zip(private.ids.split(STARTS // 4), arrived.split(STARTS // 4), strict=True)
    kept = torch.cat([blocks.predicted(ids, cut=cut, features=z) for ids, z in parts]) == private.predicted
    asked = torch.zeros_like(right)
    if protection.sent in ("noise", "int8"):
        for row, length in zip(asked, private.lengths, strict=True):
            row[torch.randperm(length, generator=rng)[:genie].to(row.device)] = True
    named = 0
    for place in range(asked.shape[1]):
        rows = asked[:, place].nonzero().flatten()
        if len(rows):
            known = private.ids[rows], place, [sent[k] for k in rows.tolist()]
            named += int(genie_finds(blocks, cut, *known, protection).sum())
    tokens = sum(private.lengths)
    return PromptRisk(
        cut=cut, protection=protection, tokens=tokens, found=int(right.sum()),
        exact_prompts=int((right | ~private.there).all(1).sum()), prompts=len(found),
        agreement=float((kept & private.there).sum()) / tokens, bytes=clean.shape[-1] * BYTES[protection.sent],
        flops=blocks.edge_flops(cut), tried=runs, asked=int(asked.sum()), genie=named, found_asked=int((right & asked).sum()),
        recovered=tuple(tuple(one.tolist()) for one in found),
    )  # fmt: skip


def recommend(rows: Sequence[PromptRisk], *, most: float = 0.5, keep: float = 0.5) -> PromptRisk | None:
    """Where even the genie names at most ``most`` of the tokens and the cloud keeps at least ``keep`` of its predictions.

    The rate of the genie is the upper end of its 95 % interval, because it was asked for a few places only. Of these rows the one that
    keeps most, then the one with the least work on the device. None if nothing that was tried does; rows for which the genie was not
    asked are left out.
    """
    safe = [row for row in rows if row.asked and max(clopper_pearson(row.genie, row.asked)[1], row.rate) <= most]
    return max(
        (row for row in safe if row.agreement >= keep), key=lambda row: (row.agreement, -row.flops), default=None
    )
