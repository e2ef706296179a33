"""Run folders made by hand: eight set-ups, two of them without a result; a monitored training; a scan of cuts."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFilter

from leakgauge.audit import scan_records
from leakgauge.audit.monitor_records import MonitorRun
from leakgauge.audit.records import Record, append
from leakgauge.audit.scan_records import DECODER, RIDGE, Conclusion, CutRecord, ScanPlan

SIZE = 32
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def drawing(seed: int, size: int = SIZE) -> Image.Image:
    """A small scene that a person can recognise again in a blurred copy."""
    rng = np.random.default_rng(seed)
    big = Image.new("RGB", (128, 128), tuple(int(v) for v in rng.integers(90, 235, 3)))
    pen = ImageDraw.Draw(big)
    pen.rectangle((0, 84, 128, 128), fill=tuple(int(v) for v in rng.integers(40, 140, 3)))
    skin, dark = tuple(int(v) for v in rng.integers(150, 250, 3)), tuple(int(v) for v in rng.integers(10, 80, 3))
    if seed % 3 == 0:
        pen.ellipse((30, 18, 98, 106), fill=skin)
        pen.rectangle((28, 14, 100, 40), fill=dark)
        for x in (46, 72):
            pen.ellipse((x, 50, x + 11, 61), fill=dark)
        pen.arc((46, 62, 82, 92), 20, 160, fill=dark, width=5)
    elif seed % 3 == 1:
        pen.polygon(((20, 60), (64, 20), (108, 60)), fill=dark)
        pen.rectangle((30, 60, 98, 112), fill=skin)
        pen.rectangle((56, 78, 74, 112), fill=dark)
    else:
        pen.rectangle((58, 60, 70, 112), fill=(90, 60, 30))
        pen.ellipse((26, 14, 102, 78), fill=dark)
        pen.ellipse((88, 4, 120, 36), fill=(250, 220, 90))
    return big.resize((size, size), Image.Resampling.LANCZOS)


def worse(image: Image.Image, quality: float, seed: int) -> Image.Image:
    """The image blurred, greyed and with noise: quality 1 leaves it, quality 0 leaves nothing of it."""
    rng = np.random.default_rng(seed)
    soft = np.asarray(image.filter(ImageFilter.GaussianBlur(4 * (1 - quality))), dtype=float)
    noise = rng.normal(128, 60, soft.shape)
    return Image.fromarray((quality * soft + (1 - quality) * noise).clip(0, 255).astype(np.uint8))


def strip(images: list[Image.Image]) -> Image.Image:
    width, height = images[0].size
    whole = Image.new("RGB", (len(images) * (width + 1) - 1, height), "white")
    for place, image in enumerate(images):
        whole.paste(image, (place * (width + 1), 0))
    return whole


def summary(values: list[float]) -> dict:
    return {"mean": sum(values) / len(values), "min": min(values), "max": max(values), "per_image": values}


def curve(restarts: int, steps: int, floor: float, seed: int) -> dict:
    rng = np.random.default_rng(seed)
    at = list(range(0, steps + 1, max(steps // 60, 1)))
    lines = []
    for _ in range(restarts):
        rate, level = rng.uniform(2, 7), floor * math.exp(rng.uniform(0, 1.6))
        lines.append([float(0.9 * math.exp(-rate * s / steps) + level * math.exp(rng.normal(0, 0.05))) for s in at])
    return {"steps": at, "losses": lines}


VERSIONS = {"leakgauge": "0.1.0", "torch": "2.6.0", "python": "3.11.9"}
SIZE_KNOWN = {"what": "batch size known", "kind": "deployable"}
LABELS = {"what": "true labels given to the adversary", "kind": "diagnostic"}
EVAL = {"what": "client computes its update in eval mode (real training uses train mode)", "kind": "diagnostic"}


def make_record(
    folder: Path,
    key: str,
    *,
    name: str,
    verdict: str | None = "feasible",
    status: str = "done",
    batch: int = 1,
    quality: float = 0.9,
    psnr: list[float] | None = None,
    lpips: bool = False,
    restarts: int = 8,
    steps: int = 4800,
    attack: str = "inverting_gradients",
    model: str = "lenet",
    mode: str = "train",
    local_steps: int = 1,
    defenses: tuple[str, ...] = (),
    assumptions: tuple[dict, ...] = (SIZE_KNOWN,),
    size: int = SIZE,
    rule: str = "mean PSNR is at least 18 dB and at least 3 dB above the null run",
    reason: str = "",
    notes: tuple[str, ...] = (),
) -> Record:
    """One record, with its pictures written into ``folder``."""
    seed = sum(map(ord, key))
    rng = np.random.default_rng(seed)
    case = {
        "name": name,
        "model": model,
        "data": "embedded:scenes",
        "mode": mode,
        "batch_size": batch,
        "local_steps": local_steps,
        "local_lr": 0.1,
        "attack": attack,
        "options": {"steps": steps, "tv": 1e-4},
        "defenses": list(defenses),
        "reveal": ["size"],
        "seed": 0,
        "first": 12,
    }
    common = {
        "key": key,
        "status": status,
        "case": case,
        "attack": f"{attack}(steps={steps}, tv=0.0001, restarts={restarts})",
        "victim": {"name": model, "mode": mode, "parameters": 61706, "classes": 10, "shape": [3, size, size]},
        "channel": "Gradient()" if local_steps == 1 else f"FedAvg(steps={local_steps}, lr=0.1)",
        "defenses": defenses,
        "assumptions": assumptions,
        "versions": VERSIONS,
        "seed": 0,
        "notes": notes,
        "reason": reason,
        "command": f"leakgauge attack {model} --attack {attack} --batch {batch} --mode {mode} --out runs/{key}",
    }
    if status != "done":
        return Record(**common, seconds=0.31, peak_bytes=0)
    truth = [drawing(seed + i, size) for i in range(batch)]
    shown = {
        "truth": truth,
        "reconstruction": [worse(t, quality, seed + i) for i, t in enumerate(truth)],
        "null": [worse(t, 0.04, seed + 50 + i) for i, t in enumerate(truth)],
        "baseline": [Image.new("RGB", (size, size), tuple(int(v) for v in np.asarray(t).mean((0, 1)))) for t in truth],
    }
    pictures = {}
    for kind, images in shown.items():
        pictures[kind] = f"{key}-{kind}.png"
        strip(images).save(folder / pictures[kind])
    progress = []
    for step in np.linspace(0, steps, 8).astype(int).tolist() if restarts else []:
        name_of = f"{key}-step{step}.png"
        strip([worse(t, quality * (step / steps) ** 0.5, step) for t in truth]).save(folder / name_of)
        progress.append({"step": step, "picture": name_of})
    psnr = psnr or [float(8 + 20 * quality**2 + rng.normal(0, 1.2)) for _ in truth]
    ssim = [1.0 if math.isinf(p) else float(np.clip(quality**1.5 + rng.normal(0, 0.03), 0, 1)) for p in psnr]
    metrics = {"mse": summary([10 ** (-p / 10) for p in psnr]), "psnr": summary(psnr), "ssim": summary(ssim)}
    metrics |= {"lpips": summary([1 - s for s in ssim]) if lpips else None, "labels": summary([1.0] * batch)}

    def weak(level: float, structure: float) -> dict:
        values = [float(level + rng.normal(0, 0.7)) for _ in truth]
        found = {"mse": summary([10 ** (-p / 10) for p in values]), "psnr": summary(values)}
        return found | {"ssim": summary([float(structure + rng.uniform(0, 0.05)) for _ in truth]), "lpips": None}

    return Record(
        **common,
        seconds=float(restarts * steps / 190 + 0.04),
        peak_bytes=int(1.4e9),
        metrics=metrics,
        null=weak(8.4, 0.02),
        baseline=weak(11.9, 0.16),
        verdict=verdict,
        rule=rule,
        pictures=pictures,
        progress=tuple(progress),
        curve=curve(restarts, steps, 10 ** (-3 * quality), seed) if restarts else {},
        restarts={"psnr": [psnr[0] - abs(rng.normal(0, 2)) for _ in range(restarts)]} if restarts > 1 else {},
    )


def build(folder: Path) -> list[Record]:
    """Eight set-ups: two feasible, two partial, two infeasible within budget, one refused, one broken off."""
    partial = "mean PSNR lies between 13 dB and 18 dB"
    nothing = "mean PSNR is less than 3 dB above the null run"
    return [
        make_record(
            folder,
            "a",
            name="LeNet, closed form",
            batch=1,
            quality=1.0,
            psnr=[math.inf],
            restarts=0,
            mode="eval",
            attack="april_closed_form",
            model="vit_a",
            assumptions=(SIZE_KNOWN,),
            rule="MSE is 0: the image was computed, not guessed",
        ),
        make_record(
            folder,
            "b",
            name="LeNet, four images, labels given",
            batch=4,
            quality=0.86,
            mode="eval",
            lpips=True,
            assumptions=(SIZE_KNOWN, LABELS, EVAL),
            notes=("labels were given, not inferred", "TF32 off"),
        ),
        make_record(
            folder,
            "c",
            name="ResNet18, batch of sixteen",
            verdict="partial",
            batch=16,
            quality=0.6,
            model="preact_resnet18",
            rule=partial,
        ),
        make_record(
            folder,
            "d",
            name="LeNet with gradient noise",
            verdict="partial",
            batch=2,
            quality=0.5,
            rule=partial,
            defenses=("GaussianNoise(relative=0.1)",),
            restarts=1,
        ),
        make_record(
            folder,
            "e",
            name="LeNet, 90 % of the gradient pruned",
            verdict="infeasible_within_budget",
            batch=4,
            quality=0.12,
            rule=nothing,
            defenses=("Prune(0.9)", "Quantize(8)"),
        ),
        make_record(
            folder,
            "f",
            name="resnet18-imagenet-fedavg-four-local-steps-with-a-very-long-unbroken-identifier_000017",
            verdict="infeasible_within_budget",
            batch=1,
            quality=0.15,
            size=128,
            local_steps=4,
            rule=nothing,
            restarts=32,
            model="resnet18",
        ),
        make_record(
            folder,
            "g",
            name="ViT without position embedding",
            status="refused",
            verdict=None,
            model="vit_b",
            attack="april_optimised",
            reason="not shared: pos_embed",
            defenses=("Withhold(pos_embed)",),
        ),
        make_record(
            folder,
            "h",
            name="ResNet18 at 224 pixels",
            status="error",
            verdict=None,
            model="resnet18",
            batch=64,
            reason="OutOfMemoryError: CUDA out of memory. Tried to allocate 12.00 GiB",
            notes=(
                'Traceback (most recent call last):\n  File "run.py", line 7\nOutOfMemoryError: CUDA out of memory\n',
            ),
        ),
    ]


def store_eight(folder: Path) -> None:
    for record in build(folder):
        append(folder, record)


@pytest.fixture(scope="session")
def eight_records() -> Callable[[Path], None]:
    """Stores the eight set-ups in a folder."""
    return store_eight


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole run on disk, made once; nobody may change it but by writing its report."""
    folder = tmp_path_factory.mktemp("hospital-pilot")
    store_eight(folder)
    return folder


