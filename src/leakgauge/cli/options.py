"""Options are fields of a dataclass, each written once: parser, help, ``--resume`` and the recorded command all read them here.

The groups that several commands share are below. A command adds its own options and receives one object with all of them.
"""

from __future__ import annotations

import inspect
import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import typer

from leakgauge.cli.terminal import complain
from leakgauge.errors import BadInput

if TYPE_CHECKING:
    from leakgauge.audit.case import Case
    from leakgauge.audit.records import Record

ASKED = "asked.json"
"""File of a run that can be resumed: what its command line asked for."""
DEFAULT_BUDGET = "10m"
"""For a user's own model, where nobody knows yet how long a step takes."""
NOT_MEASURED = frozenset(
    [
        "out",
        "export",
        "resume",
        "quiet",
        "explain",
        "workers",
        "ray",
        "fail_over",
        "json",
        "junit",
        "markdown",
        "watch",
        "port",
    ]
)
"""Options that change how a run is done, shown and judged, but not what it measures."""


@dataclass(frozen=True)
class Declared:
    """How an option is written, and what the help says about it. An argument has a ``metavar`` and no flags."""

    help: str
    flags: tuple[str, ...] = ()
    metavar: str = ""
    panel: str = ""
    check: Callable[[Any], Any] | None = None


def opt(default: Any, help: str, *flags: str, panel: str = "", check: Callable[[Any], Any] | None = None) -> Any:
    """A field that is an option. Without ``flags`` it is written as the field is called, without ``panel`` as its class says."""
    return field(default=default, metadata={"declared": Declared(help, flags, panel=panel, check=check)})


def arg(metavar: str, help: str, *, default: Any = MISSING) -> Any:
    """A field that is an argument; without a ``default`` it must be given."""
    return field(default=default, metadata={"declared": Declared(help, metavar=metavar)})


