"""The networks of the privacy-token paper: sizes as stated there, and layers that exist."""

import pytest
import torch

from reproductions.common.networks.privacy_tokens import TokenAlexNet, TokenCNN, TokenLeNet, TokenMLP

NETWORKS = {
    "lenet": (TokenLeNet, (3, 32, 32), 10, 768, 912 + 2 * 3612, 15_826),
    "alexnet": (TokenAlexNet, (3, 64, 64), 10, 9216, 2_139_008, 57_044_810),
    "cnn": (TokenCNN, (3, 64, 64), 2, 128, 448 + 4640, 1_054_050),
    "mlp": (TokenMLP, (3, 64, 64), 2, 256, 6_456_450, 6_456_450),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_sizes(name):
    make, shape, classes, features, gradient, total = NETWORKS[name]
    with torch.device("meta"):
        model = make()
        caught = []
        model.get_submodule(make.feature_layer).register_forward_hook(lambda m, i, out: caught.append(out.flatten(1)))
        assert model(torch.zeros(2, *shape)).shape == (2, classes)
    assert caught[0].shape == (2, features)
    assert sum(p.numel() for p in model.parameters()) == total
    watched = [p for layer in make.gradient_layers for p in model.get_submodule(layer).parameters()]
    assert sum(p.numel() for p in watched) == gradient


@pytest.mark.parametrize("make", [TokenLeNet, TokenCNN])
def test_seeded(make):
    state = torch.get_rng_state()
    a, b, c = make(seed=1), make(seed=1), make(seed=2)
    assert torch.equal(state, torch.get_rng_state())
    for p, q, r in zip(a.parameters(), b.parameters(), c.parameters(), strict=True):
        assert torch.equal(p, q)
        assert not torch.equal(p, r)
