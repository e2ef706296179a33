"""Small models that several tests share; where the exact network does not matter, one of these is fast enough."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakgauge.families import attention_first, find_roles
from leakgauge.integrations.torchvision_guest import invite_torchvision
from leakgauge.models.seeded import seeded
from leakgauge.models.vit import ViT


class _Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


class SmallResNet(nn.Module):
    """A stem, two stages of two residual blocks and a linear head, with the names of ResNet-18."""

    def __init__(self, *, width: int = 4, classes: int = 3, seed: int = 0) -> None:
        super().__init__()
        with seeded(seed):
            self.conv1, self.bn1 = nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
            self.layer1 = nn.Sequential(_Block(width), _Block(width))
            self.layer2 = nn.Sequential(_Block(width), _Block(width))
            self.fc = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer2(self.layer1(F.relu(self.bn1(self.conv1(x)))))
        return self.fc(x.mean((2, 3)))


class SmallDetector(nn.Module):
    """One box and the scores of three classes for each image of 3 × 64 × 64."""

    def __init__(self, *, classes: int = 3, seed: int = 0) -> None:
        super().__init__()
        with seeded(seed):
            self.body = nn.Sequential(nn.Conv2d(3, 4, 3, stride=4, padding=1), nn.BatchNorm2d(4), nn.SiLU())
            self.head = nn.Linear(4 * 16 * 16, 4 + classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).flatten(1))


def box_loss(output: Tensor, targets: Mapping[str, Tensor]) -> Tensor:
    """Of a list of objects, each with its ``boxes``, ``classes`` and the number of its ``image``."""
    found = output[targets["image"]]
    return F.l1_loss(found[:, :4], targets["boxes"] / 64) + F.cross_entropy(found[:, 4:], targets["classes"])


class Parts(nn.Module):
    """A model that only has parts, in the order given; numbers are plain attributes."""

    def __init__(self, **parts: nn.Module | nn.Parameter | int) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)


class Wrapper(nn.Module):
    """A user's own wrapper: prefixes every name, and may change the image first."""

    def __init__(self, inner: nn.Module, before: Callable[[Tensor], Tensor] = lambda x: x) -> None:
        super().__init__()
        self.inner, self.before = inner, before

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.before(x))


# --- vision transformers of libraries; a missing library is a failure, never a skip ---------------------------------------

HF_NAMES = {
    "vit": "ViT", "deit": "DeiT", "dinov2": "Dinov2", "dinov2_with_registers": "Dinov2WithRegisters", "resnet": "ResNet",
    "siglip": "Siglip", "swin": "Swin",
}  # fmt: skip


def timm_model(name: str = "vit_base_patch16_224", **options: object) -> nn.Module:
    """By default a vision transformer for 16 × 16 images of 3 channels in patches of 4."""
    invite_torchvision()
    import timm

    small = {"img_size": 16, "patch_size": 4, "embed_dim": 60, "depth": 2, "num_heads": 4, "num_classes": 5}
    return timm.create_model(name, **{**(small if name in TIMM_VITS else {}), **options})


TIMM_VITS = ("vit_base_patch16_224", "beit_base_patch16_224")


def hf_model(name: str, *, teacher: bool = False, **options: object) -> nn.Module:
    invite_torchvision()
    import transformers

    config = transformers.CONFIG_MAPPING[name](**options)
    return getattr(transformers, f"{HF_NAMES[name]}ForImageClassification{'WithTeacher' if teacher else ''}")(config)


def torchvision_vit(side: int = 32, patch: int = 8, *, heads: int = 3, width: int = 24, **options: object) -> nn.Module:
    invite_torchvision()
    from torchvision.models import VisionTransformer

    with seeded(0):
        return VisionTransformer(side, patch, 2, heads, width, 2 * width, num_classes=5, **options)


def spread(model: nn.Module, *names: str) -> nn.Module:
    """The model with parameters of these endings drawn from N(0, 1), its position embedding by default: those that libraries start from
    are zero, or too small for tokens to differ.
    """
    ending = names or (find_roles(model).position_embedding,)
    for name, parameter in model.named_parameters():
        if name.endswith(ending):
            nn.init.normal_(parameter, generator=torch.Generator().manual_seed(len(name)))
    return model


def rearranged(model: nn.Module, *names: str) -> nn.Module:
    """The model as architecture A of the APRIL paper, spread as above."""
    return spread(attention_first(model, find_roles(model)), *names)


