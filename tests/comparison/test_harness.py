"""The harness: clock, budget, products, and what the methods come to."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from direct_rows import direct_up_to

from kernelcg import GPClassifier, GPRegressor, backends
from kernelcg.comparison import harness
from kernelcg.comparison.methods import METHODS, conditioned_by, criterion_of, learned_by, unsuited
from kernelcg.comparison.tasks import ClassificationTask, RegressionTask, first_rbf
from kernelcg.errors import MemoryBudgetExceeded
from kernelcg.events import EventKind
from kernelcg.inference.gaussian.likelihood_by_cholesky import direct_estimate
from kernelcg.inference.laplace.evidence import laplace_estimate

N, D = 120, 2


def made(n, classification):
    X = torch.randn(n, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    noise = torch.randn(n, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    y = (2 * X[:, 0]).sin() + 0.5 * X[:, 1] + 0.3 * noise
    return X, (y > 0).double() if classification else (y - y.mean()) / y.std()


def task_on(classification, kernel="ARD", n=N):
    X, y = made(n + 60, classification)
    kind = ClassificationTask if classification else RegressionTask
    return kind.of(X[:n], y[:n], first_rbf(kernel, D)), X[n:], y[n:]


def exact_value(task, gp):
    if isinstance(task, ClassificationTask):
        return laplace_estimate(task.problem, gp, "direct")[0].value
    return direct_estimate(task.problem, gp).value


def steps_into(seen):
    """Return a listener that adds every step to a list."""

    def listen(event):
        if event.kind is EventKind.STEP:
            seen.append(event.payload.step)

    return listen


# what is learned


@pytest.mark.parametrize("classification", [False, True], ids=["regression", "classification"])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_raises_its_criterion(name, classification):
    task, _, _ = task_on(classification)
    learned = learned_by(METHODS[name], task, max_steps=6)

    def value(gp):
        return criterion_of(METHODS[name], task, 0)(gp)[0].value if METHODS[name].sparse else exact_value(task, gp)

    assert value(learned.gp) > value(task.start) + 1


@pytest.mark.parametrize("classification", [False, True], ids=["regression", "classification"])
def test_cholesky_and_the_default_end_at_the_same_optimum(classification):
    task, X_test, y_test = task_on(classification, n=450)  # enough for a stage on a part of the rows: another way there
    runs = [harness.run(METHODS[name], task, X_test, y_test, budget=60, points=2) for name in ("CHOL", "kernelcg")]
    assert [one.status for one in runs] == [harness.FINISHED] * 2
    assert runs[0].path[1].log_parameters != runs[1].path[1].log_parameters
    assert runs[0].last.nll == pytest.approx(runs[1].last.nll, abs=1e-3)
    assert runs[0].last.error == pytest.approx(runs[1].last.error, abs=1e-3)


def test_the_default_is_what_the_regressor_does():
    task, X_test, _ = task_on(False, n=450)
    learned = learned_by(METHODS["kernelcg"], task)
    model = GPRegressor(first_rbf("ARD", D), noise=0.1, mean="zero", normalize_y=False)
    model.fit(task.problem.X.numpy(), task.problem.Y[:, 0].numpy())
    assert learned.gp.log_parameters().tolist() == model.posterior_.gp.log_parameters().tolist()
    mean = conditioned_by(METHODS["kernelcg"], task, learned.gp).mean(X_test)[:, 0]
    torch.testing.assert_close(mean, torch.from_numpy(model.predict(X_test.numpy())), rtol=1e-12, atol=1e-12)


def test_the_default_is_what_the_classifier_does():
    task, X_test, y_test = task_on(True)
    learned = learned_by(METHODS["kernelcg"], task)
    model = GPClassifier(first_rbf("ARD", D), calibrated=False).fit(task.problem.X.numpy(), task.problem.y.numpy())
    assert learned.gp.log_parameters().tolist() == model.posterior_.gp.log_parameters().tolist()
    scores = task.scores(conditioned_by(METHODS["kernelcg"], task, learned.gp), X_test, y_test)
    P = model.predict_proba(X_test.numpy())[range(60), y_test.long().numpy()]
    assert scores.nll == pytest.approx(-sum(math.log(p) for p in P) / 60, rel=1e-9)
    assert scores.error == pytest.approx((model.predict(X_test.numpy()) != y_test.numpy()).mean())


def test_the_papers_methods_have_the_papers_settings():
    task, _, _ = task_on(False)
    numerics = criterion_of(METHODS["PCG"], task, 0).numerics
    assert (numerics.probes, numerics.preconditioner, numerics.rademacher) == (4, "nystrom", True)
    assert numerics.stopping.atol == pytest.approx(math.sqrt(1e-10 * N))
    assert criterion_of(METHODS["CG"], task, 0).numerics.preconditioner is None
    assert criterion_of(METHODS["CHOL"], task, 0).stage_rows == (N,)
    assert METHODS["CHOL-restarted"].settings == "solver=direct growing=False batch=3"


@pytest.mark.parametrize("classification", [False, True], ids=["regression", "classification"])
@pytest.mark.parametrize("name", ["PCG", "CG"])
def test_the_papers_first_step_is_one_in_every_direction(name, classification):
    """Adagrad with step 1: ψ ± 1."""
    task, _, _ = task_on(classification)
    learned = learned_by(METHODS[name], task, max_steps=1)
    moved = learned.gp.log_parameters() - task.start.log_parameters()
    torch.testing.assert_close(moved.abs(), torch.ones_like(moved), rtol=0, atol=1e-3)


def test_learning_that_breaks_down_is_not_called_finished(monkeypatch):
    task, X_test, y_test = task_on(False)

    def broken(*given, **options):
        return replace(learned_by(*given, **{**options, "max_steps": 2}), converged=False, reason="A was singular")

    monkeypatch.setattr(harness, "learned_by", broken)
    found = harness.run(METHODS["CHOL"], task, X_test, y_test, budget=30, points=2)
    assert (found.status, found.reason) == (harness.ENDED, "A was singular")
    assert len(found.curve) == 2


def test_the_warm_up_goes_the_way_of_the_run(monkeypatch):
    task, _, _ = task_on(False)
    seen = []

    def watched(method, *given, **options):
        seen.append(method.solver)
        return learned_by(method, *given, **options)

    direct_up_to(monkeypatch, 100)
    monkeypatch.setattr(harness, "learned_by", watched)
    harness.warm_up(METHODS["kernelcg"], task)
    assert seen == ["iterative"]


def test_restarts_forget_the_curvature_but_go_on():
    task, _, _ = task_on(False)
    seen = []
    learned = learned_by(METHODS["CHOL-restarted"], task, max_steps=7, callback=steps_into(seen))
    assert len(seen) == len(learned.steps) == 7
    seconds, values = ([getattr(step, name) for step in seen] for name in ("seconds", "value"))
    assert seconds == sorted(seconds)
    assert values == sorted(values)
    through = learned_by(METHODS["CHOL"], task, max_steps=7).steps
    assert [step.value for step in through[:3]] == pytest.approx(values[:3])
    assert through[4].value != pytest.approx(values[4])


def test_what_does_not_fit_is_said_before_anything_is_done(monkeypatch):
    task, X_test, y_test = task_on(False)
    task = replace(task, problem=replace(task.problem, backend=backends.default(memory=10**6)))
    with pytest.raises(MemoryBudgetExceeded):
        criterion_of(METHODS["CHOL"], task, 0)
    monkeypatch.setattr(harness, "warm_up", lambda *_: None)
    found = harness.run(METHODS["CHOL"], task, X_test, y_test, budget=5)
    assert (found.status, found.curve) == (harness.TOO_LARGE, ())


def test_several_classes():
    X, _ = made(160, False)
    y = (X[:, 0] > 0.3).double() + (X[:, 0] > 1).double()
    task = ClassificationTask.of(X[:100], y[:100], first_rbf("iso", D), classes=3)
    assert unsuited(METHODS["PCG"], task)
    assert not unsuited(METHODS["kernelcg"], task)
    found = harness.run(METHODS["kernelcg"], task, X[100:], y[100:], budget=5, points=2)
    assert found.curve[-1].nll < found.curve[0].nll
    assert found.last.error < 0.2


@pytest.mark.parametrize("classification", [False, True], ids=["regression", "classification"])
@pytest.mark.parametrize("name", ["FITC", "PITC", "VAR"])
def test_approximations_are_judged_by_their_own_predictions_and_count_no_products(name, classification):
    task, X_test, y_test = task_on(classification)
    found = harness.run(METHODS[name], task, X_test, y_test, budget=5, points=2)
    exact = harness.run(METHODS["CHOL"], task, X_test, y_test, budget=5, points=2)
    assert math.isnan(found.last.products)
    assert found.last.nll < found.curve[0].nll
    assert 1e-6 < abs(found.last.nll - exact.last.nll) < 0.5


# clock, budget, places


class Ticks:
    """A clock that advances by what it is told, and a learner that tells it."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now


