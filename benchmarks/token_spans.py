"""How many sentences of a batch ``token_spans`` recovers, whether its limits predict that, and whether its certificates hold.

    python -m benchmarks.token_spans [--parts NAME ...] [--first 1000] [--batches 20] [--out FILE] [--from FILE]

Parts: ``gpt2`` (learned positions), ``llama`` (rotary positions), ``bert`` (encoder, batches of 1, 2, 4 and 8), ``lora`` (only adapters of
q and v shared, after and at their first step), ``coarse`` (gradients of ``gpt2`` in bfloat16, and with Gaussian noise), ``above`` (``gpt2``
with 24, 28, 32 and 40 sentences: more tokens than the width), ``steps`` (``gpt2``, two sentences, 2, 5 and 10 local steps of SGD),
``embedding``: the baseline that descends on continuous embeddings until their gradient has the direction of the observed one (1 - cos, as
in TAG and LAMP, without LAMP's language model and its exchanges of tokens; labels and length are known), and takes the nearest tokens;
``gpt2`` layout.

Networks have random weights from the row's seed, four blocks, width 256 (``bert``, ``lora``: 128), a vocabulary of 2000 and two classes.
Sentences have 12 tokens, drawn with the frequency 1 / rank. A batch is exact if all of its sentences are; the prediction is right if it
said so before. A certificate is false if its sentence is not in the batch. The null is the guess of the most frequent tokens of another
1000 sentences. Rows that --out holds already are not computed again.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from benchmarks.json_lines import append_lines, kept_lines, read_lines
from leakgauge.attacks import span_limits, token_spans
from leakgauge.audit import TextScores, score_text
from leakgauge.channels import FedAvg, Gradient
from leakgauge.core import Channel, Defense, Reconstruction, Signal, Tokens, Victim, share
from leakgauge.defenses import GaussianNoise
from leakgauge.errors import Inapplicable
from leakgauge.integrations.huggingface import load_text
from leakgauge.measures.text import most_frequent

VOCAB, LENGTH, CLASSES = 2000, 12, 2
DESCENT = 300
"""Steps of the baseline."""


def settings(kind: str, width: int) -> dict[str, Any]:
    common: dict[str, Any] = {"model_type": kind, "vocab_size": VOCAB}
    if kind == "gpt2":
        return common | {"n_embd": width, "n_layer": 4, "n_head": 4, "bos_token_id": 1, "eos_token_id": 2}
    more = {"llama": {"num_key_value_heads": 2, "pad_token_id": None}, "bert": {}}[kind]
    shape = {"hidden_size": width, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 2 * width}
    return common | shape | more


def draw(count: int, *, seed: int) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    frequency = 1 / torch.arange(1, VOCAB - 2).float()
    return 3 + torch.multinomial(frequency, count * LENGTH, replacement=True, generator=rng).view(count, LENGTH)


class Adapted(nn.Module):
    """A linear layer with a low-rank adapter, named as in peft: W z + B A z; ``first``: B is zero."""

    def __init__(self, base: nn.Linear, rank: int, *, first: bool) -> None:
        super().__init__()
        self.base_layer = base
        down, up = nn.Linear(base.in_features, rank, bias=False), nn.Linear(rank, base.out_features, bias=False)
        nn.init.normal_(down.weight, std=base.in_features**-0.5)
        nn.init.normal_(up.weight, std=0.0 if first else 0.02)
        self.lora_A, self.lora_B = nn.ModuleDict({"default": down}), nn.ModuleDict({"default": up})

    def forward(self, z: Tensor) -> Tensor:
        return self.base_layer(z) + self.lora_B["default"](self.lora_A["default"](z))


def victim_of(kind: str, width: int, *, seed: int, rank: int = 0, first: bool = False) -> Victim:
    model, space = load_text(settings(kind, width), length=LENGTH, classes=CLASSES, seed=seed)
    if rank:
        model.requires_grad_(False)
        torch.manual_seed(seed)
        for name, module in list(model.named_modules()):
            if isinstance(module, nn.Linear) and name.endswith(("q_proj", "v_proj")):
                model.set_submodule(name, Adapted(module, rank, first=first))
    return Victim(model, space)


class Bfloat16:
    """A client that sends its gradient in bfloat16."""

    def __call__(self, signal: Signal, /, *, rng: torch.Generator) -> Signal:
        return {name: value.bfloat16().to(value.dtype) for name, value in signal.items()}


def attacked(key: dict[str, Any], victim: Victim, *defenses: Defense, channel: Channel | None = None) -> dict[str, Any]:
    """One batch: what was predicted, found and certified, and how much of that is right."""
    size, seed = key["batch"], key["seed"]
    x, y = draw(size, seed=seed), torch.arange(size) % CLASSES
    seen = share(victim, Gradient() if channel is None else channel, x, y, defenses=defenses, seed=seed)
    assert isinstance(victim.space, Tokens)
    public = most_frequent(draw(1000, seed=10**6 + seed), size, LENGTH)
    guess = score_text(Reconstruction.single(public, None, made_by="most frequent", began=time.perf_counter()), x, None)
    row = key | {"tokens": x.numel(), "distinct": len(x.unique()), "null_rouge1": mean(guess.rouge1)}
    began = time.process_time()
    try:
        limits = span_limits(victim, seen, seed=seed)
        fits = {limit.level: limit.fits for limit in limits}
        row["stated"] = [[limit.level, limit.counts, limit.most, limit.rank] for limit in limits]
        predicted = fits.get("tokens", False) and fits.get("sentences", False)
        found = token_spans()(victim, seen, seed=seed)
    except Inapplicable as reason:
        return refused_row(row, reason, time.process_time() - began)
    return scored_row(row, predicted, found, score_text(found, x, None), x, time.process_time() - began)


def refused_row(row: dict[str, Any], reason: Inapplicable, seconds: float) -> dict[str, Any]:
    return row | {
        "refused": str(reason), "predicted": False, "exact": 0, "rouge1": 0.0, "rouge2": 0.0, "recall": 0.0, "certified": 0,
        "false": 0, "cpu_seconds": round(seconds, 1),
    }  # fmt: skip


def scored_row(
    row: dict[str, Any], predicted: bool, found: Reconstruction, scores: TextScores, x: Tensor, seconds: float
) -> dict[str, Any]:
    """How much of what was found and certified is right; ``x`` are the true ids."""
    assert found.certified is not None
    true = {tuple(ids) for ids in x.tolist()}
    return row | {
        "predicted": predicted,
        "exact": int(sum(scores.exact)),
        "rouge1": mean(scores.rouge1),
        "rouge2": mean(scores.rouge2),
        "recall": scores.recall,
        "certified": int(found.certified.sum()),
        "false": sum(tuple(ids) not in true for ids in found.x[found.certified].tolist()),
        "cpu_seconds": round(seconds, 1),
    }


def by_embedding(victim: Victim, x: Tensor, y: Tensor, *, seed: int) -> Tensor:
    """Ids (n, length) of the embeddings whose gradient has the direction of the one that ``x`` and ``y`` have."""
    inner: Any = cast(Any, victim.model).model
    table = inner.get_input_embeddings().weight.detach()
    own = [p for name, p in inner.named_parameters() if "wte" not in name]
    observed = torch.autograd.grad(victim.loss(victim(x), y), own, allow_unused=True)
    rng = torch.Generator().manual_seed(seed)
    guess = (torch.randn(*x.shape, table.shape[1], generator=rng) * table.std()).requires_grad_()
    optimizer = torch.optim.Adam([guess], lr=0.1 * float(table.std()))
    for _ in range(DESCENT):
        optimizer.zero_grad()
        loss = victim.loss(inner(inputs_embeds=guess).logits, y)
        made = torch.autograd.grad(loss, own, create_graph=True, allow_unused=True)
        pairs = [(a, b) for a, b in zip(made, observed, strict=True) if a is not None and b is not None]
        products = (
            sum((u * v).sum() for u, v in one)
            for one in (pairs, [(a, a) for a, _ in pairs], [(b, b) for _, b in pairs])
        )
        inside, ours, theirs = (torch.as_tensor(one) for one in products)
        (1 - inside / (ours * theirs).sqrt()).backward()
        optimizer.step()
    return torch.cdist(guess.detach().flatten(0, 1), table).argmin(1).view(x.shape)


def baseline(key: dict[str, Any]) -> dict[str, Any]:
    victim, seed = victim_of("gpt2", 256, seed=key["seed"]), key["seed"]
    size, began = key["batch"], time.process_time()
    x, y = draw(size, seed=seed), torch.arange(size) % CLASSES
    public = most_frequent(draw(1000, seed=10**6 + seed), size, LENGTH)
    found, null = (
        score_text(Reconstruction.single(ids, None, made_by="", began=0.0), x, None)
        for ids in (by_embedding(victim, x, y, seed=seed), public)
    )
    return key | {
        "tokens": x.numel(), "distinct": len(x.unique()), "null_rouge1": mean(null.rouge1), "predicted": False,
        "exact": int(sum(found.exact)), "rouge1": mean(found.rouge1), "rouge2": mean(found.rouge2), "recall": found.recall,
        "certified": 0, "false": 0, "cpu_seconds": round(time.process_time() - began, 1),
    }  # fmt: skip


def mean(values: tuple[float, ...]) -> float:
    return sum(values) / len(values)


def cases(part: str, first: int, batches: int) -> Iterator[dict[str, Any]]:
    seeds = range(first, first + batches)
    if part in ("gpt2", "llama"):
        for size in (1, 4, 8, 16):
            yield from ({"part": part, "batch": size, "seed": seed} for seed in seeds)
    elif part == "embedding":
        for size in (1, 4):
            yield from ({"part": part, "batch": size, "seed": seed} for seed in seeds)
    elif part == "bert":
        for size in (1, 2, 4, 8):
            yield from ({"part": part, "batch": size, "seed": seed} for seed in seeds[: batches // 2])
    elif part == "above":
        for size in (24, 28, 32, 40):
            yield from ({"part": part, "batch": size, "seed": seed} for seed in seeds)
    elif part == "steps":
        for steps in (2, 5, 10):
            for lr in (1e-3, 1e-2, 1e-1, 1.0):
                yield from (
                    {
                        "part": part,
                        "batch": 2,
                        "how": f"{steps} steps, lr {lr:g}",
                        "steps": steps,
                        "lr": lr,
                        "seed": seed,
                    }
                    for seed in seeds
                )
    elif part == "lora":
        for rank in (8, 16, 32, 64):
            for step in (False, True):
                yield from (
                    {"part": part, "batch": 2, "rank": rank, "first_step": step, "seed": seed}
                    for seed in seeds[: batches // 2]
                )
    else:
        for how in ("bfloat16", 1e-4, 1e-3, 1e-2, 3e-2, 1e-1):
            for size in (1, 4):
                yield from ({"part": part, "batch": size, "how": how, "seed": seed} for seed in seeds[: batches // 4])


PARTS = ("gpt2", "llama", "bert", "lora", "coarse", "above", "steps", "embedding")


def run(key: dict[str, Any]) -> dict[str, Any]:
    part, seed = key["part"], key["seed"]
    if part == "embedding":
        return baseline(key)
    if part == "lora":
        return attacked(key, victim_of("llama", 128, seed=seed, rank=key["rank"], first=key["first_step"]))
    if part == "coarse":
        how = key["how"]
        return attacked(
            key, victim_of("gpt2", 256, seed=seed), Bfloat16() if how == "bfloat16" else GaussianNoise(relative=how)
        )
    if part in ("above", "steps"):
        channel = FedAvg(steps=key["steps"], lr=key["lr"]) if part == "steps" else None
        return attacked(key, victim_of("gpt2", 256, seed=seed), channel=channel)
    return attacked(key, victim_of(part, 128 if part == "bert" else 256, seed=seed))


def table(rows: list[dict[str, Any]]) -> str:
    """By part, setting and batch size, as Markdown."""
    lines = [
        "| part | setting | sentences | batches | refused | ROUGE-1 | ROUGE-2 | exact sentences | certified | false | prediction right "
        "| null ROUGE-1 | CPU s |",
        "|" + "---|" * 13,
    ]

    def cell(row: dict[str, Any]) -> tuple[Any, ...]:
        setting = row.get("how", "")
        if "rank" in row:
            setting = f"r = {row['rank']}{', first step' if row['first_step'] else ''}"
        return (row["part"], setting, row["batch"])

    for key in dict.fromkeys(map(cell, rows)):
        own = [row for row in rows if cell(row) == key]
        sentences = sum(row["batch"] for row in own)
        right = sum(row["predicted"] == (row["exact"] == row["batch"]) for row in own)

        def average(name: str, own: list[dict[str, Any]] = own) -> float:
            return sum(row[name] for row in own) / len(own)

        values = (
            *key,
            len(own),
            sum("refused" in row for row in own),
            f"{100 * average('rouge1'):.1f}",
            f"{100 * average('rouge2'):.1f}",
            f"{sum(row['exact'] for row in own) / sentences:.0%}",
            f"{sum(row['certified'] for row in own) / sentences:.0%}",
            sum(row["false"] for row in own),
            f"{right} of {len(own)}",
            f"{100 * average('null_rouge1'):.1f}",
            f"{average('cpu_seconds'):.1f}",
        )
        lines.append(f"| {' | '.join(map(str, values))} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument(
        "--first", type=int, default=1000, help="first seed; the attack was developed on seeds below 200"
    )
    parser.add_argument(
        "--batches", type=int, default=20, help="batches for each size; half or a quarter of them in slow parts"
    )
    parser.add_argument("--out", type=Path, help="append one JSON line per batch; what it holds is not computed again")
    parser.add_argument("--from", dest="source", type=Path, help="print the table of an earlier --out file and stop")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.source is not None:
        print(table(read_lines(options.source)))
        return
    rows = kept_lines(options.out)
    for part in options.parts:
        for key in cases(part, options.first, options.batches):
            if any(key.items() <= row.items() for row in rows):
                continue
            rows.append(run(key))
            append_lines(options.out, rows[-1])
    print(table(rows))


if __name__ == "__main__":
    main()
