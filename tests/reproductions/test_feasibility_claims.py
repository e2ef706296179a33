"""What the feasibility study says about the paper: thresholds, verdicts, claims and their reasons."""

import json

import pytest


def test_thresholds_part_two_groups():
    from reproductions.practical_feasibility import freeze_thresholds

    assert freeze_thresholds.best_threshold([0.1, 0.2, 0.6, 0.8], [False, False, True, True]) == (
        pytest.approx(0.4),
        1.0,
    )
    at, agreement = freeze_thresholds.best_threshold([0.1, 0.5, 0.4, 0.9], [False, False, True, True])
    assert (at, agreement) == (pytest.approx(0.25), 0.5)
    assert freeze_thresholds.best_threshold([0.1, 0.2], [True, True])[1] == 0.0


def test_a_threshold_that_few_wrong_images_reach():
    import torch

    from reproductions.practical_feasibility import freeze_layout

    def row(case, reached, found):
        facts = {"shares": [0.3, 1.0], "layout": [0.6, 0.6], "bar": 0.4}
        return {"case": case, "wrong": 100, "wrong_at_least": reached, "wrong_found": 1, "found": found, **facts}

    falling = [100, 60, 30, 10, 4, 1, 0] + [0] * 14
    frozen = freeze_layout.freeze(
        [
            row("resnet20, eval mode", falling, [True, False]),
            row("resnet56, eval mode", [*falling[1:], 0], [True, True]),
        ]
    )
    assert (frozen["layout"], frozen["wrong"], frozen["wrong_found"]) == (0.25, 200, 2)  # 1 of 200, and 5 of 200 at 0.2
    assert frozen["found"] == {0.3: [True, True], 1.0: [False, True]}
    alike = torch.tensor([[0.5, 0.3, 0.1], [0.44, 0.1, 0.0], [0.5, 0.5, 0.9]])
    null = torch.tensor([[0.1, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.8]])
    assert freeze_layout.outlined(alike, null).tolist() == [[True, False, False], [False] * 3, [False] * 3]


def test_the_library_has_the_threshold_that_was_frozen():
    from leakgauge.audit.verdict import OUTLINED
    from reproductions.practical_feasibility import freeze_layout
    from reproductions.practical_feasibility.ledger import read
    from reproductions.practical_feasibility.setting import RESULTS

    facts, rows = read(RESULTS / "freeze_layout.jsonl")
    assert not facts["quick"]
    assert freeze_layout.freeze(rows)["layout"] == OUTLINED[0].margin


