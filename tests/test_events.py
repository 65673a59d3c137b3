"""Listeners: how they are composed, and how each of them ends work."""

import time

import pytest
import torch

from kernelcg.errors import StopRequested
from kernelcg.events import Event, EventKind, informed, insisting, tell, time_limit, timed, together
from kernelcg.solvers import Status, solve

EVENT = Event(EventKind.STEP, 1.0, "a step")


def test_all_are_told_and_any_may_end():
    told = []
    first, second = (lambda event: told.append(1) or True), (lambda event: told.append(2))
    assert together(first, None, second)(EVENT)
    assert told == [1, 2]
    assert not together(second)(EVENT)
    assert together(None, None) is None


def test_insisting_turns_true_into_an_exception():
    with pytest.raises(StopRequested, match="stopped by the callback"):
        insisting(lambda event: True)(EVENT)
    assert insisting(lambda event: None)(EVENT) is None
    assert insisting(None) is None


def test_an_answer_may_be_ignored():
    told = []
    assert informed(lambda event: told.append(event) or True)(EVENT) is None
    assert told == [EVENT]
    assert informed(None) is None


def test_seconds_are_counted_anew():
    told = []
    timed(told.append, time.perf_counter() - 10)(EVENT)
    assert told[0].seconds >= 10
    assert (told[0].kind, told[0].payload) == (EVENT.kind, EVENT.payload)
    tell(told.append, EventKind.PLAN, "a plan", time.perf_counter())
    assert told[1].kind is EventKind.PLAN
    tell(None, EventKind.PLAN, "a plan", 0.0)


def test_a_time_limit_ends_what_is_not_done():
    now = time.perf_counter()
    assert time_limit(None, now) is None
    assert time_limit(100.0, now)(EVENT) is None
    late = time_limit(5.0, now - 6)
    with pytest.raises(StopRequested, match="the time limit of 5 s was reached"):
        late(EVENT)
    assert late(Event(EventKind.LEARNED, 6.0, None)) is None


def test_a_solve_tells_its_iterations_and_ends_when_asked():
    A, B = torch.diag(torch.linspace(1, 100, 50, dtype=torch.float64)), torch.ones(50, 1, dtype=torch.float64)
    told = []
    report = solve(A, B, callback=lambda event: told.append(event) or len(told) == 3)
    assert report.status is Status.STOPPED
    assert [event.payload.iteration for event in told] == [0, 1, 2]
    assert {event.kind for event in told} == {EventKind.ITERATION}
    with pytest.raises(StopRequested):
        solve(A, B, callback=insisting(lambda event: True))