def within(low: int, high: int | None = None) -> Callable[[int], int]:
    """Checks a number. The parser would spell its own ranges out in the help, at the cost of half the width."""

    def check(value: int) -> int:
        if value < low or (high is not None and value > high):
            raise typer.BadParameter(f"{value} is not {f'at least {low}' if high is None else f'from {low} to {high}'}")
        return value

    return check


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a command line says. ``given`` names the options it holds, also those set to their default."""

    PANEL: ClassVar[str] = "Options"
    """Heading in the help for the options that a class adds."""
    EXAMPLES: ClassVar[Sequence[str]] = ()
    INTERSPERSED: ClassVar[bool] = True
    """Whether options may follow the arguments."""

    given: frozenset[str] = frozenset()

    @classmethod
    def name(cls) -> str:
        """The command that takes these options."""
        return cls.__name__.removesuffix("Options").lower()

    @classmethod
    def declared(cls) -> dict[str, Declared]:
        """Every option and argument by its name, with flags and panel."""
        groups = [base for base in reversed(cls.__mro__) if issubclass(base, Options)]
        panels = {name: base.PANEL for base in groups for name in inspect.get_annotations(base)}
        found = dict[str, Declared]()
        for one in fields(cls):
            if (said := one.metadata.get("declared")) is not None:
                flags = () if said.metavar else said.flags or (f"--{one.name.replace('_', '-')}",)
                found[one.name] = replace(said, flags=flags, panel=said.panel or panels[one.name])
        return found

    def asked(self) -> dict[str, str]:
        """What the command line says about the measurement, as text by the name of the option."""
        values = {name: getattr(self, name) for name in self.declared() if name in self.given - NOT_MEASURED}
        return {name: ", ".join(v) if isinstance(v, tuple) else str(v) for name, v in values.items()}

    def command(self) -> str:
        """The command line that measures the same again."""
        arguments, words, declared = list[str](), list[str](), self.declared()
        for one in fields(self):
            value = getattr(self, one.name)
            if one.name not in declared.keys() - NOT_MEASURED or value == one.default:
                continue
            values, flags = map(str, value if isinstance(value, tuple) else (value,)), declared[one.name].flags
            if not flags:
                arguments += values
            else:
                words += [flags[0]] if value is True else [word for text in values for word in (flags[0], text)]
        both = [*arguments, *words] if self.INTERSPERSED else [*words, *arguments]
        return shlex.join(["leakgauge", self.name(), *both])

    def interrupted(self) -> str:
        """What to do after Ctrl-C. It may come at any time, so nothing is imported here."""
        return "nothing to resume, run the command again"


@dataclass(frozen=True, kw_only=True)
class Quiet(Options):
    PANEL: ClassVar[str] = "Run"

    quiet: bool = opt(False, "Print nothing but errors.", "--quiet", "-q")


@dataclass(frozen=True, kw_only=True)
class Run(Quiet):
    seed: int = opt(0, "Fixes every random number of the run.", check=within(0, 2**32 - 1))


@dataclass(frozen=True, kw_only=True)
class Recorded(Run):
    """A run that leaves a folder."""

    out: Path | None = opt(None, "Folder of the run. Default: leakgauge-runs/COMMAND.")

    @property
    def folder(self) -> Path:
        return self.out or Path("leakgauge-runs") / self.name()


@dataclass(frozen=True, kw_only=True)
class Resumable(Recorded):
    resume: bool = opt(False, "Resume the run in --out where it stopped.")

    def interrupted(self) -> str:
        if not self.resume and not (self.folder / ASKED).is_file():
            return super().interrupted()
        named = [model] if (model := getattr(self, "model", None)) else []
        again = shlex.join(["leakgauge", self.name(), *named, "--resume", "--out", str(self.folder)])
        return f"finished work is kept, resume with: {again}"


@dataclass(frozen=True, kw_only=True)
class ModelAndData(Run):
    PANEL: ClassVar[str] = "Model and data"

    model: str | None = arg(
        "[MODEL]",
        "Embedded: cnn, vit or vgg. Yours: file.py:factory, package:factory, timm:NAME, timm32:NAME, hf:NAME (images or text), or "
        "a plan file (audit.py, see leakgauge init). Prefix with attention_first: to rearrange a vision transformer (architecture A of "
        "APRIL).",
        default=None,
    )
    data: str | None = opt(
        None,
        "Folder of images (DICOM too), .npz, idx or CIFAR-10 .bin file; sentences as .txt, a table as .csv. Default: embedded images.",
    )
    target: str = opt("", "Column of a .csv table that the model predicts.")
    weights: Path | None = opt(None, "Weights to load into the model: a .safetensors or .pt file of tensors by name.")
    classes: int | None = opt(None, "Number of classes to build a timm or hf model for.")
    size: int | None = opt(None, "Height and width of the images that a timm model is built for, such as 128.")
    resize: bool = opt(False, "Resize the images to what the model takes.")
    window: str = opt(
        "",
        "Stored values of black and white, such as 0:4095 for 12 bits. Default: from 8 bits, or decided for all files together.",
    )
    device: str = opt("cpu", "cpu or cuda.")

    def case(self, *, default: str = "cnn", **more: Any) -> Case:
        """The case on this model and data, with ``more`` of its fields."""
        from leakgauge.audit.case import Case
        from leakgauge.integrations.plan_file import named

        model, data = named(self.model, self.data, default=default)
        return Case(
            model=model,
            data=data,
            weights="" if self.weights is None else str(self.weights),
            size=self.size,
            classes=self.classes,
            resize=self.resize,
            window=self.window,
            target=self.target,
            device=self.device,
            seed=self.seed,
            **more,
        )


@dataclass(frozen=True, kw_only=True)
class Defended(Options):
    PANEL: ClassVar[str] = "Threat"

    defense: Sequence[str] = opt((), "For example gaussian_noise:relative=1, prune:0.9 or withhold:head. Repeatable.")


@dataclass(frozen=True, kw_only=True)
class Served(Options):
    PANEL: ClassVar[str] = "Threat"

    server: str = opt(
        "",
        "A malicious server, which sends a modified model: imprint:bins=256, trap_weights or fishing:target=3. Default: honest but "
        "curious.",
    )


@dataclass(frozen=True, kw_only=True)
class Threat(ModelAndData, Defended):
    PANEL: ClassVar[str] = "Threat"

    mode: str | None = opt(None, "How the client runs the model: eval or train.")
    batch_size: int | None = opt(None, "Private images in one local step.")
    local_steps: int = opt(1, "Local steps, each on the next batch; with more than 1 a weight update is shared.")
    local_epochs: int = opt(
        1, "Passes over these batches, shuffled each time; --local-epochs 5 alone is 5 steps on the same batch."
    )
    local_lr: float = opt(0.01, "Learning rate of the local steps.")
    optimizer: str = opt("sgd", "What the client trains with: sgd:momentum=0.9, adam or adamw:weight_decay=0.01.")
    channel: str = opt(
        "",
        "Another way to make the update: dpsgd:clip=1,noise=1, aggregate:clients=4 or features:CUT. "
        "Default: the gradient, or the weight update of local training.",
    )
    attack: str = opt("strongest", "Name of the attack; see leakgauge list. The default tries all that apply.")
    option: Sequence[str] = opt((), "Option of the attack, such as steps=1000 or restarts=4. Repeatable.")
    reveal: Sequence[str] = opt(
        (), "Give the adversary labels, buffers, defended, auxiliary:64 or noisy_copy:0.5. Repeatable."
    )
    public: Path | None = opt(
        None, "Folder (or file) of images that the server holds, for attacks that learn a prior from them."
    )

    def case(self, *, default: str = "cnn", **more: Any) -> Case:
        """The case that the options describe; its parts are built once, to refuse a wrong option before anything runs."""
        from leakgauge.audit.specs import option_of

        chosen: dict[str, Any] = {
            "attack": self.attack,
            "options": dict(map(option_of, self.option)),
            "reveal": ("size", *self.reveal, *(() if self.public is None else (f"public:{self.public}",))),
            "local_steps": self.local_steps,
            "local_lr": self.local_lr,
            "local_epochs": self.local_epochs,
            "optimizer": self.optimizer,
            "channel": self.channel,
        }
        case = super().case(default=default, **{**chosen, **more})
        for build in (case.build_attack, case.build_reveal, case.build_channel, case.build_server):
            build()
        return case


@dataclass(frozen=True, kw_only=True)
class CI(Options):
    """What continuous integration asks for: the worst verdict that passes, and files for machines."""

    PANEL: ClassVar[str] = "CI"

    fail_over: str | None = opt(
        None, "Exit with 3 if a verdict is worse than this: infeasible, inconclusive or partial."
    )
    json: Path | None = opt(None, "Write the verdicts as JSON to this file.")
    junit: Path | None = opt(None, "Write the verdicts as JUnit XML to this file.")
    markdown: Path | None = opt(None, "Write a short summary for a pull request to this file.")

    def __post_init__(self) -> None:
        """Finds mistakes before the first case runs, not after the last."""
        if self.fail_over is not None:
            from leakgauge.audit import gate

            gate.limit_of(self.fail_over)
        refuse_places(self.json, self.junit, self.markdown)

    @property
    def judges(self) -> bool:
        """Whether anything of this is asked for."""
        return any((self.fail_over, self.json, self.junit, self.markdown))

    def promise(self) -> None:
        """Before the run: the files for machines say that there is no verdict. A device or a pipe gets the verdict alone."""
        from leakgauge.audit import gate
        from leakgauge.audit.files import is_stream, write_whole

        for kind, content in gate.unfinished(None if self.fail_over is None else gate.limit_of(self.fail_over)).items():
            path: Path | None = getattr(self, kind)
            if path is not None and not is_stream(path):
                write_whole(path, content)

    def judge(self, found: Sequence[Record], *, folder: Path, broken: bool = False) -> int:
        """Writes the files for machines, with the answers to all questions of the run in ``folder``. Returns the exit code.

        ``broken``: something of the run failed that is not among the records.
        """
        from leakgauge.audit import gate
        from leakgauge.audit.files import write_whole
        from leakgauge.audit.findings import read_findings
        from leakgauge.report import page

        limit = None if self.fail_over is None else gate.limit_of(self.fail_over)
        code = gate.exit_code(found, limit) or int(broken)
        for record in found:
            if record.broken:  # an error, which --quiet shows too
                complain(f"{record.case.name}: {record.reason}")
        if self.json or self.junit or self.markdown:
            findings = read_findings(folder)
            if self.json is not None:
                write_whole(
                    self.json,
                    json.dumps({**gate.summary(found, limit, findings), "exit_code": code}, indent=1).encode(),
                    private=False,
                )
            if self.junit is not None:
                write_whole(self.junit, gate.junit(found, limit, findings), private=False)
            if self.markdown is not None:
                report = (folder / page.FILE).as_posix()
                text = gate.run_summary(found, findings, limit=limit, report=report)
                write_whole(self.markdown, text.encode(), private=False)
        return code


def refuse_places(*files: Path | None) -> None:
    """Refuses files that cannot be written."""
    for path in files:
        if path is not None and not path.parent.is_dir():
            raise BadInput(f"there is no folder {path.parent} to write {path.name} into")
        if path is not None and path.is_dir():
            raise BadInput(f"{path} is a folder; name the file to write")
        if path is not None and path.is_symlink() and path.is_file():
            raise BadInput(f"{path} is a link; name the file itself")
