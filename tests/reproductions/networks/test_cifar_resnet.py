"""CIFAR ResNets: sizes of the paper, shortcuts without parameters, and weights that come back from a file."""

import pytest
import torch
from safetensors.torch import save_file

from leakgauge.errors import BadInput
from reproductions.common.networks.cifar_resnet import CifarResNet, PaddedBlock, load_cifar_resnet


def test_the_shortcut_subsamples_and_pads():
    block = PaddedBlock(2, 4, 2).eval()
    torch.nn.init.zeros_(block.bn2.weight)  # nothing but the shortcut is left
    x = torch.rand(1, 2, 4, 4)
    out = block(x)
    assert torch.equal(out[:, 1:3], x[:, :, ::2, ::2])
    assert not out[:, [0, 3]].any()


def test_weights_come_back_with_their_depth(tmp_path):
    model = CifarResNet(depth=14, seed=3).eval()
    kept = {name: value for name, value in model.state_dict().items() if "num_batches" not in name}
    save_file(kept, tmp_path / "net.safetensors")
    found, space = load_cifar_resnet(tmp_path / "net.safetensors")
    x = torch.rand(2, *space.shape)
    assert torch.equal(found(x), model(x))


def test_files_that_are_no_such_network_are_refused(tmp_path):
    save_file({"fc.weight": torch.ones(2, 2)}, tmp_path / "other.safetensors")
    with pytest.raises(BadInput, match="holds no CIFAR ResNet"):
        load_cifar_resnet(tmp_path / "other.safetensors")
    with pytest.raises(BadInput, match="no weights file"):
        load_cifar_resnet(tmp_path / "absent.safetensors")
    with pytest.raises(BadInput, match="6n"):
        CifarResNet(depth=21)
