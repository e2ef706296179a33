"""Driven by transformers' own callback handler, and in a real Trainer."""

import pytest
import torch
from torch import nn

from leakgauge.audit.questions import training
from leakgauge.integrations.huggingface_trainer import trainer_monitor


class AcceleratedOptimizer(torch.optim.Optimizer):
    """The shape of accelerate's: a torch optimizer by type that never ran its constructor."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def step(self, closure=None):
        return self.optimizer.step(closure)


@pytest.fixture
def handler():
    from transformers.trainer_callback import CallbackHandler

    def make(callback, model, optimizer):
        return CallbackHandler([callback], model, None, optimizer, None)

    return make


def test_attaches_at_the_beginning_and_sees_clipped_gradients_of_all_parts(handler):
    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(12, 3)

        def forward(self, pixel_values=None, labels=None):
            return nn.functional.cross_entropy(self.fc(pixel_values), labels)

    model = Classifier()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = AcceleratedOptimizer(inner)
    callback = trainer_monitor(every=2, strict=True)
    events = handler(callback, model, optimizer)
    events.call_event("on_train_begin", None, None, None)
    seen, finish = [], callback.monitor.finish

    def spy(signal):
        total = torch.cat([g.flatten() for g in signal.values()]).norm()
        seen.append((float(total), callback.monitor._features.size))
        finish(signal)

    callback.monitor.finish = spy
    rng = torch.Generator().manual_seed(0)
    for _ in range(2):
        inner.zero_grad()
        for _ in range(3):
            x, y = torch.rand(4, 12, generator=rng), torch.randint(3, (4,), generator=rng)
            model(pixel_values=x, labels=y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        events.call_event("on_pre_optimizer_step", None, None, None)
        optimizer.step()
    assert [size for _, size in seen] == [12, 12]
    assert all(norm == pytest.approx(0.01, rel=1e-3) for norm, _ in seen)
    events.call_event("on_epoch_end", None, None, None)
    events.call_event("on_train_end", None, None, None)
    assert not model._forward_pre_hooks
    assert callback.monitor.compute().step == 2


def test_in_a_real_trainer(tmp_path):
    """With accumulation and clipping: one look per optimizer step, at the gradient as it is applied."""
    import transformers

    config = transformers.BertConfig(
        vocab_size=30, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=8, num_labels=2, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    rng = torch.Generator().manual_seed(0)
    rows = [
        {"input_ids": torch.randint(30, (6,), generator=rng), "labels": torch.tensor(i % 2)} for i in range(24)
    ]  # 24 rows, 3 at a time, 2 such parts a step: 4 steps an epoch
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.BertForSequenceClassification(config)
    callback = trainer_monitor(every=1, strict=True)
    seen = []

    class Spy(transformers.TrainerCallback):
        def on_train_begin(self, args, state, control, **given):
            finish = callback.monitor.finish

            def look(signal):
                norm = torch.stack([g.square().sum() for g in signal.values()]).sum().sqrt()
                seen.append((float(norm), callback.monitor._features.size))
                finish(signal)

            callback.monitor.finish = look

    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), per_device_train_batch_size=3, gradient_accumulation_steps=2, num_train_epochs=2,
        max_grad_norm=0.05, report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="no", logging_strategy="no",
    )  # fmt: skip
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=rows, callbacks=[callback, Spy()])
    trainer.train()
    assert trainer.state.global_step == 8
    assert callback.monitor.compute().step == 8
    assert [size for _, size in seen] == [6] * 8
    assert all(norm == pytest.approx(0.05, rel=1e-2) for norm, _ in seen)


def test_adapters_of_a_language_model_are_watched_alone(tmp_path):
    """A fine-tuning with peft as it is: the monitor sees the gradients of the adapters, and batches of tokens."""
    callback = trainer_monitor(every=1, strict=True)
    import peft
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=30, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, intermediate_size=16,
    )  # fmt: skip
    rng = torch.Generator().manual_seed(0)
    ids = [torch.randint(30, (6,), generator=rng) for _ in range(12)]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = peft.get_peft_model(
            transformers.LlamaForCausalLM(config), peft.LoraConfig(r=2, target_modules=["q_proj"])
        )
    seen = []

    class Spy(transformers.TrainerCallback):
        def on_train_begin(self, args, state, control, **given):
            finish = callback.monitor.finish

            def look(signal):
                seen.append((sorted(signal), callback.monitor._features.size))
                finish(signal)

            callback.monitor.finish = look

    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), per_device_train_batch_size=3, num_train_epochs=1, report_to=[], use_cpu=True,
        disable_tqdm=True, save_strategy="no", logging_strategy="no",
    )  # fmt: skip
    rows = [{"input_ids": one, "labels": one} for one in ids]
    transformers.Trainer(model=model, args=arguments, train_dataset=rows, callbacks=[callback, Spy()]).train()
    assert callback.monitor.compute().step == 4
    assert [size for _, size in seen] == [3] * 4
    assert all(len(names) == 4 and all("lora_" in name for name in names) for names, _ in seen)


@pytest.mark.parametrize("kind", ["language model", "classifier"])
def test_the_probe_repeats_batches_passed_by_name(tmp_path, kind):
    """Sentences of different lengths, filled up batch by batch: members are told from others by the model's own loss."""
    callback = trainer_monitor(every=2, strict=True)
    import transformers

    sizes = {
        "vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
        "pad_token_id": 0,
    }  # fmt: skip
    rng = torch.Generator().manual_seed(0)
    rows = []
    for k in range(24):
        ids = torch.randint(1, 50, (5 + k % 4,), generator=rng)
        rows.append({"input_ids": ids, "labels": ids if kind == "language model" else torch.tensor(k % 2)})

    def collate(batch):
        longest = max(len(row["input_ids"]) for row in batch)
        filled = [torch.nn.functional.pad(row["input_ids"], (0, longest - len(row["input_ids"]))) for row in batch]
        ids = torch.stack(filled)
        labels = (
            ids.masked_fill(ids == 0, -100) if kind == "language model" else torch.stack([r["labels"] for r in batch])
        )
        return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": labels}

    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = (
            transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, num_key_value_heads=1))
            if kind == "language model"
            else transformers.BertForSequenceClassification(
                transformers.BertConfig(
                    **sizes, num_labels=2, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
                )
            )
        )
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), per_device_train_batch_size=4, num_train_epochs=1, report_to=[], use_cpu=True,
        disable_tqdm=True, save_strategy="no", logging_strategy="no", max_grad_norm=0.0,
    )  # fmt: skip
    transformers.Trainer(
        model=model, args=arguments, train_dataset=rows, data_collator=collate, callbacks=[callback]
    ).train()
    found = callback.monitor.compute().whitebox
    assert found is not None
    assert (found.members, found.others) == (4, 4)
    assert found.auc.value == 1.0


