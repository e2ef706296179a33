"""The live page of a training under way: the report's own section, drawn anew each time that the page asks."""

from __future__ import annotations

from functools import cache

from leakgauge.audit.monitor_records import MonitorRun
from leakgauge.report.sections.training import section as facts
from leakgauge.report.templating import environment, script


def section(run: MonitorRun) -> str:
    """The section as markup; everything that comes from the run is escaped."""
    return environment().get_template("monitor.html.j2").render(monitored=facts(run, live=True))


@cache
def page() -> tuple[str, str]:
    """The page and its content security policy, which lets this one script run and nothing be loaded from elsewhere."""
    code, digest = script("live.js")
    document = environment().get_template("live.html.j2").render(script=code)
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; connect-src 'self'; "
        f"script-src '{digest}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return document, policy
