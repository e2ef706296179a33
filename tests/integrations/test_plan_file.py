"""Plan files: what they say, what wins, and every way in which a user's own file can be wrong."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from leakgauge.audit.case import Case
from leakgauge.errors import BadInput
from leakgauge.integrations import plan_file
from leakgauge.integrations.setups import find

HEAD = """import torch
from torch import nn
from leakgauge import Pixels, Victim
from leakgauge.audit import Case

def net():
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 3))

"""
VICTIM = "def victim(): return net(), Pixels((3, 2, 2))\n"
DATA = "def data(): return torch.rand(5, 3, 2, 2), torch.tensor([0, 1, 2, 0, 1])\n"


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes a plan file into the working directory; returns its name."""
    monkeypatch.chdir(tmp_path)

    def plan(*parts: str, name: str = "audit.py", head: str = HEAD) -> str:
        (tmp_path / name).write_text(head + "".join(parts))
        return name

    return plan


def base_of(path: str, **fields) -> Case:
    model, data = plan_file.named(path, None)
    return Case(model=model, data=data, **fields)


def test_a_plan_file_is_a_python_file_without_a_factory():
    assert plan_file.is_plan("a/audit.py")
    assert not any(map(plan_file.is_plan, [None, "cnn", "my_model.py:make", "timm:resnet18"]))


def test_it_stands_for_its_two_functions():
    assert plan_file.named("a/audit.py", None) == ("a/audit.py:victim", "a/audit.py:data")
    assert plan_file.named("a/audit.py", "photos") == ("a/audit.py:victim", "photos")
    assert plan_file.named("cnn", None) == ("cnn", "fashion")
    assert plan_file.named(None, None, default="vgg") == ("vgg", "fashion")


def test_what_it_says(write):
    path = write(VICTIM, DATA, 'BUDGET = "90s"\nSKIP = "split"\nFAIL_OVER = "partial"\n')
    found = plan_file.read(path)
    assert (found.budget, found.skip, found.only, found.fail_over) == ("90s", ("split",), (), "partial")
    assert found.cases is None
    assert plan_file.read(write(VICTIM, DATA)) == plan_file.PlanFile("audit.py")


def test_a_case_is_run_on_its_victim_and_data(write):
    path = write(VICTIM, DATA)
    case = base_of(path, seed=3)
    setup, again = find(case), find(case)
    assert setup.victim.space.shape == (3, 2, 2)
    assert torch.equal(setup.images, again.images)  # random data is drawn from the seed
    assert setup.labels.tolist() == [0, 1, 2, 0, 1]
    assert setup.victim.name == "audit.py:victim"
    other = find(base_of(path, seed=4))
    assert not torch.equal(setup.images, other.images)
    assert not torch.equal(setup.victim.parameters()["1.weight"], other.victim.parameters()["1.weight"])


def test_a_victim_keeps_its_loss_and_the_case_decides_on_the_mode(write):
    loss = "def loss(output, y): return output.sum() * 7\n"
    path = write(loss, "def victim(): return Victim(net(), Pixels((3, 2, 2)), loss=loss, mode='train')\n", DATA)
    setup = find(base_of(path))
    assert setup.victim.mode == "eval"
    assert setup.victim.loss(torch.ones(2), None) == 14


@pytest.mark.parametrize(
    "returned",
    [
        "np.full((4, 2, 2, 3), 255, np.uint8), np.zeros(4)",
        "torch.ones(4, 3, 2, 2), [0, 0, 0, 0]",
        "(np.ones((4, 3, 2, 2)), np.zeros((4, 1), int))",
    ],
)
def test_kinds_of_arrays(write, returned):
    setup = find(base_of(write(VICTIM, f"import numpy as np\ndef data(): return {returned}\n")))
    assert torch.equal(setup.images, torch.ones(4, 3, 2, 2))
    assert setup.labels.tolist() == [0] * 4


