"""What the studies of reasons measure, against values that are known."""

import math
from pathlib import Path

import pytest
import torch

from leakgauge.channels import Gradient
from leakgauge.channels.twice import twice_differentiable
from leakgauge.core import share
from leakgauge.models.vit import Attention


def case(variant, **settings):
    """A tiny victim of 4 patches, its images and what is seen of them."""
    from reproductions.april import study

    x = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    images = study.Images("noise", x, torch.tensor([1, 3]))
    options = study.Options(True, torch.device("cpu"), 0, None, Path(), None)

    def make(images, *, architecture, quick, **changes):
        sizes = {"width": 16, "depth": 2, "heads": 2, "patch": 4} | settings
        return study.small_model(images, architecture=architecture, quick=quick, **(sizes | changes))

    victim = variant.victim(images, make, options)
    return victim, images, study.observed(victim, images)


def by_hand(attention: Attention, x: torch.Tensor, *, logits: float, values: float) -> torch.Tensor:
    q, k, v = attention.qkv(x)[0].chunk(3, -1)
    heads = [
        ((q[:, h] @ k[:, h].T) * logits).softmax(-1) @ v[:, h] * values
        for h in torch.arange(q.shape[1]).chunk(attention.heads)
    ]
    return attention.proj(torch.cat(heads, 1))[None]


def test_the_two_ways_to_leave_out_the_scale():
    from reproductions.april import attention_variants as variants

    x = torch.randn(1, 5, 16, generator=torch.Generator().manual_seed(1))
    for kind, logits, values in (
        (Attention, 8**-0.5, 1.0),
        (variants.Unscaled, 1.0, 1.0),
        (variants.AsPrinted, 1.0, 8**-0.5),
    ):
        attention = kind(width=16, heads=2, qkv_bias=False)
        torch.testing.assert_close(attention(x), by_hand(attention, x, logits=logits, values=values))


def test_a_variant_changes_the_attention_and_nothing_else():
    from reproductions.april import attention_variants as variants

    usual, sharp = (case(v)[0].model for v in (variants.USUAL, variants.UNSCALED))
    assert all(type(block.attn) is variants.Unscaled for block in sharp.blocks)
    for name, value in usual.state_dict().items():
        assert torch.equal(value, sharp.state_dict()[name]), name
    q, k, _ = case(variants.XAVIER)[0].model.blocks[0].attn.qkv.weight.chunk(3)
    assert not torch.equal(q, k)


def test_even_attention_gives_all_patches_the_same_gradient():
    """Without queries every token gets the mean, and only the class token's place in the next block could tell patches apart."""
    from reproductions.april import attention_variants as variants

    def no_queries(model):
        for block in model.blocks:
            with torch.no_grad():
                block.attn.qkv.weight[:16] = 0

    found = variants.evenness(*ordered(*case(variants.Variant("even", changes=(no_queries,)))))
    assert found.weight == pytest.approx(1 / 5)
    assert found.spread < 1e-10
    usual, sharp = (variants.evenness(*ordered(*case(v))) for v in (variants.USUAL, variants.UNSCALED))
    assert found.weight < usual.weight < sharp.weight < 1
    assert found.spread < usual.spread < sharp.spread < 1


def ordered(victim, images, seen):
    return victim, seen, images


def test_sensitivities_are_those_of_the_jacobian(monkeypatch):
    from reproductions.april import attention_variants as variants

    victim, images, _ = case(variants.USUAL)
    parameters = sum(p.numel() for p in victim.parameters().values())
    monkeypatch.setattr(variants, "BUCKETS", 8 * parameters)
    found, length = variants.sensitivities(victim, images)
    victim.model.double()
    x, y = victim.space.encode(images.x[:1]).double(), images.y[:1]
    at = x.clone().requires_grad_()
    with twice_differentiable():
        loss = torch.nn.functional.cross_entropy(victim.model(at), y)
    slopes = torch.autograd.grad(loss, list(victim.model.parameters()), create_graph=True)
    weights = torch.zeros(parameters, dtype=torch.float64, requires_grad=True)
    back = torch.autograd.grad(torch.cat([g.flatten() for g in slopes]) @ weights, at, create_graph=True)[0].flatten()
    columns = [torch.autograd.grad(back[pixel], weights, retain_graph=True)[0] for pixel in range(64)]
    exact = torch.linalg.svdvals(torch.stack(columns, 1))
    torch.testing.assert_close(found, exact, rtol=0.35, atol=0)  # entries that share a bucket
    assert found[:10].log().sum() == pytest.approx(float(exact[:10].log().sum()), rel=0.1)
    assert length == pytest.approx(
        float(torch.cat([t.flatten() for t in share(victim, Gradient(), x, y).signal.values()]).norm())
    )