def architecture_a(**options: object) -> ViT:
    """Our own vision transformer with its attention first: 12 × 12 grey images in nine patches."""
    usual = {"side": 12, "patch": 4, "width": 40, "heads": 2, "depth": 2, "classes": 5}
    return ViT(**{**usual, "residual": False, "position_std": 1.0, **options})


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def on_meta(
    decoder: Callable[[tuple[int, ...], tuple[int, ...]], nn.Module],
    feature: tuple[int, ...],
    image: tuple[int, ...] = (3, 64, 64),
) -> nn.Module:
    """A decoder's network without values, which makes images of this shape."""
    with torch.device("meta"):
        network = decoder(feature, image)
        assert network(torch.zeros(2, *feature)).shape == (2, *image)
    return network


class TakesLength(ViT):
    """Asks for ``len(x)``, which fixes the batch of an exported graph."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (len(x) / x.shape[0])


# --- vision transformers written by hand: attention by many names, and the model around it --------------------------------

WIDTH = 54
"""Of models written by hand: as wide as a patch has values, and more."""


def attended(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
    split = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in (q, k, v))
    return F.scaled_dot_product_attention(*split).transpose(1, 2).flatten(2)


class Separate(nn.Module):
    """A layer each for q, k, v and the output, by these names; ``count`` is the attribute that holds the number of heads."""

    def __init__(self, names: str, *, heads: int = 3, count: str = "heads", bias: bool = True) -> None:
        super().__init__()
        self.names = names.split()
        setattr(self, count, heads)
        self.split = heads
        for name in self.names:
            setattr(self, name, nn.Linear(WIDTH, WIDTH, bias=bias))

    def forward(self, x: Tensor) -> Tensor:
        *qkv, out = (getattr(self, name) for name in self.names)
        return out(attended(*(layer(x) for layer in qkv), self.split))


class Fused(nn.Module):
    """One layer for all three; ``by_head`` puts q, k and v of the first head before those of the second."""

    def __init__(
        self, name: str, *, heads: int = 3, inner: int = WIDTH, bias: bool = False, by_head: bool = False
    ) -> None:
        super().__init__()
        self.heads, self.name, self.by_head = heads, name, by_head
        setattr(self, name, nn.Linear(WIDTH, 3 * inner, bias=bias))
        self.to_out = nn.Sequential(nn.Linear(inner, WIDTH), nn.Dropout(0.0))

    def forward(self, x: Tensor) -> Tensor:
        made = getattr(self, self.name)(x)
        if self.by_head:
            q, k, v = (t.flatten(2) for t in made.unflatten(-1, (self.heads, 3, -1)).unbind(-2))
        else:
            q, k, v = made.chunk(3, dim=-1)
        return self.to_out(attended(q, k, v, self.heads))


ATTENTION = {
    "to_qkv": lambda **o: Fused("to_qkv", **o),
    "to_qkv, wider inside": lambda **o: Fused("to_qkv", inner=60, **o),
    "qkv_proj": lambda **o: Fused("qkv_proj", **o),
    "Wqkv": lambda **o: Fused("Wqkv", **o),
    "c_attn": lambda **o: Fused("c_attn", **o),
    "in_proj": lambda **o: Fused("in_proj", **o),
    "to_q": lambda **o: Separate("to_q to_k to_v to_out", **o),
    "wq": lambda **o: Separate("wq wk wv wo", count="n_heads", **o),
    "W_Q": lambda **o: Separate("W_Q W_K W_V W_O", count="nheads", **o),
    "q": lambda **o: Separate("q k v o", count="h", **o),
    "q_linear": lambda **o: Separate("q_linear k_linear v_linear out", count="h", **o),
    "query": lambda **o: Separate("query key value dense", count="num_heads", **o),
    "query_proj": lambda **o: Separate("query_proj key_proj value_proj out_proj", **o),
    "queries": lambda **o: Separate("queries keys values fc_out", **o),
    "q_proj": lambda **o: Separate("q_proj k_proj v_proj out_proj", **o),
}
"""Attention with the names that people give its layers."""


class HeadByHead(nn.Module):
    """Every head is a module of its own."""

    def __init__(self, heads: int = 3) -> None:
        super().__init__()
        size = WIDTH // heads
        each = (
            Parts(**{n: nn.Linear(WIDTH, size, bias=False) for n in ("key", "query", "value")}) for _ in range(heads)
        )
        self.heads, self.proj = nn.ModuleList(each), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(torch.cat([attended(h.query(x), h.key(x), h.value(x), 1) for h in self.heads], dim=-1))


class Listed(nn.Module):
    """The annotated transformer's: four layers in a list, which only their place tells apart."""

    def __init__(self) -> None:
        super().__init__()
        self.h = 3
        self.linears = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.linears[3](attended(*(layer(x) for layer in self.linears[:3]), self.h))


