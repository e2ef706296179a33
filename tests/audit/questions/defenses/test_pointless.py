"""No defense is tried where the attack fails without one."""

from leakgauge.audit.questions.defense_records import read
from leakgauge.audit.questions.defenses import plan_trials, run_trials
from tests.audit.questions.defenses.tiny import CASE


def test_no_defense_is_tried_where_the_attack_fails_without_one(setup, load, tmp_path):
    trials = plan_trials(setup, CASE, steps=1, train_steps=0, specs=("prune:0.9", "quantize:8"))
    found = run_trials(trials, load=load, folder=tmp_path, skip_pointless=True)
    assert not found[0].outcome.leaks
    assert [record.defenses for record in found] == [()]
    assert len(run_trials(trials, load=load, folder=tmp_path, resume=True)) == len(read(tmp_path)) == 3
