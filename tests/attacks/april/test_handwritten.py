"""Closed-form APRIL on vision transformers written by hand, whose layers have the names people give them."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakgauge.attacks import april, april_closed_form
from leakgauge.channels import Gradient
from leakgauge.core import Pixels, Victim, share
from leakgauge.defenses import Withhold
from leakgauge.errors import Inapplicable
from leakgauge.families import attention_first, find_roles
from leakgauge.measures.image import psnr

SHAPE, WIDTH = (3, 12, 12), 54
NO_ATTENTION = "the model has no self-attention of a known family"


def attended(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
    split = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in (q, k, v))
    return F.scaled_dot_product_attention(*split).transpose(1, 2).flatten(2)


class Separate(nn.Module):
    """Names of q, k, v and the output; the attribute that holds the number of heads."""

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


class Head(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        for name in ("key", "query", "value"):
            setattr(self, name, nn.Linear(WIDTH, size, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        return attended(self.query(x), self.key(x), self.value(x), 1)


class HeadByHead(nn.Module):
    def __init__(self, heads: int = 3) -> None:
        super().__init__()
        self.heads = nn.ModuleList(Head(WIDTH // heads) for _ in range(heads))
        self.proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(torch.cat([head(x) for head in self.heads], dim=-1))


class Listed(nn.Module):
    """The annotated transformer's: four layers in a list, told apart by their place alone."""

    def __init__(self) -> None:
        super().__init__()
        self.h = 3
        self.linears = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.linears[3](attended(*(layer(x) for layer in self.linears[:3]), self.h))


class Block(nn.Module):
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


class Vit(nn.Module):
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
        self.layers = nn.Sequential(*(Block(each, order) for each in attention))
        self.verdict = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        cells = x.unfold(2, 4, 4).unfold(3, 4, 4).permute(0, 2, 3, 4, 5, 1).reshape(len(x), 9, 48)
        tokens = self.cut(x).flatten(2).transpose(1, 2) if self.convolution else self.cut(cells)
        if self.start is not None:
            tokens = torch.cat([self.start.expand(len(x), -1, -1), tokens], dim=1)
        table = isinstance(self.positions, nn.Embedding)
        tokens = tokens + (self.positions(torch.arange(tokens.shape[1])) if table else self.positions)
        return self.verdict(self.layers(tokens).mean(1))


