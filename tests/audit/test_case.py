"""A case is plain data: its key names it, its command runs it again."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from dataclasses import asdict, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leakgauge import cli
from leakgauge.audit.case import SALT, Case, adds_noise, has_prior, present_fields, uses_of
from leakgauge.audit.typed import typed
from leakgauge.channels import DPSGD, SGD, Aggregate, FedAvg, Gradient, ShuffledFedAvg
from leakgauge.channels.facts import LocalTraining
from leakgauge.core import Buffers, Labels, NoisyCopy, Size
from leakgauge.defenses import DEFENSES, Prune
from leakgauge.errors import BadInput

CHANGES = {
    "model": "vit", "data": "photographs", "mode": "train", "batch_size": 2,
    "local_steps": 3, "local_lr": 0.5, "local_epochs": 3, "optimizer": "adam",
    "attack": "dlg",
    "channel": "dpsgd",
    "options": {"steps": 9}, "defenses": ("prune:0.9",), "reveal": ("size", "labels"), "seed": 4, "first": 7, "classes": 10,
    "resize": True, "device": "cuda", "name": "mine",
}  # fmt: skip


def test_keys_tell_cases_apart_and_nothing_else():
    keys = [Case().key(), *(Case(**{name: value}).key() for name, value in CHANGES.items())]
    assert len(set(keys)) == len(CHANGES) + 1
    assert Case().key() == Case(options={}).key()
    assert Case(options={"a": 1, "b": 2}).key() == Case(options={"b": 2, "a": 1}).key()
    assert len(Case().key()) == 12


def test_without_a_channel_the_key_is_that_of_versions_that_knew_none():
    """``--resume`` goes on with their folders."""
    assert Case(attack="inverting_gradients").key() == "40ef6a25a0ee"


def test_a_channel_refuses_what_does_not_go_with_it():
    shared = Case(channel="aggregate:clients=4", batch_size=4, local_steps=2)
    assert (shared.batch_sizes().start, shared.fits(), replace(shared, batch_size=6).fits()) == (4, True, False)
    assert [Case(channel="features:0", mode=mode).fits() for mode in ("eval", "train")] == [True, False]
    with pytest.raises(BadInput, match="multiple"):
        replace(shared, batch_size=6).require_fit()
    with pytest.raises(BadInput, match="eval mode"):
        Case(channel="features:0", mode="train").require_fit()
    with pytest.raises(BadInput, match="drop of="):
        Case(channel="aggregate:clients=2,of=dpsgd", batch_size=2).build_channel()


def test_options_may_stand_behind_the_attacks_name():
    written = Case(attack="feasibility:0.5,steps=3", options={"steps": 4})
    assert (written.attack, written.options) == ("feasibility", {"tv": 0.5, "steps": 4})
    assert written.key() == Case(attack="feasibility", options={"steps": 4, "tv": 0.5}).key()
    assert Case(attack="unheard_of:steps=3").attack == "unheard_of:steps=3"  # told when the attack is built


def test_the_name_says_what_it_is():
    case = Case(model="vit", mode="train", batch_size=4, local_steps=3, defenses=("prune:0.9",), attack="dlg")
    assert case.name == "vit, train mode, batch 4, 3 local steps, prune:0.9, dlg"
    assert Case(channel="dpsgd:noise=2").name == "cnn, eval mode, batch 1, dpsgd:noise=2, strongest"


def run_command(command: str, monkeypatch, folder) -> Case:
    """The case that the command line would run; nothing is run."""
    ran = []
    monkeypatch.setattr("leakgauge.cli.attack._attack", lambda options, case: ran.append(case) or 0)
    words = shlex.split(command)
    assert words[0] == "leakgauge"
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 0
    return ran[0]


cases = st.builds(
    Case,
    model=st.sampled_from(["cnn", "vit", "my model.py:make", "timm:test_vit", "hf:vit"]),
    data=st.sampled_from(["fashion", "photographs", "my photos/", "data.npz"]),
    mode=st.sampled_from(["eval", "train"]),
    batch_size=st.integers(1, 9),
    local_steps=st.integers(1, 5),
    local_lr=st.sampled_from([0.01, 0.1, 1e-05]),
    local_epochs=st.integers(1, 3),
    optimizer=st.sampled_from(["sgd", "sgd:momentum=0.9", "adamw:weight_decay=0.1"]),
    channel=st.sampled_from(["", "aggregate:clients=1"]),
    attack=st.just("inverting_gradients"),
    options=st.fixed_dictionaries(
        {}, optional={"steps": st.integers(1, 99), "tv": st.floats(0, 1), "lr": st.just(0.5)}
    ),
    defenses=st.lists(
        st.sampled_from(["prune:0.9", "gaussian_noise:relative=10.0", "withhold:head+norms"]), max_size=2
    ).map(tuple),
    reveal=st.lists(st.sampled_from(["labels", "buffers", "noisy_copy:0.5"]), max_size=2).map(lambda r: ("size", *r)),
    seed=st.integers(0, 10**6),
    first=st.integers(0, 50),
    classes=st.none() | st.integers(2, 20),
    resize=st.booleans(),
    device=st.sampled_from(["cpu", "cuda"]),
)


@settings(max_examples=40, deadline=None)
@given(cases)
def test_the_command_of_a_case_runs_that_case(tmp_path_factory, case):
    with pytest.MonkeyPatch.context() as patch:
        found = run_command(case.command(), patch, tmp_path_factory.mktemp("run"))
    assert found == case
    assert found.key() == case.key()


def test_what_it_builds():
    case = Case(defenses=("prune:0.9",), reveal=("size", "labels", "buffers", "noisy_copy:0.25"))
    assert case.build_channel() == Gradient()
    assert replace(case, local_epochs=3).build_channel() == FedAvg(steps=3, lr=0.01)
    assert replace(case, channel="aggregate:3").build_channel() == Aggregate(3)
    summed = replace(case, channel="aggregate:clients=3", local_epochs=2)
    assert summed.build_channel() == Aggregate(3, FedAvg(steps=2, lr=0.01))
    assert case.build_defenses() == (Prune(0.9),)
    assert case.build_reveal() == (Size(), Labels(), Buffers(), NoisyCopy(0.25))


def test_what_a_client_draws_comes_from_the_seed_and_differs_by_image():
    private = Case(channel="dpsgd:clip=0.5,noise=2", seed=3, first=4)
    assert private.build_channel() == DPSGD(clip=0.5, noise=2, seed=4 * SALT + 4)
    assert (
        replace(private, seed=0, first=0).build_channel().seed != 0
    )  # the attack draws its start from the seed itself
    assert replace(private, channel="dpsgd:seed=1").build_channel() == DPSGD(seed=1)
    shuffled = replace(private, channel="", batch_size=2, local_steps=3, local_epochs=2)
    assert shuffled.build_channel() == ShuffledFedAvg(epochs=2, lr=0.01, minibatch=2, seed=4 * SALT + 4)


def test_local_steps_are_minibatches_and_epochs_pass_over_them():
    """Five steps with a batch size of 32 are 160 images, as everybody means it."""
    case = Case(batch_size=32, local_steps=5, local_lr=0.1, optimizer="sgd:momentum=0.9")
    assert case.build_channel() == FedAvg(steps=5, lr=0.1, minibatch=32, optimizer=SGD(momentum=0.9))
    assert case.images == 160
    assert case.local_training() == LocalTraining(5, 32, 160, 1.0, 0.1, "SGD(momentum=0.9)")
    twice = replace(case, name="", local_epochs=2)
    assert twice.local_training() == LocalTraining(10, 32, 160, 2.0, 0.1, "SGD(momentum=0.9)", secret_order=True)
    same_batch = replace(case, name="", local_steps=1, local_epochs=5)
    assert same_batch.images == 32
    assert same_batch.local_training() == LocalTraining(5, 32, 32, 5.0, 0.1, "SGD(momentum=0.9)")
    clients = replace(case, name="", channel="aggregate:clients=4")
    assert clients.local_training() == LocalTraining(5, 8, 40, 1.0, 0.1, "SGD(momentum=0.9)")
    assert Case().local_training() is None
    assert Case(optimizer="adamw").local_training() == LocalTraining(1, 1, 1, 1.0, 0.01, "AdamW")


@pytest.mark.parametrize(
    ("channel", "batch_size", "meant"),
    [
        ("fedavg:steps=5,lr=0.1,minibatch=32", 160, Case(batch_size=32, local_steps=5, local_lr=0.1)),
        ("fedavg:3", 4, Case(batch_size=4, local_steps=3, local_lr=0.1)),
        ("fedavg:steps=2,optimizer=adam", 4, Case(batch_size=4, local_steps=2, local_lr=0.1, optimizer="adam")),
        ("shuffled_fedavg:epochs=2,minibatch=32,momentum=0.9", 160,
         Case(batch_size=32, local_steps=5, local_epochs=2, local_lr=0.1, optimizer="sgd:momentum=0.9")),
    ],
)  # fmt: skip
def test_a_channel_of_local_training_is_refused_with_the_right_spelling(channel, batch_size, meant, tmp_path):
    with pytest.raises(BadInput) as refused:
        Case(channel=channel, batch_size=batch_size).build_channel()
    options, fields = re.search(r"write (.+) \(in a plan file: (.+)\)$", str(refused.value)).groups()
    assert eval(f"Case({fields})") == meant
    with pytest.MonkeyPatch.context() as patch:
        assert run_command(f"leakgauge attack {options}", patch, tmp_path) == meant


def test_cases_that_older_versions_wrote_keep_their_meaning():
    """Until 0.2, local steps were steps on the same batch, and all images of an epoch were one batch."""
    old = {**asdict(Case(batch_size=4, local_lr=0.1, name="mine")), "local_steps": 5}
    for later in ("local_epochs", "optimizer", "weights", "size", "window", "target"):
        del old[later]
    found = typed(Case, present_fields(old))
    assert found.build_channel() == FedAvg(steps=5, lr=0.1)
    assert (found.images, found.name) == (4, "mine")
    assert found.key() == hashlib.sha256(json.dumps(old_identity(old), sort_keys=True).encode()).hexdigest()[:12]
    assert found.key() != replace(found, local_steps=5, local_epochs=1).key()
    shuffled = {**old, "batch_size": 160, "local_steps": 1, "local_lr": 0.01}
    found = typed(Case, present_fields({**shuffled, "channel": "shuffled_fedavg:epochs=2,minibatch=32,lr=0.1"}))
    assert found == Case(batch_size=32, local_steps=5, local_epochs=2, local_lr=0.1, name="mine")


def old_identity(fields: dict) -> dict:
    """What 0.2 made a key of."""
    later = ("channel", "server", "in_memory")
    return {name: value for name, value in fields.items() if name != "change" and (name not in later or value)}


def test_a_batch_has_a_sample_for_every_client():
    summed = Case(channel="aggregate:clients=4", batch_size=3)
    assert (summed.batch_sizes().start, summed.fits(), replace(summed, batch_size=4).fits()) == (4, False, True)
    assert (Case().batch_sizes().start, Case().fits(), Case(local_steps=2).fits()) == (1, True, True)
    assert not Case(channel="dpsgd", local_steps=2).fits()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch size must be at least 1, got 0"),
        ({"batch_size": -3}, "batch size must be at least 1, got -3"),
        ({"local_steps": 0}, "local steps must be at least 1"),
        ({"local_epochs": 0}, "local epochs must be at least 1"),
        ({"local_lr": 0.0}, "local steps need a positive learning rate, got 0.0"),
        ({"local_lr": -1.0}, "positive learning rate, got -1.0"),
        ({"local_lr": float("nan")}, "positive learning rate, got nan"),
        ({"first": -1}, "first image must be at least 0"),
        ({"mode": "test"}, "'train' or 'eval'"),
        ({"classes": 0}, "classes must be at least 1"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(BadInput, match=message):
        Case(**options)


@pytest.mark.parametrize(
    ("options", "build", "message"),
    [
        ({"attack": "dgl"}, "build_attack", "unknown attack 'dgl'; did you mean"),
        ({"defenses": ("pruned:1",)}, "build_defenses", "unknown defense 'pruned'; did you mean prune"),
        ({"reveal": ("label",)}, "build_reveal", "unknown knowledge to reveal 'label'; did you mean labels"),
        ({"channel": "fedavg:steps=3"}, "build_channel", "write --batch-size 1 --local-steps 3 --local-lr 0.1"),
        ({"optimizer": "adm"}, "build_channel", "unknown optimizer 'adm'; did you mean adam"),
        ({"optimizer": "sgd:momentum=2"}, "build_channel", r"momentum in \[0, 1\), got 2"),
        ({"channel": "dpsgd", "optimizer": "adam"}, "build_channel", "drop local steps"),
        ({"channel": "dspgd"}, "build_channel", "unknown channel 'dspgd'; did you mean dpsgd"),
        ({"channel": "dpsgd:clip=-1"}, "build_channel", "positive clip, got -1"),
        ({"channel": "dpsgd:epsilon=3"}, "build_channel", "channel dpsgd has no option 'epsilon'"),
        ({"channel": "dpsgd", "local_steps": 2}, "build_channel", "drop local steps"),
    ],
)
def test_unknown_parts(options, build, message):
    with pytest.raises(BadInput, match=message):
        getattr(Case(**options), build)()


@pytest.mark.parametrize(
    ("attack", "used", "prior"),
    [
        ("inverting_gradients", set(), False),
        ("feasibility:steps=3", {"noisy_copy", "statistics"}, False),
        ("huang", {"noisy_copy", "statistics"}, False),
        ("generative_prior", {"learned_prior"}, True),
        ("feature_matching", {"features"}, None),
        (
            "strongest",
            {"noisy_copy", "statistics", "learned_prior", "features", "epochs"},
            None,
        ),  # its record says what raced
        ("linear", set(), None),  # reads an image off, and looks for none
        ("not_registered", set(), None),
    ],
)
def test_what_an_attack_uses_is_asked_of_the_attack(attack, used, prior):
    assert (uses_of(attack), has_prior(attack)) == (used, prior)


def test_noise_is_known_by_what_it_does():
    assert {name for name in DEFENSES if adds_noise(name)} == {
        "gaussian_noise",
        "laplacian_noise",
        "layer_noise",
        "flower_local_dp",
    }
    assert not adds_noise("dpsgd:noise=1")  # a channel, with an accountant
