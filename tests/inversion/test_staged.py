"""Searches one after another: each restart continues, the last stage judges, and the course is one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from leakgauge.channels import Gradient, InstaHide
from leakgauge.core import Defended, Size, share
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.inversion import Adam, Cosine, Descent, Given, Matching, Staged, TotalVariation
from leakgauge.inversion.progress import watching
from leakgauge.inversion.sampling import Sampling
from leakgauge.inversion.staged import _Ends
from leakgauge.testing import tiny_case


def search(tv: float, steps: int = 6, restarts: int = 2) -> Matching:
    return Matching(Cosine() + tv * TotalVariation(), solver=Descent(Adam(0.1), steps), restarts=restarts)


@pytest.fixture
def seen():
    victim, x, y = tiny_case("cnn")
    return victim, share(victim, Gradient(), x, y, reveal=[Size()])


def test_it_equals_the_stages_run_by_hand(seen):
    victim, observed = seen
    first, second = search(0.3), search(0.01, steps=4)
    begun = first(victim, observed, seed=3)
    by_hand = replace(second, start=Given(begun.candidates))(victim, observed, seed=3)
    found = Staged((first, second))(victim, observed, seed=3)
    assert torch.equal(found.candidates, by_hand.candidates)
    assert not torch.equal(found.candidates[0], found.candidates[1])
    assert found.loss == by_hand.loss
    assert found.loss == pytest.approx(
        Staged((first, second)).objective_at(victim, observed, found.x, found.y), rel=1e-4
    )


def test_the_course_has_every_step_once_and_progress_reaches_the_end(seen):
    victim, observed = seen
    reports: list[tuple[int, int]] = []
    with watching(lambda done, total: reports.append((done, total))):
        found = Staged((search(0.3), search(0.01, steps=4)))(victim, observed)
    assert found.trace.steps == tuple(range(11))
    assert found.trace.losses.shape == (11, 2)
    assert list(found.trace.snapshot_steps) == sorted(set(found.trace.snapshot_steps))
    assert found.trace.snapshot_steps[-1] == 10
    assert torch.equal(found.trace.snapshots[-1], found.x.cpu())
    assert [done for done, _ in reports] == sorted(done for done, _ in reports)
    assert reports[-1] == (10, 10)


def test_several_observations_are_found_as_if_alone(seen):
    victim, observed = seen
    _, x, y = tiny_case("cnn")
    other = share(victim, Gradient(), x.flip(-1), (y + 1) % 3, reveal=[Size()])
    attack = Staged((search(0.3), search(0.01, steps=4)))
    together = attack.many(victim, [observed, other], seed=3)
    for one, alone in zip(together, (observed, other), strict=True):
        torch.testing.assert_close(one.x, attack(victim, alone, seed=3).x, rtol=1e-3, atol=1e-4)
        assert one.trace.steps == tuple(range(11))
    assert not torch.equal(together[0].x, together[1].x)


def test_the_null_run_reads_no_signal(seen):
    victim, observed = seen
    blind = Staged((search(0.3), search(0.01))).blind()
    other = replace(observed, signal={name: torch.randn_like(value) for name, value in observed.signal.items()})
    assert torch.equal(blind(victim, observed, seed=1).x, blind(victim, other, seed=1).x)


def test_encodings_are_searched_through_all_stages_and_decoded_once(monkeypatch):
    victim, x, y = tiny_case("cnn", count=2)
    seen = [share(victim, InstaHide(seed=s), x, y, reveal=[Size(), Defended()]) for s in (1, 2)]
    staged = Staged((search(0.3), search(0.01, steps=4)))
    begun: list[torch.Tensor] = []
    ended: list[torch.Tensor] = []
    plain = Matching.many

    def watched(self, victim, seen, /, *, seed=0):
        if isinstance(self.start, _Ends):
            begun.append(self.start.found[0])
        found = plain(self, victim, seen, seed=seed)
        ended.append(found[0].candidates)
        return found

    monkeypatch.setattr(Matching, "many", watched)
    together = staged.many(victim, seen, seed=3)
    assert [torch.equal(begun[i], ended[2 * i]) for i in range(2)] == [True, True]
    for i, (one, found) in enumerate(zip(seen, together, strict=True)):
        assert not torch.equal(ended[2 * i + 1][0], found.x)  # decoded after the last stage
        assert found.made_by == repr(staged)
        torch.testing.assert_close(staged(victim, one, seed=3).x, found.x)
    assert staged.blind()(victim, seen[0]).x.shape == x.shape


def test_a_diffusion_prior_is_no_prior_of_encodings():
    victim, x, y = tiny_case("cnn", count=2)
    seen = share(victim, InstaHide(), x, y, reveal=[Size(), Defended()])
    with pytest.raises(Inapplicable, match="knows nothing"):
        Matching(Cosine(), solver=Sampling(lambda x, level, label=None: x))(victim, seen)  # pyright: ignore[reportArgumentType]


def test_stages_need_the_same_restarts():
    with pytest.raises(BadInput, match="same number of restarts"):
        Staged((search(0.3), search(0.01, restarts=3)))
    with pytest.raises(BadInput, match="at least one search"):
        Staged(())
