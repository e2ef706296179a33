"""Swin: the published size, timm's numbers with timm's weights, and windows for small images."""

import pytest
import torch

from leakgauge.errors import BadInput
from reproductions.common.networks.swin import Swin, into_windows, out_of_windows, relative_positions


def test_windows_come_back():
    x = torch.rand(2, 8, 8, 3)
    assert torch.equal(out_of_windows(into_windows(x, 4), 8, 4), x)


def test_offsets_not_places_choose_the_bias():
    index = relative_positions(3)
    assert index.unique().tolist() == list(range(25))
    assert index[0, 1] == index[3, 4] == index[7, 8]


def test_same_numbers_as_timm():
    from leakgauge.integrations.torchvision_guest import invite_torchvision

    invite_torchvision()
    timm = pytest.importorskip("timm")
    shape = {"embed_dim": 12, "depths": (2, 2), "num_heads": (2, 4), "num_classes": 5}
    theirs = timm.create_model("swin_tiny_patch4_window7_224", img_size=56, **shape).eval()
    ours = Swin(side=56, classes=5, width=12, depths=(2, 2), heads=(2, 4)).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(
                0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel()))
            )
    ours.load_state_dict(theirs.state_dict())
    x = torch.rand(2, 3, 56, 56, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(ours(x), theirs(x), atol=1e-5)


def test_small_images_and_sizes_that_do_not_fit():
    assert Swin(side=32, patch=2, window=4, width=12, heads=(1, 2, 2, 2), classes=10)(
        torch.rand(1, 3, 32, 32)
    ).shape == (1, 10)
    with pytest.raises(BadInput, match="divide"):
        Swin(side=30)
    with pytest.raises(BadInput, match="do not fill"):
        Swin(side=64, window=7)
