"""``leakgauge attack --update``: what a real client sent, as a framework of federated learning saved it."""

from __future__ import annotations

import json

FAST = ("--option", "steps=2")


def test_a_captured_update(leakgauge, tmp_path):
    import torch
    from safetensors.torch import save_file

    from leakgauge.models.pretrained import pretrained

    model = pretrained("cnn")
    save_file(model.state_dict(), tmp_path / "global.safetensors")
    rng = torch.Generator().manual_seed(0)
    noise = {n: 0.01 * torch.randn(p.shape, generator=rng) for n, p in model.named_parameters()}
    save_file(noise, tmp_path / "client.safetensors")
    captured = ("attack", "cnn", "--update", "client.safetensors", "--weights", "global.safetensors")
    said = leakgauge(*captured, "--mode", "train", "--batch-size", 2, "--local-steps", 2, *FAST, "--out", "run")
    assert said.code == 0, said.err
    assert "no verdict, because the true images are unknown" in said.out
    found = json.loads((tmp_path / "run/result.json").read_text())
    assert found["channel"].startswith("FedAvg(steps=2")
    assert found["verdict"] is None
    assert "assumed: batch size known (2)" in said.out
    assert "run already holds a run" in leakgauge(*captured, "--local-steps", 2, *FAST, "--out", "run").sentence
    assert "run already holds a run" in leakgauge("attack", *FAST, "--out", "run").sentence
    assert "an attack on a captured update, which has no true images to score" in leakgauge("report", "run").sentence
    assert "belong to --reveal auxiliary:64; give both or none" in leakgauge(*captured, "--data", "x").sentence
    server = ("--data", "fashion", "--reveal", "auxiliary:16", "--attack", "feasibility", "--batch-size", 2)
    epochs = ("--channel", "shuffled_fedavg:epochs=2,lr=0.01,minibatch=1")
    said = leakgauge(*captured, *server, *epochs, *FAST, "--out", "own")
    assert said.code == 0, said.err
    assert "server holds 16 auxiliary images" in said.out
    found = json.loads((tmp_path / "own/result.json").read_text())
    assert found["channel"].startswith("ShuffledFedAvg(epochs=2, lr=0.01, minibatch=1")
    assert any(note.startswith("statistics: proxy") for note in found["notes"])
    assert "--weights belongs to --update" in leakgauge("attack", "--weights", "global.safetensors").sentence


def test_the_closed_form_on_a_captured_update_says_what_it_can_identify(leakgauge, tmp_path):
    """Where the truth is not known, what is predicted before solving is all that is known of the quality."""
    import torch
    from safetensors.torch import save_file

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
    assert "expected error of a pixel" in json.loads((tmp_path / "run/result.json").read_text())["stated"]
    noise = ("--option", "ridge=auto", "--option", "noise=1e-6")
    said = leakgauge("attack", "attention_first:vit", *words, "--attack", "april_closed_form", *noise, "--out", "noise")
    assert "deviation of the noise on each shared entry known (1e-06)" in said.out
