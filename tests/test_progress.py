"""Time left: what the plan expects, corrected by what the stages took."""

import pytest

from kernelcg.cli.progress import TimeLeft


class Stage:
    def __init__(self, rows, seconds):
        self.rows, self.seconds = rows, seconds


class FakePlan:
    stages = (Stage(100, 2.0), Stage(400, 6.0))
    conditioning = Stage(400, 2.0)


def test_before_a_plan_nothing_is_known():
    assert TimeLeft().share(3.0) == 0


def test_the_plan_is_believed_at_first():
    time = TimeLeft()
    time.start(FakePlan())
    assert time.left(1.0) == pytest.approx(9.0)
    assert time.share(1.0) == pytest.approx(0.1)


def test_a_stage_that_took_twice_as_long_doubles_what_is_left():
    time = TimeLeft()
    time.start(FakePlan())
    time.enter(400, 4.0)
    assert time.left(4.0) == pytest.approx(16.0)


def test_a_stage_that_lasts_longer_than_expected_leaves_the_later_ones():
    time = TimeLeft()
    time.start(FakePlan())
    assert time.left(50.0) == pytest.approx(8.0)