@pytest.fixture(scope="session")
def make() -> Callable[..., Record]:
    """:func:`make_record`, given as a fixture so that no test module has to import this file."""
    return make_record


@pytest.fixture
def one(tmp_path: Path) -> Record:
    """A single feasible set-up whose pictures lie in ``tmp_path``."""
    return make_record(tmp_path, "k", name="one", batch=2)


@pytest.fixture
def eight(tmp_path: Path) -> list[Record]:
    return build(tmp_path)


def make_monitored(*, reports: int = 30, alarm: bool = True, probe: bool = True, name: str = "body.0.weight"):
    """A monitored training by hand: leakage that falls, controls around 0, three layers, an alarm at step 60."""
    lines = []
    for i in range(1, reports + 1):
        step, nats = 25 * i, 1.2 * math.exp(-i / 8)
        scalars: dict[str, float | None] = {
            "privacy/alarm": float(alarm and step >= 60),
            "privacy/log_wealth": 0.4 * i if alarm else -0.01 * i,
            "privacy/infonce_ceiling": math.log(16),
            "privacy/pairs": float(min(10 * i, 256)),
        }
        if i > 1:
            bounded = {
                "infonce_nats": nats,
                "top1": nats / 2,
                "control/null_nats": 0.01,
                "control/decoy_nats": -nats / 2,
            }
            for key, value in bounded.items():
                ends = {"": value, "_low": value - 0.1, "_high": value + 0.1}
                scalars |= {f"privacy/{key}{end}": v for end, v in ends.items()}
            scalars |= {"privacy/control/noise_1x_nats": nats / 3, "privacy/control/noise_10x_nats": 0.0}
        if probe:
            for key in ("auc", "tpr_at_1pct_fpr"):
                scalars |= {
                    f"privacy/whitebox/{key}{end}": v for end, v in (("", 0.98), ("_low", 0.85), ("_high", 1.0))
                }
        lines.append(
            {
                "step": step, "view": "released", "choices": 16, "alpha": 0.05,
                "alarm_at": 60 if alarm and step >= 60 else None, "scalars": scalars,
                "layers": {name: nats, "body.2.weight": nats / 2, "fc.bias": -0.01} if i > 1 else {},
                "whitebox_step": step if probe else None, "notes": ["probe reads 2 of 8"], "skipped": {"no input": 3},
            }
        )  # fmt: skip
    about = {
        "training": "train.py", "model": "LeNet", "parameters": 13426, "optimizer": "Adam", "loss": "CrossEntropyLoss",
        "every": 25, "view": "released", "seed": 0, "alpha": 0.05, "choices": 16, "command": "leakgauge monitor train.py",
        "versions": VERSIONS,
    }  # fmt: skip
    end = {"how": "finished", "why": "", "step": 25 * reports, "seconds": 12.5}
    return MonitorRun(about=about, reports=tuple(lines), end=end)