class Grouped(Separate):
    """Two of the three heads' keys and values are left out: all heads share the first."""

    def __init__(self) -> None:
        super().__init__("q_proj k_proj v_proj o_proj")
        self.k_proj, self.v_proj = nn.Linear(WIDTH, WIDTH // 3), nn.Linear(WIDTH, WIDTH // 3)

    def forward(self, x: Tensor) -> Tensor:
        k, v = self.k_proj(x).repeat(1, 1, 3), self.v_proj(x).repeat(1, 1, 3)
        return self.o_proj(attended(self.q_proj(x), k, v, 3))


class Cross(Separate):
    """Keys and values are of learned tokens; with ``latent`` the queries are."""

    def __init__(self, *, latent: bool = False) -> None:
        super().__init__("to_q to_k to_v to_out")
        self.latent, self.memory = latent, nn.Parameter(torch.randn(4, 1, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        memory = self.memory.transpose(0, 1).expand(len(x), -1, -1)
        a, b = (memory, x) if self.latent else (x, memory)
        return self.to_out(attended(self.to_q(a), self.to_k(b), self.to_v(b), 3))


class NameOnly(Separate):
    """Has a layer that says qkv, which is called or not, and attends by others."""

    def __init__(self, *, called: bool) -> None:
        super().__init__("a b c d")
        self.called, self.qkv = called, nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + (self.qkv(x).mean() if self.called else 0)


class Twice(nn.Module):
    """Runs its attention twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = ATTENTION["wq"]()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.inner(x))


class ByName(nn.Module):
    """torch's own attention, called with names."""

    def __init__(self, **options: object) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(WIDTH, 3, batch_first=True, **options)

    def forward(self, x: Tensor) -> Tensor:
        return self.attn(query=x, key=x, value=x)[0]


class HandBlock(nn.Module):
    def __init__(self, attention: nn.Module, order: str) -> None:
        super().__init__()
        self.order = order
        self.norm1, self.attn, self.norm2 = nn.LayerNorm(WIDTH), attention, nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        if self.order == "first":
            return self.mlp(self.norm2(self.attn(x)))
        x = x + self.attn(self.norm1(x)) if self.order == "standard" else self.norm1(x + self.attn(x))
        return x + self.mlp(self.norm2(x))


class HandVit(nn.Module):
    """For 12 × 12 images of 3 channels in nine patches; ``order`` is first, standard or norm after."""

    def __init__(
        self,
        *attention: nn.Module,
        order: str = "first",
        class_token: bool = True,
        convolution: bool = True,
        table: bool = False,
    ) -> None:
        super().__init__()
        self.convolution, rows = convolution, 9 + class_token
        self.cut = nn.Conv2d(3, WIDTH, 4, 4) if convolution else nn.Linear(48, WIDTH)
        self.positions = nn.Embedding(rows, WIDTH) if table else nn.Parameter(torch.randn(1, rows, WIDTH))
        self.start = nn.Parameter(torch.randn(1, 1, WIDTH)) if class_token else None
        self.layers = nn.Sequential(*(HandBlock(each, order) for each in attention))
        self.verdict = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        cells = x.unfold(2, 4, 4).unfold(3, 4, 4).permute(0, 2, 3, 4, 5, 1).reshape(len(x), 9, 48)
        tokens = self.cut(x).flatten(2).transpose(1, 2) if self.convolution else self.cut(cells)
        if self.start is not None:
            tokens = torch.cat([self.start.expand(len(x), -1, -1), tokens], dim=1)
        table = isinstance(self.positions, nn.Embedding)
        tokens = tokens + (self.positions(torch.arange(tokens.shape[1])) if table else self.positions)
        return self.verdict(self.layers(tokens).mean(1))


class InTheModel(nn.Module):
    """No module for the attention: the model holds its layers itself, and may use them again."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times, self.cut = times, nn.Conv2d(3, WIDTH, 4, 4)
        self.pos = nn.Parameter(torch.randn(9, WIDTH))
        self.k, self.q, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.score = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.cut(x).flatten(2).transpose(1, 2) + self.pos
        for _ in range(self.times):
            tokens = attended(self.q(tokens), self.k(tokens), self.v(tokens), 1)
        return self.score(tokens.mean(1))


class OnEncoder(nn.Module):
    """Patches, positions, torch's encoder, the mean of its tokens; for 16 × 16 images of 3 channels."""

    def __init__(self, *, batch_first: bool = True, norm_first: bool = False) -> None:
        super().__init__()
        self.batch_first, shape = batch_first, (1, 16, 60) if batch_first else (16, 1, 60)
        with seeded(0):
            self.patches, self.positions = nn.Conv2d(3, 60, 4, 4), nn.Parameter(torch.randn(shape))
            self.layer = nn.TransformerEncoderLayer(60, 4, 96, 0.0, batch_first=batch_first, norm_first=norm_first)
            self.encoder = nn.TransformerEncoder(self.layer, 2, enable_nested_tensor=False)
            self.out = nn.Linear(60, 5)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).permute((0, 2, 1) if self.batch_first else (2, 0, 1))
        return self.out(self.encoder(tokens + self.positions).mean(1 if self.batch_first else 0))


# --- one of every family, for the laws of roles ----------------------------------------------------------------------------

TRANSFORMER = {
    "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 48, "image_size": 32,
    "patch_size": 8, "num_labels": 5,
}  # fmt: skip
TIMM_VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3, "num_classes": 5}
HF_RESNET = {"depths": [1, 1], "hidden_sizes": [8, 16], "embedding_size": 8, "num_labels": 5}


class _Backbone(nn.Module):
    """A user's classifier on a headless trunk; the classifier is registered first and has a name of its own."""

    def __init__(self, trunk: nn.Module, width: int) -> None:
        super().__init__()
        self.verdict, self.trunk = nn.Linear(width, 5), trunk

    def forward(self, x: Tensor) -> Tensor:
        return self.verdict(self.trunk(x))


def _own_vit() -> nn.Module:
    """The layout that our own vision transformers keep to."""
    attention = [Parts(heads=4, qkv=nn.Linear(16, 48, bias=False), proj=nn.Linear(16, 16)) for _ in range(2)]
    return Parts(
        patch_embed=nn.Linear(48, 16),
        cls_token=nn.Parameter(torch.zeros(1, 1, 16)),
        pos_embed=nn.Parameter(torch.zeros(1, 65, 16)),
        blocks=nn.ModuleList(nn.ModuleDict({"norm": nn.LayerNorm(16), "attn": each}) for each in attention),
        head=nn.Linear(16, 10),
    )


def _own_resnet() -> nn.Module:
    def block() -> nn.Module:
        conv = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        return Parts(conv1=conv, bn1=nn.BatchNorm2d(8), squeeze=nn.Linear(8, 8))

    return Parts(
        conv1=nn.Conv2d(3, 8, 3), bn1=nn.BatchNorm2d(8), layer1=nn.Sequential(block(), block()), fc=nn.Linear(8, 5)
    )


def _own_encoder() -> nn.Module:
    """On torch's own encoder, with names that no library uses; the layer it copies is kept."""
    layer = nn.TransformerEncoderLayer(24, 3, 48, batch_first=True)
    return Parts(
        registers=nn.Parameter(torch.zeros(4, 24)),
        cut=nn.Conv2d(3, 24, 8, 8),
        where=nn.Parameter(torch.zeros(1, 17, 24)),
        summary=nn.Parameter(torch.zeros(1, 1, 24)),
        layer=layer,
        stack=nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
        verdict=nn.Sequential(nn.LayerNorm(24), nn.Linear(24, 5)),
    )


def _cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 5),
    )  # fmt: skip


