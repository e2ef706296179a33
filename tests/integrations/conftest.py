"""Shared small things of the integration tests."""

from __future__ import annotations

import json

import pytest
import torch

SMALL = {
    "hidden_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 3,
    "intermediate_size": 48,
    "image_size": 32,
    "patch_size": 8,
}


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def small_config(tmp_path):
    """Writes a small configuration of an architecture; returns the path of its folder."""

    def write(kind: str, **settings):
        folder = tmp_path / kind
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps({"model_type": kind, **SMALL, **settings}))
        return folder

    return write


@pytest.fixture
def input_gradient_of_gradient_norm():
    """Differentiates twice, as every gradient-matching attack does."""

    def run(model, shape):
        from torch.nn.attention import SDPBackend, sdpa_kernel

        x = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0)).requires_grad_()
        parameters = [p for p in model.eval().parameters() if p.requires_grad]
        with sdpa_kernel(SDPBackend.MATH):
            loss = torch.nn.functional.cross_entropy(model(x), torch.tensor([0, 1]))
            gradients = torch.autograd.grad(loss, parameters, create_graph=True, allow_unused=True)
            norm = sum(g.square().sum() for g in gradients if g is not None)
            return torch.autograd.grad(norm, x)[0]

    return run
