"""Rows of a study with a fault in them."""

import json
import shutil

import pytest


@pytest.fixture
def faulty(tmp_path):
    """Copies the rows of a study and gives the rows of a part another content: ``faulty(folder, part, change)``."""

    def copied(folder, part, change):
        if not list(tmp_path.iterdir()):
            for path in folder.glob("*.jsonl"):
                shutil.copy(path, tmp_path)
        path = tmp_path / f"{part}.jsonl"
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        path.write_text("".join(json.dumps(row | change(row)) + "\n" for row in rows), encoding="utf-8")
        return tmp_path

    return copied