def test_a_training_that_was_broken_off_leaves_no_second_monitor(handler):
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    logged = []
    callback = trainer_monitor(every=1, strict=True, log=lambda scalars, step: logged.append(step))
    for _ in range(2):  # the first begins and never ends, as by Ctrl-C
        events = handler(callback, model, optimizer)
        events.call_event("on_train_begin", None, None, None)
        optimizer.zero_grad()
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()
    assert logged == [1, 1]
    assert len(model._forward_pre_hooks) == 1


def in_a_trainer(tmp_path, callback, *, steps: int):
    """Twelve rows, three at a time, with a checkpoint every second step."""
    import transformers

    rng = torch.Generator().manual_seed(0)
    rows = [
        {"pixel_values": torch.rand(12, generator=rng), "labels": torch.tensor(i % 3)} for i in range(12)
    ]  # fmt: skip

    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(12, 3)

        def forward(self, pixel_values=None, labels=None):
            scores = self.fc(pixel_values)
            return {"loss": nn.functional.cross_entropy(scores, labels), "logits": scores}

    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), per_device_train_batch_size=3, max_steps=steps, report_to=[], use_cpu=True, disable_tqdm=True,
        save_strategy="steps", save_steps=2, logging_strategy="no",
    )  # fmt: skip
    return transformers.Trainer(model=Classifier(), args=arguments, train_dataset=rows, callbacks=[callback])


@pytest.mark.parametrize("kept", [True, False])
def test_a_resumed_training_goes_on_from_the_checkpoints_step(tmp_path, kept):
    logged = []
    options = {"every": 1, "strict": True, "log": lambda scalars, step: logged.append(step)}
    in_a_trainer(tmp_path, trainer_monitor(**options), steps=4).train()
    state = tmp_path / "checkpoint-2" / "leakgauge_monitor.pt"
    assert torch.load(state, weights_only=True)["step"] == 2
    if not kept:
        state.unlink()
    callback = trainer_monitor(**options)
    in_a_trainer(tmp_path, callback, steps=6).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert logged == [1, 2, 3, 4, 3, 4, 5, 6]
    told = [record["step"] for record in callback.monitor.records()]
    assert told == ([1, 2, 3, 4, 5, 6] if kept else [3, 4, 5, 6])


def test_a_training_leaves_a_run_folder(handler, tmp_path):
    model = nn.Sequential(nn.Linear(12, 40), nn.ReLU(), nn.Linear(40, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    callback = trainer_monitor(every=4, out=tmp_path / "run", strict=True)
    events = handler(callback, model, optimizer)
    events.call_event("on_train_begin", None, None, None)
    rng = torch.Generator().manual_seed(0)
    for _ in range(8):
        optimizer.zero_grad()
        nn.functional.cross_entropy(
            model(torch.rand(6, 12, generator=rng)), torch.randint(3, (6,), generator=rng)
        ).backward()
        optimizer.step()
    events.call_event("on_train_end", None, None, None)
    found = training.read(tmp_path / "run")
    assert [report["step"] for report in found.reports] == [4, 8]
    assert found.end["how"] == "finished"
    assert found.reports[-1]["scalars"]["privacy/whitebox/probes"] == 2
    assert (tmp_path / "run" / "report.html").is_file()