def test_how_many_directions_carry():
    from reproductions.april import attention_variants as variants

    assert variants.carrying(torch.tensor([3.0, 1.0, 0.0]), 0.9) == 1
    assert variants.carrying(torch.tensor([3.0, 1.0, 0.0]), 0.91) == 2
    assert variants.carrying(torch.ones(10), 0.99) == 10


def test_the_readings_of_the_noise():
    from reproductions.april import attention_variants as variants
    from reproductions.april import why

    _, _, (seen, _) = case(variants.USUAL, width=64)
    whole = torch.cat([t.flatten() for t in seen.signal.values()])
    for name in why.NEEDED:
        own = seen.signal[name]
        added = {r: why.noisy(seen, r, 0.5, seed=3).signal[name] - own for r in why.READINGS}
        assert float(added["tensor"].norm()) == pytest.approx(0.5 * float(own.norm()), rel=0.2)
        expected = 0.5 * float(whole.norm()) * math.sqrt(own.numel() / whole.numel())
        assert float(added["whole"].norm()) == pytest.approx(expected, rel=0.2)
        assert float(added["whole variance"].var()) == pytest.approx(0.5 * float(whole.norm()), rel=0.3)
        assert float(added["tensor variance"].var()) == pytest.approx(0.5 * float(own.norm()), rel=0.3)
        assert bool(added["positions"].any()) == (name == "pos_embed")


def test_reasons_are_given_only_where_they_were_measured(tmp_path, monkeypatch):
    from reproductions.april import claims, study

    monkeypatch.setattr(study, "RESULTS", tmp_path)
    assert claims.even_attention() == claims.wrong_labels() == "not found out"
    rows = [
        {
            "part": "attention",
            "model": model,
            "start": "noise",
            "weight": 0.1,
            "spread": 0.02,
            "ssim": ssim,
            "steps": 400,
        }
        for model, ssim in ((claims.USUAL, 0.03), (claims.UNSCALED, 0.9))
    ]
    study.write(tmp_path / "why.jsonl", [{"quick": False}, *rows])
    assert "SSIM 0.90 instead of 0.03" in claims.even_attention()
    study.write(tmp_path / "why.jsonl", [{"quick": True}, *rows])
    assert claims.even_attention() == "not found out"


def test_table_1_is_judged_by_the_order_of_the_attacks_on_images_that_all_have(tmp_path, monkeypatch):
    from reproductions.april import claims, study, why_table1

    monkeypatch.setattr(study, "RESULTS", tmp_path)
    errors = {"april": [1e-5, 9.0], "tag": [2e-5], "dlg": [3e-5], "ig": [4e-5]}
    rows = [
        {
            "data_set": "cifar10",
            "of": "CIFAR-10",
            "attack": name,
            "images": len(each),
            "wanted": 2,
            "which": list(range(len(each))),
            "each_mse": each,
        }
        for name, each in errors.items()
    ]
    assert not claims.told("table1", {"complete": False}, rows[:3])
    assert claims.told("table1", {"complete": False}, rows)
    (claim,) = claims.table1(rows)
    assert claim.holds
    assert claim.ours == "APRIL 1.0e-05 < TAG 2.0e-05 < DLG 3.0e-05 < Inverting Gradients 4.0e-05 (1 of 2 images)"
    rows[0]["each_mse"] = [1e-3, 0.0]
    (claim,) = claims.table1(rows)
    assert claim.ours.startswith("TAG 2.0e-05 < DLG")
    assert "does not reproduce** | not found out" in claim.line()
    measured = [
        {"data": "CIFAR-10", "distance": distance, "labels": labels, "mse": 10.0**-n}
        for n, (distance, labels) in enumerate(why_table1.CASES, start=1)
    ]
    study.write(tmp_path / "why_table1.jsonl", [{"quick": False}, *measured])
    (claim,) = claims.table1(rows)
    assert "squared distance 1e-01 where the label is optimised too (DLG), 1e-02 where it is read" in claim.why