def test_a_path_starts_from_the_plan_files_own_folder(write, tmp_path, monkeypatch):
    path = write(VICTIM, 'def data(): return "mine.npz"\n')
    np.savez(tmp_path / "mine.npz", x=np.ones((2, 3, 2, 2), np.float32), y=np.array([1, 2]))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert find(base_of(f"../{path}")).labels.tolist() == [1, 2]


def test_embedded_data_by_name(write):
    setup = find(base_of(write(VICTIM, 'def data(): return "photographs"\n')))
    assert setup.images.shape == (8, 3, 2, 2)
    assert setup.labels.tolist() == [0, 1, 2, 0, 1, 2, 0, 1]  # made up, but such as the model has


CASES = """
def cases():
    return [
        Case(mode="train", batch_size=2, attack="inverting_gradients", options={"steps": 9, "tv": 0.5}),
        Case(name="mine", defenses=["prune:0.9"]),
    ]
"""


def test_cases_get_victim_data_and_a_name(write):
    path = write(VICTIM, DATA, CASES)
    first, second = plan_file.settled(plan_file.read(path), base_of(path))
    assert (first.model, first.data) == ("audit.py:victim", "audit.py:data")
    assert first.name == "audit.py:victim, train mode, batch 2, inverting_gradients"
    assert (second.name, second.defenses) == ("mine", ("prune:0.9",))
    assert first.options == {"steps": 9, "tv": 0.5}


def test_the_command_line_wins(write):
    path = write(VICTIM, DATA, CASES)
    plan = plan_file.read(path)
    base = base_of(path, seed=5, local_steps=3, options={"steps": 2})
    settled = plan_file.settled(plan, base, given={"seed"}, mode="eval")
    assert [case.seed for case in settled] == [5, 5]
    assert [case.local_steps for case in settled] == [1, 1]  # it was not given, so the file's holds
    assert [case.mode for case in settled] == ["eval", "eval"]
    assert settled[0].options == {"steps": 2, "tv": 0.5}


def test_another_attack_does_not_get_the_files_options(write):
    path = write(VICTIM, DATA, CASES)
    base = base_of(path, attack="dlg", options={"steps": 2})
    assert plan_file.settled(plan_file.read(path), base, given={"attack"})[0].options == {"steps": 2}


def test_defenses_replace_the_files_and_doubles_are_left_out(write):
    path = write(VICTIM, DATA, "def cases(): return [Case(), Case(defenses=('prune:0.9',)), Case(name='mine')]\n")
    settled = plan_file.settled(plan_file.read(path), base_of(path), defenses=["clip:1.0"])
    assert [(case.defenses, case.name) for case in settled[2:]] == [((), "mine"), (("clip:1.0",), "mine, clip:1.0")]
    assert [case.defenses for case in settled[:2]] == [(), ("clip:1.0",)]


def test_steps_hold_where_every_case_says_its_own():
    nine, five, open_ = Case(options={"steps": 9}), Case(options={"steps": 5}), Case()
    assert plan_file.steps_of([nine, five]) == 9
    assert plan_file.steps_of([nine, open_]) is None
    assert plan_file.steps_of([nine, Case(attack="linear")]) == 9  # a closed form takes none


def test_options_reach_the_attacks_that_take_them(write):
    path = write(VICTIM, DATA, "def cases(): return [Case(), Case(attack='linear')]\n")
    settled = plan_file.settled(plan_file.read(path), base_of(path, options={"steps": 2}))
    assert [case.options for case in settled] == [{"steps": 2}, {}]


