"""Text transformers with learned absolute positions: ours, and Hugging Face's BERT and its kin, DistilBERT, GPT-2 and GPT-Neo."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from leakgauge.families.layers import find_heads, norm_layers
from leakgauge.families.roles import Attention, Roles
from leakgauge.families.vit import attention_of, find_child


@dataclass(frozen=True)
class _Layout:
    """How one library names the parts, relative to the trunk; q, k, v and out relative to the attention layer."""

    token: str
    position: str
    attention: str  # a regular expression
    out: str
    qkv: str | None = None
    q: str | None = None
    k: str | None = None
    v: str | None = None


_WORDS, _PLACES = "embeddings.word_embeddings", "embeddings.position_embeddings.weight"
_LAYOUTS = (
    _Layout("token_embed", "pos_embed", r"blocks\.\d+\.attn", out="proj", qkv="qkv"),  # ours
    _Layout("wte", "wpe.weight", r"h\.\d+\.attn", out="c_proj", qkv="c_attn"),  # GPT-2
    _Layout(  # GPT-Neo
        "wte", "wpe.weight", r"h\.\d+\.attn\.attention", out="out_proj", q="q_proj", k="k_proj", v="v_proj",
    ),
    _Layout(  # BERT, RoBERTa
        _WORDS, _PLACES, r"encoder\.layer\.\d+\.attention", out="output.dense",
        q="self.query", k="self.key", v="self.value",
    ),
    _Layout(  # ALBERT, which uses its one block repeatedly
        _WORDS, _PLACES, r"encoder\.albert_layer_groups\.\d+\.albert_layers\.\d+\.attention", out="dense",
        q="query", k="key", v="value",
    ),
    _Layout(  # MPNet
        _WORDS, _PLACES, r"encoder\.layer\.\d+\.attention\.attn", out="o", q="q", k="k", v="v",
    ),
    _Layout(  # DistilBERT
        _WORDS, _PLACES, r"transformer\.layer\.\d+\.attention", out="out_lin", q="q_lin", k="k_lin", v="v_lin",
    ),
)  # fmt: skip


def text_roles(model: nn.Module) -> Roles | None:
    """None unless a token embedding and the attention layers of one layout share a prefix."""
    modules = dict(model.named_modules())
    for layout in _LAYOUTS:
        for name, module in modules.items():
            trunk = name.removesuffix(layout.token)
            if trunk == name or not (trunk == "" or trunk.endswith(".")) or not isinstance(module, nn.Embedding):
                continue
            attention = _attention(modules, trunk, layout)
            if attention:
                return _roles(model, name, trunk, layout, attention)
    return None


def _roles(model: nn.Module, token: str, trunk: str, layout: _Layout, attention: tuple[Attention, ...]) -> Roles:
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    position = trunk + layout.position
    head, other_heads = find_heads(model, trunk)
    return Roles(
        family="text",
        head=head,
        first_layer=token,
        token_embedding=token,
        position_embedding=position if position in parameters else None,
        attention=attention,
        norms=norm_layers(model),
        other_heads=other_heads,
    )


def _attention(modules: dict[str, nn.Module], trunk: str, layout: _Layout) -> tuple[Attention, ...]:
    return attention_of(
        modules, trunk, layout, lambda name: find_child(modules, name, layout.qkv or layout.q) is not None
    )
