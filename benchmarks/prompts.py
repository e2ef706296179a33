"""How many tokens of a prompt the features of a language model give away at each cut, how noise bounds that, and what it costs.

    python -m benchmarks.prompts --model FILE.gguf --sentences FILE.txt [--parts float32 coarse noise] [--prompts 10] [--cuts 1 2 4 ...]
        [--genie 3] [--tried 128] [--device cuda] [--seconds S] [--out FILE] [--from FILE]

Model and sentences as in ``benchmarks.language_models``. A prompt is the first 12 tokens of a sentence from number 1000 on (those with at
least as many); the probe that orders the candidates is fitted on 300 sentences below that. Parts: ``float32``; ``coarse`` (bfloat16, int8
with one step for the whole prompt); ``noise`` (0.3, 1, 3, 10 and 30 times the median size of a feature's entry). Under int8 and noise the
genie is asked for ``--genie`` places of each prompt, and the attack runs ``--tried`` candidates for a token.
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.json_lines import append_lines, kept_lines, read_lines
from leakgauge.data.sentences import read_sentences
from leakgauge.integrations.language import load_language
from leakgauge.split.prompts import Protection, scan_prompts

TOKENS, PUBLIC, FITTED = 12, 1000, 300
PARTS = {
    "float32": (Protection(),),
    "coarse": (Protection("bfloat16"), Protection("int8")),
    "noise": tuple(Protection("noise", size) for size in (0.3, 1.0, 3.0, 10.0, 30.0)),
}


def table(rows: list[dict[str, Any]]) -> str:
    """By cut and protection, as Markdown."""
    lines = [
        "| cut | sent | prompts | tokens found | prompts exact | genie (attack on the same places) | next token kept | kB per token "
        "| MFLOP per token | CPU s |",
        "|" + "---|" * 10,
    ]
    for row in rows:
        sent = row["protection"]["sent"]
        said = f"noise {row['protection']['noise']:g}" if sent == "noise" else sent
        genie = f"{row['genie']} of {row['asked']} ({row['found_asked']})" if row["asked"] else "–"
        lines.append(
            f"| {row['cut']} | {said} | {row['prompts']} | {row['found']} of {row['tokens']} | {row['exact_prompts']} | {genie} | "
            f"{row['agreement']:.0%} | {row['bytes'] / 1000:.1f} | {row['flops'] / 1e6:.0f} | {row['cpu_seconds']:.0f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--sentences")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--prompts", type=int, default=10)
    parser.add_argument("--cuts", nargs="+", type=int, default=[1, 2, 4, 8, 15, 30])
    parser.add_argument("--public", type=int, default=FITTED, help="sentences that the probe is fitted on")
    parser.add_argument("--genie", type=int, default=3, help="places of each prompt that the genie is asked for")
    parser.add_argument("--tried", type=int, default=128, help="candidates for a token where none can fit exactly")
    parser.add_argument("--device", default="cpu", help="cpu or cuda; seconds are those of the clock")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no row after so many seconds")
    parser.add_argument("--out", type=Path, help="append one JSON line per row; what it holds is not computed again")
    parser.add_argument("--from", dest="source", type=Path, help="print the table of an earlier --out file and stop")
    options = parser.parse_args()
    if options.device == "cpu":
        torch.set_num_threads(1)
    if options.source is not None:
        print(table(read_lines(options.source)))
        return
    found, texts = load_language(options.model), read_sentences(options.sentences).texts
    encoded = (torch.tensor(found.tokenizer.encode(one)) for one in texts[PUBLIC:])
    prompts = [ids[:TOKENS] for ids in encoded if len(ids) >= TOKENS][: options.prompts]
    public = found.ids(texts[: options.public], 2 * TOKENS)
    victim = replace(found, model=found.model.to(options.device)).victim(2 * TOKENS)
    rows = kept_lines(options.out)
    started = time.monotonic()
    for part in options.parts:
        for cut in options.cuts:
            for protection in PARTS[part]:
                known = {"cut": cut, "protection": asdict(protection), "prompts": len(prompts)}
                if any(known.items() <= row.items() for row in rows) or time.monotonic() - started > options.seconds:
                    continue
                began = time.perf_counter()
                (risk,) = scan_prompts(
                    victim, prompts, [cut], [protection], public=public, genie=options.genie, tried=options.tried
                )
                rows.append({"part": part, **asdict(risk), "cpu_seconds": round(time.perf_counter() - began, 1)})
                append_lines(options.out, rows[-1])
    print(table(rows))


if __name__ == "__main__":
    main()