def _timm_tiny(**options: object) -> nn.Module:
    return timm_model("vit_tiny_patch16_224", **{**TIMM_VIT, **options})


FAMILIES: dict[str, Callable[[], nn.Module]] = {
    "cnn": _cnn,
    "mlp": lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 5)),
    "own-vit": _own_vit,
    "own-resnet": _own_resnet,
    "timm-vit": lambda: _timm_tiny(patch_size=4),
    "timm-deit-distilled": lambda: timm_model("deit_tiny_distilled_patch16_224", **TIMM_VIT),
    "timm-eva-separate-qkv": lambda: timm_model("eva02_tiny_patch14_224", qkv_fused=False, **TIMM_VIT),
    "timm-resnet": lambda: timm_model("test_resnet", num_classes=5),
    "hf-vit": lambda: hf_model("vit", **TRANSFORMER),
    "hf-deit": lambda: hf_model("deit", **TRANSFORMER),
    "hf-deit-teacher": lambda: hf_model("deit", teacher=True, **TRANSFORMER),
    "hf-dinov2": lambda: hf_model("dinov2", **TRANSFORMER),
    "hf-resnet": lambda: hf_model("resnet", **HF_RESNET),
    "torchvision-vit": torchvision_vit,
    "torchvision-vit-two-layer-head": lambda: torchvision_vit(representation_size=12),
    "wrapped-torchvision-vit": lambda: Wrapper(torchvision_vit()),
    "own-encoder": _own_encoder,
    "wrapped-timm-vit": lambda: Wrapper(_timm_tiny()),
    "wrapped-hf-vit": lambda: Wrapper(hf_model("vit", **TRANSFORMER)),
    "own-head-on-timm-vit": lambda: _Backbone(_timm_tiny(num_classes=0), 24),
}
"""Those of libraries are built by the libraries themselves, so that a renaming in a new version is seen."""
