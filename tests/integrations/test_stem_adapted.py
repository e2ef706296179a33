"""Models for 224×224 images adapted to 32×32: what changes is listed, depth and width stay, attacks find their parts."""

from __future__ import annotations

import pytest
import torch

from leakgauge.attacks import feasibility
from leakgauge.audit.case import Case
from leakgauge.channels import Gradient
from leakgauge.core import Labels, Size, Victim, share
from leakgauge.errors import BadInput
from leakgauge.families import find_roles
from leakgauge.integrations.resolve import load_model
from leakgauge.integrations.setups import smaller
from leakgauge.integrations.timm import stem_adapted

# name, family, first layer, attention layers, kernel and stride of the first layer
MODELS = {
    "swin_tiny_patch4_window7_224": ("swin", "patch_embed.proj", 12, (2, 2), (2, 2)),
    "swinv2_tiny_window8_256": ("swin", "patch_embed.proj", 12, (2, 2), (2, 2)),
    "convnext_atto": ("convnext", "stem.0", 0, (3, 3), (1, 1)),
    "maxvit_pico_rw_256": ("maxvit", "stem.conv1", 22, (3, 3), (1, 1)),
    "vit_tiny_patch16_224": ("vit", "patch_embed.proj", 12, (4, 4), (4, 4)),
}


@pytest.mark.parametrize("name", MODELS)
def test_an_adapted_model(name):
    family, first, attention, kernel, stride = MODELS[name]
    adapted = stem_adapted(name, classes=7)
    assert adapted.space.shape == (3, 32, 32)
    assert adapted.changes[0] == "images of 32 × 32"
    assert len(adapted.changes) >= 2
    with torch.no_grad():
        assert adapted.model.eval()(torch.zeros(2, 3, 32, 32)).shape == (2, 7)
    roles = find_roles(adapted.model)
    assert (roles.family, roles.first_layer, len(roles.attention)) == (family, first, attention)
    layer = adapted.model.get_submodule(first)
    assert (layer.kernel_size, layer.stride) == (kernel, stride)
    assert adapted.model.get_submodule(roles.head).out_features == 7
    parameters = dict(adapted.model.named_parameters())
    for role in ("head", "first_layer", "norms", *(["attention"] if attention else [])):
        assert set(roles.parameters(role, adapted.model)) <= set(parameters)
    for layer in roles.attention:  # a fused weight is named only where its rows are all of q, then k, then v
        by_head = getattr(adapted.model.get_submodule(layer.name), "head_first", False)
        assert (layer.qkv is None) == by_head


@pytest.mark.parametrize("name", ["convnext_atto", "swin_tiny_patch4_window7_224"])
def test_depth_and_width_stay(name):
    """All parameters but the stem's, the head's and the position tables' have the shapes of the canonical model."""
    canonical = load_model(f"timm:{name}", classes=10).model
    ours, theirs = (dict(m.named_parameters()) for m in (stem_adapted(name).model, canonical))
    assert list(ours) == list(theirs)
    changed = {n for n in ours if ours[n].shape != theirs[n].shape}
    assert all("stem.0" in n or "patch_embed.proj" in n or "relative_position" in n for n in changed), changed
    assert changed


def test_the_same_seed_gives_the_same_weights():
    a, b, c = (stem_adapted("convnext_atto", seed=seed).model.state_dict()["stem.0.weight"] for seed in (1, 1, 2))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_an_attack_runs_end_to_end_with_proxy_statistics():
    """ConvNeXt has LayerNorm and LayerNorm2d: proxies serve there, exact statistics do not exist."""
    from leakgauge.core import Auxiliary

    adapted = stem_adapted("convnext_atto", classes=4)
    victim = Victim(adapted.model, adapted.space, mode="train")
    rng = torch.Generator().manual_seed(0)
    images, others = (adapted.space.encode(torch.rand(n, 3, 32, 32, generator=rng)) for n in (1, 4))
    seen = share(victim, Gradient(), images, torch.tensor([2]), reveal=(Size(), Labels(), Auxiliary(others)))
    found = feasibility(steps=1)(victim, seen)
    assert found.x.shape == images.shape
    assert any(note.startswith("statistics: proxy") for note in found.notes)


def test_names():
    with pytest.raises(BadInput, match="no adaptation to 32×32 images is known for resnet18"):
        stem_adapted("resnet18")
    with pytest.raises(BadInput, match="not _tf_ variants"):
        stem_adapted("maxvit_tiny_tf_224")
    with pytest.raises(BadInput, match="timm has no model 'swin_small'"):
        stem_adapted("swin_small")
    loaded = load_model("timm32:convnext_atto")
    model, space = loaded.model, loaded.space
    assert space.shape == (3, 32, 32)
    assert model.num_classes == 10
    assert smaller(Case(model="timm:convnext_atto")) == {"stem and resolution of 32×32": "timm32:convnext_atto"}
    for case in (Case(model="timm:resnet18"), Case(), Case(model="timm:convnext_atto", weights="w.safetensors")):
        assert smaller(case) == {}
