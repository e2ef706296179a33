"""Closed-form APRIL on models as people build them: patches of other shapes, more tokens, other losses; and why it refuses."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakgauge.attacks import april_closed_form
from leakgauge.attacks.april.patches import PatchGrid
from leakgauge.channels import Gradient
from leakgauge.core import Pixels, Tokens, Victim, share
from leakgauge.defenses import Withhold
from leakgauge.errors import Inapplicable
from leakgauge.families import attention_first, find_roles
from leakgauge.integrations.torchvision_guest import invite_torchvision
from leakgauge.measures.image import psnr
from leakgauge.models.text import TextTransformer
from leakgauge.models.vit import ViT


def attacked(model: nn.Module, shape, *, loss=F.cross_entropy, y=None, mode="eval", defenses=(), force=False):
    """PSNR of the reconstruction of one random image, and what was predicted."""
    space = Pixels(shape, mean=(0.4,), std=(0.3,))
    victim = Victim(model.double(), space, loss=loss, mode=mode)
    image = torch.rand(1, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    target = torch.tensor([1]) if y is None else y
    seen = share(victim, Gradient(), space.encode(image), target, defenses=list(defenses))
    result = april_closed_form(force=force)(victim, seen)
    return float(psnr(space.decode(result.x), image)), dict(result.stated)["predicted"]


def architecture_a(**options) -> ViT:
    usual = {"side": 12, "patch": 4, "width": 40, "heads": 2, "depth": 2, "classes": 5}
    return ViT(**{**usual, "residual": False, "position_std": 1.0, **options})


def timm_vit(*, first: bool = True, **options) -> nn.Module:
    invite_torchvision()
    import timm

    small = {"img_size": 16, "patch_size": 4, "embed_dim": 60, "depth": 2, "num_heads": 4, "num_classes": 5}
    model = timm.create_model("vit_base_patch16_224", **{**small, **options})
    model = attention_first(model, find_roles(model)) if first else model
    for name, parameter in model.named_parameters():
        if name in ("pos_embed", "cls_token", "reg_token"):
            nn.init.normal_(parameter, generator=torch.Generator().manual_seed(len(name)))
    return model


def with_patches(model: ViT, **convolution) -> ViT:
    torch.manual_seed(0)
    model.patch_embed.proj = nn.Conv2d(model.patch_embed.proj.in_channels, 40, **convolution)
    return model


@pytest.mark.parametrize(
    ("convolution", "side"),
    [
        ({"kernel_size": 4, "stride": 4, "padding": "valid"}, 12),
        ({"kernel_size": 4, "stride": 4, "padding": 2}, 8),
        ({"kernel_size": 6, "stride": 4, "padding": 1}, 12),
        ({"kernel_size": 2, "stride": 1, "dilation": 2}, 5),
        ({"kernel_size": (4, 6), "stride": (4, 3), "padding": (0, 1)}, (12, 10)),
    ],
)
def test_patches_by_any_convolution(convolution, side):
    """All have 3 × 3 patches."""
    height, width = (side, side) if isinstance(side, int) else side
    quality, predicted = attacked(with_patches(architecture_a(), **convolution), (1, height, width))
    assert predicted == "everything is recovered"
    assert quality > 100


def test_patches_in_groups_of_channels():
    model = with_patches(architecture_a(in_channels=2), kernel_size=4, stride=4, groups=2)
    quality, predicted = attacked(model, (2, 12, 12))
    assert predicted == "everything is recovered"
    assert quality > 100


@pytest.mark.parametrize("options", [{"groups": 2}, {"dilation": 2, "padding": 1, "stride": 3}, {"bias": False}])
def test_the_weight_and_the_cut_are_the_convolution(options):
    torch.manual_seed(0)
    conv = nn.Conv2d(2, 6, 3, **{"stride": 2, **options}).double()
    grid, x = PatchGrid.of(conv, (2, 9, 11)), torch.rand(1, 2, 9, 11, dtype=torch.float64)
    tokens = grid.cut(x) @ grid.weight.T + (0 if conv.bias is None else conv.bias)
    torch.testing.assert_close(tokens, conv(x).flatten(2).transpose(1, 2)[0])
    seen = grid.assemble(grid.cut(torch.ones_like(x)))
    torch.testing.assert_close(grid.assemble(grid.cut(x)), x[0] * seen)
    assert grid.unseen() == int((seen == 0).sum())


def test_pixels_in_no_patch_are_predicted_to_be_lost():
    quality, predicted = attacked(timm_vit(img_size=(18, 17)), (3, 18, 17))
    assert predicted == "150 values of the image are in no patch: they stay unknown"
    assert quality < 30


def test_a_patch_embedding_that_drops_a_channel_is_predicted_to_lose_it():
    model = timm_vit()
    model.patch_embed.proj.weight.data[:, 0] = 0
    quality, predicted = attacked(model, (3, 16, 16))
    assert predicted == "the patch embedding has rank 32 of 48: detail is lost"
    assert quality < 30


@pytest.mark.parametrize(
    "options",
    [{"no_embed_class": True}, {"reg_tokens": 3}, {"reg_tokens": 3, "no_embed_class": True}, {"qk_norm": True}],
)
def test_tokens_before_the_patches_with_and_without_positions(options):
    quality, predicted = attacked(timm_vit(**options), (3, 16, 16))
    assert predicted == "everything is recovered"
    assert quality > 100


def test_registers_between_the_class_token_and_the_patches():
    """Hugging Face's DINOv2: the class token has a position, the registers have none."""
    invite_torchvision()
    from transformers import Dinov2WithRegistersConfig, Dinov2WithRegistersForImageClassification

    from leakgauge.integrations.huggingface import Logits

    config = Dinov2WithRegistersConfig(
        hidden_size=60, num_hidden_layers=2, num_attention_heads=4, image_size=16, patch_size=4, num_labels=5,
        num_register_tokens=2, attn_implementation="eager",
    )  # fmt: skip
    torch.manual_seed(0)
    model = Logits(Dinov2WithRegistersForImageClassification(config))
    model = attention_first(model, find_roles(model))
    for name, parameter in model.named_parameters():
        if name.endswith(("cls_token", "register_tokens", "position_embeddings")):
            nn.init.normal_(parameter)
    quality, predicted = attacked(model, (3, 16, 16))
    assert predicted == "everything is recovered"
    assert quality > 100


