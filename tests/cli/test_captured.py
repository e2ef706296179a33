"""``leakgauge attack --update``: what a real client sent, as a framework of federated learning saved it."""

from __future__ import annotations

import html
import re

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from leakgauge.audit import records
from leakgauge.audit.verdict import Outcome

FAST = ("--option", "steps=2")
MLP = """
import torch
from torch import nn

from leakgauge import Pixels


def drawn():
    return nn.Sequential(nn.Flatten(), nn.Linear(144, 30), nn.Tanh(), nn.Linear(30, 3)), Pixels((1, 12, 12))


def fixed():
    torch.manual_seed(5)
    return drawn()
"""


def words_of(page):
    """The text of a page, without markup."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page.read_text().replace("<wbr>", ""))).split())


@pytest.fixture
def sent(tmp_path):
    """A client of a fully connected network: its gradient, the weights that it was sent, and its private batch."""
    (tmp_path / "mlp.py").write_text(MLP)
    torch.manual_seed(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(144, 30), nn.Tanh(), nn.Linear(30, 3))
    yy, xx = torch.meshgrid(torch.linspace(0, 1, 12), torch.linspace(0, 1, 12), indexing="ij")
    x, y = torch.sin(9 * xx * yy + 3 * xx).square()[None, None], torch.tensor([2])
    nn.functional.cross_entropy(model(x), y).backward()
    save_file({n: p.grad for n, p in model.named_parameters()}, tmp_path / "update.safetensors")
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    after = {n: p.detach() - 0.1 * p.grad for n, p in model.named_parameters()}
    save_file(after, tmp_path / "after.safetensors")
    np.savez(tmp_path / "truth.npz", images=x.numpy(), labels=y.numpy())
    return ("attack", "mlp.py:drawn", "--update", "update.safetensors", "--update-holds", "gradient")


WEIGHTS, TRUTH = ("--weights", "weights.safetensors"), ("--truth", "truth.npz")


def test_without_the_truth_and_a_certificate_there_is_no_verdict(leakgauge, sent, tmp_path):
    said = leakgauge(*sent, *WEIGHTS, "--attack", "inverting_gradients", *FAST, "--out", "run")
    assert said.code == 0, said.err
    sentence = "There is no verdict, because the true images are not known here"
    assert sentence in said.out
    (found,) = records.read(tmp_path / "run")
    assert found.verdict is None
    assert found.certified == ()
    assert sentence in words_of(tmp_path / "run/report.html")


def test_without_the_truth_a_certificate_gives_the_verdict(leakgauge, sent, tmp_path):
    said = leakgauge(*sent, *WEIGHTS, "--attack", "linear", "--out", "run")
    assert said.code == 0, said.err
    sentence = "Certified exact without the truth: 1 of 1 image."
    assert sentence in said.out
    (found,) = records.read(tmp_path / "run")
    assert found.outcome is Outcome.FEASIBLE
    assert found.certified == (True,)
    assert found.scores is None
    assert found.captured is not None
    assert found.captured.labels == (2,)
    assert found.captured.mismatch == pytest.approx(0, abs=1e-4)
    assert found.captured.null_mismatch > 0.1
    page = tmp_path / "run/report.html"
    shown = words_of(page)
    assert sentence in shown
    assert "Captured update update.safetensors (gradient)" in shown
    assert "Labels read 2" in shown
    assert "batch size known (1)" in shown
    assert "picture missing" not in shown
    assert found.command in shown
    assert re.search(r'<img src="data:image/png[^>]*class="pixels"', page.read_text())
    repeated = leakgauge(*found.command.split()[1:], "--out", "again")
    assert repeated.code == 0, repeated.err
    assert records.read(tmp_path / "again")[0].captured == found.captured
    page.unlink()
    assert leakgauge("report", "run").code == 0
    assert page.is_file()


def test_with_the_truth_there_is_a_verdict_and_a_gate(leakgauge, sent, tmp_path):
    words = (*sent, *WEIGHTS, "--attack", "linear")
    assert leakgauge(*words, *TRUTH, "--fail-over", "partial", "--json", "ci.json", "--out", "run").code == 3
    (found,) = records.read(tmp_path / "run")
    assert found.outcome is Outcome.FEASIBLE
    assert found.scores.mean("ssim") > 0.99
    assert found.captured.truth_mismatch == pytest.approx(0, abs=1e-5)
    assert "The true batch itself" not in words_of(tmp_path / "run/report.html")
    assert "from captured updates" in words_of(tmp_path / "run/report.html")
    assert (tmp_path / "ci.json").is_file()


def test_the_truth_reaches_scoring_alone(leakgauge, sent, tmp_path):
    """The reconstruction is the same without the truth, with it, and with the batch of somebody else; that one is noticed."""
    np.savez(tmp_path / "other.npz", images=np.random.default_rng(0).random((1, 1, 12, 12)), labels=[0])
    words = (*sent, *WEIGHTS, "--attack", "tag", "--option", "steps=5")
    for name, truth in (("none", ()), ("own", TRUTH), ("other", ("--truth", "other.npz"))):
        assert leakgauge(*words, *truth, "--out", name).code == 0
    found = {name: np.load(tmp_path / name / "reconstruction.npz")["images"] for name in ("none", "own", "other")}
    assert np.array_equal(found["none"], found["own"])
    assert np.array_equal(found["none"], found["other"])
    assert "The true batch itself does not explain the update" in words_of(tmp_path / "other/report.html")


def test_missing_weights_are_a_warning(leakgauge, sent, tmp_path):
    """Weights that the factory draws are never the server's; fixed ones may be, unless the mismatch shows otherwise."""
    said = leakgauge(*sent, "--attack", "linear", "--out", "drawn")
    warning = "No --weights were given and mlp.py:drawn draws its weights at random"
    assert warning in said.out
    assert warning in words_of(tmp_path / "drawn/report.html")
    assert warning not in leakgauge(*sent, *WEIGHTS, "--attack", "linear", "--out", "given").out
    fixed = [word.replace("drawn", "fixed") for word in sent]
    said = leakgauge(*fixed, "--attack", "tag", *FAST, "--out", "fixed")
    assert "replayed at the weights that mlp.py:fixed comes with (mismatch" in said.out


