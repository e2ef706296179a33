"""Laws of roles, on every small model of the conftest."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
import torch
from torch import nn

from leakgauge.errors import BadInput, Inapplicable
from leakgauge.families import FAMILIES, ROLES, Attention, Roles, find_roles
from leakgauge.families.cnn import generic_roles


def test_every_name_exists(model):
    roles = find_roles(model)
    modules, parameters = dict(model.named_modules()), dict(model.named_parameters())
    parts = [part for layer in roles.attention for part in (layer.qkv, layer.q, layer.k, layer.v, layer.out)]
    names = [roles.head, roles.first_layer, roles.patch_embedding, *roles.other_heads, *roles.norms, *parts]
    assert {name for name in names if name is not None} <= set(modules)
    assert {layer.name for layer in roles.attention} <= set(modules)
    assert {name for name in (roles.position_embedding, roles.class_token) if name is not None} <= set(parameters)
    assert {name for layer in roles.attention for name in layer.weights} <= set(parameters)
    assert all(layer.weights for layer in roles.attention)


def test_every_role_gives_existing_parameters_or_refuses(model):
    roles = find_roles(model)
    known = [name for name, _ in model.named_parameters()]
    for role in ROLES:
        try:
            found = roles.parameters(role, model)
        except Inapplicable as refusal:
            assert str(refusal) == f"no {role} in this model"  # noqa: PT017 - either outcome is lawful
            continue
        assert found
        assert list(found) == [name for name in known if name in found]


def test_head_is_the_five_class_classifier(models):
    for name, model in models.items():
        head = model.get_submodule(find_roles(model).head)
        assert isinstance(head, nn.Linear)
        assert head.out_features == (10 if name == "own-vit" else 5), name


def test_first_layer_sees_the_image(models):
    for name, model in models.items():
        first = model.get_submodule(find_roles(model).first_layer)
        assert first.weight.shape[1] == {"mlp": 12, "own-vit": 48}.get(name, 3), name


def test_roles_are_plain_data(model):
    roles = find_roles(model)
    assert pickle.loads(pickle.dumps(roles)) == roles  # noqa: S301 - our own bytes
    assert hash(roles) == hash(replace(roles))


def test_unknown_role_suggests_the_nearest(models):
    with pytest.raises(BadInput, match=r"is not a role of a model; did you mean position_embedding"):
        find_roles(models["mlp"]).parameters("position_embeding", models["mlp"])


def test_absent_role_is_inapplicable(models):
    with pytest.raises(Inapplicable, match=r"^no position_embedding in this model$"):
        find_roles(models["cnn"]).parameters("position_embedding", models["cnn"])


def test_role_without_parameters_is_inapplicable():
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4, elementwise_affine=False), nn.Linear(4, 2))
    assert find_roles(model).norms == ("1",)
    with pytest.raises(Inapplicable, match="no parameters in the norms"):
        find_roles(model).parameters("norms", model)


def test_tied_parameters_go_by_the_name_they_are_shared_under():
    first, last = nn.Linear(4, 4), nn.Linear(4, 4)
    last.weight = first.weight
    model = nn.Sequential(first, last)
    assert find_roles(model).parameters("head", model) == ("0.weight", "1.bias")


def test_names_that_only_begin_alike_are_not_mixed_up():
    model = nn.ModuleDict({"head": nn.Linear(4, 2), "head_aux": nn.Linear(4, 2)})
    assert Roles("x", head="head").parameters("head", model) == ("head.weight", "head.bias")


def test_a_bare_layer_is_its_own_head():
    model = nn.Linear(3, 2)
    roles = find_roles(model)
    assert (roles.head, roles.first_layer) == ("", "")
    assert roles.parameters("head", model) == ("weight", "bias")


def test_generic_refuses_to_call_an_inner_linear_a_head():
    assert generic_roles(nn.Sequential(nn.Linear(4, 4), nn.Conv2d(4, 4, 1))).head is None
    empty = generic_roles(nn.ReLU())
    assert (empty.head, empty.first_layer, empty.norms) == (None, None, ())


def test_norms_of_other_packages_are_known_by_class_name():
    class LlamaRMSNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

    assert find_roles(nn.Sequential(nn.Linear(4, 4), LlamaRMSNorm(), nn.Linear(4, 2))).norms == ("1",)


def test_a_new_family_is_one_line(monkeypatch):
    monkeypatch.setitem(FAMILIES, "new", lambda model: Roles("new", attention=(Attention("0", heads=None),)))
    assert find_roles(nn.Sequential(nn.Linear(2, 2))).family == "new"
