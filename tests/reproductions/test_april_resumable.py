"""Attacks of the APRIL studies end where they would have ended, although they were stopped in their midst or ran beside others."""

from dataclasses import replace

import pytest
import torch

from leakgauge.inversion import search as searching
from leakgauge.inversion import solvers

STEPS = 9


class Looks:
    """A clock that allows a number of looks."""

    def __init__(self, count: int) -> None:
        self.left = count

    def allows(self, seconds: float) -> bool:
        self.left -= 1
        return self.left > 0


@pytest.fixture
def case():
    """A tiny victim, what is seen of two images, and the attack of a name."""
    from reproductions.april import study
    from reproductions.april.cells import SETTINGS, attack_of

    x = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    images = study.Images("noise", x, torch.tensor([1, 3]))
    model = study.small_model(images, architecture="B", quick=True, width=16, depth=1, heads=2, patch=4, seed=0)
    victim = study.victim_of(model, images, torch.device("cpu"))
    return victim, study.observed(victim, images), lambda name: attack_of(name, STEPS, SETTINGS[name][-1])


def stopped(attack, path, clock, key=None):
    from reproductions.april.resumable import Resumable

    return replace(attack, solver=Resumable(attack.solver, path, clock, key or {"piece": 1}))


def same(ours, theirs):
    return all(
        torch.equal(a.x, b.x) and torch.equal(a.y, b.y) and a.loss == b.loss for a, b in zip(ours, theirs, strict=True)
    )


@pytest.mark.parametrize("name", ["april", "dlg", "tag", "ig"])
def test_it_ends_where_it_would_have_ended(name, case, tmp_path, monkeypatch):
    """Stopped after 2, 4, … steps, each time in another attack, as in another process."""
    from reproductions.april import resumable

    monkeypatch.setattr(resumable, "LOOK", 2)
    victim, seen, attack_of = case
    whole = attack_of(name).many(victim, seen, seed=5)
    at, kept = [], []
    while not at or at[-1] < STEPS:
        attack = stopped(attack_of(name), tmp_path / "state", Looks(1))
        found = attack.many(victim, seen, seed=5)
        at.append(attack.solver.reached)
        kept.append(found[0].loss)
    assert at == [2, 4, 6, 8, 9]
    assert same(found, whole)
    assert kept == sorted(kept, reverse=True)
    assert attack.solver.seconds_before > 0
    again = stopped(attack_of(name), tmp_path / "state", Looks(1))  # killed before the result was written down
    assert same(again.many(victim, seen, seed=5), whole)
    again.solver.forget()
    assert not list(tmp_path.iterdir())


def test_the_best_is_kept_where_it_came_before_the_stop(case, tmp_path, monkeypatch):
    """With far too large a rate the first images are the best ones."""
    from reproductions.april import resumable
    from reproductions.april.cells import Setting, attack_of

    monkeypatch.setattr(resumable, "LOOK", 4)
    victim, seen, _ = case
    wild = attack_of("april", STEPS, Setting(300.0))
    whole = wild.many(victim, seen, seed=5)
    early = [int(one.trace.losses[:, 0].argmin()) for one in whole]
    assert max(early) < 4
    for clock in (Looks(1), Looks(9)):
        found = stopped(wild, tmp_path / "state", clock).many(victim, seen, seed=5)
    assert same(found, whole)


def test_with_time_enough_nothing_is_different(case, tmp_path):
    from reproductions.april.pieces import Clock

    victim, seen, attack_of = case
    attack = stopped(attack_of("april"), tmp_path / "state", Clock())
    assert same(attack.many(victim, seen, seed=5), attack_of("april").many(victim, seen, seed=5))
    assert repr(attack.solver) == repr(attack_of("april").solver)


def test_a_killed_attack_goes_on_from_what_was_kept_last(case, tmp_path, monkeypatch):
    from reproductions.april import resumable
    from reproductions.april.pieces import Clock

    monkeypatch.setattr(resumable, "LOOK", 2)
    monkeypatch.setattr(resumable, "KEEP", 0.0)
    victim, seen, attack_of = case
    move, moves = solvers._DescentMover.__call__, []

    def killed(self, number):
        moves.append(number)
        if moves == [0, 1, 2, 3, 4]:
            raise KeyboardInterrupt
        move(self, number)

    monkeypatch.setattr(solvers._DescentMover, "__call__", killed)
    with pytest.raises(KeyboardInterrupt):
        stopped(attack_of("tag"), tmp_path / "state", Clock()).many(victim, seen, seed=5)
    found = stopped(attack_of("tag"), tmp_path / "state", Clock()).many(victim, seen, seed=5)
    assert moves == [0, 1, 2, 3, 4, 4, 5, 6, 7, 8]
    monkeypatch.undo()
    assert same(found, attack_of("tag").many(victim, seen, seed=5))


def test_a_state_of_something_else_is_not_taken_up(case, tmp_path, monkeypatch, capsys):
    from reproductions.april import resumable

    monkeypatch.setattr(resumable, "LOOK", 2)
    victim, seen, attack_of = case
    stopped(attack_of("april"), tmp_path / "state", Looks(1)).many(victim, seen, seed=5)
    other = stopped(attack_of("april"), tmp_path / "state", Looks(1), {"piece": 2})
    other.many(victim, seen, seed=5)
    assert "another run" in capsys.readouterr().out
    assert other.solver.reached == 2
    fewer = stopped(attack_of("april"), tmp_path / "state", Looks(1), {"piece": 2})
    fewer.many(victim, seen[:1], seed=5)
    assert "another run" in capsys.readouterr().out
    assert fewer.solver.reached == 2


