"""Progress in words: time left by the plan, corrected by what the stages took; lines, and bars in notebooks."""

import io
import math
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

import kernelcg
from kernelcg import GPRegressor
from kernelcg.comparison.compare_methods import MethodRun
from kernelcg.events import Chunk, Event, EventKind
from kernelcg.progress import Narrator, TimeLeft, every, in_lines, in_notebook, show_progress
from kernelcg.solvers import Progress


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


def test_a_stage_that_took_longer_than_planned_lengthens_what_is_left():
    """Ten seconds are added to both sides: (26 + 10) / (2 + 10) = 3 times as long."""
    time = TimeLeft()
    time.start(FakePlan())
    time.enter(400, 26.0)
    assert time.left(26.0) == pytest.approx(3 * 8.0)
    assert time.left(27.0) == pytest.approx(3 * 8.0 - 1.0)


def test_a_slow_first_second_does_not_multiply_the_days_that_are_left():
    time = TimeLeft()
    plan = FakePlan()
    plan.stages, plan.conditioning = (Stage(100, 0.1), Stage(400, 3600.0)), Stage(400, 3600.0)
    time.start(plan)
    time.enter(400, 4.0)
    assert time.left(4.0) == pytest.approx(14 / 10.1 * 7200.0)


def test_a_stage_that_lasts_longer_than_expected_leaves_the_later_ones():
    time = TimeLeft()
    time.start(FakePlan())
    assert time.left(50.0) == pytest.approx(8.0)


def told(*events):
    narrator = Narrator()
    for event in events:
        narrator.listen(event)
    return narrator


def step(number, value=math.nan, gain=math.nan):
    taken = SimpleNamespace(state=SimpleNamespace(steps=[None] * number), step=SimpleNamespace(value=value, gain=gain))
    return Event(EventKind.STEP, 1.0, taken)


STAGE = Event(EventKind.STAGE, 0.5, SimpleNamespace(rows=1200))


def test_learning_is_told_by_its_criterion_or_by_the_gain_that_is_predicted():
    assert told(STAGE, step(3, value=-881.94)).line() == "1,200 rows, step 3, evidence -881.9"
    assert told(STAGE, step(4, gain=0.25)).line() == "1,200 rows, step 4, predicted gain 0.25"


def test_the_solve_is_told_by_its_worst_residual_and_its_rate():
    progress = Progress(40, torch.tensor([1e-5, 2e-3]), seconds=0.5)
    assert (
        "iteration 40, residual 2e-03, 80 products a second"
        in told(Event(EventKind.ITERATION, 9.0, progress)).details()
    )


def test_the_time_left_is_told_once_there_is_a_plan():
    assert told(Event(EventKind.PLAN, 1.0, FakePlan())).line() == "about 9 s left"


def test_shares_of_predictions_and_comparisons():
    assert told(Event(EventKind.CHUNK, 1.0, Chunk(300, 1200))).share == 0.25
    ended = MethodRun("PCG", 1, 1, "finished", steps=9, number=2, runs=8)
    narrator = told(Event(EventKind.METHOD, 1.0, ended), STAGE)
    assert narrator.share == 0.25
    assert narrator.line() == "2 of 8 runs, 1,200 rows, step 0"
    assert told(Event(EventKind.END, 1.0, None)).share == 1


def test_plans_of_runs_do_not_move_the_bar_of_a_comparison():
    narrator, plan = Narrator(runs=4), Event(EventKind.PLAN, 9.0, FakePlan())
    for event, share in (
        (plan, 0),
        (Event(EventKind.METHOD, 1.0, MethodRun("CG", 1, 1, "", 1, 1, 4)), 0.25),
        (plan, 0.25),
    ):
        narrator.listen(event)
        assert narrator.share == share
    assert narrator.line() == "1 of 4 runs"


def test_lines_are_rare():
    stream = io.StringIO()
    slow, quick = in_lines("learning", stream, seconds=3600.0), in_lines("learning", stream, seconds=0.0)
    slow(STAGE)
    assert stream.getvalue() == ""
    quick(STAGE)
    assert stream.getvalue().startswith("learning     1,200 rows, step 0; ")


def test_the_end_is_shown_however_soon_it_comes():
    seen = []
    listen = every(3600.0, lambda known: seen.append(known.share))
    listen(STAGE)
    listen(Event(EventKind.END, 0.6, None))
    assert seen == [1.0]


def notebook(monkeypatch, config):
    """Put a notebook in the place of Jupyter, and return what its one cell shows, state after state."""
    shown = []

    def display(code, display_id):
        assert display_id
        shown.append(code)
        return SimpleNamespace(update=shown.append)

    package, part = ModuleType("IPython"), ModuleType("IPython.display")
    package.get_ipython = lambda: SimpleNamespace(config=config)
    part.HTML, part.display = str, display
    monkeypatch.setitem(sys.modules, "IPython", package)
    monkeypatch.setitem(sys.modules, "IPython.display", part)
    return shown


def test_a_fit_in_a_notebook_moves_one_bar_to_its_end(monkeypatch):
    shown = notebook(monkeypatch, {"IPKernelApp": {}})
    X = np.linspace(0, 6, 60)[:, None]
    GPRegressor(method="direct").fit(X, np.sin(X[:, 0]), callback=show_progress("learning"))
    assert 'value="0.000"' in shown[0]
    assert 'value="1.000"' in shown[-1]
    assert "60 rows, step" in shown[-1]


def test_words_in_a_notebook_are_no_code():
    shown = []
    in_notebook("<script>", lambda code: shown.append(code))
    assert "&lt;script&gt;" in shown[0]


def test_a_console_of_ipython_is_no_notebook(monkeypatch, capsys):
    shown = notebook(monkeypatch, {"TerminalIPythonApp": {}})
    show_progress()(STAGE)
    assert shown == []


def test_nothing_is_shown_that_was_not_asked_for(capfd):
    X = np.linspace(0, 6, 40)[:, None]
    GPRegressor(method="direct").fit(X, np.sin(X[:, 0])).predict(X)
    assert capfd.readouterr() == ("", "")


def test_every_run_of_a_comparison_is_counted():
    seen = []
    X = np.linspace(0, 6, 40)[:, None]
    kernelcg.compare(
        X, np.sin(X[:, 0]), methods=["CHOL", "CG"], folds=2, budget=0.2, points=2, preconditioners=False,
        callback=lambda event: seen.append(event.payload) if event.kind is EventKind.METHOD else None,
    )  # fmt: skip
    assert [(one.number, one.runs) for one in seen] == [(1, 4), (2, 4), (3, 4), (4, 4)]