def attacked(model: nn.Module, *, defenses=(), force: bool = False) -> float:
    """PSNR of one random image."""
    victim = Victim(model.double(), space := Pixels(SHAPE, mean=(0.4,), std=(0.3,)), loss=F.cross_entropy, mode="eval")
    image = torch.rand(1, *SHAPE, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    seen = share(victim, Gradient(), space.encode(image), torch.tensor([1]), defenses=list(defenses))
    result = april_closed_form(force=force)(victim, seen)
    assert dict(result.stated)["predicted"] == "everything is recovered" or force
    return float(psnr(space.decode(result.x), image))


STYLES = {
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


@pytest.mark.parametrize("class_token", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("style", STYLES)
def test_every_naming_style_is_solved(style, bias, class_token):
    torch.manual_seed(0)
    model = Vit(STYLES[style](bias=bias), STYLES[style](bias=bias), class_token=class_token)
    assert attacked(model) > 200
    roles = find_roles(model)
    assert [(layer.name, layer.heads) for layer in roles.attention] == [("layers.0.attn", 3), ("layers.1.attn", 3)]
    assert roles.attention[0].out is not None
    assert (roles.position_embedding, roles.class_token) == ("positions", "start" if class_token else None)
    assert (roles.patch_embedding, roles.head) == ("cut", "verdict")


@pytest.mark.parametrize("heads", [1, 2, 6])
@pytest.mark.parametrize("style", ["to_qkv", "wq"])
def test_any_number_of_heads(style, heads):
    torch.manual_seed(0)
    assert attacked(Vit(STYLES[style](heads=heads))) > 200


@pytest.mark.parametrize("options", [{"convolution": False}, {"table": True}, {"convolution": False, "table": True}])
def test_patches_by_a_linear_layer_and_positions_looked_up(options):
    torch.manual_seed(0)
    assert attacked(Vit(STYLES["to_qkv"](), **options)) > 200


def test_the_order_of_the_rows_of_a_fused_weight_makes_no_difference():
    """All rows are summed over, so that q, k and v of each head in turn are solved as well."""
    torch.manual_seed(0)
    assert attacked(Vit(Fused("qkv", by_head=True))) > 200


def test_heads_that_are_modules_of_their_own_are_one_attention():
    torch.manual_seed(0)
    model = Vit(HeadByHead(), HeadByHead())
    assert attacked(model) > 200
    roles = find_roles(model)
    assert [(a.name, a.heads, len(a.layers), a.out) for a in roles.attention] == [
        (f"layers.{i}.attn", 3, 9, f"layers.{i}.attn.proj") for i in range(2)
    ]


class Grouped(Separate):
    """Two of the three heads' keys and values are left out: all heads share the first."""

    def __init__(self) -> None:
        super().__init__("q_proj k_proj v_proj o_proj")
        self.k_proj, self.v_proj = nn.Linear(WIDTH, WIDTH // 3), nn.Linear(WIDTH, WIDTH // 3)

    def forward(self, x: Tensor) -> Tensor:
        k, v = self.k_proj(x).repeat(1, 1, 3), self.v_proj(x).repeat(1, 1, 3)
        return self.o_proj(attended(self.q_proj(x), k, v, 3))


def test_heads_that_share_keys_and_values():
    torch.manual_seed(0)
    model = Vit(Grouped())
    assert attacked(model) > 200
    assert find_roles(model).attention[0].out == "layers.0.attn.o_proj"


@pytest.mark.parametrize("style", ["to_qkv", "wq", "query"])
def test_standard_layouts_are_refused_with_the_reason_and_can_be_rearranged(style):
    torch.manual_seed(0)
    with pytest.raises(Inapplicable, match="such as dropout or a normalisation, between them"):
        attacked(model := Vit(STYLES[style](), order="standard"))
    assert attacked(attention_first(model, find_roles(model))) > 200
    with pytest.raises(Inapplicable, match="the tokens also bypass it, as in a residual connection"):
        attacked(Vit(STYLES[style](), order="norm after"))


def test_layers_told_apart_by_their_place_alone_are_refused():
    with pytest.raises(Inapplicable, match=NO_ATTENTION):
        attacked(Vit(Listed()))


@pytest.mark.parametrize("style", ["to_qkv", "wq"])
def test_withheld_by_role(style):
    torch.manual_seed(0)
    model = Vit(STYLES[style]())
    victim, x = Victim(model, Pixels(SHAPE)), torch.rand(1, *SHAPE)
    own = {name for name in victim.parameters() if name.startswith("layers.0.attn.")}
    seen = share(victim, Gradient(), x, torch.tensor([1]), defenses=[Withhold(("attention", "position_embedding"))])
    assert set(victim.parameters()) - set(seen.signal) == {*own, "positions"}
    for role, missing in (("attention", "layers.0.attn."), ("position_embedding", "positions")):
        with pytest.raises(Inapplicable, match=f"not shared: {missing}"):
            attacked(model, defenses=[Withhold((role,))])


def test_april_by_optimisation_finds_the_positions():
    torch.manual_seed(0)
    victim, x, y = (
        Victim(Vit(STYLES["wq"](), order="standard"), Pixels(SHAPE)),
        torch.rand(1, *SHAPE),
        torch.tensor([1]),
    )
    assert april(steps=2)(victim, share(victim, Gradient(), x, y)).y.tolist() == [1]
    with pytest.raises(Inapplicable, match="not shared: positions, the gradient of the position embedding"):
        april(steps=2)(victim, share(victim, Gradient(), x, y, defenses=[Withhold(("position_embedding",))]))


class Cross(Separate):
    """Keys and values are of learned tokens; with ``latent`` the queries are."""

    def __init__(self, *, latent: bool = False) -> None:
        super().__init__("to_q to_k to_v to_out")
        self.latent, self.memory = latent, nn.Parameter(torch.randn(4, 1, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        memory = self.memory.transpose(0, 1).expand(len(x), -1, -1)
        a, b = (memory, x) if self.latent else (x, memory)
        return self.to_out(attended(self.to_q(a), self.to_k(b), self.to_v(b), 3))


class Unused(Separate):
    """Has a layer that says qkv, which is called or not, and attends by others."""

    def __init__(self, *, called: bool) -> None:
        super().__init__("a b c d")
        self.called, self.qkv = called, nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + (self.qkv(x).mean() if self.called else 0)


@pytest.mark.parametrize("latent", [True, False])
def test_cross_attention_is_refused(latent):
    torch.manual_seed(0)
    for force in (True, False):
        with pytest.raises(Inapplicable, match=r"q, k and v of layers\.0\.attn do not read the same tokens"):
            attacked(Vit(Cross(latent=latent)), force=force)


@pytest.mark.parametrize("called", [True, False])
def test_a_layer_that_only_has_the_name_is_refused(called):
    torch.manual_seed(0)
    with pytest.raises(Inapplicable, match="is not only that of the first attention's input"):
        attacked(Vit(Unused(called=called)))


def test_weights_that_run_twice_are_refused():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = STYLES["wq"]()

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(self.inner(x))

    torch.manual_seed(0)
    with pytest.raises(Inapplicable, match=r"the weights of layers\.0\.attn\.inner are used more than once"):
        attacked(Vit(Twice()))


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


def test_a_model_that_holds_the_layers_of_its_attention_itself():
    torch.manual_seed(0)
    assert attacked(InTheModel(1)) > 200
    with pytest.raises(Inapplicable, match="are used more than once"):
        attacked(InTheModel(2))