def test_a_class_token_without_a_position_must_be_shared():
    with pytest.raises(
        Inapplicable, match="not shared: cls_token, which holds the gradient of a token before the patches"
    ):
        attacked(timm_vit(no_embed_class=True), (3, 16, 16), defenses=[Withhold(("class_token",))])
    quality, _ = attacked(timm_vit(), (3, 16, 16), defenses=[Withhold(("class_token",))])
    assert quality > 100, "with a position it is not needed"


def test_the_attention_of_beit_which_calls_no_qkv_layer():
    invite_torchvision()
    import timm

    model = timm.create_model(
        "beit_base_patch16_224", img_size=16, patch_size=4, embed_dim=60, depth=2, num_heads=4, num_classes=5,
        use_abs_pos_emb=True, use_rel_pos_bias=False, init_values=None,
    )  # fmt: skip
    model = attention_first(model, find_roles(model))
    nn.init.normal_(model.pos_embed, generator=torch.Generator().manual_seed(0))
    assert attacked(model, (3, 16, 16))[0] > 100


@pytest.mark.parametrize(
    ("loss", "y"),
    [
        (F.binary_cross_entropy_with_logits, torch.rand(1, 5, dtype=torch.float64)),
        (lambda out, y: (out - y["score"]).square().mean(), {"score": torch.randn(1, 5, dtype=torch.float64)}),
    ],
)
def test_losses_that_take_no_class(loss, y):
    assert attacked(architecture_a(), (1, 12, 12), loss=loss, y=y)[0] > 100


