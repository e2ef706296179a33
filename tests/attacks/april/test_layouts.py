"""Closed-form APRIL on models as people build them: what it solves, what it predicts to lose, and why it refuses."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakgauge.attacks import april_closed_form
from leakgauge.attacks.april.closed_form import attention_products
from leakgauge.attacks.april.patches import PatchGrid
from leakgauge.channels import Gradient
from leakgauge.core import Pixels, Tokens, Victim, share
from leakgauge.defenses import Withhold
from leakgauge.errors import Inapplicable
from leakgauge.families import attention_first, find_roles
from leakgauge.integrations.huggingface import Logits
from leakgauge.models.text import TextTransformer
from leakgauge.models.vit import ViT
from tests.attacks.april.solving import ALL, solve
from tests.zoo import (
    ATTENTION,
    ByName,
    Cross,
    Fused,
    Grouped,
    HandVit,
    HeadByHead,
    InTheModel,
    Listed,
    NameOnly,
    OnEncoder,
    Parts,
    Twice,
    Wrapper,
    architecture_a,
    hf_model,
    rearranged,
    spread,
    timm_model,
    torchvision_vit,
)

HAND, LIBRARY = (3, 12, 12), (3, 16, 16)
HF = {
    "hidden_size": 60, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96, "image_size": 16,
    "patch_size": 4,
}  # fmt: skip
TOKENS = ("pos_embed", "cls_token", "reg_token")
NORM = "such as dropout or a normalisation, between them"
BYPASS = "the tokens also bypass it, as in a residual connection"
AGAIN = "are used more than once"


def hand(style: str, *, order: str = "first", **options) -> HandVit:
    return HandVit(ATTENTION[style](**options), order=order)


def timm_first(**options) -> nn.Module:
    return rearranged(timm_model(**options), *TOKENS)


def hf_vit(kind: str = "vit", **options) -> nn.Module:
    return Logits(hf_model(kind, **{**HF, "num_labels": 5, "attn_implementation": "eager", **options}))


def torchvision_first(side: int = 16, width: int = 60) -> nn.Module:
    """With its head, class token and positions drawn: torchvision starts the first two at zero."""
    model = torchvision_vit(side, 4, heads=4, width=width)
    return rearranged(model, "heads.head.weight", "class_token", "pos_embedding")


def beit() -> nn.Module:
    """Its attention calls no qkv layer."""
    return rearranged(
        timm_model("beit_base_patch16_224", use_abs_pos_emb=True, use_rel_pos_bias=False, init_values=None)
    )


def dinov2_with_registers() -> nn.Module:
    """The class token has a position, the registers have none."""
    model = hf_vit("dinov2_with_registers", num_register_tokens=2)
    return rearranged(model, "cls_token", "register_tokens", "position_embeddings")


def siglip() -> nn.Module:
    return rearranged(Logits(hf_model("siglip", vision_config=HF, num_labels=5)))


def learned_keys() -> nn.Module:
    return HandVit(ByName(bias=False, add_bias_kv=True))


def with_patches(model: ViT, **convolution) -> ViT:
    model.patch_embed.proj = nn.Conv2d(model.patch_embed.proj.in_channels, 40, **convolution)
    return model


def cut_by(**convolution) -> ViT:
    """Nine patches by another convolution."""
    return with_patches(architecture_a(), **convolution)


SOLVED = {
    "padding valid": (lambda: cut_by(kernel_size=4, stride=4, padding="valid"), (1, 12, 12)),
    "padding 2": (lambda: cut_by(kernel_size=4, stride=4, padding=2), (1, 8, 8)),
    "overlapping": (lambda: cut_by(kernel_size=6, stride=4, padding=1), (1, 12, 12)),
    "dilated": (lambda: cut_by(kernel_size=2, stride=1, dilation=2), (1, 5, 5)),
    "not square": (lambda: cut_by(kernel_size=(4, 6), stride=(4, 3), padding=(0, 1)), (1, 12, 10)),
    "in groups of channels": (
        lambda: with_patches(architecture_a(in_channels=2), kernel_size=4, stride=4, groups=2), (2, 12, 12),
    ),
    "timm": (timm_first, LIBRARY),
    "class token without position": (lambda: timm_first(no_embed_class=True), LIBRARY),
    "registers": (lambda: timm_first(reg_tokens=3), LIBRARY),
    "both without position": (lambda: timm_first(reg_tokens=3, no_embed_class=True), LIBRARY),
    "normalised q and k": (lambda: timm_first(qk_norm=True), LIBRARY),
    "beit": (beit, LIBRARY),
    "hugging face": (lambda: rearranged(hf_vit()), LIBRARY),
    "dinov2 with registers": (dinov2_with_registers, LIBRARY),
    "siglip": (siglip, LIBRARY),
    "torchvision": (torchvision_first, LIBRARY),
    "torchvision, 4 patches": (lambda: torchvision_first(8, 48), (3, 8, 8)),
    "torchvision, 36 patches": (lambda: torchvision_first(24, 64), (3, 24, 24)),
    "torch's encoder": (lambda: rearranged(OnEncoder()), LIBRARY),
    "torch's encoder, batch second": (lambda: rearranged(OnEncoder(batch_first=False)), LIBRARY),
    "torch's attention by name with learned keys": (learned_keys, HAND),
    "one head": (lambda: hand("to_qkv", heads=1), HAND),
    "two heads": (lambda: hand("wq", heads=2), HAND),
    "six heads": (lambda: hand("to_qkv", heads=6), HAND),
    "linear patches": (lambda: HandVit(ATTENTION["to_qkv"](), convolution=False), HAND),
    "positions looked up": (lambda: HandVit(ATTENTION["to_qkv"](), table=True), HAND),
    "both": (lambda: HandVit(ATTENTION["to_qkv"](), convolution=False, table=True), HAND),
    "rows of a fused weight by head": (lambda: HandVit(Fused("qkv", by_head=True)), HAND),  # all rows are summed over
    "heads that are modules": (lambda: HandVit(HeadByHead(), HeadByHead()), HAND),
    "heads that share keys and values": (lambda: HandVit(Grouped()), HAND),
    "layers in the model itself": (lambda: InTheModel(1), HAND),
    **{f"{style} after rearranging": (
        lambda style=style: attention_first(model := hand(style, order="standard"), find_roles(model)), HAND,
    ) for style in ("to_qkv", "wq", "query")},
}  # fmt: skip


@pytest.mark.parametrize("name", SOLVED)
def test_solved(name):
    build, shape = SOLVED[name]
    found = solve(build(), shape)
    assert found.predicted == ALL
    assert found.psnr > 100


@pytest.mark.parametrize("style", ATTENTION)
def test_every_naming_style_is_solved(style):
    """Every second with a bias and without a class token; which of both makes no difference is tried on two below."""
    odd = list(ATTENTION).index(style) % 2 == 1
    check_names(style, bias=odd, class_token=not odd)


@pytest.mark.parametrize(("bias", "class_token"), [(True, True), (False, False)])
@pytest.mark.parametrize("style", ["to_qkv", "wq"])
def test_neither_bias_nor_class_token_matters(style, bias, class_token):
    check_names(style, bias=bias, class_token=class_token)


def check_names(style: str, *, bias: bool, class_token: bool) -> None:
    model = HandVit(ATTENTION[style](bias=bias), ATTENTION[style](bias=bias), class_token=class_token)
    assert solve(model, HAND).psnr > 200
    roles = find_roles(model)
    assert [(layer.name, layer.heads) for layer in roles.attention] == [("layers.0.attn", 3), ("layers.1.attn", 3)]
    assert roles.attention[0].out is not None
    assert (roles.position_embedding, roles.class_token) == ("positions", "start" if class_token else None)
    assert (roles.patch_embedding, roles.head) == ("cut", "verdict")


def test_heads_that_are_modules_are_one_attention_and_shared_keys_leave_the_output():
    roles = find_roles(HandVit(HeadByHead(), HeadByHead()))
    assert [(a.name, a.heads, len(a.layers), a.out) for a in roles.attention] == [
        (f"layers.{i}.attn", 3, 9, f"layers.{i}.attn.proj") for i in range(2)
    ]
    assert find_roles(HandVit(Grouped())).attention[0].out == "layers.0.attn.o_proj"


@pytest.mark.parametrize("options", [{"groups": 2}, {"dilation": 2, "padding": 1, "stride": 3}, {"bias": False}])
def test_the_weight_and_the_cut_are_the_convolution(options):
    conv = nn.Conv2d(2, 6, 3, **{"stride": 2, **options}).double()
    grid, x = PatchGrid.of(conv, (2, 9, 11)), torch.rand(1, 2, 9, 11, dtype=torch.float64)
    tokens = grid.cut(x) @ grid.weight.T + (0 if conv.bias is None else conv.bias)
    torch.testing.assert_close(tokens, conv(x).flatten(2).transpose(1, 2)[0])
    seen = grid.assemble(grid.cut(torch.ones_like(x)))
    torch.testing.assert_close(grid.assemble(grid.cut(x)), x[0] * seen)
    assert grid.unseen() == int((seen == 0).sum())


def test_the_right_side_is_the_sum_over_q_k_and_v():
    """Against the three thirds of a packed weight, each differentiated by itself."""
    model = torchvision_first()
    layer = find_roles(model).attention[0]
    own = {name: p.detach().double() for name, p in model.named_parameters()}
    signal = {name: torch.randn_like(p) for name, p in own.items()}
    weight, gradient = (each[layer.weights[0]].chunk(3) for each in (own, signal))
    expected = sum(w.T @ g for w, g in zip(weight, gradient, strict=True))
    torch.testing.assert_close(attention_products(signal, own, layer), expected)


def without_a_channel() -> nn.Module:
    model = timm_first()
    model.patch_embed.proj.weight.data[:, 0] = 0
    return model


def with_a_head_of_zero() -> nn.Module:
    model = torchvision_first()
    nn.init.zeros_(model.heads.head.weight)
    return model


@pytest.mark.parametrize(
    ("build", "shape", "predicted"),
    [
        (lambda: timm_first(img_size=(18, 17)), (3, 18, 17), "150 values of the image are in no patch: they stay unknown"),
        (without_a_channel, LIBRARY, "the patch embedding has rank 32 of 48: detail is lost"),
        (with_a_head_of_zero, LIBRARY, "rank 0 of 16"),
    ],
)  # fmt: skip
def test_what_is_lost_is_predicted(build, shape, predicted):
    found = solve(build(), shape)
    assert predicted in found.predicted
    assert found.psnr < 30


@pytest.mark.parametrize(
    ("loss", "y"),
    [
        (F.binary_cross_entropy_with_logits, torch.rand(1, 5, dtype=torch.float64)),
        (lambda out, y: (out - y["score"]).square().mean(), {"score": torch.randn(1, 5, dtype=torch.float64)}),
    ],
)
def test_losses_that_take_no_class(loss, y):
    assert solve(architecture_a(), loss=loss, y=y).psnr > 100


class PositionsTwice(Wrapper):
    def forward(self, x: Tensor) -> Tensor:
        m = self.inner
        tokens = torch.cat([m.cls_token.expand(len(x), -1, -1), m.patch_embed(x)], dim=1) + m.pos_embed
        for block in m.blocks:
            tokens = block(tokens) + m.pos_embed
        return m.head(tokens[:, 0])


class ClassFromImage(Wrapper):
    """The first token is the mean of the patches."""

    def forward(self, x: Tensor) -> Tensor:
        m = self.inner
        patches = m.patch_embed(x)
        tokens = torch.cat([patches.mean(1, keepdim=True), patches], dim=1) + m.pos_embed
        return m.head(m.blocks(tokens)[:, 0])


class WithResidual(nn.Module):
    """Attention without a norm before it, but with the tokens added to its output."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.attn, self.norm2, self.mlp = block.attn, block.norm2, block.mlp

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(self.norm2(x + self.attn(x)))


