"""The set-up of a case, and the refusal of what does not fit together."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
import torch
from torch import nn

from leakgauge.audit.case import Case
from leakgauge.audit.session import POOL, Session, Setup, check_fits, embedded, one_of_each_class
from leakgauge.core import Pixels, Victim
from leakgauge.data.embedded import fashion
from leakgauge.errors import BadInput, Inapplicable


def test_the_embedded_set_up():
    setup = embedded(Case(model="vit", mode="train"))
    assert setup.victim.name == "vit"
    assert setup.victim.model.training
    assert setup.labels[:20].tolist() == [*range(10), *range(10)]
    assert check_fits(setup) == 10
    x, y = setup.private(Case(first=3, batch_size=2))
    assert y.tolist() == [3, 4]
    torch.testing.assert_close(setup.victim.space.decode(x), setup.images[3:5])
    with pytest.raises(BadInput, match="'resnet' is not embedded; embedded are cnn, vit, vgg"):
        embedded(Case(model="resnet"))


def test_the_private_images_are_not_in_the_pool():
    setup = embedded(Case())
    case = Case(first=5, batch_size=3)
    pool = setup.pool(case)
    assert len(pool) == POOL
    assert torch.equal(pool, torch.cat([setup.images[:5], setup.images[8:]])[:POOL])


@pytest.mark.parametrize(
    ("labels", "expected"), [([0, 0, 1, 1, 2], [0, 2, 4, 1, 3]), ([2, 1, 0], [2, 1, 0]), ([0, 0, 0], [0, 1, 2]), ([3, 1, 1], [1, 0, 2])]
)  # fmt: skip
def test_one_of_each_class(labels, expected):
    assert one_of_each_class(torch.tensor(labels)).tolist() == expected


def test_one_of_each_class_of_the_data():
    _, labels = fashion("test")
    ordered = labels[one_of_each_class(labels)]
    assert all(sorted(ordered[i : i + 10].tolist()) == list(range(10)) for i in range(0, 1000, 10))


def test_too_few_images(load, quick):
    with pytest.raises(BadInput, match="needs images 18 to 21, but the data holds 20"):
        load(quick()).private(quick(first=18, batch_size=4))


class Pair(nn.Linear):
    def forward(self, x):
        return x, x


class Refuses(nn.Linear):
    def forward(self, x):
        raise Inapplicable("not today")


@pytest.mark.parametrize(
    ("model", "labels", "message"),
    [
        (
            nn.Sequential(nn.Flatten(), nn.Linear(35, 4)),
            [0, 1],
            "does not take images of shape 1x6x6: RuntimeError: .*mat1",
        ),
        (nn.Conv2d(1, 4, 3), [0, 1], r"class scores of shape \(batch, classes\), it returned \(2, 4, 4, 4\)"),
        (Pair(1, 1), [0, 1], "it returned tuple; wrap it in a module"),
        (nn.Sequential(nn.Flatten(), nn.Linear(36, 4)), [0, 4], r"labels must be in 0..3 .* has 0..4"),
        (nn.Sequential(nn.Flatten(), nn.Linear(36, 4)), [-1, 3], r"labels must be in 0..3 .* has -1..3"),
    ],
)
def test_what_does_not_fit(model, labels, message):
    setup = Setup(Victim(model, Pixels((1, 6, 6))), torch.rand(2, 1, 6, 6), torch.tensor(labels))
    with pytest.raises(BadInput, match=message) as caught:
        check_fits(setup)
    assert "\n" not in str(caught.value)


def test_a_refusal_of_the_model_itself_is_passed_on(load, quick):
    setup = replace(load(quick()), victim=Victim(Refuses(1, 1), Pixels((1, 6, 6))))
    with pytest.raises(Inapplicable, match="not today"):
        check_fits(setup)


def test_auxiliary_images_are_others_and_from_the_end(quick, load):
    case = quick(first=17, batch_size=2, reveal=("size", "auxiliary:4"))
    setup = load(case)
    size, others = setup.reveal(case)
    assert repr(size) == "Size()"
    assert torch.equal(others.images, setup.victim.space.encode(setup.images[[14, 15, 16, 19]]))
    with pytest.raises(BadInput, match="wants 30 auxiliary images, but the data holds 18"):
        setup.reveal(quick(batch_size=2, reveal=("auxiliary:30",)))
    with pytest.raises(BadInput, match="at least 1"):
        quick(reveal=("auxiliary:0",)).build_reveal()


def test_copies_of_private_images_are_no_auxiliary_images(quick, load):
    case = quick(first=17, batch_size=2, reveal=("auxiliary:4",))
    setup = load(case)
    images = setup.images.clone()
    images[[15, 19]] = setup.images[17]
    (others,) = replace(setup, images=images).reveal(case)
    assert torch.equal(others.images, setup.victim.space.encode(images[[12, 13, 14, 16]]))


def test_a_case_with_auxiliary_images_runs(quick, load, tmp_path):
    from leakgauge.audit import run_case

    case = quick(attack="feasibility", mode="train", batch_size=2, reveal=("size", "labels", "auxiliary:8"))
    record = run_case(case, load=load, folder=tmp_path)
    assert record.status == "done"
    assert "server holds 8 auxiliary images of the same kind" in [a.what for a in record.assumptions]


def test_a_defense_that_overflows_is_refused_by_name():
    case = Case(batch_size=1, mode="eval", defenses=("gaussian_noise:std=1e6",))
    whole = embedded(case)
    half = replace(whole, victim=replace(whole.victim, model=whole.victim.model.to(torch.float16)))
    with pytest.raises(Inapplicable, match=r"under GaussianNoise\(.*std=1000000.0.*\) is not finite in float16"):
        half.observation(case)
    assert half.observation(replace(case, name="", defenses=())).signal
    assert embedded(case).observation(case).signal


@pytest.fixture
def counted(load):
    """The quick load in a session, and the cases for which it was really asked."""
    asked = []

    def find(case):
        asked.append(case)
        return load(case)

    return Session(find), asked


def test_a_session_loads_each_source_once(counted, quick):
    session, asked = counted
    for case in (quick(), quick(mode="train"), quick(batch_size=4), quick(attack="dlg"), quick(first=3)):
        assert session(case).victim.mode == case.mode
    assert len(asked) == 1
    for change in ({"model": "a"}, {"data": "b"}, {"classes": 3}, {"resize": True}, {"device": "cuda"}, {"seed": 1}):
        session(quick(**change))
    assert len(asked) == 7


def test_every_case_gets_the_same_data_and_a_model_of_its_own(counted, quick):
    session, _ = counted
    one, two = session(quick()), session(quick())
    assert one.images is two.images
    assert one.labels is two.labels
    with torch.no_grad():
        next(one.victim.model.parameters()).zero_()
    assert next(two.victim.model.parameters()).abs().sum() > 0
    assert next(session(quick(mode="train")).victim.model.parameters()).abs().sum() > 0


def test_what_a_case_does_to_its_labels_stays_with_the_case(counted, quick):
    session, _ = counted
    setup = session(quick())
    _, y = setup.private(quick(first=2, batch_size=2))
    y.zero_()
    assert session(quick()).labels[:5].tolist() == [0, 1, 2, 3, 0]


def test_a_model_that_keeps_its_last_pass_is_still_fresh_for_the_next_case(quick, batch_of):
    """``weight_norm`` of old keeps a tensor with a graph, and a model that holds one cannot be copied."""
    images, _ = batch_of(4)
    model = nn.Sequential(nn.Flatten(), nn.utils.weight_norm(nn.Linear(images[0].numel(), 4)))
    with torch.no_grad():
        model(images)
    setup = Setup(Victim(model, Pixels(tuple(images.shape[1:]))), images, torch.arange(4))
    session = Session(lambda case: setup)
    for mode in ("eval", "train", "eval"):
        assert session(quick(mode=mode)).observation(quick(mode=mode)).signal


def test_a_session_travels_empty(quick):
    session = Session(embedded)
    session(Case())
    there = pickle.loads(pickle.dumps(session))  # noqa: S301 - its own bytes
    assert there._loaded == {}
    assert torch.equal(there(Case()).images, session(Case()).images)