class Wrapped(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model((x - 0.5) / 0.2)


class PositionsTwice(nn.Module):
    def __init__(self, model: ViT) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        m = self.model
        tokens = torch.cat([m.cls_token.expand(len(x), -1, -1), m.patch_embed(x)], dim=1) + m.pos_embed
        for block in m.blocks:
            tokens = block(tokens) + m.pos_embed
        return m.head(tokens[:, 0])


class ClassFromImage(PositionsTwice):
    """The first token is the mean of the patches."""

    def forward(self, x: Tensor) -> Tensor:
        m = self.model
        patches = m.patch_embed(x)
        tokens = torch.cat([patches.mean(1, keepdim=True), patches], dim=1) + m.pos_embed
        return m.head(m.blocks(tokens)[:, 0])


def same_block(model: ViT) -> ViT:
    model.blocks[1] = model.blocks[0]
    return model


def same_weight(model: ViT) -> ViT:
    model.blocks[1].attn.qkv.weight = model.blocks[0].attn.qkv.weight
    return model


def mirrored(model: ViT) -> ViT:
    return with_patches(model, kernel_size=4, stride=4, padding=2, padding_mode="reflect")


def with_a_stem(model: ViT) -> ViT:
    model.patch_embed.proj = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 40, 4, 4))
    return model


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (same_block, "are used more than once"),
        (same_weight, "are used more than once"),
        (PositionsTwice, "or the positions are used again"),
        (ClassFromImage, "the tokens before the patches depend on the image"),
        (Wrapped, "something changes it first"),
        (mirrored, "with zero padding"),
        (with_a_stem, "the patch embedding has several layers"),
    ],
)
def test_refused_with_the_reason(change, reason):
    with pytest.raises(Inapplicable, match=reason):
        attacked(change(architecture_a()), (1, 8 if change is mirrored else 12, 8 if change is mirrored else 12))


def test_resized_positions_and_dropout_on_them_are_refused_with_the_reason():
    with pytest.raises(Inapplicable, match="reads 13 tokens for 12 patches, but the position embedding has 17 rows"):
        attacked(timm_vit(dynamic_img_size=True), (3, 12, 16))
    with pytest.raises(Inapplicable, match="such as dropout or a normalisation"):
        attacked(timm_vit(pos_drop_rate=0.5), (3, 16, 16), mode="train")


def test_a_norm_is_the_reason_also_where_the_class_token_has_no_position():
    model = timm_vit(first=False, no_embed_class=True, reg_tokens=2)
    with pytest.raises(Inapplicable, match="such as dropout or a normalisation"):
        attacked(model, (3, 16, 16))
    assert attacked(model, (3, 16, 16), force=True)[0] < 30


def test_siglip_of_hugging_face_rearranged():
    invite_torchvision()
    from transformers import SiglipConfig, SiglipForImageClassification

    from leakgauge.integrations.huggingface import Logits

    vision = {"hidden_size": 60, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
    config = SiglipConfig(vision_config={**vision, "image_size": 16, "patch_size": 4}, num_labels=5)
    torch.manual_seed(0)
    model = Logits(SiglipForImageClassification(config))
    model = attention_first(model, find_roles(model))
    nn.init.normal_(model.get_parameter(find_roles(model).position_embedding))
    quality, predicted = attacked(model, (3, 16, 16))
    assert predicted == "everything is recovered"
    assert quality > 100


def test_attention_over_windows_cannot_be_rearranged():
    invite_torchvision()
    import timm

    model = timm.create_model(
        "swin_tiny_patch4_window7_224", img_size=16, window_size=2, embed_dim=24, depths=(1, 1), num_heads=(2, 4)
    )
    with pytest.raises(Inapplicable, match="the attention of a swin model works on windows"):
        attention_first(model, find_roles(model))


def test_text_is_sent_to_the_attack_for_text():
    victim = Victim(TextTransformer(residual=False, vocab=20, length=5), Tokens(5, 20))
    seen = share(victim, Gradient(), torch.randint(20, (1, 5)), torch.tensor([1]))
    with pytest.raises(Inapplicable, match="use april_text, the closed form for text"):
        april_closed_form()(victim, seen)
