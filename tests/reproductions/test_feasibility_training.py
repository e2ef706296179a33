"""How the feasibility study trains its networks: it learns, and its step can be recorded as a CUDA graph."""

import pytest
import torch


@pytest.mark.parametrize("name", ["resnet18_post", "convnext_t"])
def test_training_learns_an_easy_task(name):
    from dataclasses import replace

    from reproductions.practical_feasibility.networks import Network
    from reproductions.practical_feasibility.training import CONVNEXT, RESIDUAL, shaken, trained

    rng = torch.Generator().manual_seed(0)
    y = torch.arange(256) % 2
    x = (0.2 * torch.rand(256, 3, 32, 32, generator=rng) + 0.6 * y[:, None, None, None]).clamp(0, 1)
    model, space, _ = Network(name).made(classes=10, seed=0, quick=True)
    recipe = replace(RESIDUAL if name == "resnet18_post" else CONVNEXT, batch=32)
    device = torch.device("cpu")
    done = trained(model, space, (x, y), (x, y), recipe=recipe, seconds=60, device=device, most_epochs=4)
    assert done.accuracy > 0.9
    assert done.train_accuracy > 0.9
    assert all(p.is_contiguous() for p in model.parameters())
    assert done.epochs == 4
    moved = shaken(x[:16], rng)
    assert moved.shape == x[:16].shape
    assert not torch.equal(moved, x[:16])
    assert not bool((shaken(torch.ones(8, 1, 40, 40), rng, hole=0)[:, :, 4:-4, 4:-4] == 0).any())


def test_muon_is_that_of_torch():
    from reproductions.practical_feasibility.optimizers import Muon

    rng = torch.Generator().manual_seed(0)
    start = [torch.randn(*shape, generator=rng) for shape in ((9, 4), (4, 9), (9, 4), (8, 3))]
    ours, theirs = ([p.clone().requires_grad_() for p in start] for _ in range(2))
    rate = torch.tensor(0.1)
    mine = Muon([{"params": ours, "weight_decay": 0.05}], rate)
    torchs = torch.optim.Muon(theirs, lr=0.1, weight_decay=0.05, adjust_lr_fn="match_rms_adamw")
    for number in range(4):
        if number == 2:
            rate.fill_(0.02)
            torchs.param_groups[0]["lr"] = 0.02
        for own, optimizer in ((ours, mine), (theirs, torchs)):
            optimizer.zero_grad()
            sum((p.sin().square().sum() for p in own), torch.zeros(())).backward()
            optimizer.step()
    for a, b, was in zip(
        ours, theirs, start, strict=True
    ):  # both orthogonalise in bfloat16, in another order of rounding
        assert (a - b).norm() < 0.15 * (a - was).norm()


def test_an_orthogonalised_matrix_keeps_its_directions():
    from reproductions.practical_feasibility.optimizers import orthogonal

    rng = torch.Generator().manual_seed(0)
    matrices = torch.randn(3, 20, 8, generator=rng)
    made = orthogonal(matrices).float()
    values = torch.linalg.svdvals(made)
    assert 0.5 < values.min() < values.max() < 1.4
    left, _, right = torch.linalg.svd(matrices, full_matrices=False)
    middle = left.mT @ made @ right.mT  # in the matrices' own directions it is diagonal
    assert (middle - torch.diag_embed(middle.diagonal(dim1=1, dim2=2))).abs().max() < 0.1


def test_muon_takes_the_hidden_matrices_alone():
    from reproductions.practical_feasibility.networks import Network
    from reproductions.practical_feasibility.optimizers import hidden_matrices

    model, _, _ = Network("swin_t").made(classes=10, seed=0, quick=False)
    taken = {id(p) for p in hidden_matrices(model)}
    names = {name for name, p in model.named_parameters() if id(p) in taken}
    assert {name.rsplit(".", 2)[1] for name in names} == {"qkv", "proj", "fc1", "fc2", "reduction"}
    assert all(name.startswith("layers.") for name in names)


