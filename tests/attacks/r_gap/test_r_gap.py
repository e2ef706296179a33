"""R-GAP: exact where the equations suffice, told beforehand where they do not, refused with the reason elsewhere."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from leakgauge.attacks import r_gap
from leakgauge.audit import score
from leakgauge.channels import SGD, FedAvg, Gradient, ShuffledFedAvg
from leakgauge.core import Pixels, Victim, share
from leakgauge.data.embedded import MEAN, STD, fashion
from leakgauge.defenses import Clip, GaussianNoise, WithholdNames
from leakgauge.errors import Inapplicable
from leakgauge.models import LeNet
from leakgauge.models.seeded import seeded
from leakgauge.testing import tiny_case
from tests.attacks.r_gap.attacking import SPACE, attacked, image

ACTIVATIONS = {
    "leaky": lambda: nn.LeakyReLU(0.2), "relu": nn.ReLU, "elu": lambda: nn.ELU(0.7), "sigmoid": nn.Sigmoid, "tanh": nn.Tanh,
    "none": nn.Identity,
}  # fmt: skip


def chain(*convolutions, act="leaky", hidden=(), classes=5, bias=True, seed=0, space=SPACE):
    """Convolutions (width, kernel, stride, padding), linear layers and a head for images of ``space``, in float64."""
    layers, shape = [], space.shape
    with seeded(seed):
        for width, *others in convolutions:
            layers += [nn.Conv2d(shape[0], width, *others, bias=bias), ACTIVATIONS[act]()]
            shape = tuple(nn.Sequential(*layers)(torch.zeros(1, *space.shape)).shape[1:])
        layers.append(nn.Flatten())
        width = torch.Size(shape).numel()
        for size in hidden:
            layers += [nn.Linear(width, size, bias=bias), ACTIVATIONS[act]()]
            width = size
        layers.append(nn.Linear(width, classes, bias=bias))
    return nn.Sequential(*layers).double()


def off(result, x, space=SPACE):
    """Root mean square error of the pixels, as a share of their range."""
    return float((space.decode(result.x) - space.decode(x)).square().mean().sqrt())


def told(result):
    return dict(result.stated)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("act", ACTIVATIONS)
def test_exact_through_two_convolutions_and_two_linear_layers(act, bias):
    x = image()
    result = attacked(chain((12, 3, 1, 1), (16, 3, 2, 1), hidden=(16,), act=act, bias=bias), x)
    assert off(result, x) < 1e-9
    assert told(result)["predicted"] == "everything is recovered"
    assert told(result)["rank analysis index"] == "0"
    assert result.y.tolist() == [2]


CONVOLUTION = st.tuples(st.integers(1, 10), st.integers(1, 4), st.integers(1, 3), st.integers(0, 2)).filter(
    lambda c: c[3] < c[1]  # else there are outputs that see the padding alone
)


@settings(max_examples=30, deadline=None)
@given(
    convolutions=st.lists(CONVOLUTION, min_size=1, max_size=3),
    act=st.sampled_from(["leaky", "tanh", "none"]),
    hidden=st.sampled_from([(), (9,)]),
    bias=st.booleans(),
    seed=st.integers(0, 99),
)
def test_what_is_predicted_comes_true(convolutions, act, hidden, bias, seed):
    """Over widths, kernels, strides and paddings: all is recovered where that is said, and what is said to be lost is."""
    try:
        model = chain(*convolutions, act=act, hidden=hidden, bias=bias, seed=seed)
    except RuntimeError:  # a kernel larger than what is left of the image
        assume(False)
    x = image(seed)
    result = attacked(model, x)
    predicted, error = told(result)["predicted"], off(result, x)
    if predicted == "everything is recovered":
        said = float(told(result)["expected error of a pixel"].partition(" ")[0])
        assert error < max(100 * said, 1e-12)
        assert said < 1e-2
    elif "not determined" in predicted:
        assert error > 1e-3


@settings(max_examples=15, deadline=None)
@given(kernel=st.integers(2, 4), stride=st.integers(2, 4), width=st.integers(1, 4), seed=st.integers(0, 9))
def test_a_first_layer_with_too_few_equations_gives_the_part_that_it_determines(kernel, stride, width, seed):
    """The answer is the grey image plus the projection of what the truth differs from it, and the counts say so."""
    space = Pixels((2, 8, 8), bounds=(-9.0, 9.0))  # wide, so that nothing is clipped
    model = chain((width, kernel, stride, 0), (12, 2, 1, 0), seed=seed, space=space)
    x = image(seed, space)
    result = attacked(model, x, space=space)
    delta, weight = _delta_at_first(model, x), model[0].weight.detach()
    rows = _first_layer_rows(delta, weight, stride)
    rank = int(torch.linalg.matrix_rank(rows))
    first = told(result)["input of 0"]
    assert first.startswith(f"{rank} of 128 unknowns from {delta.numel() + weight.numel()} equations")
    if told(result)["input of 2"].split(" of ")[0] != told(result)["input of 2"].split(" ")[2]:
        return  # the second layer does not follow either
    projection = torch.linalg.pinv(rows) @ rows
    torch.testing.assert_close(result.x.flatten(), projection @ x.flatten(), atol=1e-6, rtol=1e-6)
    lost = f"{128 - rank} of the 128 unknowns of the image are not determined: detail is lost"
    assert told(result)["predicted"] == (lost if rank < 128 else "everything is recovered")
    assert float(told(result)["rank analysis index"]) == rank - 128


def _delta_at_first(model, x):
    z = model[0](x).detach().requires_grad_()
    return torch.autograd.grad(F.cross_entropy(model[1:](z), torch.tensor([2])), z)[0]


def _first_layer_rows(delta, weight, stride):
    """The equations by automatic differentiation: the Jacobian of (W x, ∂W) by x."""

    def known(flat):
        x = flat.view(1, 2, 8, 8)
        slope = torch.nn.grad.conv2d_weight(x, weight.shape, delta, stride=stride)
        return torch.cat([F.conv2d(x, weight, stride=stride).flatten(), slope.flatten()])

    return torch.autograd.functional.jacobian(known, torch.zeros(128, dtype=torch.float64))


def test_a_later_layer_with_too_few_equations_makes_all_before_it_a_guess():
    x = image()
    result = attacked(chain((12, 3, 1, 1), (2, 3, 3, 0)), x)
    assert "values that enter 2 are not determined: they and everything before are a guess" in told(result)["predicted"]
    assert told(result)["expected error of a pixel"].startswith("unknown")
    assert float(told(result)["rank analysis index"]) < 0
    assert off(result, x) > 0.05


def test_values_that_a_stride_leaves_out_do_no_harm():
    """The second layer does not read the last row and column of the first; those outputs pass no gradient and give no equation."""
    x = image()
    result = attacked(chain((12, 3, 1, 1), (16, 3, 2, 0)), x)
    assert told(result)["input of 2"].startswith("588 of 768 unknowns")
    assert told(result)["predicted"] == "everything is recovered"
    assert float(told(result)["rank analysis index"]) == pytest.approx(-180 * 2 / 3)
    assert off(result, x) < 1e-9


def test_relu_loses_the_equations_of_what_it_clips():
    """The same layers are enough with a leaky ReLU and not with a ReLU."""
    x, layers = image(), ((8, 3, 1, 1), (8, 3, 2, 1), (8, 3, 1, 1))
    assert off(attacked(chain(*layers), x), x) < 1e-6
    clipped = attacked(chain(*layers, act="relu"), x)
    assert "not determined" in told(clipped)["predicted"]
    assert off(clipped, x) > 1e-2


@pytest.mark.parametrize(
    "first",
    [
        nn.Conv2d(2, 12, 3, padding="same"),
        nn.Conv2d(2, 12, (3, 2), stride=(1, 2), padding=(1, 0)),
        nn.Conv2d(2, 16, 3, dilation=2, padding=2),
        nn.Conv2d(2, 16, 3, padding=1, groups=2),
    ],
)
def test_kinds_of_convolutions(first):
    with seeded(1):
        model = nn.Sequential(first, nn.Tanh(), nn.Flatten(), nn.LazyLinear(4)).double()
        model(torch.zeros(1, 2, 8, 8, dtype=torch.float64))
    x = image()
    assert off(attacked(model, x), x) < 1e-9


def test_a_convolution_over_one_dimension():
    x = image()
    with seeded(0):
        lines = nn.Sequential(
            nn.Flatten(2), nn.Conv1d(2, 8, 3), nn.LeakyReLU(), nn.Flatten(), nn.Linear(496, 4)
        ).double()
    assert off(attacked(lines, x), x) < 1e-9


class InPlaces(nn.Module):
    """Functions instead of modules, in place, a dropout that is off, and two activations in a row."""

    def __init__(self):
        super().__init__()
        with seeded(0):
            self.first, self.last = nn.Conv2d(2, 12, 3, padding=1), nn.Linear(768, 4)
        self.double()

    def forward(self, x):
        x = F.dropout(F.leaky_relu_(self.first(x), 0.1), 0.5, self.training)
        return self.last(torch.tanh(x).reshape(len(x), -1))


def test_functions_in_the_forward_pass_are_followed():
    x = image()
    assert off(attacked(InPlaces(), x), x) < 1e-9


@pytest.mark.parametrize(
    "channel",
    [FedAvg(steps=1, lr=0.1), FedAvg(steps=1, lr=1e-3, optimizer=SGD(momentum=0.9)), ShuffledFedAvg(epochs=1, lr=0.1)],
    ids=repr,
)
@pytest.mark.parametrize("bias", [True, False])
def test_a_weight_update_of_one_step_is_its_gradient(channel, bias):
    x = image()
    result = attacked(chain((12, 3, 1, 1), (16, 3, 2, 1), bias=bias), x, channel=channel)
    assert off(result, x) < 1e-8
    assert result.y.tolist() == [2]


def test_a_clipped_gradient_is_brought_back_to_its_length():
    x = image()
    result = attacked(chain((12, 3, 1, 1), (16, 3, 2, 1)), x, defenses=(Clip(1e-3),))
    assert off(result, x) < 1e-8
    assert any("in transit; this was undone" in note for note in result.notes)
    with pytest.raises(Inapplicable, match="no scores explain the gradient of the head, and its bias is not shared"):
        attacked(chain((12, 3, 1, 1), bias=False), x, defenses=(Clip(1e-3),))


def test_a_withheld_bias_of_the_head_is_no_obstacle():
    x, model = image(), chain((12, 3, 1, 1), (16, 3, 2, 1))
    result = attacked(model, x, defenses=(WithholdNames(("5.bias",)),))
    assert off(result, x) < 1e-9


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_the_logistic_loss_of_the_paper(label):
    """One score and no biases. Where two inputs of the head have this gradient, the layers before tell which one it was."""
    x, model = image(), chain((12, 3, 1, 1), (16, 3, 2, 1), classes=1, bias=False)
    victim = Victim(model, SPACE, loss=F.binary_cross_entropy_with_logits)
    result = r_gap()(victim, share(victim, Gradient(), x, torch.tensor([[label]], dtype=torch.float64)))
    assert off(result, x) < 1e-8
    assert any("inputs of the head have this gradient" in note for note in result.notes)


def test_any_loss_will_do_where_the_bias_of_the_head_is_shared():
    x = image()
    result = attacked(chain((12, 3, 1, 1), (16, 3, 2, 1)), x, loss=lambda out, y: out.square().mean())
    assert off(result, x) < 1e-9
    assert result.y is None


def test_in_single_precision_and_under_noise_the_error_is_foretold():
    victim, x, y = tiny_case("lenet")
    for defenses, worst in (((), 1e-5), ((GaussianNoise(relative=1e-3),), 1e-2), ((GaussianNoise(relative=0.1),), 1.0)):
        result = r_gap()(victim, share(victim, Gradient(), x, y, defenses=defenses))
        said = float(told(result)["expected error of a pixel"].partition(" ")[0])
        assert said / 10 < off(result, x, victim.space) < 10 * said
        assert off(result, x, victim.space) < worst
    assert "makes pixels wrong by about" in told(result)["predicted"]


def test_the_lenet_of_dlg_gives_a_photograph_away():
    space, (images, labels) = Pixels((1, 14, 14), mean=MEAN, std=STD), fashion("test")
    victim = Victim(LeNet(in_channels=1, side=14), space)
    x, y = space.encode(F.avg_pool2d(images[:1], 2)), labels[:1]
    result = r_gap()(victim, share(victim, Gradient(), x, y))
    assert score(result, x, y, space=space).psnr[0] > 60


def test_a_single_linear_layer():
    x = image()
    assert off(attacked(nn.Sequential(nn.Flatten(), nn.Linear(128, 3)).double(), x), x) < 1e-12
