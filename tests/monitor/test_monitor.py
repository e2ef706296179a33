"""What the monitor says, keeps and lets go of."""

import copy
import json
import math
import pickle
import warnings
import weakref
from dataclasses import replace

import pytest
import torch
from torch import nn

from leakgauge.channels import Gradient
from leakgauge.core import Pixels, Victim
from leakgauge.data.embedded import MEAN, STD, fashion
from leakgauge.errors import BadInput
from leakgauge.measures.membership import Rate
from leakgauge.models.cnn import CNN
from leakgauge.models.lenet import LeNet
from leakgauge.monitor import Monitor, SignBucket, watch
from leakgauge.monitor.leakage import Controls
from leakgauge.monitor.summary import conclusion, summary


def leaky(monitor, steps, *, seed=0, width=30):
    """Updates by hand: the released signal is a linear picture of the batch's mean, with a little noise."""
    rng = torch.Generator().manual_seed(seed)
    mix = torch.randn(16, width, generator=torch.Generator().manual_seed(99))
    for _ in range(steps):
        x = torch.randn(6, 16, generator=rng)
        g = x.mean(0) @ mix + 0.05 * torch.randn(width, generator=rng)
        monitor.update(x, None, {"a.weight": g[:20].view(4, 5), "a.bias": g[20:]})


@pytest.mark.parametrize("sketch", [None, SignBucket(total=128, layers=8)], ids=["default", "short"])
def test_update_and_compute_by_hand(sketch):
    monitor = Monitor(every=20, strict=True, sketch=sketch)
    leaky(monitor, 120)
    found = monitor.compute()
    assert found.alarmed
    assert found.alarm_at <= 60
    assert 0.5 < found.infonce.value <= found.ceiling == math.log(16)
    assert found.infonce.low <= found.infonce.value <= found.infonce.high
    assert found.top1.low > 1 / 16
    assert set(found.layers) == {"a.weight", "a.bias"}
    assert abs(found.controls.null.value) < 0.2
    assert found.controls.decoy.value < 0.05
    assert found.infonce.value > found.controls.noise[0] > found.controls.noise[1]


def test_by_hand_with_a_channel():
    images, labels = fashion()
    victim = Victim(LeNet(in_channels=1, side=28), Pixels((1, 28, 28), mean=MEAN, std=STD))
    monitor = Monitor(every=10, strict=True)
    rng = torch.Generator().manual_seed(0)
    for _ in range(24):
        index = torch.randint(len(images), (4,), generator=rng)
        x, y = victim.space.encode(images[index]), labels[index]
        monitor.update(x, y, Gradient()(victim, x, y))
    assert monitor.compute().step == 24
    assert len(list(monitor.records())) == 2


def test_null_batches_leave_it_silent():
    """A model that never looks at its input: its gradient depends on chance labels alone."""

    class Blind(nn.Module):
        def __init__(self):
            super().__init__()
            self.logits = nn.Parameter(torch.zeros(4))

        def forward(self, x):
            return self.logits.expand(len(x), 4)

    fired = 0
    for seed in range(20):
        rng = torch.Generator().manual_seed(seed)
        model = Blind()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        monitor = watch(model, optimizer, strict=True, seed=seed)
        for _ in range(80):
            x, y = torch.randn(8, 5, generator=rng), torch.randint(4, (8,), generator=rng)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        fired += monitor.compute().alarmed
    assert fired <= 4  # binom.ppf(0.99, 20, 0.05)


@pytest.mark.parametrize("name", ["cnn", "lenet"])
def test_alarm_at_initialisation_within_60_steps(name):
    images, labels = fashion()
    x = (images - MEAN[0]) / STD[0]
    model = CNN() if name == "cnn" else LeNet(in_channels=1, side=28)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)  # the weights stay near their initial values
    monitor = watch(model, optimizer, loss=criterion, every=40, strict=True)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0)).split(20)
    for index in order[:80]:
        optimizer.zero_grad()
        criterion(model(x[index]), labels[index]).backward()
        optimizer.step()
    found = monitor.compute()
    assert found.alarm_at is not None
    assert found.alarm_at <= 60
    assert found.whitebox is not None
    assert found.whitebox.auc.value == 1.0


