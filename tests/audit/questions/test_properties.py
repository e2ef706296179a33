"""The question on properties: from a set-up to records, sentences, advice and the page."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from leakgauge.audit.advice import advise
from leakgauge.audit.case import Case
from leakgauge.audit.findings import read_findings
from leakgauge.audit.plan import Plan
from leakgauge.audit.questions import properties
from leakgauge.audit.questions.properties import PROPERTIES, PropertyPlan, cost_of_probes, plan_properties, probe
from leakgauge.audit.request import Effort, Request
from leakgauge.audit.session import Setup, embedded
from leakgauge.audit.whole import carry_out, conduct
from leakgauge.audit.wording import property_sentence, statements
from leakgauge.audit.wording.properties import NOT_BOUNDED
from leakgauge.errors import BadInput
from leakgauge.measures.membership import Rate
from leakgauge.report import page
from tests.made import TOLD


def small(case):
    setup = embedded(case)
    return replace(setup, images=setup.images[:400], labels=setup.labels[:400])


def test_a_brightness_is_told_within_each_class():
    setup = small(Case())
    has = PROPERTIES["bright"](setup.images, setup.labels)
    for one in setup.labels.unique():
        assert 0.4 <= float(has[setup.labels == one].double().mean()) <= 0.5
    assert float(PROPERTIES["class"](setup.images, setup.labels).double().mean()) == pytest.approx(0.1, abs=0.02)


def test_few_images_allow_small_batches_or_none():
    setup = embedded(Case())
    assert plan_properties(setup, Case()).batch == 8  # 1000 images
    many = Setup(setup.victim, torch.zeros(4000, 1, 28, 28), torch.arange(4000) % 2)
    many.images[:, 0, 0, 0] = torch.rand(4000)
    assert plan_properties(many, Case()).batch == 16
    assert plan_properties(many, Case(channel="aggregate:clients=2", batch_size=2)).batch == 8  # a test has two batches
    with pytest.raises(BadInput, match="more than 20 images"):
        plan_properties(replace(setup, images=setup.images[:20], labels=setup.labels[:20]), Case())


def test_an_audit_of_properties_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(properties, "UPDATES", 40)
    main = Case(model="cnn", mode="train", batch_size=4)
    request = Request(("properties",), main, (), (), main, Effort())
    plan, answers = conduct(request, folder=tmp_path, load=small, began=0.0)
    assert answers["properties"].status == "answered"
    found = properties.read(tmp_path)
    assert [record.name for record in found] == ["bright", "class"]
    assert found[1].blind.value > 0.95  # how often a class occurs is what labels say
    assert all(record.shadows == record.tests == 40 for record in found)
    said = {one.question: one for one in statements(read_findings(tmp_path))}
    assert said["properties"].sentences[-1] == NOT_BOUNDED
    html = page.render(tmp_path)
    assert "What else do updates tell?" in html
    assert "does not bound this" in html
    assert "record-property-2" in html
    assert f'<td class="num">{found[0].tpr:.0%}</td>' in html  # without an interval
    assert "too few to fix a rate of 1 %" in html
    before = (tmp_path / properties.FILE).read_text()
    carry_out(plan, folder=tmp_path, load=small)
    assert (tmp_path / properties.FILE).read_text() == before  # nothing is measured twice


def test_a_stopped_run_goes_on_with_the_next_property(tmp_path):
    properties.STORE.append(tmp_path, TOLD)
    made = []
    setup = small(Case())
    probe(setup, Case(model="cnn", batch_size=4), PropertyPlan(8, 40), tmp_path, on_update=made.append)
    assert [record.name for record in properties.read(tmp_path)] == ["bright", "class"]
    assert properties.read(tmp_path)[0] == TOLD
    assert (made[0], made[-1]) == (81, 160)


def test_an_audit_that_was_not_asked_says_nothing_of_it(tmp_path):
    assert "properties" not in {one.question for one in statements(read_findings(tmp_path))}


def test_sentences_say_what_was_compared():
    said = property_sentence(TOLD)
    assert said.startswith(
        "The update tells whether 20% or 50% of 32 samples are images brighter than the median of their class: AUC 0.90"
    )
    assert "labels alone 0.50, chance at most 0.60" in said
    assert property_sentence(replace(TOLD, auc=Rate(0.55, 0.45, 0.65))).startswith("No probe could tell")
    labels = replace(TOLD, blind=Rate(0.99, 0.95, 1.0))
    assert property_sentence(labels).startswith("The update tells no more than the labels do")


def test_data_that_could_show_nothing_are_inconclusive_and_no_negative(tmp_path):
    nothing = replace(TOLD, auc=Rate(0.55, 0.45, 0.65))
    few = replace(nothing, disjoint=3, auc=Rate(0.55, 0.1, 0.95))
    assert nothing.could_tell
    assert not few.could_tell
    assert not replace(nothing, null_high=0.85).could_tell  # chance alone reaches that far
    assert property_sentence(few).startswith("There is too little data to find out")
    for record, badge in ((nothing, "None found"), (few, "Inconclusive")):
        folder = tmp_path / badge
        folder.mkdir()
        properties.STORE.append(folder, record)
        said = {one.question: one for one in statements(read_findings(folder))}["properties"]
        assert said.badge == badge
        assert said.sentences[-1] == NOT_BOUNDED


def test_what_is_told_becomes_advice(tmp_path):
    properties.STORE.append(tmp_path, TOLD)
    assert "properties_told" in [advice.rule for advice in advise(read_findings(tmp_path))]
    properties.STORE.append(tmp_path, replace(TOLD, auc=Rate(0.55, 0.45, 0.65)))
    assert "properties_told" not in [advice.rule for advice in advise(read_findings(tmp_path))]


def test_the_gradients_of_the_adversarys_own_samples_are_priced(monkeypatch):
    monkeypatch.setattr(properties, "elapsed", lambda run: run() and 1.0)
    cost = cost_of_probes(small(Case()), Case(model="cnn", batch_size=4), PropertyPlan(8, 40))
    assert cost.step == 4  # a shadow update and a test for each of two properties
    assert cost.fixed == pytest.approx(2 * (400 / 2 * 2 / 3) / 8)


def test_a_budget_buys_as_many_updates_as_there_is_time_for(tmp_path):
    main = Case(model="cnn", mode="train", batch_size=4)
    request = Request(("properties",), main, (), (), main, Effort(), budget=1.0)
    from leakgauge.audit.planner import Planner

    with pytest.raises(BadInput, match="left out: it takes at least"):
        Planner(request, load=small, folder=tmp_path, began=-1e6).plan()
    import time

    plan = Planner(replace(request, budget=600.0), load=small, folder=tmp_path, began=time.perf_counter()).plan()
    assert isinstance(plan, Plan)
    assert plan.properties is not None
    assert properties.FEWEST_UPDATES <= plan.properties.updates <= properties.UPDATES
    assert plan.estimates["properties"] > 0
