"""What the command line says about itself: ``--help``, its examples, the commands it records, and what to do after Ctrl-C."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from dataclasses import fields

import pytest
import typer

from leakgauge import cli
from leakgauge.audit.case import Case
from leakgauge.cli.app import COMMANDS, PANELS
from leakgauge.cli.monitor import MonitorOptions
from leakgauge.cli.options import NOT_MEASURED
from leakgauge.cli.scan import ScanOptions

GROUP = typer.main.get_command(cli.app)
FUNCTIONS = [function for group in COMMANDS.values() for function in group]
OPTIONS = {name: command.callback.options for name, command in GROUP.commands.items()}  # type: ignore[attr-defined]
EXAMPLES = [words for options in OPTIONS.values() for words in options.EXAMPLES]


def parsed(words: list[str]):
    """The options that a command line makes; nothing is run."""
    name, *rest = words
    with GROUP.make_context("leakgauge", [name]) as parent:
        context = GROUP.commands[name].make_context(name, rest, parent=parent)  # type: ignore[attr-defined]
        lists = {k: tuple(v) if isinstance(v, list) else v for k, v in context.params.items()}
        return OPTIONS[name](**lists)


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("audit", "file.py:factory, package:factory, timm:NAME"),
        ("attack", "file.py:factory, package:factory, timm:NAME"),
        ("scan", "file.py:factory, package:factory, timm:NAME"),
        ("inspect", "file.py:factory, package:factory, timm:NAME"),
        ("monitor", "Training script, run as python would run it."),
        ("monitor", "Arguments of the script."),
        ("report", "Folder that audit, attack, monitor or scan wrote."),
        ("compare", "Folder of the earlier run."),
        ("compare", "Folder of the later run."),
    ],
)
def test_an_argument_says_what_it_takes(leakgauge, command, text):
    """click 8.5 drops the help that typer 0.20 gives to an argument."""
    said = leakgauge(command, "--help")
    assert said.code == 0
    assert text in said.out


@pytest.mark.parametrize("command", ["audit", "attack", "scan", "monitor"])
def test_the_default_folder_is_shown_whole(leakgauge, command):
    """A word in angle brackets is taken for markup and vanishes."""
    assert "Default: leakgauge-runs/COMMAND." in " ".join(leakgauge(command, "--help").out.split())


def test_options_are_in_groups(leakgauge):
    out = leakgauge("audit", "--help").out
    headings = [line.split("─")[1].strip() for line in out.splitlines() if line.startswith("╭")]
    assert headings == ["Arguments", "Model and data", "Threat", "Effort", "CI", "Run"]
    assert out.index("─ CI ") < out.index("--fail-over") < out.index("─ Run ") < out.index("--help ")


@pytest.mark.parametrize("command", OPTIONS)
def test_every_option_is_shown_whole_in_a_narrow_terminal(leakgauge, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    out = leakgauge(command, "--help").out
    assert max(map(len, out.splitlines())) <= 80
    bare = " ".join(out.replace("│", " ").split())
    for name, one in OPTIONS[command].declared().items():
        assert " ".join(one.help.split()) in bare, name
        assert all(f"{flag} " in bare for flag in one.flags)
        assert one.panel in PANELS
        assert "<" not in one.help.replace("<=", "")  # markdown swallows it


def test_every_command_has_one_function_and_a_first_sentence():
    assert len(FUNCTIONS) == len(GROUP.commands) == 10  # type: ignore[attr-defined]
    assert all(function.__doc__ for function in FUNCTIONS)


@pytest.mark.parametrize("words", EXAMPLES)
def test_an_example_is_a_command_line(words):
    program, *rest = shlex.split(words)
    assert program == "leakgauge"
    parsed(rest)


@pytest.mark.parametrize("words", EXAMPLES)
def test_the_recorded_command_gives_the_same_options(words):
    """But for what is not measured: where results go, how they are shown and judged."""
    options = parsed(shlex.split(words)[1:])
    program, *rest = shlex.split(options.command())
    again = parsed(rest)
    assert program == "leakgauge"
    for one in fields(options):
        if one.name not in NOT_MEASURED | {"given"}:
            assert getattr(again, one.name) == getattr(options, one.name), one.name


def test_the_recorded_command_is_short():
    assert ScanOptions(seed=0, every_cut=True, cut=("a b", "c"), quiet=True).command() == (
        "leakgauge scan --cut 'a b' --cut c --every-cut"
    )
    assert MonitorOptions(script="train.py", arguments=("--lr", "1"), every=5).command() == (
        "leakgauge monitor --every 5 train.py --lr 1"
    )


def test_every_field_of_a_case_is_an_option_of_attack():
    flags = {flag for one in OPTIONS["attack"].declared().values() for flag in one.flags}
    for one in fields(Case):
        if one.name not in ("model", "name", "change", "in_memory"):
            flag = f"--{one.name.replace('_', '-')}"
            assert {flag, flag.removesuffix("s")} & flags, one.name


def test_list_shows_options_and_defaults_on_request(leakgauge):
    short, long = leakgauge("list").out, leakgauge("list", "--long").out
    assert "steps=4800" not in short
    assert "tv=0.1, lr=0.1, steps=4800, restarts=1" in long
    assert "fraction (required)" in long
    assert "clients=2" in long
    assert "bins=256, change=0.01" in long
    assert "``" not in long + short
    assert ":func:" not in long + short


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("attack", "interrupted; nothing to resume, run the command again"),
        ("scan", "interrupted; nothing to resume, run the command again"),
        ("audit", "interrupted; nothing to resume, run the command again"),
        ("monitor", "interrupted; nothing to resume, run the command again"),
    ],
)
def test_ctrl_c_before_the_first_result(leakgauge, monkeypatch, tmp_path, command, sentence):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("leakgauge.cli.run_folder.make_folder", interrupt)
    said = leakgauge(command, "--out", "run")
    assert (said.code, said.err) == (130, f"leakgauge: {sentence}\n")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("command", [["audit", "--help"], ["list", "--long"]], ids=" ".join)
def test_a_reader_that_stops_early_is_no_mistake(command, tmp_path):
    """As in ``leakgauge list | head -1``: not a word, whatever process prints."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as nobody_reads:
        program = [sys.executable, "-m", "leakgauge", *command]
        ended = subprocess.run(program, stdout=nobody_reads, stderr=subprocess.PIPE, cwd=tmp_path, check=False)
    assert (ended.returncode, ended.stderr) == (141, b"")


def test_a_broken_pipe_of_the_user_s_own_is_not_hidden(tmp_path):
    (tmp_path / "mine.py").write_text("def make():\n    raise BrokenPipeError(32, 'Broken pipe')\n", encoding="utf-8")
    program = [sys.executable, "-m", "leakgauge", "attack", "mine.py:make"]
    ended = subprocess.run(program, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert ended.returncode == 2
    assert "Broken pipe" in ended.stderr
