"""The chain of layers that R-GAP walks back: convolutions and linear layers, each followed by an invertible activation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from leakgauge.core import Tokens, Victim
from leakgauge.errors import Inapplicable
from leakgauge.graphs import example_of, fixed_draws
from leakgauge.graphs.nodes import names_of, operation
from leakgauge.graphs.trace import export_graph

_CONVOLUTIONS: dict[int, Callable[..., Tensor]] = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}
"""By number of dimensions of the weight."""

_SAME_VALUES = {"flatten", "view", "reshape", "unsafe_view", "contiguous", "clone", "alias", "detach", "unsqueeze", "squeeze"}  # fmt: skip
"""Operations that keep all values in their order."""


CLEAR = 10
"""A value counts as one that ReLU let pass if it is above zero by this many times its expected error."""


@dataclass(frozen=True)
class ActivationInput:
    """What an activation's output reveals: its input where ``known``, and its slope everywhere."""

    z: Tensor
    known: Tensor
    slope: Tensor


@dataclass(frozen=True)
class Activation:
    """An increasing elementwise function, so its output determines its input; for ReLU only where it is positive.

    ``level`` is the slope below zero of a leaky ReLU, and the α of an ELU.
    """

    name: str
    level: float = 0.0

    def undo(self, x: Tensor, *, off: Tensor) -> ActivationInput:
        """Inverts the output ``x``; its values have errors of about ``off``."""
        below, everywhere = x < 0, torch.ones_like(x, dtype=torch.bool)
        if self.name == "leaky_relu":
            slope = torch.where(below, torch.full_like(x, self.level), 1.0)
            return ActivationInput(x / slope, everywhere, slope)
        if self.name == "relu":  # a clipped value has slope 0, and its input stays unknown
            known = x > CLEAR * off
            return ActivationInput(x * known, known, known.to(x))
        if self.name == "sigmoid":
            inside = x.clamp(torch.finfo(x.dtype).eps, 1 - torch.finfo(x.dtype).eps)
            return ActivationInput(torch.logit(inside), everywhere, inside * (1 - inside))
        if self.name == "tanh":
            inside = x.clamp(-1 + torch.finfo(x.dtype).eps, 1 - torch.finfo(x.dtype).eps)
            return ActivationInput(torch.atanh(inside), everywhere, 1 - inside.square())
        assert self.name == "elu"
        share = torch.where(below, x / self.level, 0.0).clamp_min(-1 + torch.finfo(x.dtype).eps)
        return ActivationInput(
            torch.where(below, share.log1p(), x), everywhere, torch.where(below, x + self.level, 1.0)
        )


@dataclass(frozen=True)
class Layer:
    """A convolution or a linear layer, and the activations between it and the next one.

    ``weight`` and ``bias`` are parameter names. ``enters`` and ``leaves`` are the shapes of one sample, ``options`` those of a
    convolution (stride, padding, dilation), without its ``groups``; a linear layer has none.
    """

    name: str
    weight: str
    bias: str | None
    enters: tuple[int, ...]
    leaves: tuple[int, ...]
    convolves: bool
    options: tuple[tuple[str, Any], ...] = ()
    groups: int = 1
    after: tuple[Activation, ...] = ()

    @property
    def unknowns(self) -> int:
        """The number of inputs of the layer."""
        return math.prod(self.enters)

    def product(self, x: Tensor, weight: Tensor, *, groups: int | None = None) -> Tensor:
        """W x without the bias, for samples (n, *enters)."""
        if not self.convolves:
            return x @ weight.T
        return _CONVOLUTIONS[weight.dim()](
            x, weight, groups=self.groups if groups is None else groups, **dict(self.options)
        )

    def slope_of_input(self, delta: Tensor, weight: Tensor) -> Tensor:
        """∂L/∂x = Wᵀ ∂L/∂z for one sample, ``delta`` of shape ``leaves``."""
        x = torch.zeros(1, *self.enters, dtype=weight.dtype, requires_grad=True)
        with torch.enable_grad():
            z = self.product(x, weight)
        return torch.autograd.grad(z, x, delta[None])[0][0]

    def undo(self, x: Tensor, *, off: Tensor) -> ActivationInput:
        """Inverts all activations after the layer, from the input of the next one."""
        found = ActivationInput(x, torch.ones_like(x, dtype=torch.bool), torch.ones_like(x))
        for activation in reversed(self.after):
            one = activation.undo(found.z, off=off)
            found = ActivationInput(one.z, found.known & one.known, found.slope * one.slope)
        return found