@pytest.fixture
def ticking(monkeypatch):
    """Let learning take ten steps of 1 s each, conditioning 0.25 s and scoring 100 s."""
    clock = Ticks()
    monkeypatch.setattr(harness.time, "perf_counter", clock.perf_counter)
    monkeypatch.setattr(harness, "warm_up", lambda *_: None)
    real = learned_by

    def learning(method, task, *, callback, **options):
        def slow(event):
            clock.now += event.kind is EventKind.STEP
            return callback(event)

        return real(METHODS["CHOL"], task, max_steps=10, callback=slow)

    def conditioning(*_, **__):
        clock.now += 0.25
        return "posterior"

    def scoring(*_):
        clock.now += 100.0
        return harness.Scores(0.5, 1.5)

    monkeypatch.setattr(harness, "learned_by", learning)
    monkeypatch.setattr(harness, "conditioned_by", conditioning)
    monkeypatch.setattr(RegressionTask, "scores", scoring)
    return clock


def test_a_point_is_charged_training_and_conditioning_and_no_more(ticking):
    task, X_test, y_test = task_on(False)
    found = harness.run(METHODS["CHOL"], task, X_test, y_test, budget=100, points=50)
    assert [point.training_seconds for point in found.curve] == list(range(len(found.path)))
    assert [point.seconds for point in found.curve] == [0.25 + at for at in range(len(found.path))]
    assert {point.nll for point in found.curve} == {1.5}


