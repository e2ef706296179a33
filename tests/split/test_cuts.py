"""The table of cuts: the paper's VGG19, bytes, shares, models of timm and Hugging Face."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from leakgauge.core import Pixels, Victim
from leakgauge.errors import BadInput
from leakgauge.integrations import huggingface, timm
from leakgauge.models.vgg import VGG
from leakgauge.split import cuts, halves
from leakgauge.split.cuts import as_victim, find_cut, jpeg_bytes
from tests.zoo import SmallResNet

PLAN = (64, 64, "M", 128, 128, "M", 256, 256, 256, 256, "M", 512, 512, 512, 512, "M", 512, 512, 512, 512, "M")
TABLE = {  # block: channels, side, KiB in fp32, edge parameters in millions; shares in % by head (2048-4096-4096, pooled)
    13: (128, 32, 512, 0.26, 0.6, 1.3),
    17: (256, 16, 256, 0.56, 1.2, 2.8),
    26: (256, 16, 256, 2.33, 5.1, 11.6),
    30: (512, 8, 128, 3.51, 7.8, 17.5),
    39: (512, 8, 128, 10.59, 23.4, 52.9),
    43: (512, 4, 32, 12.95, 28.6, 64.6),
    52: (512, 4, 32, 20.04, 44.3, 100.0),
}
BIG_HEAD_SHARE = {13: 0.2, 17: 0.4, 26: 1.7, 30: 2.5, 39: 7.6, 43: 9.3, 52: 14.35}  # % with 25088-4096-4096


def vgg19_features() -> nn.Sequential:
    layers: list[nn.Module] = []
    channels = 3
    for width in PLAN:
        if width == "M":
            layers.append(nn.MaxPool2d(2))
        else:
            layers += [nn.Conv2d(channels, int(width), 3, padding=1), nn.BatchNorm2d(int(width)), nn.ReLU(inplace=True)]
            channels = int(width)
    return nn.Sequential(*layers)


class Whole(nn.Module):
    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.features, self.head = vgg19_features(), head

    def forward(self, x):
        return self.head(self.features(x))


def wide_head(entries: int, classes: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(entries, 4096), nn.ReLU(True), nn.Dropout(0.3), nn.Linear(4096, 4096), nn.ReLU(True),
        nn.Dropout(0.2), nn.Linear(4096, classes),
    )  # fmt: skip


@pytest.fixture(scope="module")
def vgg19():
    """Cuts of VGG19 with batch normalisation and a pooled head, at 64 x 64."""
    model = Whole(nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10)))
    return {cut.name: cut for cut in cuts(model, (3, 64, 64))}


def test_vgg19_is_cut_anywhere(vgg19):
    assert len(vgg19) == 53 + 3  # every layer of the features and of the head: one tensor each time
    assert all(cut.single for cut in vgg19.values())


@pytest.mark.parametrize("block", TABLE)
def test_vgg19_table(block, vgg19):
    channels, side, kibibytes, millions, share, pooled_share = TABLE[block]
    cut = vgg19[f"features.{block - 1}"]  # blocks are slice ends
    assert cut.operation == "relu"
    assert cut.tensors[0].shape == (channels, side, side)
    assert cut.bytes("fp32") == kibibytes * 1024
    assert cut.bytes("fp16") == kibibytes * 512
    assert cut.bytes("int8") == kibibytes * 256
    assert cut.image.raw_image == 12 * 1024
    assert round(cut.edge_parameters / 1e6, 2) == millions
    assert round(100 * cut.edge_share, 1) == pooled_share
    with torch.device("meta"):  # counted, never filled
        authors, imagenet = Whole(wide_head(2048, 10)), Whole(wide_head(25088, 10))
    sizes = [sum(p.numel() for p in model.parameters()) for model in (authors, imagenet)]
    assert [round(sizes[0] / 1e6, 2), round(sizes[1] / 1e6, 1)] == [45.25, 139.6]
    assert round(100 * cut.edge_parameters / sizes[0], 1) == share
    assert 100 * cut.edge_parameters / sizes[1] == pytest.approx(BIG_HEAD_SHARE[block], abs=0.05)


def test_depth_and_flops_grow(vgg19):
    listed = list(vgg19.values())
    assert [cut.depth for cut in listed] == sorted(cut.depth for cut in listed)
    assert listed[-1].depth == 1
    flops = [cut.edge_flops for cut in listed]
    assert flops == sorted(flops)
    assert listed[0].edge_flops == 2 * 64 * 64 * 64 * 27


def test_multi_tensor_cuts_are_hidden_by_default():
    victim = Victim(SmallResNet(), Pixels((3, 32, 32)))
    plain, every = cuts(victim), cuts(victim, multi_tensor=True)
    assert all(cut.single for cut in plain)
    assert {cut.name for cut in plain} < {cut.name for cut in every}
    inside = find_cut(every, "layer1.0.conv1", victim)
    assert len(inside.tensors) == 2
    assert inside.bytes("int8") == 2 * 4 * 32 * 32
    with pytest.raises(BadInput, match="sends 2 tensors"):
        find_cut(plain, "layer1.0.conv1", victim)
    with pytest.raises(BadInput, match=r"there is no cut 'layer1.0.conv3'; did you mean"):
        find_cut(every, "layer1.0.conv3", victim)
    assert find_cut(plain, "layer2", victim).name == "layer2.1"
    assert halves(victim, "layer2").how == "torch.export"


@pytest.mark.parametrize("name", ["test_vit", "test_resnet"])
def test_timm(name):
    model, space = timm.load(name, classes=5)
    space = space if name == "test_vit" else Pixels((3, 64, 64))
    victim = Victim(model, space)
    found = {cut.name for cut in cuts(victim)}
    assert {"blocks.0", "blocks.5"} <= found or {"layer1.0.act2", "layer4.0.act2"} <= found
    for name in found:
        assert halves(victim, name).error < 1e-5


def test_hugging_face(tmp_path):
    settings = {
        "model_type": "vit", "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3,
        "intermediate_size": 48, "image_size": 32, "patch_size": 8, "num_labels": 5,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(settings))
    wrapped, space = huggingface.load(str(tmp_path / "config.json"))
    victim = Victim(wrapped, space)
    found = {cut.name: cut for cut in cuts(victim)}
    assert found["model.vit.layers.0"].tensors[0].shape == (17, 24)
    for name in found:
        assert halves(victim, name).error < 1e-5
    bare = halves(wrapped.model, "vit.layers.1", space)  # returns an output object of its own class
    x = torch.rand(2, 3, 32, 32)
    assert torch.allclose(bare(x).logits, wrapped.eval()(x), atol=1e-6)


def test_halves_refuse_what_is_not_the_model():
    victim = Victim(VGG(in_channels=1, side=8, stages=((4,), (8,)), classes=3), Pixels((1, 8, 8)))
    assert halves(victim, "features.pool1").error < 1e-6
    with pytest.raises(BadInput, match="differ from the model by"):
        halves(victim, "features.pool1", tolerance=-1.0)


def test_bare_models():
    model = VGG(in_channels=1, side=8, stages=((4,),), classes=3)
    with pytest.raises(BadInput, match="a bare model needs its input"):
        cuts(model)
    frozen = model.requires_grad_(False)
    assert len(cuts(frozen, (1, 8, 8))) == 6
    assert not any(p.requires_grad for p in frozen.parameters())
    assert as_victim(frozen, Pixels((1, 8, 8))).space == Pixels((1, 8, 8))


def test_bytes_of_pictures():
    flat, noise = torch.full((2, 3, 16, 16), 0.5), torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    assert jpeg_bytes(flat) < jpeg_bytes(noise)
    assert jpeg_bytes(flat[:, :1]) < jpeg_bytes(flat)
    with pytest.raises(BadInput, match="JPEG needs"):
        jpeg_bytes(torch.rand(2, 4, 8, 8))
    model = VGG(in_channels=3, side=16, stages=((4,),), classes=3)
    (first, *_) = cuts(model, (3, 16, 16), images=noise)
    assert first.image.jpeg == jpeg_bytes(noise)
    with pytest.raises(BadInput, match="fp32, fp16, int8"):
        first.bytes("int4")


@pytest.mark.parametrize("in_turn", [False, True])
def test_bytes_of_pictures_are_those_of_all_of_them(in_turn):
    noise = torch.rand(2048, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    which = torch.arange(2048) % 2 == 0 if in_turn else torch.arange(2048) < 1024
    together = jpeg_bytes(noise * which[:, None, None, None])
    flat, busy = jpeg_bytes(0 * noise), jpeg_bytes(noise)
    assert 0.3 < (together - flat) / (busy - flat) < 0.7
