"""Models as hostile or unlucky users write them; the tests copy this file into a folder of their own."""

import sys
from pathlib import Path

import torch
from torch import nn

from leakgauge import Pixels

SPACE = Pixels((3, 8, 8))


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(192, 6), nn.Linear(6, 3)

    def scores(self, x):
        return self.b(torch.sigmoid(self.a(x.flatten(1))))

    def forward(self, x):
        return self.scores(x)


def model(forward):
    """A factory of models with this forward pass."""
    name = forward.__name__.title()
    globals()[name] = type(name, (Base,), {"forward": forward, "__module__": __name__})
    return lambda: (globals()[name](), SPACE)


def leave(code=0):
    sys.exit(code)


def give(error):
    raise error


FORWARD = {
    "subtracts": lambda self, x: self.scores(x.sub_(0.5)),
    "rectifies": lambda self, x: self.scores(nn.functional.relu(x, inplace=True)),
    "prints": lambda self, x: print("hello") or self.scores(x),
    "halved": lambda self, x: self.scores(x).half(),
    "draws": lambda self, x: self.scores(x + torch.randn_like(x)),
    "detached": lambda self, x: self.scores(x).detach(),
    "constant": lambda self, x: torch.zeros(len(x), 3),
    "through_numpy": lambda self, x: torch.from_numpy(self.scores(x).detach().numpy()),
    "integers": lambda self, x: self.scores(x).long(),
    "complex_scores": lambda self, x: self.scores(x).to(torch.complex64),
    "nothing": lambda self, x: None,
    "pair": lambda self, x: (self.scores(x),),
    "named": lambda self, x: {"logits": self.scores(x)},
    "one_class": lambda self, x: self.scores(x)[:, :1],
    "no_class": lambda self, x: self.scores(x)[:, :0],
    "first_only": lambda self, x: self.scores(x)[:1],
    "nan": lambda self, x: self.scores(x) * torch.nan,
    "inf": lambda self, x: self.scores(x) * torch.inf,
    "too_large": lambda self, x: torch.zeros(10**14),
    "leaves": lambda self, x: leave(),
    "leaves_with_text": lambda self, x: leave("bye"),
    "generator_exit": lambda self, x: give(GeneratorExit),
    "stop_iteration": lambda self, x: give(StopIteration),
    "out_of_memory": lambda self, x: give(MemoryError),
    "asserts": lambda self, x: give(AssertionError),
    "misses_a_file": lambda self, x: Path("/no/such/vocabulary.txt").read_text(),
    "recursive": lambda self, x: self.forward(x),
    "tells_pixels": lambda self, x: give(ValueError(f"bad input {x}")),
}
for _name, _forward in FORWARD.items():
    _forward.__name__ = _name
    globals()[_name] = model(_forward)


def with_weight(weight):
    made = Base()
    made.a.weight = nn.Parameter(weight)
    return made, SPACE


def meta_weights():
    return Base().to("meta"), SPACE


def complex_weights():
    return with_weight(torch.zeros(6, 192, dtype=torch.complex64))


def sparse_weights():
    return with_weight(torch.zeros(6, 192).to_sparse())


def no_weights():
    return with_weight(torch.zeros(0, 192))


def half_weights():
    return Base().half(), SPACE


def double_weights():
    return Base().double(), SPACE


class NoCopy(Base):
    def __deepcopy__(self, memo):
        raise TypeError("one of a kind")


def no_copy():
    return NoCopy(), SPACE


def keeps_a_generator():
    made = Base()
    made.stream = (i for i in range(3))
    return made, SPACE


class NoTrain(Base):
    def train(self, mode=True):
        raise RuntimeError("always on")


def no_train():
    return NoTrain(), SPACE


def huge():
    return Base(), Pixels((3, 100_000, 100_000))


def identity():
    return nn.Identity(), SPACE


def lazy():
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(3)), SPACE


def factory_leaves():
    leave()


def factory_generator_exit():
    raise GeneratorExit


def factory_gives_nothing():
    return None


def other_order():
    return SPACE, Base()