def test_a_step_that_ends_after_the_budget_does_not_count(ticking):
    task, X_test, y_test = task_on(False)
    found = harness.run(METHODS["CHOL"], task, X_test, y_test, budget=3.5, points=50)
    assert [place.seconds for place in found.path] == [0, 1, 2, 3]
    assert found.status == harness.OUT_OF_TIME
    assert found.gp.log_parameters().tolist() == pytest.approx(list(found.path[-1].log_parameters))


def test_the_budget_is_kept_on_a_real_clock():
    task, X_test, y_test = task_on(False)
    found = harness.run(METHODS["PCG"], task, X_test, y_test, budget=0.5, points=3)
    assert found.status == harness.OUT_OF_TIME
    assert len(found.path) > 3
    assert max(place.seconds for place in found.path) <= 0.5
    assert all(point.seconds > point.training_seconds for point in found.curve)


def test_places_are_chosen_evenly_in_log_time():
    path = [harness.Place(i, 0.0 if i == 0 else 1.05**i, 0.0, ()) for i in range(200)]
    chosen = harness.chosen(path, 10)
    assert chosen[0] is path[0]
    assert chosen[-1] is path[-1]
    assert len(chosen) <= 10
    gaps = [later.step - one.step for one, later in itertools.pairwise(chosen[1:])]
    assert max(gaps) - min(gaps) <= 1
    assert harness.chosen(path[:4], 10) == path[:4]


# products


def test_products_of_an_exact_run_are_n_for_each_evaluation():
    task, X_test, y_test = task_on(False)
    path, _, _ = harness.walked(METHODS["CHOL"], task, budget=30)
    learned = learned_by(METHODS["CHOL"], task)
    assert path[0].products == 0
    information = 2 * X_test.shape[1] + 2
    assert path[-1].products == learned.evaluations * (N + 2 + information)
    before = task.products
    harness.evaluated(METHODS["CHOL"], task, path[-1], X_test, y_test)
    assert task.products > before


def test_products_of_plain_cg_are_those_of_its_reports():
    task, _, _ = task_on(False)
    criterion, before = criterion_of(METHODS["CG"], task, 0), task.products
    estimate, _ = criterion(task.start, value=False)
    pairs = 1 + 4  # a aᵀ and one for each probe, in the gradient
    assert task.products - before == estimate.report.columns + pairs