def test_whole_weights_without_those_before_are_refused(leakgauge, sent):
    """What the client changed is their difference, which other weights than the server's hide."""
    words = (
        "attack",
        "mlp.py:drawn",
        "--update",
        "after.safetensors",
        "--update-holds",
        "weights",
        "--attack",
        "linear",
    )
    assert "give the weights that the server had sent with --weights" in leakgauge(*words).sentence
    said = leakgauge(*words, *WEIGHTS, "--local-lr", "0.1", *TRUTH, "--out", "run")
    assert "feasible" in said.out


@pytest.fixture
def trained(tmp_path):
    """What a client in train mode sends: parameters and running statistics, all as differences."""
    from leakgauge.audit import Case, embedded

    case = Case(mode="train", batch_size=2)
    setup = embedded(case)
    (x, y), model = setup.private(case), setup.victim.model.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    save_file(before, tmp_path / "weights.safetensors")
    nn.functional.cross_entropy(model(x), y).backward()
    torch.optim.SGD(model.parameters(), lr=0.01).step()
    save_file({n: (v - before[n]).contiguous() for n, v in model.state_dict().items()}, tmp_path / "update.safetensors")
    return ("attack", "cnn", "--update", "update.safetensors", *WEIGHTS, "--mode", "train", "--batch-size", 2)


def test_running_statistics_that_came_with_the_update_are_used(leakgauge, trained, tmp_path):
    assert leakgauge(*trained, "--option", "steps=20", "--out", "own").code == 0
    (found,) = records.read(tmp_path / "own")
    assert found.case.attack == "strongest"
    assert "feasibility" in [one.name for one in found.raced if not one.refused]  # which uses them
    unused = "but inverting_gradients does not use them; --attack feasibility does"
    assert unused not in words_of(tmp_path / "own/report.html")
    named = leakgauge(*trained, *FAST, "--attack", "inverting_gradients", "--out", "named")
    assert unused in named.out
    assert unused in words_of(tmp_path / "named/report.html")