def read_chain(victim: Victim) -> tuple[Layer, ...]:
    """The layers from the image to the scores; ``Inapplicable`` says why the model is not such a chain."""
    if isinstance(victim.space, Tokens):
        raise Inapplicable("R-GAP solves for the values of an image, but the victim takes token ids")
    try:
        with fixed_draws(victim):
            graph = export_graph(victim.model, example_of(victim, 2), any_batch=False).module.graph
    except Exception as error:  # torch.export raises anything
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
        raise Inapplicable(f"the model's layers cannot be traced: {type(error).__name__}: {reason}"[:300]) from error
    called = [node for node in graph.nodes if node.op == "call_function"]
    names = {node: named.name for node, named in names_of(called).items()}
    layers: list[Layer] = []
    after: list[Activation] = []
    node = _output(graph)
    while node.op != "placeholder":
        where, what = names.get(node, str(node.target)), operation(node)
        source = _only_input(node, where, what)
        if what in ("linear", "conv1d", "conv2d", "conv3d"):
            layers.append(_layer(node, source, where, tuple(reversed(after))))
            after = []
        elif what not in _SAME_VALUES and not _no_dropout(node):
            after.append(_activation(node, where, what))
        node = source
    if after:
        raise Inapplicable(f"{after[-1].name} changes the image before the first layer, which R-GAP cannot invert")
    chain = tuple(reversed(layers))
    _require_own_weights(chain)
    if not chain or chain[-1].convolves or chain[-1].after:
        last = chain[-1].after[-1].name if chain and chain[-1].after else "a convolution" if chain else "nothing"
        raise Inapplicable(f"the model ends in {last}; R-GAP starts from a linear head that returns the scores")
    return chain


def _output(graph: fx.Graph) -> fx.Node:
    result = next(node for node in graph.nodes if node.op == "output").args[0]
    values = list(result) if isinstance(result, Sequence) and not isinstance(result, str) else [result]
    if len(values) != 1 or not isinstance(values[0], fx.Node):
        raise Inapplicable(f"the model returns {len(values)} outputs, but R-GAP starts from one tensor of scores")
    return values[0]


def _only_input(node: fx.Node, where: str, what: str) -> fx.Node:
    """The one tensor that the operation reads, besides weights."""
    if "norm" in what:
        raise Inapplicable(
            f"the model normalises ({_describe(where, what)}); R-GAP only inverts layers and activations"
        )
    if "pool" in what:
        raise Inapplicable(f"the model pools ({_describe(where, what)}); merged values have no equations")
    if what == "dropout" and not _no_dropout(node):
        raise Inapplicable(f"the model drops values in train mode ({_describe(where, what)}); which ones is unknown")
    read = [n for n in node.all_input_nodes if n.op != "get_attr"]
    if len(read) != 1 or not isinstance(node.args[0], fx.Node) or node.args[0] is not read[0]:
        raise Inapplicable(
            f"not a plain chain of layers: {_describe(where, what)} reads {len(read)} tensors, as in a residual connection"
            if len(read) > 1
            else f"not a plain chain of layers: {_describe(where, what)} reads no single tensor"
        )
    return read[0]


def _describe(where: str, what: str) -> str:
    """An operation with the module it runs in."""
    return where if where.rpartition(".")[2].partition("_")[0] == what.partition("_")[0] else f"{what} of {where}"


def _no_dropout(node: fx.Node) -> bool:
    return operation(node) == "dropout" and (node.args[2] is False or float(cast(float, node.args[1])) == 0)


def _activation(node: fx.Node, where: str, what: str) -> Activation:
    settings = _settings(node) if isinstance(node.target, torch._ops.OpOverload) else {}
    if what in ("relu", "sigmoid", "tanh"):
        return Activation(what)
    if what == "leaky_relu" and float(settings["negative_slope"]) > 0:
        return Activation(what, float(settings["negative_slope"]))
    if what == "elu" and float(settings["alpha"]) > 0 and settings["scale"] == 1 and settings["input_scale"] == 1:
        return Activation(what, float(settings["alpha"]))
    raise Inapplicable(
        f"the model has {_describe(where, what)}; R-GAP inverts convolutions, linear layers, leaky ReLU, ReLU, ELU, sigmoid and tanh"
    )


def _layer(node: fx.Node, source: fx.Node, where: str, after: tuple[Activation, ...]) -> Layer:
    settings = _settings(node)
    weight, bias = settings["weight"], settings.get("bias")
    if not isinstance(weight, fx.Node) or weight.op != "get_attr" or not (bias is None or isinstance(bias, fx.Node)):
        raise Inapplicable(f"the weight of {where} is computed, so its gradient is not shared")
    convolves = operation(node) != "linear"
    enters, leaves = _shape(source), _shape(node)
    if not convolves and len(enters) != 1:
        raise Inapplicable(
            f"the linear layer {where} reads several vectors of one sample, and their gradients are summed"
        )
    options = tuple((k, settings[k]) for k in ("stride", "padding", "dilation")) if convolves else ()
    return Layer(
        name=where,
        weight=str(weight.target),
        bias=None if bias is None else str(bias.target),
        enters=enters,
        leaves=leaves,
        convolves=convolves,
        options=tuple((k, tuple(v) if isinstance(v, Sequence) and not isinstance(v, str) else v) for k, v in options),
        groups=int(settings.get("groups", 1)),
        after=after,
    )


def _settings(node: fx.Node) -> dict[str, Any]:
    """The operation's arguments by name, with its defaults."""
    schema = cast(torch._ops.OpOverload, node.target)._schema
    given = dict(zip((argument.name for argument in schema.arguments), node.args, strict=False))
    defaults = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
    return {**defaults, **given, **node.kwargs}


def _shape(node: fx.Node) -> tuple[int, ...]:
    return tuple(int(size) for size in node.meta["val"].shape[1:])


def _require_own_weights(chain: tuple[Layer, ...]) -> None:
    used = [layer.weight for layer in chain]
    again = next((name for name in used if used.count(name) > 1), None)
    if again is not None:
        raise Inapplicable(f"{again} is used more than once, so its gradient mixes several inputs")
