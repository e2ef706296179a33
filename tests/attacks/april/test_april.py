"""Optimisation-based APRIL, and the paper's small model."""

from dataclasses import replace

import pytest
import torch

from leakgauge import testing
from leakgauge.attacks import april
from leakgauge.attacks.april import PositionEmbedding
from leakgauge.audit import score
from leakgauge.channels import Gradient
from leakgauge.core import Pixels, Victim, share
from leakgauge.defenses import Withhold
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.inversion import L2, Cosine, Joint
from leakgauge.models.vit import ViT
from tests.zoo import ATTENTION, ByName, HandVit, spread, torchvision_vit


def small_model(**options) -> ViT:
    """4×4 patches of 7 pixels, 4 blocks of width 384, 4 heads, qkv without bias, no normalisation before the head."""
    defaults = {"side": 28, "patch": 7, "width": 384, "depth": 4, "heads": 4, "qkv_bias": False, "final_norm": False}
    return ViT(**{**defaults, **options})


def count(parameters) -> int:
    return sum(p.numel() for p in parameters)


def test_the_papers_parameter_counts():
    """Table 2 of the APRIL paper, and its count without one encoder's attention."""
    model = small_model()
    everything = count(model.parameters())
    assert everything == 7_123_210
    assert everything - model.pos_embed.numel() == 7_116_682
    assert everything - count(model.blocks[0].attn.parameters()) == 6_533_002


def test_the_objective_reads_like_its_equation():
    attack = april(alpha=0.3)
    assert repr(attack.objective) == f"{L2()!r} + 0.3 * {Cosine(weights=PositionEmbedding())!r}"


def test_only_the_position_embedding_is_weighted():
    names = ["patch_embed.proj.weight", "pos_embed", "model.vit.embeddings.position_embeddings", "head.bias"]
    assert PositionEmbedding()(names) == {"pos_embed": 1.0, "model.vit.embeddings.position_embeddings": 1.0}


@pytest.mark.parametrize("name", ["visual.positional_embedding", "transformer.pos_emb", "encoder.pos_embedding"])
def test_positions_by_other_names_are_found(name):
    assert PositionEmbedding()(["conv1.weight", name]) == {name: 1.0}


@pytest.mark.parametrize(
    ("build", "shape", "name"),
    [
        (lambda: HandVit(ATTENTION["wq"](), order="standard"), (3, 12, 12), "positions"),
        (lambda: HandVit(ByName(), order="standard"), (3, 12, 12), "positions"),
        (lambda: spread(torchvision_vit(16, 4), "heads.head.weight"), (3, 16, 16), "encoder.pos_embedding"),
    ],
)
def test_positions_are_known_by_their_role_where_the_name_does_not_say(build, shape, name):
    victim = Victim(build(), Pixels(shape))
    assert PositionEmbedding().of(victim, list(victim.parameters())) == {name: 1.0}
    x, y = torch.rand(1, *shape), torch.tensor([1])
    assert april(steps=2)(victim, share(victim, Gradient(), x, y)).y.tolist() == [1]
    with pytest.raises(Inapplicable, match=f"not shared: {name}, the gradient of the position embedding"):
        april(steps=2)(victim, share(victim, Gradient(), x, y, defenses=[Withhold(("position_embedding",))]))


def test_a_weight_below_zero_is_refused():
    with pytest.raises(BadInput, match=r"non-negative .*got -1"):
        april(alpha=-1)


def test_a_signal_with_none_for_a_gradient_is_refused():
    """What ``{n: p.grad for n, p in model.named_parameters()}`` gives where a parameter took no part."""
    victim, x, y = testing.tiny_case("vit")
    seen = share(victim, Gradient(), x, y)
    with pytest.raises(
        BadInput, match=r"signal as a mapping from text to a torch\.Tensor, got a dict with None at 'head\.bias'"
    ):
        april(steps=2)(victim, replace(seen, signal={**seen.signal, "head.bias": None}))


def test_refuses_when_the_position_embedding_is_withheld():
    victim, x, y = testing.tiny_case("vit")
    seen = share(victim, Gradient(), x, y, defenses=[Withhold(("position_embedding",))])
    with pytest.raises(Inapplicable, match="position embedding"):
        april(steps=2)(victim, seen)


def test_refuses_a_model_without_positions():
    victim, x, y = testing.tiny_case("cnn")
    with pytest.raises(Inapplicable, match="position embedding"):
        april(steps=2)(victim, share(victim, Gradient(), x, y))


def test_a_miniature_of_table_1():
    """Two images, an untrained model of architecture B with positions of scale 1: APRIL recovers them, and does better than DLG's
    objective under the same Adam, as the paper compares them. With positions of scale 0.02 APRIL stays below SSIM 0.6.
    """
    images, labels = (t[1:] for t in testing.tiny_images(3))
    space = Pixels((1, testing.SIDE, testing.SIDE))
    model = ViT(
        side=testing.SIDE, classes=4, patch=4, width=64, depth=2, heads=4, qkv_bias=False, final_norm=False, position_std=1.0
    )  # fmt: skip
    victim, each = Victim(model, space), [slice(i, i + 1) for i in range(2)]
    seen = [share(victim, Gradient(), images[i], labels[i]) for i in each]
    attack = april(steps=200)
    with_adam = replace(attack, objective=L2(), labels=Joint(), name="dlg with Adam")
    ours, theirs = (
        [score(r, images[i], labels[i], space=space) for r, i in zip(a.many(victim, seen), each, strict=True)]
        for a in (attack, with_adam)
    )
    assert all(s.labels == (1.0,) for s in ours)
    assert all(s.ssim[0] >= 0.9 for s in ours)
    assert all(a.ssim[0] >= b.ssim[0] for a, b in zip(ours, theirs, strict=True))


def test_frozen_positions_leave_nothing_to_compare():
    model = testing.TINY["vit"]()
    model.pos_embed.requires_grad_(False)
    victim, x, y = testing.tiny_case("vit")
    frozen = Victim(model, victim.space)
    with pytest.raises(Inapplicable, match="position embedding"):
        april(steps=2)(frozen, share(frozen, Gradient(), x, y))
