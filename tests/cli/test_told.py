"""What the command line tells about itself: ``--help``, and what Ctrl-C leaves behind."""

from __future__ import annotations

import pytest
import typer

from leakgauge import cli

COMMANDS = ("audit", "attack", "scan", "monitor", "report", "init", "compare", "inspect", "list")


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("audit", "file.py:factory, package:factory, timm:NAME"),
        ("attack", "file.py:factory, package:factory, timm:NAME"),
        ("scan", "file.py:factory, package:factory, timm:NAME"),
        ("inspect", "file.py:factory, package:factory, timm:NAME"),
        ("monitor", "Training script, run as by python."),
        ("monitor", "Arguments of the script."),
        ("report", "Folder that audit, attack, monitor or scan wrote."),
        ("compare", "Folder of the earlier run."),
        ("compare", "Folder of the later run."),
    ],
)
def test_an_argument_says_what_it_takes(leakgauge, command, told):
    """click 8.5 drops the help that typer 0.20 gives to an argument."""
    said = leakgauge(command, "--help")
    assert said.code == 0
    assert told in said.out


@pytest.mark.parametrize("command", ["audit", "attack", "scan", "monitor"])
def test_the_default_folder_is_told_whole(leakgauge, command):
    """A word in angle brackets is taken for markup and vanishes."""
    assert "Default: leakgauge-runs/COMMAND." in " ".join(leakgauge(command, "--help").out.split())


@pytest.mark.parametrize("command", COMMANDS)
def test_no_help_holds_what_markdown_swallows(command):
    group = typer.main.get_command(cli.app)
    texts = [str(getattr(one, "help", "")) for one in group.commands[command].params]  # type: ignore[attr-defined]
    assert not [text for text in texts if "<" in text.replace("<=", "")]


def test_every_command_is_looked_at():
    assert set(typer.main.get_command(cli.app).commands) == set(COMMANDS)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("attack", "interrupted; nothing is kept that could be gone on with, so run it again"),
        ("scan", "interrupted; finished cuts are kept, go on with: leakgauge scan --resume --out FOLDER"),
    ],
)
def test_ctrl_c_tells_what_can_be_gone_on_with(leakgauge, monkeypatch, tmp_path, command, told):
    """An attack is one case, which no --resume goes on with."""

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(f"leakgauge.{'console.attack' if command == 'attack' else 'console_scan.fresh'}", interrupt)
    said = leakgauge(command, "--out", "run")
    assert (said.code, said.err) == (130, f"leakgauge: {told}\n")
    assert not (tmp_path / "run").exists()
