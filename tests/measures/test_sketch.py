import pytest
import torch

from leakgauge.measures.sketch import SignBucket, group

CPU = torch.device("cpu")
SHAPES = {"conv.weight": (8, 3, 3, 3), "conv.bias": (8,), "large.weight": (300, 150), "large.bias": (300,)}


def tensors(seed: int):
    rng = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=rng) for name, shape in SHAPES.items()}


@pytest.fixture
def recipe():
    return SignBucket(total=64)


def test_inner_products_survive_in_the_mean(recipe):
    a, b = tensors(0), {name: 0.5 * g + t for (name, g), t in zip(tensors(0).items(), tensors(1).values(), strict=True)}
    plans = [recipe.plan(SHAPES, device=CPU, seed=seed) for seed in range(400)]
    inner = torch.stack([(plan(a) * plan(b)).sum(1) for plan in plans])
    for row, name in enumerate(plans[0].layers):
        truth = float((a[name] * b[name]).sum())
        error = float(inner[:, row].std()) / 20
        assert abs(float(inner[:, row].mean()) - truth) < 4 * error, name


def test_linear(recipe):
    plan = recipe.plan(SHAPES, device=CPU, seed=0)
    a, b = tensors(0), tensors(1)
    both = {name: 2 * a[name] - b[name] for name in SHAPES}
    torch.testing.assert_close(plan(both), 2 * plan(a) - plan(b), rtol=1e-4, atol=1e-3)


def test_seed_decides(recipe):
    plan = [recipe.plan(SHAPES, device=CPU, seed=seed)(tensors(0)) for seed in (1, 1, 2)]
    assert torch.equal(plan[0], plan[1])
    assert not torch.allclose(plan[0], plan[2])


def test_a_missing_tensor_counts_as_zero(recipe):
    plan = recipe.plan(SHAPES, device=CPU, seed=0)
    zeros = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    given = {**tensors(0), "large.weight": None}
    torch.testing.assert_close(plan(given), plan({**tensors(0), "large.weight": zeros["large.weight"]}))


def test_half_precision_and_strides_are_read(recipe):
    plan = recipe.plan({"w": (40, 1000)}, device=CPU, seed=0)
    value = torch.randn(1000, 40, generator=torch.Generator().manual_seed(0)).T
    torch.testing.assert_close(plan({"w": value}), plan({"w": value.contiguous()}), rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(plan({"w": value.bfloat16()}), plan({"w": value.bfloat16().float()}))


def test_memory_does_not_grow_with_the_model():
    small = SignBucket().plan({"w": (1000, 1000)}, device=CPU, seed=0)
    large = SignBucket().plan({"w": (10_000, 2_000)}, device=CPU, seed=0)
    assert large.nbytes() < small.nbytes() + 50_000 < 100_000


def test_layers_are_parameters_then_modules_then_runs_of_modules():
    names = [f"{m}.{p}" for m in "abcd" for p in ("weight", "bias")]
    assert group(names, 8) == {n: n for n in names}
    assert set(group(names, 7).values()) == set("abcd")
    assert set(group(names, 3).values()) == {"a…b", "c…d"}