def with_first_block(change) -> nn.Module:
    model = architecture_a()
    model.blocks[0] = change(model.blocks[0])
    return model


def same_block() -> nn.Module:
    model = architecture_a()
    model.blocks[1] = model.blocks[0]
    return model


def same_weight() -> nn.Module:
    model = architecture_a()
    model.blocks[1].attn.qkv.weight = model.blocks[0].attn.qkv.weight
    return model


def with_a_stem() -> nn.Module:
    model = architecture_a()
    model.patch_embed.proj = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 40, 4, 4))
    return model


def fixed_positions() -> nn.Module:
    model = architecture_a()
    model.pos_embed.requires_grad_(False)
    return model


GREY = (1, 12, 12)
REFUSED = {
    "timm": (lambda: spread(timm_model()), LIBRARY, NORM),
    "hugging face": (lambda: spread(hf_vit()), LIBRARY, NORM),
    "our own": (lambda: ViT(in_channels=3, side=16, width=48, heads=4), LIBRARY, NORM),
    "torchvision": (lambda: torchvision_vit(16, 4, heads=4, width=60), LIBRARY, NORM),
    "class token without position": (lambda: timm_model(no_embed_class=True, reg_tokens=2), LIBRARY, NORM),
    "encoder, norm first": (lambda: OnEncoder(norm_first=True), LIBRARY, NORM),
    "encoder, norm first, batch second": (lambda: OnEncoder(norm_first=True, batch_first=False), LIBRARY, NORM),
    "encoder": (OnEncoder, LIBRARY, BYPASS),
    "encoder, batch second": (lambda: OnEncoder(batch_first=False), LIBRARY, BYPASS),
    "by hand, fused": (lambda: hand("to_qkv", order="standard"), HAND, NORM),
    "by hand, separate": (lambda: hand("wq", order="standard"), HAND, NORM),
    "by hand, norm after": (lambda: hand("query", order="norm after"), HAND, BYPASS),
    "residual": (lambda: with_first_block(WithResidual), GREY, BYPASS),
    "cross attention": (lambda: HandVit(Cross()), HAND, r"q, k and v of layers\.0\.attn do not read the same tokens"),
    "latent queries": (lambda: HandVit(Cross(latent=True)), HAND, r"do not read the same tokens"),
    "qkv by name only": (lambda: HandVit(NameOnly(called=False)), HAND, "is not only that of the first attention's input"),
    "qkv by name, called": (lambda: HandVit(NameOnly(called=True)), HAND, "is not only that of the first attention's input"),
    "known by place only": (lambda: HandVit(Listed()), HAND, "no self-attention of a known family"),
    "no attention": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(144, 5)), GREY, "no self-attention"),
    "run twice": (lambda: HandVit(Twice()), HAND, rf"the weights of layers\.0\.attn\.inner {AGAIN}"),
    "run twice by the model": (lambda: InTheModel(2), HAND, AGAIN),
    "same block": (same_block, GREY, AGAIN),
    "same weight": (same_weight, GREY, AGAIN),
    "positions twice": (lambda: PositionsTwice(architecture_a()), GREY, "or the positions are used again"),
    "class token of the image": (lambda: ClassFromImage(architecture_a()), GREY, "the tokens before the patches depend on the image"),
    "changed before": (lambda: Wrapper(architecture_a(), lambda x: (x - 0.5) / 0.2), GREY, "something changes it first"),
    "mirrored": (lambda: cut_by(kernel_size=4, stride=4, padding=2, padding_mode="reflect"), (1, 8, 8), "with zero padding"),
    "stem": (with_a_stem, GREY, "the patch embedding has several layers"),
    "fixed positions": (fixed_positions, GREY, "is fixed"),
    "resized positions": (
        lambda: timm_first(dynamic_img_size=True), (3, 12, 16), "reads 13 tokens for 12 patches, but the position embedding has 17 rows",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_the_reason(name):
    build, shape, reason = REFUSED[name]
    with pytest.raises(Inapplicable, match=reason):
        solve(build(), shape)


def test_dropout_on_the_positions_is_refused_in_train_mode():
    with pytest.raises(Inapplicable, match="such as dropout or a normalisation"):
        solve(timm_first(pos_drop_rate=0.5), LIBRARY, mode="train")


def test_force_gives_a_guess_and_no_way_around_cross_attention():
    assert solve(timm_model(no_embed_class=True, reg_tokens=2), LIBRARY, force=True).psnr < 30
    for latent in (True, False):
        with pytest.raises(Inapplicable, match="do not read the same tokens"):
            solve(HandVit(Cross(latent=latent)), HAND, force=True)


@pytest.mark.parametrize(
    ("build", "shape", "role", "missing"),
    [
        (architecture_a, GREY, "position_embedding", "pos_embed"),
        (architecture_a, GREY, "attention", "blocks.0.attn.qkv.weight"),
        (torchvision_first, LIBRARY, "position_embedding", "encoder.pos_embedding"),
        (torchvision_first, LIBRARY, "attention", "encoder.layers.encoder_layer_0.self_attention.in_proj_weight"),
        (lambda: hand("to_qkv"), HAND, "position_embedding", "positions"),
        (lambda: hand("wq"), HAND, "attention", "layers.0.attn."),
        (
            lambda: timm_first(no_embed_class=True),
            LIBRARY,
            "class_token",
            "cls_token, which holds the gradient of a token before the patches",
        ),
    ],
)
def test_what_is_withheld_by_role_is_named(build, shape, role, missing):
    with pytest.raises(Inapplicable) as refusal:
        solve(build(), shape, defenses=[Withhold((role,))])
    assert f"not shared: {missing}" in str(refusal.value)


def test_a_class_token_with_a_position_need_not_be_shared():
    assert solve(timm_first(), LIBRARY, defenses=[Withhold(("class_token",))]).psnr > 100


@pytest.mark.parametrize("style", ["to_qkv", "wq"])
def test_a_role_withholds_its_own_parameters_alone(style):
    victim = Victim(hand(style), Pixels(HAND))
    own = {name for name in victim.parameters() if name.startswith("layers.0.attn.")}
    roles = Withhold(("attention", "position_embedding"))
    seen = share(victim, Gradient(), torch.rand(1, *HAND), torch.tensor([1]), defenses=[roles])
    assert set(victim.parameters()) - set(seen.signal) == {*own, "positions"}


def test_what_cannot_be_rearranged():
    swin = timm_model(
        "swin_tiny_patch4_window7_224", img_size=16, window_size=2, embed_dim=24, depths=(1, 1), num_heads=(2, 4)
    )
    with pytest.raises(Inapplicable, match="the attention of a swin model works on windows"):
        attention_first(swin, find_roles(swin))
    plain = Parts(out=nn.Linear(4, 2))
    with pytest.raises(Inapplicable, match="no attention layer of a known family"):
        attention_first(plain, find_roles(plain))


def test_text_is_sent_to_the_attack_for_text():
    victim = Victim(TextTransformer(residual=False, vocab=20, length=5), Tokens(5, 20))
    seen = share(victim, Gradient(), torch.randint(20, (1, 5)), torch.tensor([1]))
    with pytest.raises(Inapplicable, match="use april_text, the closed form for text"):
        april_closed_form()(victim, seen)