def test_the_header_of_the_file_says_what_the_command_line_does_not(leakgauge, sent, tmp_path):
    from safetensors.torch import load_file

    gradient = load_file(tmp_path / "update.safetensors")
    said = {
        "update_holds": "gradient",
        "batch_size": "1",
        "local_steps": "1",
        "weights": "../elsewhere/weights.safetensors",
    }
    save_file(gradient, tmp_path / "told.safetensors", metadata=said)
    words = ("attack", "mlp.py:drawn", "--update", "told.safetensors", "--attack", "linear")
    assert leakgauge(*words, *TRUTH, "--out", "run").code == 0
    (found,) = records.read(tmp_path / "run")
    assert found.outcome is Outcome.FEASIBLE
    assert (found.captured.holds, found.captured.weights) == (
        "gradient",
        "weights.safetensors",
    )  # beside it, never elsewhere
    assert "give the --batch-size" in leakgauge(*words, *TRUTH, "--batch-size", 2).sentence  # the command line counts
    save_file(gradient, tmp_path / "odd.safetensors", metadata={**said, "local_steps": "a few"})
    odd = ("attack", "mlp.py:drawn", "--update", "odd.safetensors")
    assert "says local_steps = 'a few', which is no number; give --local-steps" in leakgauge(*odd).sentence
    delta = {name: -0.1 * value for name, value in gradient.items()}
    save_file(delta, tmp_path / "many.safetensors", metadata={**said, "local_steps": "3", "update_holds": "delta"})
    many = ("attack", "mlp.py:drawn", "--update", "many.safetensors")
    assert "does not say the client's local lr; give --local-lr" in leakgauge(*many).sentence
    epochs = ("--local-steps", 1, "--local-epochs", 2, "--local-lr", 0.1)
    assert leakgauge(*many, *epochs, "--attack", "feasibility", *FAST, "--out", "epochs").code == 0


def test_a_captured_update(leakgauge, tmp_path):
    from leakgauge.models.pretrained import pretrained

    model = pretrained("cnn")
    save_file(model.state_dict(), tmp_path / "global.safetensors")
    rng = torch.Generator().manual_seed(0)
    noise = {n: 0.01 * torch.randn(p.shape, generator=rng) for n, p in model.named_parameters()}
    save_file(noise, tmp_path / "client.safetensors")
    captured = ("attack", "cnn", "--update", "client.safetensors", "--weights", "global.safetensors")
    said = leakgauge(*captured, "--mode", "train", "--batch-size", 1, "--local-steps", 2, *FAST, "--out", "run")
    assert said.code == 0, said.err
    (found,) = records.read(tmp_path / "run")
    assert found.channel.startswith("FedAvg(steps=2")
    assert "assumed: batch size known (2)" in said.out
    assert "run already holds a run" in leakgauge(*captured, "--local-steps", 2, *FAST, "--out", "run").sentence
    assert "run already holds a run" in leakgauge("attack", *FAST, "--out", "run").sentence
    assert "belong to --reveal auxiliary:64; give both or none" in leakgauge(*captured, "--data", "x").sentence
    server = ("--data", "fashion", "--reveal", "auxiliary:16", "--attack", "feasibility", "--batch-size", 1)
    epochs = ("--local-steps", 2, "--local-epochs", 2)
    said = leakgauge(*captured, *server, *epochs, *FAST, "--out", "own")
    assert said.code == 0, said.err
    assert "server holds 16 auxiliary images" in said.out
    (found,) = records.read(tmp_path / "own")
    assert found.channel.startswith("ShuffledFedAvg(epochs=2, lr=0.01, minibatch=1")
    assert any(note.startswith("statistics: proxy") for note in found.notes)


def test_the_closed_form_on_a_captured_update_says_what_it_can_identify(leakgauge, tmp_path):
    """Where the truth is not known, what is predicted before solving is all that is known of the quality."""
    from leakgauge.channels import Gradient
    from leakgauge.core import Pixels, Victim, share
    from leakgauge.integrations.resolve import rearranged
    from leakgauge.models.pretrained import pretrained

    victim = Victim(rearranged(pretrained("vit")), Pixels((1, 28, 28)))
    save_file(victim.model.state_dict(), tmp_path / "global.safetensors")
    seen = share(victim, Gradient(), torch.rand(1, *victim.space.shape), torch.tensor([3]))
    save_file(dict(seen.signal), tmp_path / "client.safetensors")
    words = ("--update", "client.safetensors", "--weights", "global.safetensors", "--update-holds", "gradient")
    said = leakgauge("attack", "attention_first:vit", *words, "--attack", "april_closed_form", "--out", "run")
    assert said.code == 0, said.err
    assert "predicted: everything is recovered" in said.out
    assert "expected error of a pixel" in dict(records.read(tmp_path / "run")[0].stated)
    noise = ("--option", "ridge=auto", "--option", "noise=1e-6")
    said = leakgauge("attack", "attention_first:vit", *words, "--attack", "april_closed_form", *noise, "--out", "noise")
    assert "deviation of the noise on each shared entry known (1e-06)" in said.out
