"""From ``leakgauge init`` to a report and a comparison, as a user with a model of their own goes."""

from __future__ import annotations

import json

import pytest

from leakgauge.audit import records
from leakgauge.integrations.plan_templates import MARK, TEMPLATES

PLAN = """
import torch
from torch import nn

from leakgauge import Pixels
from leakgauge.audit import Case

FAIL_OVER = "infeasible"
ONLY = ("updates",)


def victim():
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 4)), Pixels((3, 8, 8))


def data():
    return torch.rand(20, 3, 8, 8), torch.arange(20) % 4


def cases():
    return [Case(options={"steps": 2}), Case(batch_size=2, attack="linear", name="closed form", options={})]
"""


@pytest.mark.parametrize("kind", TEMPLATES)
def test_each_template_runs_as_it_is(kind, leakgauge, tmp_path):
    said = leakgauge("init", "--for", kind, "--out", "plan.py")
    assert said.code == 0
    assert "leakgauge audit plan.py" in said.out
    text = (tmp_path / "plan.py").read_text()
    assert text.count(MARK) >= 3
    assert "{" not in text.replace("{}", "")  # every place was filled in
    assert leakgauge("attack", "plan.py", "--option", "steps=1", "--out", "run", "--quiet").code == 0
    found = records.read(tmp_path / "run")
    assert [(r.status, r.case.data, r.victim.classes) for r in found] == [("done", "plan.py:data", 10)]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--for", "keras"], "--for takes pytorch, timm, huggingface, lightning, got 'keras'"),
        (["--out", "audit.txt"], "a plan file is Python and must end in .py"),
        (["--out", "nowhere/audit.py"], "there is no folder nowhere"),
        (["--for", "timm", "--out", "timm.py"], "timm.py would hide the package timm"),
        (["--out", "mine.py"], "mine.py already exists and was not changed"),
        (["--out", "/proc/plan.py"], "cannot write /proc/plan.py (No such file or directory); choose another place"),
    ],
)
def test_mistakes_of_init(words, sentence, leakgauge, tmp_path):
    (tmp_path / "mine.py").write_text("mine")
    assert sentence in leakgauge("init", *words).sentence
    assert (tmp_path / "mine.py").read_text() == "mine"


@pytest.fixture
def plan(tmp_path):
    (tmp_path / "audit.py").write_text(PLAN)
    return "audit.py"


def test_a_plan_says_everything(leakgauge, plan, tmp_path):
    said = leakgauge("audit", plan, "--out", "run", "--markdown", "pr.md", "--json", "pr.json", "--junit", "pr.xml")
    assert said.code in (0, 3)
    found = records.read(tmp_path / "run")
    own = [r for r in found if r.change is None]
    assert [r.case.name for r in own] == ["audit.py:victim, eval mode, batch 1, strongest", "closed form"]
    assert own[0].case.options == {"steps": 2}  # its own steps hold, though no budget was given
    assert own[0].outcome != "infeasible_within_budget"  # two steps prove nothing
    assert said.code == 3  # FAIL_OVER of the file is the gate
    summary = json.loads((tmp_path / "pr.json").read_text())
    assert summary["fail_over"] == "infeasible_within_budget"
    assert summary["questions"]["training"]["word"] == "Not asked"  # ONLY of the file
    markdown = (tmp_path / "pr.md").read_text()
    assert markdown.startswith("### leakgauge: ")
    assert "`closed form`" in markdown
    assert "<properties>" in (tmp_path / "pr.xml").read_text()


