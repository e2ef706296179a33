"""Files of tensors as frameworks write them: wrapped, nested, sparse, quantised and halved ones give the plain numbers."""

from __future__ import annotations

import warnings

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from leakgauge.errors import BadInput
from leakgauge.integrations.tensor_files import read_tensors, unwrapped

PLAIN = {"a": torch.tensor([[0.5, 0.0], [0.0, -0.25]]), "n": torch.tensor(3)}
"""Numbers that 16 bits and steps of 1/64 hold exactly."""


def quantised(value: torch.Tensor) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch means to move this elsewhere; files of it stay
        return torch.quantize_per_tensor(value, 1 / 64, 0, torch.qint8)


WAYS = {
    "plain": lambda a: a,
    "a parameter": nn.Parameter,
    "sparse": lambda a: a.to_sparse(),
    "compressed rows": lambda a: a.to_sparse_csr(),
    "quantised": quantised,
    "half": lambda a: a.half(),
    "bfloat16": lambda a: a.bfloat16(),
    "eight bits": lambda a: a.to(torch.float8_e5m2),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_store_gives_plain_numbers(way, tmp_path, recwarn):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.save({**PLAIN, "a": WAYS[way](PLAIN["a"])}, tmp_path / "a.pt")
    found = read_tensors(tmp_path / "a.pt")
    torch.testing.assert_close(found, PLAIN, rtol=0, atol=0)
    assert found["a"].layout == torch.strided
    assert not found["a"].requires_grad
    assert not recwarn.list


@pytest.mark.parametrize("key", ["state_dict", "model_state_dict"])
def test_a_checkpoint_holds_the_tensors_under_a_usual_name(key, tmp_path):
    torch.save({key: PLAIN, "epoch": 3}, tmp_path / "a.pt")
    assert set(read_tensors(tmp_path / "a.pt")) == set(PLAIN)


@pytest.mark.parametrize(
    ("held", "complaint"),
    [
        ({}, "it is empty"),
        ({**PLAIN, "round": 3}, "its 'round' is a int; save the state dict alone"),
        ({"net": PLAIN}, "its 'net' is a dict"),
    ],
)
def test_what_is_no_tensor_is_named(held, complaint, tmp_path):
    torch.save(held, tmp_path / "a.pt")
    with pytest.raises(BadInput, match=complaint):
        read_tensors(tmp_path / "a.pt")


def test_a_file_damaged_in_any_place_is_one_sentence(tmp_path):
    torch.save({"a": torch.ones(2)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    whole = (tmp_path / "old.pt").read_bytes()
    refused = 0
    for at in range(len(whole)):
        (tmp_path / "damaged.pt").write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        try:
            read_tensors(tmp_path / "damaged.pt")
        except BadInput:
            refused += 1
    assert refused > len(whole) / 4


def test_the_ending_counts_in_either_case(tmp_path):
    save_file(PLAIN, tmp_path / "a.SAFETENSORS")
    torch.testing.assert_close(read_tensors(tmp_path / "a.SAFETENSORS"), PLAIN)


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "_module.", "module._orig_mod."])
def test_names_come_without_what_a_wrapper_put_before_them(prefix):
    state = nn.Linear(2, 2).state_dict()
    assert set(unwrapped({prefix + name: value for name, value in state.items()}, state)) == {"weight", "bias"}


def test_a_name_that_the_model_itself_has_is_left_alone():
    state = nn.ModuleDict({"module": nn.Linear(2, 2)}).state_dict()
    assert set(unwrapped({"module.weight": state["module.weight"]}, state)) == {"module.weight"}
    other = {"module.weight": torch.zeros(2), "bias": torch.zeros(2)}  # a wrapper stands before every name
    assert set(unwrapped(other, {"w": torch.zeros(2)})) == set(other)


def test_any_beginning_goes_that_leaves_the_models_own_names():
    state = {"body.weight": torch.zeros(2), "head.bias": torch.ones(3)}
    for prefix in ("model.", "student.net.", "module.model."):
        assert set(unwrapped({prefix + name: value for name, value in state.items()}, state)) == set(state)
    other = {"model.body.weight": state["body.weight"], "model.other": state["head.bias"]}
    assert set(unwrapped(other, state)) == set(other)  # one name is not the model's: nothing is guessed
    mixed = {"a.body.weight": state["body.weight"], "b.head.bias": state["head.bias"]}
    assert set(unwrapped(mixed, state)) == set(mixed)
