"""Lightning calls ``optimizer.step(closure)`` and clips inside: the gradient that is applied must be the one seen."""

import logging
import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from leakgauge.audit.findings import training_of
from leakgauge.audit.questions import training
from leakgauge.audit.wording import conclude_training
from leakgauge.errors import BadInput
from leakgauge.integrations.lightning import lightning_monitor
from leakgauge.integrations.torchvision_guest import invite_torchvision

invite_torchvision()
import lightning  # noqa: E402 - needs a torchvision that can be imported

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Module(lightning.LightningModule):
    def __init__(self, *, manual: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(36, 60), nn.Tanh(), nn.Dropout(0.2), nn.Linear(60, 4))
        self.automatic_optimization = not manual
        self.applied = []

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, index):
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)  # not through self(x): no forward hook would see it

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
        optimizer.register_step_post_hook(
            lambda *_: self.applied.append(flat(p.grad for p in self.parameters()).clone())
        )
        return optimizer


def flat(tensors):
    return torch.cat([t.flatten() for t in tensors])


def loader():
    rng = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.rand(80, 1, 6, 6, generator=rng), torch.randint(4, (80,), generator=rng))
    return DataLoader(data, batch_size=8, shuffle=True, generator=rng)


def fit(module, callbacks, *, epochs=1, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = lightning.Trainer(
            max_epochs=epochs, callbacks=callbacks, accelerator="cpu", logger=options.pop("logger", False),
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, **options,
        )  # fmt: skip
        trainer.fit(module, loader())
    return trainer


@pytest.fixture
def spied():
    """A callback whose monitor keeps the signals and batch sizes that it was given."""

    def make(**options):
        callback = lightning_monitor(strict=True, **options)
        seen, start = [], callback.on_train_start

        def on_train_start(trainer, pl_module):
            start(trainer, pl_module)
            finish = callback.monitor.finish

            def spy(signal):
                seen.append((flat(signal.values()).clone(), callback.monitor._features.size))
                finish(signal)

            callback.monitor.finish = spy

        callback.on_train_start = on_train_start
        return callback, seen

    return make


def test_sees_what_is_applied_after_clipping(spied):
    callback, seen = spied()
    module = Module()
    fit(module, [callback], gradient_clip_val=0.05)
    assert len(seen) == 10
    for (signal, size), applied in zip(seen, module.applied, strict=True):
        assert size == 8
        assert float(signal.norm()) <= 0.0501
        assert torch.equal(signal, applied)


def test_raw_sees_before_clipping(spied):
    callback, seen = spied(view="raw")
    fit(Module(), [callback], gradient_clip_val=0.05)
    assert min(float(signal.norm()) for signal, _ in seen) > 0.06


def test_accumulation_is_one_step_of_several_batches(spied):
    callback, seen = spied()
    fit(Module(), [callback], accumulate_grad_batches=2)
    assert [size for _, size in seen] == [16] * 5


def test_training_is_bit_identical_and_the_probe_runs():
    trained = []
    for callbacks in ([], [lightning_monitor(every=5, loss=nn.functional.cross_entropy, strict=True)]):
        torch.manual_seed(1)
        module = Module()
        fit(module, callbacks, epochs=2)
        trained.append(flat(module.parameters()).detach())
    assert torch.equal(*trained)
    found = callbacks[0].monitor.compute()
    assert found.step == 20
    assert found.whitebox is not None
    assert found.whitebox.members == 8


@pytest.mark.parametrize("called", [True, False])
def test_a_loss_that_is_a_module_counts_labels_once_whether_the_fit_calls_it_or_not(called):
    class WithLoss(Module):
        def __init__(self) -> None:
            super().__init__()
            self.criterion = nn.CrossEntropyLoss()

        def training_step(self, batch, index):
            x, y = batch
            return (self.criterion if called else nn.functional.cross_entropy)(self.net(x), y)

    module = WithLoss()
    callback = lightning_monitor(every=2, loss=module.criterion, strict=True)
    fit(module, [callback], accumulate_grad_batches=2)
    found = callback.monitor.compute().whitebox
    assert found is not None
    assert found.members == 16


def test_numbers_go_to_the_trainers_logger(tmp_path):
    from lightning.pytorch.loggers import CSVLogger

    callback = lightning_monitor(every=5)
    fit(Module(), [callback], logger=CSVLogger(tmp_path))
    assert "privacy/alarm" in next(tmp_path.rglob("metrics.csv")).read_text()
    assert "privacy" not in str(callback.state_dict().get("private", ""))
    assert callback.state_dict()["step"] == 10


def test_manual_optimisation_is_refused():
    with pytest.raises(BadInput, match=r"automatic optimisation .* has 1, by manual optimisation"):
        fit(Module(manual=True), [lightning_monitor()])


def test_a_resumed_fit_goes_on_from_its_step_and_alarm(tmp_path):
    callback = lightning_monitor(every=5, strict=True)
    trainer = fit(Module(), [callback], epochs=2)
    trainer.save_checkpoint(tmp_path / "half.ckpt")
    saved = callback.monitor.state_dict()
    again = lightning_monitor(every=5, strict=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        resumed = lightning.Trainer(
            max_epochs=3, callbacks=[again], accelerator="cpu", logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        resumed.fit(Module(), loader(), ckpt_path=tmp_path / "half.ckpt")
    assert saved["step"] == 20
    assert again.monitor.step == 30
    assert list(again.monitor.records())[: len(saved["records"])] == saved["records"]
    assert [record["step"] for record in again.monitor.records()] == [5, 10, 15, 20, 25, 30]


def test_hooks_are_removed_after_an_error_in_the_fit():
    class Broken(Module):
        def training_step(self, batch, index):
            if index == 3:
                raise RuntimeError("in the middle")
            return super().training_step(batch, index)

    module, callback = Broken(), lightning_monitor(every=5, strict=True)
    with pytest.raises(RuntimeError, match="in the middle"):
        fit(module, [callback])
    assert callback.monitor.step == 3
    assert not any(p._backward_hooks for p in module.parameters())


def test_a_fit_leaves_a_run_folder(tmp_path):
    logged = []
    out = tmp_path / "watched"
    callback = lightning_monitor(
        every=5, loss=nn.functional.cross_entropy, out=out, log=lambda s, n: logged.append(n), strict=True
    )
    fit(Module(), [callback], epochs=2)
    found = training.read(out)
    assert [report["step"] for report in found.reports] == [5, 10, 15, 20] == logged
    assert found.end["how"] == "finished"
    assert found.about["training"] == "Module under Lightning"
    page = (out / "report.html").read_text(encoding="utf-8")
    assert conclude_training(training_of(found)).partition(":")[0] in page
    with pytest.raises(BadInput, match="already holds a monitored training"):
        fit(Module(), [lightning_monitor(out=out)])


def test_a_fit_that_fails_is_on_record(tmp_path):
    class Failing(Module):
        def training_step(self, batch, index):
            if index == 7:
                raise RuntimeError("no luck")
            return super().training_step(batch, index)

    with pytest.raises(RuntimeError, match="no luck"):
        fit(Failing(), [lightning_monitor(every=2, out=tmp_path / "run")])
    found = training.read(tmp_path / "run")
    assert (found.end["how"], found.end["step"]) == ("failed", 7)
    assert "no luck" in found.end["why"]
    assert (tmp_path / "run" / "report.html").is_file()