def test_rows_without_a_layout_get_it_from_their_pictures(tmp_path):
    import numpy as np
    import torch

    from reproductions.practical_feasibility import score_pictures

    pool = torch.rand(30, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    byte = (pool * 255).round().byte().numpy()
    kinds = {"truth": byte[:1], "attack": byte[:1], "oracle": byte[1:2], "null": 255 - byte[:1]}
    row = {"case": "a", **{kind: {"reid": [9.0]} for kind in ("attack", "oracle", "null", "baseline")}}
    assert score_pictures.add_layout(
        row, {f"a/{kind}": np.array(x) for kind, x in kinds.items()}, pool, mend_ranks=True
    )
    assert row["attack"]["layout"] == pytest.approx([1.0])
    assert row["attack"]["layout_rank"] == row["attack"]["reid"] == (1.0,)
    assert row["oracle"]["reid"][0] > 1
    assert row["null"]["layout"] == pytest.approx([-1.0])
    assert not score_pictures.add_layout(row, {}, pool, mend_ranks=True)


def case_row(name: str, paper: str | None, ssim: float, psnr: float) -> dict:
    def scores(s, p, reid=None):
        return {"mse": [0.1], "psnr": [p], "ssim": [s], "lpips": None, "reid": reid, "labels": None}

    return {
        "case": name, "paper": paper, "trained": True, "assumptions": [["labels", "diagnostic"]],
        "attack": scores(ssim, psnr, [1.0]), "oracle": scores(1.0, 40.0, [1.0]), "null": scores(0.1, 8.0), "baseline": scores(0.3, 12.0),
    }  # fmt: skip


def test_verdicts_are_counted_against_the_paper(tmp_path):
    from reproductions.practical_feasibility import confusion

    rows = [
        case_row("clear", "Yes", 0.9, 25.0), case_row("noise", "No", 0.1, 8.0), case_row("missed", "Yes", 0.1, 8.0),
        case_row("not in the paper", None, 0.9, 25.0),
    ]  # fmt: skip
    (tmp_path / "small.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [{"quick": False}, *rows]), "utf-8")
    found, source = confusion.verdicts(tmp_path)
    assert "none are frozen" in source
    counts = confusion.confusion(found, "verdict")
    assert (
        counts["Yes", "feasible"]
        == counts["No", "infeasible_within_budget"]
        == counts["Yes", "infeasible_within_budget"]
        == 1
    )
    assert "2 of 3 agree" in confusion.table(tmp_path)
    (tmp_path / "thresholds.json").write_text(
        json.dumps({"ssim": 0.95, "ssim_above_null": 0.1, "psnr_above_null": 3.0, "quick": False, "trained": True}),
        "utf-8",
    )
    stricter, source = confusion.verdicts(tmp_path)
    assert "frozen on ResNet-20" in source
    assert next(row["verdict"] for row in stricter) == "partial"
    assert "large: swin_t, batch 2, train mode (not measured)" in confusion.table(tmp_path)


def claim_lines(parts: dict, **beside) -> list[str]:
    from reproductions.practical_feasibility import claims
    from reproductions.practical_feasibility.reasons import Beside

    return claims.lines({**dict.fromkeys(claim.part for claim in claims.CLAIMS), **parts}, Beside(**beside))[2:]


def test_claims_are_made_from_rows():
    rows = [
        {"case": "convnext_t", "accuracy": 0.88, "train_accuracy": 0.9, "epochs": 9},
        {"case": "convnext_t_imagenet_stem", "accuracy": 0.7, "train_accuracy": 0.9, "epochs": 9},
    ]
    found = [
        line for line in claim_lines({"accuracy": rows}) if "ConvNeXt's stem" in line or "| convnext_t reaches" in line
    ]
    assert [line.split(" | ")[3] for line in found] == ["none", "none"]
    assert "+18.0 points" in found[1]
    assert "9 epochs each" in found[1]
    unequal = claim_lines({"accuracy": [rows[0], {**rows[1], "epochs": 3}]})
    assert any(
        "not comparable: unequal epochs" in line for line in unequal
    )  # what other epochs bring is no gain of the stem
    low = [{"case": "swin_t", "accuracy": 0.5, "train_accuracy": own, "epochs": 3} for own in (0.52, 0.9)]
    said = [" ".join(claim_lines({"accuracy": [row]})) for row in low]
    assert "too short a training: 52% on training images" in said[0]
    assert "overfits: 90% on training images" in said[1]


def test_claims_that_lack_a_case_say_which():
    lines = claim_lines({"controlled": [{"case": "maxvit_t", "refused": "no timm"}]})
    assert all(line.count("|") == 6 for line in lines)
    assert all("| open |" in line for line in lines)
    assert any("not run: maxvit_t (no timm)" in line for line in lines)
    assert any("not measured: swin_t, batch 1, train mode, swin_t, batch 2, train mode" in line for line in lines)


@pytest.mark.parametrize(
    ("one", "two", "why"),
    [
        ({"ssim": 0.9}, {"ssim": 0.1}, None),
        ({"ssim": 0.3}, {"ssim": 0.1}, None),
        ({"ssim": 0.9}, {"ssim": 0.3}, "batch 2, train mode: not found out"),  # less, but it leaks
        ({"ssim": 0.3, "null": 0.5, "layout": 0.7}, {"ssim": 0.4, "null": 0.5, "layout": 0.1}, None),
        ({"ssim": 0.3, "null": 0.5, "layout": 0.7}, {"ssim": 0.3, "null": 0.5, "layout": 0.6}, "batch 2, train mode: not found out"),
        ({"ssim": 0.3, "null": 0.26}, {"ssim": 0.1}, "the search ended at 1 − cos = 0.30"),  # above the other, not above its null run
        ({"ssim": 0.12, "oracle": 0.6}, {"ssim": 0.1}, "the oracle finds SSIM 0.60"),
        ({"ssim": 0.12, "mismatch": 0.01}, {"ssim": 0.12}, "another image explains the gradient (1 − cos = 0.010)"),
        ({"ssim": 0.12, "mismatch": 0.4}, {"ssim": 0.12}, "the search ended at 1 − cos = 0.40 after 700 steps"),
        ({"ssim": 0.9}, {"ssim": 0.9, "trained": False}, "untrained here; trained and untrained networks are not comparable"),
        ({"ssim": 0.9}, {"ssim": 0.1, "trained": False}, "| trained and untrained networks are not comparable"),
        ({"ssim": 0.3}, {"ssim": 0.3, "baseline": 0.95}, "mean colour or blur alone reach SSIM 0.95"),
        ({"ssim": 0.9}, {"ssim": 0.9}, "batch 2, train mode: not found out"),
        ({"ssim": 0.9, "data": "CIFAR-10"}, {"ssim": 0.9, "data": "CIFAR-10"}, "trained to 70% only"),
    ],
)  # fmt: skip
def test_the_reason_follows_from_what_was_measured(one, two, why):
    rows = [measured_row(f"swin_t, batch {batch}, train mode", given) for batch, given in ((1, one), (2, two))]
    lines = claim_lines({"large": rows}, accuracies={"swin_t": 0.7})
    line = next(line for line in lines if line.startswith("| Fig. 3"))
    assert ("| none |" in line) == (why is None)
    assert why is None or why in line


@pytest.mark.parametrize(
    ("stem", "adapted", "holds"),
    [
        ({"ssim": 0.4}, {"ssim": 0.3}, True),  # both leak, and they differ
        ({"ssim": 0.33}, {"ssim": 0.3}, False),
        ({"ssim": 0.3, "null": 0.5, "layout": 0.9}, {"ssim": 0.4, "null": 0.5, "layout": 0.6}, True),
        ({"ssim": 0.1}, {"ssim": 0.1}, False),
    ],
)
def test_one_stem_may_leak_less_than_the_other(stem, adapted, holds):
    names = ("swin_t_imagenet_stem, train mode", "swin_t, train mode")
    rows = [measured_row(name, given) for name, given in zip(names, (stem, adapted), strict=True)]
    line = next(line for line in claim_lines({"small": rows}) if "swin_t: the stem of ImageNet" in line)
    assert ("| none |" in line) == holds


def measured_row(case: str, given: dict) -> dict:
    """A row whose PSNR goes with its SSIM."""
    values = {"oracle": given["ssim"], "baseline": 0.1, "null": 0.1, **given}
    scores = {}
    for kind in ("attack", "oracle", "null", "baseline"):
        value = values["ssim" if kind == "attack" else kind]
        alike = given.get("layout", 0.0) if kind == "attack" else 0.0
        scores[kind] = {"mse": [0.1], "psnr": [40 * value], "ssim": [value], "layout": [alike], "layout_rank": [1.0]}
    facts = {"case": case, "network": "swin_t", "data": "ImageNet", "steps": 700, "trained": True, "mismatch": 0.3}
    return {**facts, **{k: v for k, v in given.items() if k not in scores}, **scores}


def test_the_tables_of_the_page_are_those_of_the_results():
    from reproductions.practical_feasibility import make_tables

    text = make_tables.README.read_text("utf-8")
    assert make_tables.written(text, make_tables.RESULTS) == text
