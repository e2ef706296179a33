"""Several parts of the studies side by side on one GPU, inside a time limit, with everything packed into few files.

    python -m reproductions.common.lanes PLAN --data FOLDER --out FOLDER [--limit 560] [--state FOLDER] [--quick] [--list]

A plan is a set of lanes; each lane is a process after another. Small networks are bound by the time it takes to launch their
kernels, so lanes side by side use a GPU better than one after another, if NVIDIA's MPS lets them run at the same time. Without it
processes only take turns.

Rows that are committed are not made again. What comes back under ``--out``: ``rows.tar.gz`` (numbers and logs; packed again every
minute), ``pictures.tar.gz``, and ``weights.tar.00`` … (pieces of one archive, to be joined with cat). All three unpack in
``reproductions/``. Weights that do not fit are named with their hash in ``logs/weights.log``. ``--state`` is a folder where an earlier
call's archives were unpacked, for its weights and pictures.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
WORK = Path(tempfile.gettempdir()) / "reproduction_lanes"
PIECE, ALL = 15 * 2**20, 60 * 2**20
"""Bytes of one file that comes back, and of all of them."""
PACK_EVERY, GRACE, START = 60.0, 12.0, 15.0
"""Seconds between two packings, for the last one, and that Python takes to start."""


@dataclass(frozen=True)
class Job:
    """A module of the reproductions with its arguments, and about how many seconds it takes on an H200."""

    module: str
    arguments: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def name(self) -> str:
        return "_".join([self.module.replace(".", "_"), *(a.strip("-").replace(" ", "_") for a in self.arguments)])


@dataclass(frozen=True)
class Lane:
    """Jobs one after another."""

    jobs: tuple[Job, ...]

    @property
    def seconds(self) -> float:
        return sum(job.seconds for job in self.jobs)


def lane(*jobs: Job) -> Lane:
    return Lane(jobs)


def feasibility(seconds: float, script: str, *arguments: str) -> Job:
    return Job(f"practical_feasibility.{script}", arguments, seconds)


def golden(seconds: float, *arguments: str) -> Job:
    return Job("golden_partition_zone.run", arguments, seconds)


def starts(seconds: float, network: str, *arguments: str) -> Job:
    return feasibility(seconds, "starts", "--network", network, *arguments)


PIPE = "CUDA_MPS_PIPE_DIRECTORY"
HUNDRED, ONE_HOT = ("--decoder-epochs", "100"), ("--seeds", "1", "--labels", "one-hot")
PLANS: dict[str, tuple[Lane, ...]] = {
    "trained": (  # networks that are trained first and attacked then: Fig. 4, ViT-B by closed form, both stems of Swin-T
        lane(
            feasibility(70, "accuracy", "--case", "convnext_t", "--longer", "0.5"),
            starts(320, "convnext_t", "--trained"),
        ),
        lane(
            feasibility(40, "accuracy", "--case", "vit_b", "--longer", "2"),
            feasibility(90, "closed_form", "--trained"),
            feasibility(200, "stems", "--stem", "imagenet"),
        ),
        lane(feasibility(225, "stems", "--stem", "adapted"), starts(220, "swin_t", "--trained")),
    ),
    "golden-seeds": (  # VGG19's second training with LS+
        lane(golden(260, "vgg19-smoothing", *HUNDRED, "--seeds", "2")),
    ),
    "golden-recipe": (  # VGG19 by the paper's own recipe, for all of its 300 epochs
        lane(
            golden(
                720, "vgg19-curve", *HUNDRED, "--plateau", "--target-epochs", "300", *ONE_HOT, "--blocks", "30", "39"
            )
        ),
    ),
}
"""Plans that wait for a GPU; their seconds are estimates from committed rows, for lanes that have the GPU to themselves."""

CUT, WHOLE = (
    ("cifar10_train.zip", "cifar10_test.zip"),
    ("cifar10_train_a.zip", "cifar10_train_b.zip", "cifar10_test.zip"),
)
NEEDS = {
    "trained": CUT,
    **dict.fromkeys(["golden-seeds", "golden-recipe"], (*WHOLE, "kmnist_test.npz")),
}
"""What a plan reads from its folder of data."""


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", choices=list(PLANS))
    parser.add_argument("--data", type=Path, help="folder with the data; quick runs need none")
    parser.add_argument("--out", type=Path, default=Path("lanes"), help="folder for the archives")
    parser.add_argument("--state", type=Path, help="results of an earlier call, unpacked")
    parser.add_argument(
        "--work", type=Path, default=WORK, help="where results grow; a second call on the machine resumes from it"
    )
    parser.add_argument("--limit", type=float, default=560.0, help="seconds until all lanes are stopped")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--list", action="store_true", help="only print the lanes and about how long they take")
    options = parser.parse_args(given)
    if options.list:
        print("\n".join([*listed(PLANS[options.plan]), *NEEDS.get(options.plan, ())]))
        return
    if options.data is not None and (missing := absent(options.plan, options.data)):
        raise SystemExit(f"{options.data} has no {', '.join(missing)}, which {options.plan} needs; see common/cut.py")
    began = time.monotonic()
    options.out.mkdir(parents=True, exist_ok=True)
    options.work.mkdir(parents=True, exist_ok=True)
    if not any(options.work.iterdir()):
        begin(options.work, None if options.quick else ROOT / "reproductions", options.state)
    environment = _environment(options.data)
    sharing = Sharing(environment) if options.device == "cuda" else None
    lanes = PLANS[options.plan]
    print(f"{len(lanes)} lanes; MPS: {'on' if sharing is not None and sharing.works else 'off'}", flush=True)
    common = ["--device", options.device, *(["--quick"] if options.quick else [])]
    common += ["--data", str(options.data)] if options.data is not None else []
    until = began + options.limit - GRACE
    pool = ThreadPoolExecutor(len(lanes))
    walks = [pool.submit(_walk, lane, common, environment, until, options.work) for lane in lanes]
    packed = time.monotonic()
    while not all(walk.done() for walk in walks):
        time.sleep(0.5)
        if time.monotonic() - packed > PACK_EVERY:
            packed = time.monotonic()
            pack_rows(options.work, options.out)
    for walk in walks:
        walk.result()
    if sharing is not None:
        sharing.end()
    pack_rows(options.work, options.out)
    pack(options.work, options.out)
    pack_rows(options.work, options.out)
    print(f"done after {time.monotonic() - began:.0f} s", flush=True)


def listed(plan: Sequence[Lane]) -> list[str]:
    """Lanes with their seconds; side by side they take as long as the longest, if the GPU has room for all."""
    lines = [f"{lane.seconds:5.0f} s  " + ", then ".join(job.name for job in lane.jobs) for lane in plan]
    return [*lines, f"{max(lane.seconds for lane in plan):5.0f} s  the longest lane"]


def absent(plan: str, data: Path) -> list[str]:
    """Files of the plan that are not there: a lane without its data would fail after the machine has started."""
    return [name for name in NEEDS.get(plan, ()) if not (data / name).exists()]


def begin(work: Path, committed: Path | None, state: Path | None) -> None:
    """Rows that are committed, then what an earlier call brought back."""
    if committed is not None:
        for path in committed.glob("*/results/*.json*"):
            target = work / path.relative_to(committed)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
    if state is not None:
        shutil.copytree(state, work, dirs_exist_ok=True)


def _environment(data: Path | None) -> dict[str, str]:
    paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    found = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PYTHONUNBUFFERED": "1",
        "PYTHONWARNINGS": "ignore",
    }
    found.setdefault("OMP_NUM_THREADS", "2")
    note = None if data is None else data / "commit"
    if note is not None and note.is_file():
        found["REPRODUCTION_COMMIT"] = note.read_text(encoding="utf-8").strip()
    return found


def _walk(lane: Lane, common: list[str], environment: dict[str, str], until: float, work: Path) -> None:
    for job in lane.jobs:
        left = until - time.monotonic()
        if left < 10:
            print(f"{job.name}: no time left", flush=True)
            continue
        started = time.monotonic()
        within = max(1.0, left - START)
        out = work / job.module.split(".")[0] / "results"
        mine = ["--out", str(out), "--within", f"{within:.0f}", *common]
        command = [sys.executable, "-m", f"reproductions.{job.module}", *job.arguments, *mine]
        (work / "logs").mkdir(exist_ok=True)
        with (work / "logs" / f"{job.name}.log").open("a", encoding="utf-8") as log:
            process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
            try:
                code = process.wait(left)
            except subprocess.TimeoutExpired:
                process.terminate()
                try:
                    code = process.wait(5)
                except subprocess.TimeoutExpired:
                    process.kill()
                    code = process.wait()
        print(f"{job.name}: exit {code} after {time.monotonic() - started:.0f} s", flush=True)


def _works(environment: dict[str, str]) -> bool:
    """Whether a process with this environment reaches the GPU."""
    tried = [sys.executable, "-c", "import torch; assert torch.ones(3, device='cuda').sum().item() == 3"]
    try:
        return subprocess.run(tried, env=environment, capture_output=True, timeout=90).returncode == 0
    except subprocess.TimeoutExpired:
        return False


class Sharing:
    """NVIDIA's MPS daemon, where there is one and it works; ``environment`` then says how to reach it.

    One that the caller has started, for other work beside the lanes, is tried too, and left running.
    """

    def __init__(self, environment: dict[str, str]) -> None:
        self.works, self.folder = False, None
        if PIPE in environment:
            self.works = _works(environment)
            if not self.works:
                del environment[PIPE]
                print(
                    "The MPS daemon of CUDA_MPS_PIPE_DIRECTORY does not answer; the lanes run without it.", flush=True
                )
            return
        if shutil.which("nvidia-cuda-mps-control") is None:
            return
        self.folder = Path(tempfile.mkdtemp(prefix="mps."))
        own = {PIPE: str(self.folder / "pipe"), "CUDA_MPS_LOG_DIRECTORY": str(self.folder / "log")}
        for path in own.values():
            Path(path).mkdir()
        self.environment = environment | own
        subprocess.run(["nvidia-cuda-mps-control", "-d"], env=self.environment, capture_output=True, timeout=30)
        self.works = _works(self.environment)
        if self.works:
            environment.update(own)
        else:
            self.end()

    def end(self) -> None:
        if self.folder is None:
            return
        subprocess.run(
            ["nvidia-cuda-mps-control"],
            input="quit\n",
            text=True,
            env=self.environment,
            capture_output=True,
            timeout=30,
        )
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder = None


def pack_rows(work: Path, out: Path) -> None:
    """Numbers and logs: small, and the first thing to save."""
    _packed([*work.glob("*/results/*.json*"), *work.glob("logs/*.log")], work, out / "rows.tar.gz", "w:gz")


def pack(work: Path, out: Path) -> None:
    """Pictures in one archive; weights, the smallest first, in one that is cut into pieces, as large files may not travel."""
    _packed(sorted(work.glob("*/results/pictures/*/[!.]*.npy")), work, out / "pictures.tar.gz", "w:gz")
    whole = work / "weights.tar"
    room = ALL - sum(path.stat().st_size for path in out.glob("*.tar.gz"))
    kept: list[Path] = []
    for path in sorted(work.glob("*/results/weights/**/*.safetensors"), key=lambda path: path.stat().st_size):
        room -= path.stat().st_size + 2048
        if room > 0:
            kept.append(path)
            continue
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        said = f"{path.relative_to(work)}: {path.stat().st_size / 2**20:.0f} MiB do not fit, sha256 {digest}"
        print(said, flush=True)
        (work / "logs").mkdir(exist_ok=True)
        with (work / "logs" / "weights.log").open("a", encoding="utf-8") as log:
            log.write(said + "\n")
    _packed(kept, work, whole, "w")
    if whole.is_file():
        with whole.open("rb") as file:
            number = 0
            while piece := file.read(PIECE):
                (out / f"weights.tar.{number:02d}").write_bytes(piece)
                number += 1
        whole.unlink()


def _packed(files: list[Path], work: Path, target: Path, mode: str) -> None:
    if not files:
        return
    part = target.with_name(target.name + ".part")
    with tarfile.open(part, mode) as archive:  # pyright: ignore[reportCallIssue, reportArgumentType]
        for path in files:
            archive.add(path, path.relative_to(work))
    part.replace(target)


if __name__ == "__main__":
    main()