def test_report_shows_controls_beside_every_estimate():
    monitor = Monitor(every=10, strict=True)
    early = monitor.report()
    assert "controls" in early
    leaky(monitor, 120)
    text = monitor.report()
    for word in (
        "InfoNCE",
        "top-1 of 16",
        "control null",
        "control decoy",
        "control noise",
        "FIRED",
        "a.weight",
        "does not say",
    ):
        assert word in text
    assert text.splitlines()[1].startswith(
        "The training leaks: the gradients alone point to their batch (alarm at step "
    )
    assert max(len(line) for line in text.splitlines()) <= 120
    assert "null" in next(line for line in text.splitlines() if "evidence" in line and "AUC" in line)


def test_the_curve_ends_with_what_was_scored_after_the_last_report():
    monitor = Monitor(every=30, strict=True)
    leaky(monitor, 30)
    reported = monitor.compute().peak_wealth
    monitor.flush()
    found, lines = monitor.compute(), monitor.report().splitlines()
    assert found.peak_wealth > reported + 1
    head = next(i for i, line in enumerate(lines) if line.endswith("evidence"))
    rows = [line.split() for line in lines[head + 1 : lines.index("", head)]]
    assert [row[0] for row in rows] == ["30"]
    assert float(rows[-1][-1]) == pytest.approx(found.peak_wealth, abs=1e-3)


@pytest.mark.parametrize(
    ("read", "pairs", "said"),
    [
        ({}, 50, "The training leaks"),
        ({"null": Rate(0.2, 0.06, 0.3)}, 50, "the critic's controls failed"),
        ({"decoy": Rate(0.2, 0.06, 0.3)}, 50, "the critic's controls failed"),
        ({"noise": (0.3, 0.2)}, 50, "the critic's controls failed"),
        ({"noise": (0.3, 0.05)}, 50, "The training leaks"),
        ({"null": Rate(0.2, 0.06, 0.3)}, 7, "The training leaks"),  # too few steps for a control to count
    ],
)
def test_a_critic_with_failed_controls_concludes_nothing(read, pairs, said):
    clean = Controls(null=Rate(0.0, -0.1, 0.1), decoy=Rate(0.0, -0.1, 0.1), noise=(0.1, 0.0))
    found = replace(
        Monitor().compute(),
        step=60,
        pairs=pairs,
        alarm_at=9,
        infonce=Rate(0.5, 0.4, 0.6),
        top1=Rate(0.5, 0.4, 0.6),
        controls=replace(clean, **read),
    )
    assert said in summary(found, []).splitlines()[1]


def test_scalars_are_flat_and_records_are_json():
    logged = []
    monitor = Monitor(every=20, strict=True, log=lambda scalars, step: logged.append((step, scalars)))
    leaky(monitor, 100)
    assert [step for step, _ in logged] == [20, 40, 60, 80, 100]
    names = set(logged[-1][1])
    assert {"privacy/infonce_nats", "privacy/top1_low", "privacy/alarm", "privacy/layer/a.bias"} <= names
    assert {"privacy/control/null_nats", "privacy/control/decoy_nats", "privacy/control/noise_10x_nats"} <= names
    assert all(isinstance(v, float) and math.isfinite(v) for _, scalars in logged for v in scalars.values())
    for record in monitor.records():
        assert json.loads(json.dumps(record, allow_nan=False)) == record


def test_a_summary_writer_is_taken_as_it_is():
    class Writer:
        def __init__(self):
            self.rows = []

        def add_scalar(self, tag, scalar_value, global_step):
            self.rows.append((tag, scalar_value, global_step))

    writer = Writer()
    leaky(Monitor(every=10, log=writer, strict=True), 10)
    assert ("privacy/alarm", 0.0, 10) in writer.rows


def test_same_seed_same_numbers():
    found = []
    for _ in range(2):
        monitor = Monitor(strict=True, seed=5)
        leaky(monitor, 90)
        found.append(monitor.compute())
    assert found[0] == found[1]


