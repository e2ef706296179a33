"""Writes the two halves of a cut as .pt2 and ONNX files, and runs the files to prove that together they are the model."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from leakgauge.core import Victim
from leakgauge.errors import BadInput, Inapplicable, MissingExtra
from leakgauge.graphs import example_of, fixed_draws
from leakgauge.graphs.hooks import TracedByHooks
from leakgauge.graphs.subgraph import CloudHalf
from leakgauge.graphs.trace import trace_of
from leakgauge.graphs.traced_graph import OneByOne
from leakgauge.split.halves import Halves, difference, halves

FORMATS = ("pt2", "onnx")
TOLERANCE = 1e-4


@dataclass(frozen=True)
class ExportedHalves:
    """The written ``files``, and for each format the largest difference of cloud(edge(x)) from the model's output, relative to its
    largest value, over the ``checked`` batch sizes. ``any_batch``: whether the files take any batch size.
    """

    cut: str
    files: tuple[Path, ...]
    errors: dict[str, float]
    checked: tuple[int, ...]
    any_batch: bool


def export_halves(
    victim: Victim, cut: str, folder: Path, *, formats: Sequence[str] = FORMATS, tolerance: float = TOLERANCE
) -> ExportedHalves:
    """Writes ``edge.pt2``, ``cloud.pt2``, ``edge.onnx``, ``cloud.onnx`` and ``split.json`` into ``folder``, after checking them.

    The files are loaded and run, edge then cloud, ONNX in onnxruntime, on batches of several sizes. If their output differs from the
    model's, no file is left under these names. The files take any batch size if the model could be traced that way, otherwise
    one sample at a time. What is sent has one name in all of them: as an output of the edge, as an input of the cloud and in
    ``split.json``.
    """
    unknown = [name for name in formats if name not in FORMATS]
    if unknown or not formats:
        raise BadInput(f"halves can be written as {' and '.join(FORMATS)}, got {', '.join(unknown) or 'nothing'}")
    if isinstance(trace_of(victim), TracedByHooks):
        raise Inapplicable(
            f"the halves of {victim.name} have no graph to write, because it could only be cut by module hooks"
        )
    require_packages(formats)
    pair = halves(victim, cut, tolerance=tolerance)
    sizes = (1, 2, 5) if pair.any_batch else (1,)
    folder.mkdir(parents=True, exist_ok=True)
    programs = _programs(pair, example_of(victim, 3 if pair.any_batch else 1))
    names = _names(pair, programs)
    errors: dict[str, float] = {}
    written: list[tuple[Path, Path]] = []
    try:
        for kind in formats:
            partial = [folder / f".partial-{half}.{kind}" for half in ("edge", "cloud")]
            written += [(path, folder / path.name.removeprefix(".partial-")) for path in partial]
            for program, path, sends in zip(programs, partial, (True, False), strict=True):
                _WRITE[kind](program, path, names, sends)
            errors[kind] = _check(victim, [_LOAD[kind](path) for path in partial], sizes)
            if not errors[kind] <= tolerance:
                raise BadInput(
                    f"the {kind} halves at {pair.point.name} differ from the model by {errors[kind]:.1e} of its largest "
                    f"output, more than {tolerance:g}; nothing was written"
                )
        for path, final in written:
            path.replace(final)
    finally:
        for path, _ in written:
            path.unlink(missing_ok=True)
    found = ExportedHalves(pair.point.name, tuple(final for _, final in written), errors, sizes, pair.any_batch)
    _describe(found, pair, names, folder)
    return found


def _names(pair: Halves, programs: Sequence[torch.export.ExportedProgram]) -> list[str]:
    """What the sent tensors are called in both files: as the cut, unless something else is called so."""
    taken = {node.name for program in programs for node in program.graph.nodes}
    return [f"{spec.name}_sent" if spec.name in taken else spec.name for spec in pair.point.tensors]


def _programs(pair: Halves, x: Tensor) -> tuple[torch.export.ExportedProgram, ...]:
    edge, cloud = (half.inner if isinstance(half, OneByOne) else half for half in (pair.edge, pair.cloud))
    with torch.no_grad():
        sent = edge(x)
    return _program(edge, (x,), pair.any_batch), _program(cloud, tuple(sent), pair.any_batch)


def _program(half: nn.Module, inputs: tuple[Tensor, ...], any_batch: bool) -> torch.export.ExportedProgram:
    batch = {0: torch.export.Dim.DYNAMIC}
    shapes: Any = {"sent": tuple(batch for _ in inputs)} if isinstance(half, CloudHalf) else {"x": batch}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.export(half, inputs, dynamic_shapes=shapes if any_batch else None)


def _write_pt2(program: torch.export.ExportedProgram, path: Path, names: Sequence[str], sends: bool) -> None:
    """Tensors are passed by position here, so ``names`` are not needed."""
    with path.open("wb") as file:
        torch.export.save(program, file)


def require_packages(formats: Sequence[str]) -> None:
    """Names the extra if a package that ``formats`` need is not installed."""
    for package in ("onnxscript", "onnx", "onnxruntime") if "onnx" in formats else ():
        if find_spec(package) is None:
            raise MissingExtra(package, "split")


def _write_onnx(program: torch.export.ExportedProgram, path: Path, names: Sequence[str], sends: bool) -> None:
    """``names`` are those of the sent tensors: the outputs of the half that ``sends`` them, the inputs of the other."""
    with _quiet():
        _as_onnx(program, None if sends else names, names if sends else None).save(path, external_data=False)


def _as_onnx(
    program: torch.export.ExportedProgram, inputs: Sequence[str] | None, outputs: Sequence[str] | None
) -> torch.onnx.ONNXProgram:
    try:
        made = torch.onnx.export(program, (), dynamo=True, verbose=False, input_names=inputs, output_names=outputs)
    except torch.onnx.OnnxExporterError as error:
        reason = str(error.__cause__ or error).strip().partition("\n")[0]
        raise Inapplicable(
            f"PyTorch cannot write this half as ONNX ({reason}); choose another cut, or write only formats=['pt2']"
        ) from error
    assert made is not None
    return made


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppresses the exporter's progress messages; real failures still raise."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


Run = Callable[..., Any]
"""A loaded half: tensors in, tensors out."""


def _load_pt2(path: Path) -> Run:
    with path.open("rb") as file:
        module = torch.export.load(file).module()
    return lambda *tensors: module(*tensors)


def _load_onnx(path: Path) -> Run:
    import onnxruntime

    try:
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has a class per error code, without a common base but Exception
        raise Inapplicable(
            f"onnxruntime cannot run this half ({str(error).rpartition(' : ')[2]}); it supports few operations in types other "
            "than float32: convert the model, or write only formats=['pt2']"
        ) from error
    names = [entry.name for entry in session.get_inputs()]

    def run(*tensors: Tensor) -> tuple[Tensor, ...]:
        given = {name: value.detach().cpu().numpy() for name, value in zip(names, tensors, strict=True)}
        return tuple(torch.from_numpy(value) for value in session.run(None, given))

    return run


_WRITE: dict[str, Callable[[torch.export.ExportedProgram, Path, Sequence[str], bool], None]] = {
    "pt2": _write_pt2,
    "onnx": _write_onnx,
}
_LOAD: dict[str, Callable[[Path], Run]] = {"pt2": _load_pt2, "onnx": _load_onnx}


@torch.no_grad()
def _check(victim: Victim, loaded: Sequence[Run], sizes: Sequence[int]) -> float:
    edge, cloud = loaded
    largest = 0.0
    for size in sizes:
        x = example_of(victim, size)
        with fixed_draws(victim):
            found = cloud(*edge(x))
        with fixed_draws(victim):
            whole = victim(x)
        if isinstance(found, tuple) and isinstance(whole, Tensor):  # ONNX only has lists of outputs
            found = found[0]
        elif isinstance(found, tuple):
            whole = pytree.tree_leaves(whole)
        largest = max(largest, difference(found, whole))
    return largest


def _describe(found: ExportedHalves, pair: Halves, names: Sequence[str], folder: Path) -> None:
    """A small file for deployment: what is sent, and what was checked."""
    contents = asdict(found) | {"files": [path.name for path in found.files]}
    contents["tensors"] = [
        {"name": name, "shape": list(spec.shape), "dtype": str(spec.dtype).removeprefix("torch.")}
        for name, spec in zip(names, pair.point.tensors, strict=True)
    ]
    partial = folder / ".partial-split.json"
    partial.write_text(json.dumps(contents, indent=1), encoding="utf-8")
    partial.replace(folder / "split.json")
