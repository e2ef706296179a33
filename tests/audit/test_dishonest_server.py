"""What a server gets that does not keep to the protocol: run on the user's set-up, said in a line of its own, not judged by the gate."""

from dataclasses import replace

from leakgauge.audit import embedded, gate
from leakgauge.audit.advice import advise
from leakgauge.audit.case import Case
from leakgauge.audit.findings import Findings, updates_of
from leakgauge.audit.questions.updates import dishonest
from leakgauge.audit.run import run_case
from leakgauge.audit.verdict import Outcome
from leakgauge.audit.wording import on_updates
from tests.made import record as made
from tests.made import verdict


def test_it_is_another_threat_model_and_does_not_fail_the_gate(tmp_path):
    main = Case(mode="train", batch_size=4, local_epochs=2)
    held = replace(made(case=main), verdict=verdict("infeasible_within_budget", images=4))
    case = dishonest(main)
    assert case is not None
    read = run_case(case, load=embedded, folder=tmp_path)
    assert read.outcome is Outcome.FEASIBLE
    run = [held, read]
    assert gate.exit_code(run, Outcome.INFEASIBLE) == 0
    assert gate.exit_code([replace(read, case=replace(case, change=None))], Outcome.INFEASIBLE) == gate.EXIT_CODE
    found = updates_of(run)
    said = on_updates(found)
    assert said.badge == "Held"
    (line,) = [one for one in said.sentences if "keep to the protocol" in one]
    assert line.startswith(
        "If the server does not keep to the protocol (another threat model; server sends another model"
    )
    assert "it reconstructs 2 of 4 images (imprint)" in line
    rules = {one.rule for one in advise(Findings(updates=found))}
    assert {"malicious_server_leaks", "no_proof"} <= rules
    assert "only_upper_bound" not in rules