def test_state_stays_small_and_constant_over_10_000_steps():
    monitor = Monitor(every=50, strict=True)
    sizes = {}
    rng = torch.Generator().manual_seed(0)
    for start in range(0, 10_000, 1000):
        for _ in range(1000):
            monitor.update(torch.randn(2, 8, generator=rng), None, {"w": torch.randn(12, generator=rng)})
        sizes[start] = monitor.state_bytes()
    assert monitor.step == 10_000
    assert len(set(sizes.values())) == 1
    assert sizes[0] <= 5_000_000
    assert len(pickle.dumps(monitor.state_dict())) <= 1_000_000


def test_state_of_a_large_model_is_small_too():
    model = nn.Sequential(*[nn.Linear(500, 500) for _ in range(44)])  # 11 million parameters
    monitor = watch(model, torch.optim.SGD(model.parameters(), lr=0.1), strict=True)
    assert monitor.state_bytes() <= 5_000_000


def test_private_buffers_are_not_in_the_state():
    monitor = Monitor(strict=True)
    leaky(monitor, 60)
    state = monitor.state_dict()
    assert not any(isinstance(v, torch.Tensor) for v in state.values())
    assert set(state) == {"step", "alarm", "records", "shuffled", "pooled"}
    json.dumps(state)
    assert "stream" in monitor.state_dict(private=True)["private"]


def test_a_monitor_goes_on_from_its_state():
    whole = Monitor(strict=True, every=10)
    leaky(whole, 48)
    again = Monitor(strict=True, every=10)
    again.load_state_dict(copy.deepcopy(whole.state_dict(private=True)))
    leaky(whole, 32, seed=1)
    leaky(again, 32, seed=1)
    assert again.step == whole.step == 80
    assert again.compute().log_wealth == pytest.approx(whole.compute().log_wealth)
    assert list(again.records()) == list(whole.records())


def test_without_private_buffers_the_evidence_stays_and_the_critic_starts_anew():
    before = Monitor(strict=True)
    leaky(before, 80)
    after = Monitor(strict=True)
    after.load_state_dict(before.state_dict())
    leaky(after, 8)
    assert after.compute().alarm_at == before.compute().alarm_at
    assert after.compute().log_wealth == pytest.approx(before.compute().log_wealth)
    assert after.compute().infonce is None
    with pytest.raises(BadInput, match="not the state of a monitor"):
        after.load_state_dict({"step": 1})


def test_a_fixed_order_stops_the_bets():
    monitor = Monitor()
    rng = torch.Generator().manual_seed(0)
    rows = torch.randn(10, 4, 8, generator=rng)

    def go_round():
        for i in range(60):
            monitor.update(rows[i % 10], None, {"w": rows[i % 10].mean(0)})

    with pytest.warns(UserWarning, match="same order"):
        go_round()
    found = monitor.compute()
    assert not found.alarmed
    assert any("shuffled" in note for note in found.notes)


def test_a_fixed_order_stays_known_over_a_resumption():
    """The critic of earlier epochs knows what comes next; to bet on it would fire the alarm without any leak."""
    rows = torch.randn(20, 4, 8, generator=torch.Generator().manual_seed(0))

    def go_round(monitor, rounds):
        for i in range(20 * rounds):
            monitor.update(rows[i % 20], None, {"w": rows[i % 20].mean(0)})
        monitor.flush()

    before, after = Monitor(), Monitor()
    with pytest.warns(UserWarning, match="same order"):
        go_round(before, 6)
    wealth = before.compute().log_wealth
    after.load_state_dict(before.state_dict(private=True))
    before.close()
    assert before.state_dict()["shuffled"] is False
    with pytest.warns(UserWarning, match="same order"):
        go_round(after, 1)
    assert after.compute().log_wealth == pytest.approx(wealth)


def test_a_state_loaded_twice_counts_once():
    monitor = Monitor(strict=True)
    leaky(monitor, 80)
    state, pairs = monitor.state_dict(private=True), monitor.compute().pairs
    monitor.load_state_dict(state)
    assert monitor.compute().pairs == pairs > 0