def test_one_case_alone(write):
    assert plan_file.read(write(VICTIM, DATA, "def cases(): return Case(batch_size=2)\n")).cases == (
        Case(batch_size=2),
    )


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ("", r"audit.py has no victim\(\), which a plan file needs; .* write audit.py:net"),
        ("victim = 3\n", r"'victim' in audit.py is a int; a function that returns a model and its Pixels is needed"),
        ("1 / 0\n", r"audit.py raised ZeroDivisionError: division by zero when it was imported \(line 9\)"),
        ("import sys; sys.exit(4)\n", r"audit.py raised SystemExit: 4 when it was imported \(line 9\)"),
        ("import no_such_package\n", r"ModuleNotFoundError: No module named 'no_such_package'.*\(line 9\)"),
        ("def victim(:\n", r"audit.py raised SyntaxError: .*line 9\)"),
        (VICTIM + "BUDGETT = '5m'\n", r"audit.py has BUDGETT, which means nothing here; did you mean BUDGET\?"),
        (VICTIM + "def case(): pass\n", r"audit.py has case, which means nothing here; did you mean cases\?"),
        (VICTIM + "BUDGET = 5\n", r"BUDGET in audit.py must be text such as '5m', got 5"),
        (VICTIM + "ONLY = 3\n", r"ONLY in audit.py must be names of questions"),
        (VICTIM + "ONLY = 'split'\nSKIP = 'split'\n", r"sets ONLY and SKIP"),
        (VICTIM + "cases = 3\n", r"'cases' in audit.py is a int; a function that returns cases is needed"),
        (VICTIM + "def cases():\n    raise KeyError('x')\n", r"cases\(\) in audit.py raised KeyError: 'x' \(line 11\)"),
        (
            VICTIM + "def cases():\n    return [Case(mode='tran')]\n",
            r"cases\(\) in audit.py went wrong: Case needs mode as 'train' or 'eval', got 'tran' \(line 11\)",
        ),
        (
            VICTIM + "def cases(): return 'all'\n",
            r"cases\(\) in audit.py \(line 10\) must return a list of Case, got str",
        ),
        (VICTIM + "def cases(): return [3]\n", r"its number 1 is a int"),
        (VICTIM + "def cases(): return []\n", r"returned no case"),
        (VICTIM + "def cases(): return [Case(model='vit')]\n", r"case 1 of cases\(\) .* leave them out"),
        (
            VICTIM + "def cases(): return [Case(defenses='clip:1')]\n",
            r"needs defenses as a sequence of text, got 'clip:1'; write \['clip:1'\]",
        ),
    ],
)
def test_mistakes_in_the_file(write, parts, sentence):
    with pytest.raises(BadInput, match=sentence) as raised:
        plan_file.read(write(parts))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("case", "sentence"),
    [
        ("Case(attack='dgl')", "case 1 of cases\\(\\) in audit.py: unknown attack 'dgl'; did you mean dlg"),
        ("Case(defenses=['prunne:1'])", "unknown defense 'prunne'; did you mean prune"),
        ("Case(reveal=['lables'])", "did you mean labels"),
        ("Case(options={'stesp': 3})", "no option 'stesp'"),
    ],
)
def test_cases_that_cannot_be_built(write, case, sentence):
    path = write(VICTIM, DATA, f"def cases(): return [{case}]\n")
    with pytest.raises(BadInput, match=sentence):
        plan_file.settled(plan_file.read(path), base_of(path))


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ("def victim(): return 3\n" + DATA, r"victim\(\) in audit.py \(line 9\) must return a torch.nn.Module.* got int"),
        ("def victim():\n    return net(), 3\n" + DATA, r"got \(Sequential, int\)"),
        ("def victim():\n    x = 1\n    return x.y\n" + DATA, r"victim\(\) in audit.py raised AttributeError: .* \(line 11\)"),
        ("def victim(): return net(), Pixels((3, 2))\n" + DATA, r"victim\(\) in audit.py went wrong: Pixels needs a shape"),
        (VICTIM, r"audit.py has no 'data'"),
        (VICTIM + "def data(): return 3\n", r"data\(\) in audit.py \(line 10\) must return \(images, labels\).* got int"),
        (VICTIM + "def data(): return torch.rand(2, 3, 2, 2)\n", r"got Tensor"),
        (VICTIM + "def data(): return torch.rand(2, 3, 2, 2), 1, 2\n", r"got 3 things \(Tensor, int, int\)"),
        (VICTIM + "def data(): return torch.utils.data.TensorDataset(torch.rand(2, 3, 2, 2), torch.zeros(2, 5))\n", r"label of shape"),
        (VICTIM + "def data(): return 'nowhere'\n", "nowhere does not exist"),
        (VICTIM + "def data(): raise OSError('disk')\n", r"data\(\) in audit.py raised OSError: disk \(line 10\)"),
        (VICTIM + "def data(): return torch.randn(9, 3, 2, 2), torch.zeros(9)\n", r"data\(\) .* values from -.*mean and std belong"),
        (VICTIM + "def data(): return torch.rand(1, 3, 2, 2).expand(10**9, 3, 2, 2), torch.zeros(9)\n", r"takes 45 GiB .* make it dense"),
        (VICTIM + "def data(): return torch.zeros(0).to_sparse(1).sparse_resize_((10**12,), 1, 0), [0]\n", r"takes 3725 GiB"),
        (VICTIM + "def data(): return torch.rand(2, 3, 2, 2), torch.zeros(3)\n", r"2 images but 3 labels"),
        (VICTIM + "def data(): return torch.rand(2, 3, 4, 4), torch.zeros(2)\n", r"4 × 4 pixels .* the model takes 2 × 2"),
    ],
)  # fmt: skip
def test_mistakes_that_show_when_a_case_is_set_up(write, parts, sentence):
    path = write(parts)
    with pytest.raises(BadInput, match=sentence) as raised:
        find(base_of(path))
    assert "\n" not in str(raised.value)