def test_rows_that_do_not_fit_together_have_states_of_their_own(case, tmp_path, monkeypatch):
    from reproductions.april import resumable

    monkeypatch.setattr(resumable, "LOOK", 3)
    victim, seen, attack_of = case
    whole = attack_of("april").many(victim, seen, seed=5)
    monkeypatch.setattr(searching.Search, "fitting", lambda self, x, logits: 1)
    reached = 0
    while reached < STEPS:
        attack = stopped(attack_of("april"), tmp_path / "state", Looks(2))
        found = attack.many(victim, seen, seed=5)
        reached = attack.solver.reached
    assert len(list(tmp_path.iterdir())) == 2
    for ours, theirs in zip(found, whole, strict=True):
        assert torch.allclose(ours.x, theirs.x, atol=1e-4)


def test_rows_that_ran_out_of_memory_do_not_count(case, tmp_path, monkeypatch):
    from reproductions.april.pieces import Clock

    victim, seen, attack_of = case
    whole = attack_of("april").many(victim, seen, seed=5)
    move = solvers._DescentMover.__call__

    def full(self, number):
        if len(self.x) == 2 and number == 4:
            raise torch.OutOfMemoryError
        move(self, number)

    monkeypatch.setattr(solvers._DescentMover, "__call__", full)
    attack = stopped(attack_of("april"), tmp_path / "state", Clock())
    found = attack.many(victim, seen, seed=5)
    assert attack.solver.reached == STEPS
    for ours, theirs in zip(found, whole, strict=True):
        assert torch.allclose(ours.x, theirs.x, atol=1e-4)


def test_it_goes_on_where_the_step_is_recorded(case, tmp_path, monkeypatch, recordable):
    """What a recorded step writes must be what is kept, and what is taken up what it reads."""
    from reproductions.april import resumable

    monkeypatch.setattr(resumable, "LOOK", 5)
    monkeypatch.setattr(solvers.Adam, "make", lambda self, variables: recordable.AdamInTensors(variables, self.lr))
    victim, seen, attack_of = case
    whole = attack_of("dlg").many(victim, seen, seed=5)
    init, recorded = solvers._DescentMover.__init__, []

    def recording(self, *given):
        init(self, *given)
        self._captured = recordable.PlayedBack(self._move)
        recorded.append(self._captured)

    monkeypatch.setattr(solvers._DescentMover, "__init__", recording)
    for expected in (5, 9):
        attack = stopped(attack_of("dlg"), tmp_path / "state", Looks(1))
        found = attack.many(victim, seen, seed=5)
        assert attack.solver.reached == expected
    assert all(one.operations for one in recorded)
    for ours, theirs in zip(found, whole, strict=True):
        assert torch.allclose(ours.x, theirs.x, atol=1e-5)


def paced(attack, settings, seen):
    from reproductions.april.side_by_side import RowPaces

    paces = RowPaces(attack.solver.optimizer, [(one.lr, one.schedule) for one in settings for _ in seen])
    return replace(attack, solver=replace(attack.solver, optimizer=paces, schedule=paces))


@pytest.mark.parametrize("name", ["april", "dlg", "tag"])
def test_settings_side_by_side_are_what_they_are_alone(name, case):
    from reproductions.april.cells import SETTINGS, attack_of

    victim, seen, _ = case
    settings = SETTINGS[name]
    attack = paced(attack_of(name, STEPS, settings[0]), settings, seen)
    found = attack.many(victim, [one for _ in settings for one in seen], seed=5)
    alone = [one for setting in settings for one in attack_of(name, STEPS, setting).many(victim, seen, seed=5)]
    ends = [(one.x - found[0].x).abs().max() for one in found[2::2]]
    assert min(ends) > 0.01  # settings matter
    for ours, theirs in zip(found, alone, strict=True):
        torch.testing.assert_close(ours.x, theirs.x, rtol=0, atol=2e-4)
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-3)


def test_rows_that_do_not_fit_together_cannot_be_paced(case, monkeypatch):
    from reproductions.april.cells import SETTINGS, attack_of

    victim, seen, _ = case
    monkeypatch.setattr(searching.Search, "fitting", lambda self, x, logits: 3)
    attack = paced(attack_of("april", STEPS, SETTINGS["april"][0]), SETTINGS["april"], seen)
    with pytest.raises(RuntimeError, match="8 rows do not fit into memory together"):
        attack.many(victim, seen * 4, seed=5)


def test_paces_change_where_the_step_is_recorded(case, monkeypatch, recordable):
    from reproductions.april.cells import SETTINGS, attack_of

    monkeypatch.setattr(solvers.Adam, "make", lambda self, variables: recordable.AdamInTensors(variables, self.lr))
    victim, seen, _ = case
    settings = SETTINGS["april"]
    attack = paced(attack_of("april", STEPS, settings[0]), settings, seen)
    plain = attack.many(victim, seen * 4, seed=5)
    init = solvers._DescentMover.__init__

    def recording(self, *given):
        init(self, *given)
        self._captured = recordable.PlayedBack(self._move)

    monkeypatch.setattr(solvers._DescentMover, "__init__", recording)
    for ours, theirs in zip(attack.many(victim, seen * 4, seed=5), plain, strict=True):
        torch.testing.assert_close(ours.x, theirs.x, rtol=0, atol=1e-5)