def test_epochs_too_short_for_infonce_are_told():
    monitor = Monitor(strict=True)
    for epoch in range(6):
        leaky(monitor, 10, seed=epoch)
        monitor.flush()
    found = monitor.compute()
    assert found.infonce is None
    assert any("InfoNCE needs 16 steps" in note for note in found.notes)
    fewer = Monitor(strict=True, choices=8)
    for epoch in range(6):
        leaky(fewer, 10, seed=epoch)
        fewer.flush()
    assert fewer.compute().infonce is not None


def test_reset_forgets_all():
    monitor = Monitor(strict=True, every=10)
    leaky(monitor, 80)
    first = monitor.compute()
    monitor.reset()
    assert monitor.compute().step == 0
    assert list(monitor.records()) == []
    leaky(monitor, 80)
    assert monitor.compute() == first


def test_flush_scores_an_unfinished_block():
    monitor = Monitor(strict=True)
    leaky(monitor, 8 + 8 + 10)
    assert monitor.compute().log_wealth != 0
    before = monitor.compute().log_wealth
    monitor.flush()
    assert monitor.compute().log_wealth != before
    monitor.flush()  # nothing left: no harm


def test_close_removes_hooks_and_frees_what_it_held(model_of, train):
    model, criterion = model_of(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, loss=criterion, every=10, view="raw", strict=True) as monitor:
        train(model, optimizer, 20, criterion=criterion)
        stream, prober = weakref.ref(monitor._stream), weakref.ref(monitor._prober)
        assert stream() is not None
    assert not model._forward_pre_hooks
    assert not criterion._forward_pre_hooks
    assert not optimizer._optimizer_step_pre_hooks
    assert all(not p._backward_hooks for p in model.parameters())
    assert stream() is None
    assert prober() is None
    before = monitor.compute()
    train(model, optimizer, 2, criterion=criterion)
    assert monitor.compute() == before
    assert "20 steps" in monitor.report()
    monitor.close()  # twice does no harm


def test_tokens_are_features_too():
    with torch.random.fork_rng():
        torch.manual_seed(5)  # of eight seeds this one alarms among the earliest, at step 26; all do by step 64
        model = nn.Sequential(nn.Embedding(50, 4), nn.Flatten(), nn.Linear(24, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    monitor = watch(model, optimizer, strict=True)
    rng = torch.Generator().manual_seed(0)
    for _ in range(240):
        optimizer.zero_grad()
        model(torch.randint(50, (2, 6), generator=rng)).sum().backward()
        optimizer.step()
    assert monitor.compute().alarmed  # the gradient of an embedding counts the tokens


def test_nothing_is_warned_about_in_an_ordinary_run(model_of, train):
    model, criterion = model_of(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        watch(model, optimizer, loss=criterion, every=10)
        train(model, optimizer, 30, criterion=criterion)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({}, "Nothing can be said after 9 steps: too few were scored"),
        ({"members": Rate(0.8, 0.7, 0.9)}, "The training leaks: an attacker with the weights and candidate images"),
        (
            {"top1": Rate(0.06, 0.03, 0.1)},
            "No leak was shown in 9 steps, which proves nothing: membership was not measured",
        ),
        ({"top1": Rate(0.3, 0.2, 0.4)}, "There are signs of a leak, but the alarm is silent"),
        ({"alarm_at": 5}, "The training leaks: the gradients alone point to their batch (alarm at step 5)"),
        ({"alarm_at": 5, "trusted": False}, "Nothing can be said after 9 steps: the critic's controls failed"),
        ({"members": Rate(0.5, 0.4, 0.6), "alarm_at": 5, "trusted": False}, "No leak was shown in 9 steps"),
    ],
)
def test_one_sentence_says_what_was_found(facts, words):
    given = {"steps": 9, "choices": 16, "members": None, "top1": None, "alarm_at": None, **facts}
    said = conclusion(**given)
    assert said.startswith(words)
    assert said.endswith(".")
    assert ". " not in said
