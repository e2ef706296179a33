"""Tokens and critic of the privacy-token paper: sizes as stated, formulas by hand."""

import math

import pytest
import torch
import torch.nn.functional as F

from leakgauge.channels import Gradient
from leakgauge.core import Pixels, Victim
from leakgauge.data import fashion
from leakgauge.errors import BadInput
from leakgauge.monitor.paper import AutoencoderToken, TransformerToken
from leakgauge.monitor.paper.critic import CriticTrainer, TokenCritic, TokenCriticFit, mismatch
from leakgauge.monitor.paper.pairs import Collection, GradientReader
from reproductions.common.networks.privacy_tokens import TokenLeNet
from tests.zoo import count

SIZES = (312, 3612, 3612)
"""Gradients of the three convolutions of a LeNet on grey images: 7536 values."""


def gradient_layers(count=4, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return [0.01 * torch.randn(count, size, generator=rng) for size in SIZES]


def test_autoencoder_has_the_stated_sizes():
    network = AutoencoderToken().build(SIZES)
    d = sum(SIZES)
    assert d == 7536
    assert count(network) == (d * 512 + 512) + (512 * 128 + 128) + (128 * 512 + 512) + (512 * d + d)
    token, loss = network(gradient_layers())
    assert token.shape == (4, 128)
    reconstructed = network.decoder(token)
    torch.testing.assert_close(loss, F.mse_loss(reconstructed, torch.cat(gradient_layers(), 1)))


def test_transformer_has_the_stated_sizes():
    network = TransformerToken().build(SIZES)
    token, loss = network(gradient_layers())
    assert token.shape == (4, 3 * 512)
    assert float(loss) == 0
    assert network.mixer.self_attn.num_heads == 8
    assert network.mixer.linear1.out_features == 2048
    assert network.mixer.dropout.p == 0.1
    assert [m.in_features for m in network.maps] == list(SIZES)


def test_final_relu_loses_the_negative_energy():
    """Of a real gradient nearly half of the energy is negative; a decoder that ends in ReLU cannot give it back."""
    images, labels = fashion("train")
    victim = Victim(TokenLeNet(in_channels=1, side=28), Pixels((1, 28, 28)))
    signal = Gradient()(victim, images[:20], labels[:20])
    gradient = torch.cat([value.flatten() for name, value in signal.items() if name.startswith("body")])

    def negative_energy(part: torch.Tensor) -> float:
        """What even the best non-negative answer misses."""
        return float((part - part.clamp(min=0)).square().sum() / part.square().sum())

    assert 0.3 < negative_energy(gradient) < 0.7
    left = {}
    for final in ("relu", "signed"):
        torch.manual_seed(0)
        network = AutoencoderToken(32, 8, final).build((200,))
        optimizer = torch.optim.Adam(network.parameters(), 1e-2)
        few = [100 * gradient[None, :200]]
        for _ in range(150):
            optimizer.zero_grad()
            loss = network(few)[1]
            loss.backward()
            optimizer.step()
        left[final] = float(loss.detach() / few[0].square().mean())
    assert left["signed"] < 0.05
    assert left["relu"] >= negative_energy(gradient[:200]) - 1e-6


def test_critic_gives_one_value_per_sample():
    critic = TokenCritic(768, SIZES, AutoencoderToken(16, 8))
    values, _ = critic(torch.randn(4, 20, 768), gradient_layers())
    assert values.shape == (4, 20)
    heads = count(critic) - count(critic.token)
    assert (
        heads == (768 * 128 + 128) + (128 * 128 + 128) + (8 * 128 + 128) + (128 * 128 + 128) + (256 * 128 + 128) + 129
    )


def test_learning_rates_are_those_of_the_paper():
    critic = CriticTrainer.build(4, (6,), AutoencoderToken(8, 4), TokenCriticFit(), seed=0, device=torch.device("cpu"))
    token, rest = critic.optimizer.param_groups
    assert (token["lr"], rest["lr"]) == (1e-5, 1e-4)
    assert len(token["params"]) + len(rest["params"]) == len(list(critic.network.parameters()))
    assert TokenCriticFit() == TokenCriticFit(steps=200, fraction=0.1)


def test_reading_by_hand():
    critic = CriticTrainer.build(1, (1,), AutoencoderToken(2, 2), TokenCriticFit(), seed=0, device=torch.device("cpu"))

    class Product(torch.nn.Module):
        def forward(self, features, layers):
            return features[..., 0] * layers[0], torch.zeros(())

    class Shell(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.unused = Product(), torch.nn.Parameter(torch.zeros(1))

        def forward(self, *given):
            return self.inner(*given)

    critic.network = Shell()
    features = torch.tensor([[[1.0], [2.0]], [[3.0], [4.0]]])  # two batches of two samples
    gap = critic.read(features, [torch.tensor([[1.0], [0.5]])], torch.tensor([0, 1]), torch.tensor([1, 0]))
    own, other = (1 + 2 + 1.5 + 2) / 4, (0.5 + 1 + 3 + 4) / 4
    log_term = math.log((math.exp(0.5) + math.exp(1) + math.exp(3) + math.exp(4)) / 4)
    assert gap.matched == pytest.approx(own - log_term)
    assert gap.mismatched == pytest.approx(other - log_term)
    assert gap.gap == pytest.approx(own - other)
    assert gap.each_matched == pytest.approx([1.5 - log_term, 1.75 - log_term])
    assert gap.each_mismatched == pytest.approx([0.75 - log_term, 3.5 - log_term])


def test_training_raises_what_it_should():
    rng = torch.Generator().manual_seed(0)
    shared = torch.randn(60, 1, generator=rng)
    features, layers = shared[:, None].expand(-1, 4, 3), [shared.expand(-1, 5)]
    training = TokenCriticFit(steps=150, lr=5e-3, token_lr=5e-3, fraction=0.5)
    critic = CriticTrainer.build(
        3, (5,), AutoencoderToken(8, 4, "signed"), training, seed=0, device=torch.device("cpu")
    )
    rows, partners = torch.arange(60), mismatch(torch.zeros(60), rng)
    before = critic.read(features, layers, rows, partners)
    state = torch.get_rng_state()
    critic.train(features, layers, rows, partners)
    assert torch.equal(state, torch.get_rng_state())
    assert critic.read(features, layers, rows, partners).matched > before.matched + 0.5


def test_a_collection_shows_what_is_there():
    found = Collection(3)
    with pytest.raises(BadInput, match="no pair"):
        found.pairs()
    for i in range(2):
        found.add(torch.full((4, 2), float(i)), [torch.full((5,), 10.0 + i)], torch.empty(0), group=i)
    pairs = found.pairs()
    assert len(found) == len(pairs) == 2
    assert pairs.features[1].unique().tolist() == [1.0]
    assert pairs.layers[0][:, 0].tolist() == [10.0, 11.0]
    assert pairs.group.tolist() == [0, 1]
    assert pairs.nbytes() == 4 * 2 * (8 + 5)


@pytest.mark.parametrize("groups", [[0] * 7, [1, 1, 2, 2, 2, 1]])
def test_mismatched_rows_stay_in_their_group_and_leave_their_place(groups):
    groups = torch.tensor(groups)
    partners = mismatch(groups, torch.Generator().manual_seed(0))
    assert sorted(partners.tolist()) == list(range(len(groups)))
    assert torch.equal(groups[partners], groups)
    assert not (partners == torch.arange(len(groups))).any()


def test_probe_gives_the_gradient_of_the_channel():
    images, labels = fashion("train")
    model = TokenLeNet(in_channels=1, side=28)
    probe = GradientReader(model, F.cross_entropy, "body", TokenLeNet.gradient_layers)
    features, layers, _ = probe.step(images[:5], labels[:5])
    assert features.shape == (5, 588)
    assert torch.equal(features, model.body(images[:5]).flatten(1))
    signal = Gradient()(Victim(model, Pixels((1, 28, 28)), mode="train"), images[:5], labels[:5])
    expected = torch.cat([signal["body.2.weight"].flatten(), signal["body.2.bias"]])
    torch.testing.assert_close(layers[1], expected)


def test_a_layer_that_does_not_run_is_refused():
    model = TokenLeNet(in_channels=1, side=28)
    model.spare = torch.nn.Linear(2, 2)
    with pytest.raises(BadInput, match="did not run"):
        GradientReader(model, F.cross_entropy, "spare", ("fc",)).step(torch.zeros(2, 1, 28, 28), torch.zeros(2).long())


@pytest.mark.parametrize("make", [lambda: AutoencoderToken(final="tanh"), lambda: TransformerToken(width=10, heads=4)])
def test_options_are_checked(make):
    with pytest.raises(BadInput):
        make()