def test_there_is_no_such_file(tmp_path):
    with pytest.raises(BadInput, match="there is no file"):
        plan_file.read(str(tmp_path / "audit.py"))


@pytest.mark.parametrize(
    "made", ["pairs", "DataLoader(pairs, batch_size=3)", "DataLoader(pairs, batch_size=3, shuffle=True)"]
)
def test_data_may_be_a_dataset_or_a_loader(write, made):
    path = write(
        VICTIM,
        "from torch.utils.data import DataLoader, TensorDataset\n",
        "def data():\n    x = torch.arange(96.0).reshape(8, 3, 2, 2) / 96\n"
        f"    pairs = TensorDataset(x, torch.arange(8) // 4)  # sorted by class\n    return {made}\n",
    )
    setup, again = find(base_of(path)), find(base_of(path))
    assert setup.labels.tolist() == [0, 1] * 4  # so a batch of two holds both classes
    assert torch.equal(setup.images, again.images)  # a loader that shuffles follows the seed
    number = (setup.images[:, 0, 0, 0] * 8).round().long()
    assert sorted(number.tolist()) == list(range(8))
    assert torch.equal(number // 4, setup.labels)


@pytest.mark.parametrize("held", ["x.bfloat16()", "x.half()", "x.to_sparse()", "x.requires_grad_()", "x.tolist()"])
def test_data_may_be_held_in_any_way_that_keeps_its_numbers(write, held):
    path = write(
        VICTIM, f"def data():\n    x = torch.arange(24.0).reshape(2, 3, 2, 2) / 32\n    return {held}, [0, 1]\n"
    )
    x, y, _ = plan_file.returned_data(f"{path}:data")
    assert np.array_equal(x.ravel(), np.arange(24) / 32)  # exact in 8 bits of significand
    assert y.tolist() == [0, 1]


def test_lists_of_uneven_rows_are_told(write):
    path = write(VICTIM, "def data(): return [[0.1, 0.2], [0.3]], [0, 1]\n")
    with pytest.raises(
        BadInput, match=r"data\(\) in audit\.py \(line \d+\) returns a list with rows of different length"
    ):
        plan_file.returned_data(f"{path}:data")