@pytest.fixture(scope="session")
def monitored() -> Callable[..., MonitorRun]:
    """:func:`make_monitored`, given as a fixture."""
    return make_monitored


CUTS = ["stem.relu", "stage1.a_block_with_quite_a_long_name.pool", "stage2.<pool>", "stage3.pool", "head"]
RIDGE_FVU = [0.04, 0.2, math.nan, 0.45, 0.7]


def scanned_strip(folder: Path, name: str, seed: int) -> str:
    pixels = np.random.default_rng(seed).integers(0, 256, (8, 4 * 9 - 1, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / name)
    return name


def make_scan(folder: Path, *, names: list[str] = CUTS, fvu: list[float] = RIDGE_FVU, finished: bool = True) -> None:
    """A scan by hand: five cuts, of which one refused and one was also attacked by decoders."""
    rng = np.random.default_rng(0)
    sizes = (
        {"bytes": 4000 // (i + 1), "edge_flops": 1000000 * i, "edge_share": i / len(names)} for i in range(len(names))
    )
    cuts = tuple({"name": name, "shape": [8, 4, 4], **size} for name, size in zip(names, sizes, strict=True))
    plan = ScanPlan(
        case={"model": "vgg", "data": "fashion", "defenses": [], "seed": 0},
        cuts=cuts, threshold=0.4, epochs=12, budget=None, require="", numbers="fp32", raw_bytes=1200, jpeg_bytes=900.0,
        auxiliary=80, tested=20, traced="torch.export", labels=tuple(i % 12 for i in range(30)),
        truth=scanned_strip(folder, "truth.png", 0), shown=4, versions={"torch": "2"}, command="leakgauge scan vgg --seed 0",
    )  # fmt: skip
    scan_records.save_plan(folder, plan)
    for i, (name, value) in enumerate(zip(names, fvu, strict=True)):
        refused = math.isnan(value)
        risk = {"refusal": "the features hold <NaN>", "seconds": 1.0} if refused else {
            "fvu": value, "fvu_low": value - 0.02, "fvu_high": value + 0.02, "ssim": 0.5, "reidentified": 0.5,
            "accuracy": 0.9, "within": 0.5, "effective_rank": 12.0, "seconds": 1.0,
        }  # fmt: skip
        places = () if refused else tuple((float(a), float(b)) for a, b in rng.random((30, 2)).round(3))
        picture = "" if refused else scanned_strip(folder, f"{i}.png", i)
        scan_records.append(folder, CutRecord(name, RIDGE, 0, risk, picture, places))
    for epochs, value in ((1, 0.9), (12, 0.42)):
        risk = {"fvu": value, "seconds": 1.0}
        scan_records.append(
            folder, CutRecord(names[3], DECODER, epochs, risk, scanned_strip(folder, f"d{epochs}.png", 9))
        )
    if finished:
        best = (0.04, 0.2, 0.42, 0.42, 0.7) if names is CUTS else tuple(fvu)
        line = tuple(0.04 + 0.66 * i / (len(names) - 1) for i in range(len(names)))
        found = Conclusion(
            names[3], names[1], True, f"Recommended cut: {names[3]}, which keeps an FVU of 0.42.", "t", "b",
            (names[0], names[3]), best, line, names[2], 0.63, 13, 60, ("note <one>",),
        )  # fmt: skip
        scan_records.save_conclusion(folder, found)


@pytest.fixture(scope="session")
def scan_into() -> Callable[..., None]:
    """:func:`make_scan`, given as a fixture."""
    return make_scan


@pytest.fixture(scope="session")
def browser():
    """One Chromium for all tests of this folder."""
    from playwright.sync_api import sync_playwright

    found = shutil.which("chromium")
    if not found:
        pytest.fail("these tests need Chromium; install it with: apt-get install chromium", pytrace=False)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=found, args=ARGUMENTS)
        yield started
        started.close()


@pytest.fixture(scope="session")
def contrast() -> str:
    """JavaScript that gives the smallest contrast of text against what lies behind it, over all visible text."""
    return (Path(__file__).parent / "contrast.js").read_text(encoding="utf-8")
