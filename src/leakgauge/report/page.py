"""The report of a run: one HTML file that needs no network and no other file, and runs no script but its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from leakgauge.audit import monitor_records
from leakgauge.audit import records as store
from leakgauge.audit.files import write_whole
from leakgauge.audit.findings import read_findings
from leakgauge.audit.monitor_records import MonitorRun
from leakgauge.audit.records import Record
from leakgauge.errors import BadInput
from leakgauge.report import contents, sources
from leakgauge.report.sections import defenses, split, summary, training, updates
from leakgauge.report.templating import environment, script

FILE = "report.html"


def write(folder: Path) -> Path:
    """Makes ``report.html`` from what a run folder holds: records of attacks, a monitored training, a scan of cuts.

    A reader never meets a half-written file.
    """
    monitored = monitor_records.read(folder) if monitor_records.exists(folder) else None
    scan = split.context(folder)
    defended = defenses.context(folder)
    attacked = (monitored is None and scan is None and defended is None) or store.exists(folder)
    kind = "Audit" if attacked or defended is not None else "Monitoring" if scan is None else "Scan"
    page = render(
        store.read(folder) if attacked else [],
        folder=folder,
        title=f"{kind} of {folder.resolve().name}",
        monitored=monitored,
        scan=scan,
        defended=defended,
        first_page=summary.context(read_findings(folder)),
    )
    target = folder / FILE
    write_whole(target, page.encode())
    return target


def render(
    records: Sequence[Record],
    *,
    folder: Path,
    title: str,
    made: datetime | None = None,
    monitored: MonitorRun | None = None,
    scan: Mapping[str, Any] | None = None,
    defended: Mapping[str, Any] | None = None,
    first_page: Mapping[str, Any] | None = None,
) -> str:
    """The page for ``records``, with pictures from ``folder``, and a ``monitored`` training, a ``scan`` and trials of
    defenses (``defended``) where there are such.

    ``first_page`` is what stands on top, where there is one. ``made`` is the time to print on it (default: now).
    """
    if not records and monitored is None and scan is None and defended is None:
        raise BadInput(f"the run in {folder} has no records; run `leakgauge audit --out {folder}` first")
    latest = store.latest(records)
    code, digest = script("report.js")
    return (
        environment()
        .get_template("report.html.j2")
        .render(
            title=title,
            made=(made or datetime.now(UTC)).astimezone(UTC).strftime("%d %B %Y, %H:%M UTC"),
            questions=contents.questions(_answered(latest, monitored, scan, defended), contents.told(folder)),
            appendix=_appendix(
                latest, monitored, scan, defended, folder
            ),  # first of all, for it refuses what is not a number
            updates=updates.section(records, folder) if records else None,
            monitored=None if monitored is None else training.section(monitored),
            scan=scan,
            defended=defended,
            first_page=first_page,
            versions=_versions(latest, monitored, scan, defended),
            script=code,
            script_digest=digest,
        )
    )


Part = Mapping[str, Any] | None


def _answered(latest: Sequence[Record], monitored: MonitorRun | None, scan: Part, defended: Part) -> dict[str, str]:
    """The questions that have records, with a word where those are not whole."""
    found = {"updates": contents.state_of_cases(latest)} if latest else {}
    if monitored is not None:
        found["training"] = contents.state_of_training(monitored)
    if scan is not None:
        found["split"] = "" if scan["conclusion"] is not None else "not finished"
    return found if defended is None else {**found, "defenses": ""}


def _appendix(
    latest: Sequence[Record], monitored: MonitorRun | None, scan: Part, defended: Part, folder: Path
) -> list[sources.Group]:
    groups = [sources.of_cases(latest)] if latest else []
    if monitored is not None:
        groups.append(sources.of_training(monitored, training.quoted(monitored.reports)))
    if scan is not None:
        groups.append(sources.of_scan(folder))
    return groups if defended is None else [*groups, sources.of_defenses(folder)]


def _versions(
    latest: Sequence[Record], monitored: MonitorRun | None, scan: Part, defended: Part
) -> list[tuple[str, str]]:
    """Every version the run was made with; a run resumed after an upgrade shows both."""
    each: list[Any] = [record.versions for record in latest]
    each += [] if monitored is None else [monitored.about.get("versions")]
    each += [part.get("versions") for part in (scan, defended) if part is not None]
    seen: dict[str, list[str]] = {}
    for versions in each:
        for name, version in versions.items() if isinstance(versions, Mapping) else ():
            known = seen.setdefault(str(name), [])
            if str(version) not in known:
                known.append(str(version))
    return [(name, ", ".join(known)) for name, known in seen.items()]