def test_momentum_is_that_of_torch():
    from reproductions.practical_feasibility.optimizers import Nesterov

    rng = torch.Generator().manual_seed(0)
    start = [torch.randn(3, 2, generator=rng), torch.randn(4, generator=rng)]
    ours, theirs = ([p.clone().requires_grad_() for p in start] for _ in range(2))
    rate = torch.tensor(0.1)
    mine = Nesterov([{"params": ours[:1], "weight_decay": 0.01}, {"params": ours[1:]}], rate, 0.9)
    torchs = torch.optim.SGD(
        [{"params": theirs[:1], "weight_decay": 0.01}, {"params": theirs[1:]}], lr=0.1, momentum=0.9, nesterov=True
    )
    for number in range(4):
        if number == 2:  # a new rate is taken up without a new optimizer
            rate.fill_(0.02)
            for group in torchs.param_groups:
                group["lr"] = 0.02
        for own, optimizer in ((ours, mine), (theirs, torchs)):
            optimizer.zero_grad()
            sum((p.sin().square().sum() for p in own), torch.zeros(())).backward()
            optimizer.step()
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize(
    ("name", "muon"), [("resnet18_pre", False), ("swin_t", False), ("swin_t", True), ("convnext_t", False)]
)
def test_a_training_step_can_be_recorded(name, muon, recordable):
    """Nothing in it waits for the device or comes from the host; of AdamW torch itself says so (capturable)."""
    from reproductions.practical_feasibility.networks import Network
    from reproductions.practical_feasibility.optimizers import Muon
    from reproductions.practical_feasibility.training import RESIDUAL, Loop

    model, _, _ = Network(name).made(classes=10, seed=0, quick=True)
    x, y = (torch.empty(*shape, device="meta") for shape in ((4, 3, 32, 32), (4, 10)))
    loop = Loop(model.to("meta").train(), RESIDUAL, x, y, steps=10)
    if muon:
        matrices = [p for p in model.parameters() if p.dim() == 2]
        loop.optimizers = [Muon([{"params": matrices, "weight_decay": 0.05}], torch.zeros((), device="meta"))]
    loop._move()
    with recordable.only_on_the_device():  # raises at the first thing that does
        loop._move()
    assert all(p.grad is not None and p.grad.is_meta for p in model.parameters())


def test_a_recorded_training_step_learns_as_the_plain_one(recordable):
    """New images, labels and rates reach the recorded step."""
    from reproductions.practical_feasibility.networks import Network
    from reproductions.practical_feasibility.training import RESIDUAL, Loop, targets

    rng = torch.Generator().manual_seed(0)
    x, y = torch.rand(7, 8, 3, 32, 32, generator=rng), targets(torch.randint(0, 10, (7, 8), generator=rng))
    models = [Network("resnet18_post").made(classes=10, seed=0, quick=True)[0].train() for _ in range(2)]
    plain, recorded = (Loop(model, RESIDUAL, x[0], y[0], steps=7) for model in models)
    recorded.captured = recordable.PlayedBack(recorded._move)
    for images, labels in zip(x, y, strict=True):
        plain.step(images, labels)
        recorded.step(images, labels)
    assert recorded.captured.operations
    for a, b in zip(models[0].state_dict().values(), models[1].state_dict().values(), strict=True):
        assert torch.allclose(a, b, atol=1e-5)


def test_the_rate_rises_and_falls_once():
    from reproductions.practical_feasibility.training import ATTENTION, Loop

    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 2))
    loop = Loop(model, ATTENTION, torch.rand(2, 3, 2, 2), torch.eye(2), steps=100)
    rates = [loop.rate(i) for i in range(100)]
    peak = rates.index(max(rates))
    assert max(rates) == pytest.approx(ATTENTION.lr)
    assert rates[: peak + 1] == sorted(rates[: peak + 1])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    assert rates[-1] < 0.01 * ATTENTION.lr


