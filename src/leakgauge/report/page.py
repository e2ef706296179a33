"""The report of a run, one HTML file that needs no network and no other file, and the live page of a training."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from leakgauge.audit import evidence, records
from leakgauge.audit.compare import versions_of
from leakgauge.audit.files import write_whole
from leakgauge.audit.findings import Findings, Unanswered, read_findings, training_of
from leakgauge.audit.questions import defense_records
from leakgauge.audit.questions import properties as property_records
from leakgauge.audit.questions import split_records as scan_records
from leakgauge.audit.questions import training as monitor_records
from leakgauge.audit.questions.training import MonitorRun
from leakgauge.audit.wording import State, statements
from leakgauge.errors import BadInput, harmless
from leakgauge.report.sections import defenses, properties, split, summary, training, updates
from leakgauge.report.templating import environment, page_time, script

FILE = "report.html"
_MOST_MODELS = 3
"""That the title names."""
_STATES: Mapping[State, str] = {
    "answered": "",
    "unfinished": "not finished",
    "no_result": "no result",
    "not_asked": "not asked",
    "not_reached": "not reached",
}
"""A word for the contents."""


def write(folder: Path) -> Path:
    """Makes ``report.html`` from what a run folder holds. A reader never meets a half-written file."""
    page = render(folder)
    write_whole(folder / FILE, page.encode())
    return folder / FILE


def render(folder: Path, *, made: datetime | None = None) -> str:
    """The page of a run folder: attacked set-ups, a monitored training, a scan of cuts, trials of defenses, as far as there are such.

    ``made`` is the time to print on it (default: now).
    """
    found = read_findings(folder)
    said = {one.question: one for one in statements(found)}
    sections: dict[str, Mapping[str, Any] | None] = dict.fromkeys(said)
    watched = monitor_records.exists(folder)
    if watched:
        sections["training"] = training.section(monitor_records.read(folder), said["training"])
    if scan_records.exists(folder):
        sections["split"] = split.section(folder, said["split"])
    if defense_records.exists(folder) and (trials := defense_records.read(folder)):
        sections["defenses"] = defenses.section(trials, folder, said["defenses"])
    if property_records.exists(folder) and (probes := property_records.read(folder)):
        sections["properties"] = properties.section(probes, said["properties"])
    if records.exists(folder) or not any(sections.values()):
        sections["updates"] = updates.section(records.read(folder), folder, said["updates"])
    shown = [section for section in sections.values() if section is not None]
    if not shown:
        raise BadInput(f"the run in {folder} has no records; run `leakgauge audit --out {folder}` first")
    code, digest = script("report.js")
    template = environment().get_template("report.html.j2")
    page = template.render(
        title=f"{_kind(sections)} of {_models(folder) or folder.resolve().name}",
        folder=folder.resolve().name,
        made=page_time(made),
        made_from=[section["made_from"] for section in shown],
        questions=[
            {"statement": one, "name": key.capitalize(), "state": _STATES[one.state], "section": sections[key]}
            for key, one in said.items()
        ],
        summary=summary.section(found, sections["updates"]["cases"] if sections["updates"] else ()),
        appendix=[section["sources"] for section in shown],
        inputs=evidence.inputs(folder),
        edits=evidence.edits(folder),
        versions=versions_of(version for section in shown for version in section["versions"]).items(),
        script=code,
        script_digest=digest,
        **sections,
    )
    return harmless(page)


def _kind(sections: Mapping[str, object]) -> str:
    if sections["updates"] or sections["defenses"] or sections.get("properties"):
        return "Audit"
    return "Scan" if sections["split"] else "Monitoring"


def _models(folder: Path) -> str:
    """The models that the run measured, "" for a run that kept no hashes."""
    names = list(dict.fromkeys(one.name for one in evidence.inputs(folder)))
    if len(names) > _MOST_MODELS:
        names[_MOST_MODELS - 1 :] = [f"{len(names) - _MOST_MODELS + 1} other models"]
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def live_section(run: MonitorRun) -> str:
    """The section on a training that is under way, as markup; everything that comes from the run is escaped."""
    known = training_of(run)
    found = Findings(unanswered=(known,)) if isinstance(known, Unanswered) else Findings(training=known)
    statement = next(one for one in statements(found) if one.question == "training")
    section = training.section(run, statement, live=True)
    return harmless(environment().get_template("training.html.j2").render(training=section))


@cache
def live_page() -> tuple[str, str]:
    """The page that asks for :func:`live_section`, and its content security policy: this one script, nothing from elsewhere."""
    code, digest = script("live.js")
    document = environment().get_template("live.html.j2").render(script=code)
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; connect-src 'self'; "
        f"script-src '{digest}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return document, policy
