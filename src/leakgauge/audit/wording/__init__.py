"""All sentences about results, made of findings, verdicts and records. Every view shows these: page, terminal, Markdown, JUnit, JSON.

One module per concept; names that other packages use are here. Numbers are written by :mod:`leakgauge.audit.phrasing`. What to do about a
finding is in :mod:`leakgauge.audit.advice`.
"""

from __future__ import annotations

from dataclasses import replace

from leakgauge.audit.findings import Findings, Unanswered
from leakgauge.audit.questions import ON_REQUEST, QUESTIONS, Question
from leakgauge.audit.wording.cases import ENDINGS as ENDINGS
from leakgauge.audit.wording.cases import bound_sentence as bound_sentence
from leakgauge.audit.wording.cases import captured_warnings as captured_warnings
from leakgauge.audit.wording.cases import case_sentence as case_sentence
from leakgauge.audit.wording.cases import certificates as certificates
from leakgauge.audit.wording.cases import described as described
from leakgauge.audit.wording.cases import ending as ending
from leakgauge.audit.wording.cases import explained as explained
from leakgauge.audit.wording.cases import explanation as explanation
from leakgauge.audit.wording.cases import figures as figures
from leakgauge.audit.wording.cases import flipping as flipping
from leakgauge.audit.wording.cases import identifiable as identifiable
from leakgauge.audit.wording.cases import labels_of as labels_of
from leakgauge.audit.wording.cases import learned as learned
from leakgauge.audit.wording.cases import local_steps as local_steps
from leakgauge.audit.wording.cases import raced as raced
from leakgauge.audit.wording.cases import result as result
from leakgauge.audit.wording.cases import server_of as server_of
from leakgauge.audit.wording.cases import waiting
from leakgauge.audit.wording.causes import by_cause as by_cause
from leakgauge.audit.wording.causes import cause_rows as cause_rows
from leakgauge.audit.wording.causes import why as why
from leakgauge.audit.wording.data import MADE_UP as MADE_UP
from leakgauge.audit.wording.data import NO_CLASSES as NO_CLASSES
from leakgauge.audit.wording.data import read_at as read_at
from leakgauge.audit.wording.defenses import cheapest as cheapest
from leakgauge.audit.wording.defenses import cost_unknown as cost_unknown
from leakgauge.audit.wording.defenses import guarantee as guarantee
from leakgauge.audit.wording.defenses import on_defenses
from leakgauge.audit.wording.defenses import points as points
from leakgauge.audit.wording.defenses import seen as seen
from leakgauge.audit.wording.properties import on_properties
from leakgauge.audit.wording.properties import property_sentence as property_sentence
from leakgauge.audit.wording.protections import defense_words as defense_words
from leakgauge.audit.wording.split import effort as effort
from leakgauge.audit.wording.split import on_prompts as on_prompts
from leakgauge.audit.wording.split import on_split
from leakgauge.audit.wording.split import remedy as remedy
from leakgauge.audit.wording.split import split_notes as split_notes
from leakgauge.audit.wording.split import trained_too_little as trained_too_little
from leakgauge.audit.wording.statement import State as State
from leakgauge.audit.wording.statement import Statement
from leakgauge.audit.wording.statement import Tone as Tone
from leakgauge.audit.wording.terms import LIMITS as LIMITS
from leakgauge.audit.wording.terms import METRICS as METRICS
from leakgauge.audit.wording.terms import OF_IMAGES as OF_IMAGES
from leakgauge.audit.wording.terms import OPTIONAL as OPTIONAL
from leakgauge.audit.wording.terms import TEXT_METRICS as TEXT_METRICS
from leakgauge.audit.wording.terms import UNITS as UNITS
from leakgauge.audit.wording.terms import interval as interval
from leakgauge.audit.wording.training import TOO_SHORT as TOO_SHORT
from leakgauge.audit.wording.training import alarm as alarm
from leakgauge.audit.wording.training import conclude_training as conclude_training
from leakgauge.audit.wording.training import on_training
from leakgauge.audit.wording.training import training_ended as training_ended
from leakgauge.audit.wording.updates import on_updates
from leakgauge.audit.wording.verdicts import check as check
from leakgauge.audit.wording.verdicts import evaluation as evaluation
from leakgauge.audit.wording.verdicts import quality as quality
from leakgauge.audit.wording.verdicts import rule as rule


def statements(found: Findings) -> tuple[Statement, ...]:
    """The four usual questions in their order, and those that were asked by name; one that has no answer says so."""
    made: dict[Question, Statement] = {}
    if found.updates is not None:
        made["updates"] = on_updates(found.updates)
    if found.training is not None:
        made["training"] = on_training(found.training)
    if found.split is not None:
        made["split"] = on_split(found.split)
    if found.defenses is not None:
        made["defenses"] = on_defenses(found.defenses)
    if found.properties is not None:
        made["properties"] = on_properties(found.properties)
    for late in found.waiting:
        if late.question in made:
            done = made[late.question]
            stopped = f"The run was stopped: {waiting(late)}."
            made[late.question] = replace(done, sentences=(*done.sentences, stopped), state="unfinished")
    for partly in found.incomplete:
        if partly.question in made:
            done = made[partly.question]
            ended = f"It ended early: {partly.reason}."
            made[partly.question] = replace(done, sentences=(*done.sentences, ended), state="unfinished")
    why = {missing.question: missing for missing in found.unanswered}
    asked: list[Question] = [q for q in QUESTIONS if q not in ON_REQUEST or q in made or q in why]
    return tuple(made.get(q) or _unanswered(q, why.get(q, Unanswered(q))) for q in asked)


def _unanswered(question: Question, why: Unanswered) -> Statement:
    badge, said, state = "Not asked", "This was not measured, so nothing is known about it.", "not_asked"
    if why.reason:
        badge, said, state = "No result", f"This was tried and gave no result: {why.reason}.", "no_result"
    elif not why.reached:
        badge, state = "Not reached", "not_reached"
        said = "The run was stopped before it reached this question, so nothing is known about it."
    return Statement(question, QUESTIONS[question], "none", badge, (said,), state=state)