def test_the_layout_is_the_faster_one(monkeypatch):
    """On a GPU both are tried where a network convolves channel by channel; what is measured leaves the model as it was."""
    from reproductions.practical_feasibility import training
    from reproductions.practical_feasibility.networks import Network

    model, _, _ = Network("convnext_t").made(classes=10, seed=0, quick=True)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    x, y = torch.rand(4, 3, 32, 32), torch.eye(10)[:4]
    seconds = {torch.channels_last: 3.0, torch.contiguous_format: 2.0}
    measured = training._measured(model, training.CONVNEXT, x, y, torch.contiguous_format)
    assert measured > 0
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    monkeypatch.setattr(training, "_measured", lambda model, recipe, x, y, layout: seconds[layout])
    assert training._faster_layout(model, training.CONVNEXT, x, y) == (torch.channels_last, 3.0)
    on_gpu = type("OnGPU", (), {"is_cuda": True})()
    assert training._faster_layout(model, training.CONVNEXT, on_gpu, y) == (torch.contiguous_format, 2.0)
    plain, _, _ = Network("resnet18_post").made(classes=10, seed=0, quick=True)
    assert training._faster_layout(plain, training.RESIDUAL, on_gpu, y) == (torch.channels_last, 3.0)


def test_networks_compared_by_accuracy_get_equally_many_epochs(tmp_path):
    from reproductions.practical_feasibility import accuracy
    from reproductions.practical_feasibility.ledger import Ledger
    from reproductions.practical_feasibility.networks import Network

    ledger = Ledger(tmp_path, "accuracy", {"quick": False, "seed": 0})
    ledger.add("convnext_t", epochs=23)
    assert accuracy.given_epochs(Network("convnext_t", adapted=False), ledger) == 23
    assert accuracy.given_epochs(Network("convnext_t"), ledger) is None
    ledger.add("swin_t", epochs=40)
    assert accuracy.given_epochs(Network("swin_t", adapted=False), ledger) is None  # compared by no accuracy
    assert list(accuracy.PLAN) == list(accuracy.NETWORKS)
    assert {accuracy.given_epochs(net, ledger) for net in accuracy.NETWORKS.values() if net.name == "vit_b"} == {3}
    assert max(accuracy.PLAN.values()) <= 180  # the most an architecture is given


def test_of_several_recipes_the_one_that_learns_is_taken():
    from dataclasses import replace

    from leakgauge.data.embedded import photographs
    from reproductions.practical_feasibility import training
    from reproductions.practical_feasibility.networks import Network

    model, space, _ = Network("swin_t").made(classes=10, seed=0, quick=True)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    x, y = space.encode(photographs(32)), torch.eye(10)[:8]
    recipes = [replace(training.SWIN[0], lr=lr, batch=8) for lr in (1e4, 1e-3, 1e-9)]
    assert training._best_recipe(model, recipes, x, y, torch.contiguous_format, seed=0) is recipes[1]
    assert training._best_recipe(model, recipes[:1], x, y, torch.contiguous_format, seed=0) is recipes[0]
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_a_square_of_another_image_brings_its_share_of_the_label():
    from reproductions.practical_feasibility.training import mixed, targets

    count = 400
    x = torch.arange(float(count))[:, None, None, None].expand(count, 3, 8, 8)  # every image is its number
    y = targets(torch.arange(count) % 10)
    images, labels = mixed(x, y, torch.Generator().manual_seed(0), chance=0.5)
    assert torch.allclose(labels.sum(1), torch.ones(count))
    changed = 0
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        foreign = image[0] != number
        changed += bool(foreign.any())
        if not foreign.any():
            assert torch.equal(label, y[number])
            continue
        others = image[0][foreign].unique()
        assert len(others) == 1
        rows, columns = foreign.any(1).nonzero().flatten(), foreign.any(0).nonzero().flatten()
        side = len(rows)
        assert len(columns) == side
        assert int(foreign.sum()) == side**2  # one whole square
        share = side**2 / 64
        assert torch.allclose(label, (1 - share) * y[number] + share * y[int(others)], atol=1e-6)
    assert 0.3 * count < changed < 0.6 * count  # a half, less those of no area and those mixed with themselves
    same, kept = mixed(x, y, torch.Generator().manual_seed(0), chance=0.0)
    assert torch.equal(same, x)
    assert torch.equal(kept, y)
