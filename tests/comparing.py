"""Two runs of the same cases."""

from leakgauge.audit import records


def table(found) -> list[dict]:
    """Records without what may differ between two runs of one case; somebody may commit between them."""
    lines = [records.to_json(r) for r in found]
    for line in lines:
        for name in ("seconds", "peak_bytes", "finished"):
            line.pop(name, None)
        line["versions"].pop("commit", None)
    return lines