def test_the_command_line_wins_over_the_plan(leakgauge, plan, tmp_path):
    words = ("--option", "steps=1", "--batch-size", "3", "--seed", "7", "--fail-over", "partial")
    leakgauge("audit", plan, *words, "--out", "run", "--quiet", "--json", "run.json")
    asked = json.loads((tmp_path / "run" / "plan.json").read_text())["cases"]
    assert [(case["batch_size"], case["seed"], case["options"]) for case in asked if not case["server"]] == [
        (3, 7, {"steps": 1}),
        (3, 7, {}),  # a closed form takes no steps
    ]
    assert json.loads((tmp_path / "run.json").read_text())["fail_over"] == "partial"
    before = (tmp_path / "run" / records.FILE).read_bytes()
    leakgauge("audit", "--resume", "--out", "run", "--quiet")
    assert (tmp_path / "run" / records.FILE).read_bytes() == before


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (PLAN.replace("def victim", "def model"), "audit.py has no victim(), which a plan file needs"),
        (PLAN.replace("return nn.Seq", "1 / 0\n    return nn.Seq"), "raised ZeroDivisionError: division by zero (line 13)"),
        (PLAN.replace("return torch.rand", "return 3, torch.rand"), "data() in audit.py (line 16) must return (images, labels)"),
        (PLAN.replace('"infeasible"', '"never"'), "--fail-over takes infeasible, inconclusive or partial"),
        (
            PLAN.replace('("updates",)', '("update",)'),
            "takes a question, one of updates, training, split, defenses, properties; got 'update'",
        ),
        (PLAN.replace("batch_size=2", "batch_size=0"), "went wrong: the batch size must be at least 1, got 0 (line 21)"),
    ],
)  # fmt: skip
def test_mistakes_in_a_plan(text, sentence, leakgauge, tmp_path):
    (tmp_path / "audit.py").write_text(text)
    assert sentence in leakgauge("audit", "audit.py", "--out", "run").sentence
    assert not (tmp_path / "run" / records.FILE).exists()


def test_compare(leakgauge, plan, tmp_path):
    (tmp_path / "second.py").write_text(PLAN.replace("nn.Flatten(),", "nn.Flatten(), nn.Sigmoid(),"))
    for name, run in ((plan, "a"), ("second.py", "b")):
        leakgauge("attack", name, "--attack", "linear", "--out", run, "--quiet")
    said = leakgauge("compare", "a", "b", "--out", "changes.html", "--json", "c.json", "--markdown", "c.md")
    assert said.code == 0
    assert "What changed from a to b" in said.out
    summary = json.loads((tmp_path / "c.json").read_text())
    assert summary["cases"][0]["verdict"][0] == "feasible"  # one linear layer tells everything
    assert "<title>a and b" in (tmp_path / "changes.html").read_text()
    assert (tmp_path / "c.md").read_text().startswith("### leakgauge: Of 1 set-up ")
    assert leakgauge("compare", "a", "b", "--quiet").out == ""


@pytest.mark.parametrize(("before", "after", "code"), [("a", "b", 0), ("b", "a", 3), ("a", "c", 3)])
def test_fail_if_worse(before, after, code, leakgauge, plan, tmp_path):
    (tmp_path / "convolution.py").write_text(PLAN.replace("nn.Flatten(),", "nn.Conv2d(3, 3, 1), nn.Flatten(),"))
    runs = {"a": ("convolution.py", ()), "b": (plan, ()), "c": (plan, ("--defense", "clip:1.0"))}
    for run in (before, after):
        name, extra = runs[run]
        leakgauge("attack", name, "--attack", "linear", *extra, "--out", run, "--quiet")
    said = leakgauge("compare", before, after, "--fail-if-worse")
    assert said.code == code  # what was refused before can be judged now; or not any more; or nothing was compared


def test_mistakes_of_compare(leakgauge, plan, tmp_path):
    for name in ("empty", "void"):
        (tmp_path / name).mkdir()
    leakgauge("attack", plan, "--attack", "linear", "--out", "a", "--quiet")
    assert "there is no run folder b" in leakgauge("compare", "a", "b").sentence
    assert "are the same run" in leakgauge("compare", "a", "a").sentence
    assert "neither empty nor void holds a result" in leakgauge("compare", "empty", "void").sentence
    assert (
        "there is no folder nowhere to write x.html into"
        in leakgauge("compare", "a", "empty", "--out", "nowhere/x.html").sentence
    )


def test_attack_runs_the_first_case_of_a_plan_and_checks_all(leakgauge, plan, tmp_path):
    case = 'Case(batch_size=3, reveal=("size", "labels"), options={"steps": 2})'
    (tmp_path / plan).write_text(PLAN.replace('Case(options={"steps": 2})', case))
    said = leakgauge("attack", plan, "--local-epochs", 2, "--option", "steps=1", "--out", "run")
    assert said.code == 0, said.err
    assert f"case 1 of 2 in {plan}: " in said.out
    (first,) = records.read(tmp_path / "run")
    assert (first.case.batch_size, first.case.reveal) == (3, ("size", "labels"))
    assert (first.case.local_epochs, first.case.options) == (2, {"steps": 1})  # given here, they win over the file
    (tmp_path / plan).write_text(
        (tmp_path / plan).read_text().replace('name="closed form"', 'channel="fedavg:steps=5"')
    )
    assert "case 2 of cases() in audit.py: local training has options of its own" in leakgauge("attack", plan).sentence
