"""Text transformers with learned absolute positions: ours, and Hugging Face's BERT and its kin, DistilBERT, GPT-2 and GPT-Neo."""

from __future__ import annotations

from torch import nn

from leakgauge.families.layers import find_heads, norm_layers
from leakgauge.families.roles import Attention, Roles
from leakgauge.families.vit import Layout, attention_of

_WORDS, _PLACES = "embeddings.word_embeddings", "embeddings.position_embeddings.weight"
_LAYOUTS = (
    Layout("token_embed", "pos_embed", r"blocks\.\d+\.attn", out="proj", qkv="qkv"),  # ours
    Layout("wte", "wpe.weight", r"h\.\d+\.attn", out="c_proj", qkv="c_attn"),  # GPT-2
    Layout(  # GPT-Neo
        "wte", "wpe.weight", r"h\.\d+\.attn\.attention", out="out_proj", q="q_proj", k="k_proj", v="v_proj",
    ),
    Layout(  # BERT, RoBERTa
        _WORDS, _PLACES, r"encoder\.layer\.\d+\.attention", out="output.dense",
        q="self.query", k="self.key", v="self.value",
    ),
    Layout(  # ALBERT, which uses its one block repeatedly
        _WORDS, _PLACES, r"encoder\.albert_layer_groups\.\d+\.albert_layers\.\d+\.attention", out="dense",
        q="query", k="key", v="value",
    ),
    Layout(  # MPNet
        _WORDS, _PLACES, r"encoder\.layer\.\d+\.attention\.attn", out="o", q="q", k="k", v="v",
    ),
    Layout(  # DistilBERT
        _WORDS, _PLACES, r"transformer\.layer\.\d+\.attention", out="out_lin", q="q_lin", k="k_lin", v="v_lin",
    ),
)  # fmt: skip


def text_roles(model: nn.Module) -> Roles | None:
    """None unless a token embedding and the attention layers of one layout share a prefix."""
    modules = dict(model.named_modules())
    for layout in _LAYOUTS:
        for name, module in modules.items():
            trunk = name.removesuffix(layout.entry)
            if trunk == name or not (trunk == "" or trunk.endswith(".")) or not isinstance(module, nn.Embedding):
                continue
            attention = attention_of(modules, trunk, layout, lambda layer: True)
            if attention:
                return _roles(model, name, trunk, layout, attention)
    return None


def _roles(model: nn.Module, token: str, trunk: str, layout: Layout, attention: tuple[Attention, ...]) -> Roles:
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
