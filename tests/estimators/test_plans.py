"""Plans of the estimators: made without fitting, carried out to the bit, refused where they do not belong."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from torch import Tensor

import kernelcg
from kernelcg import GPClassifier, GPGeneralizedRegressor, GPRegressor, KernelRidge, backends
from kernelcg.errors import MemoryBudgetExceeded
from kernelcg.events import EventKind
from kernelcg.kernels import Kernel, squared_distances
from kernelcg.planning import Method
from kernelcg.planning.plan import Storage
from kernelcg.planning.profile import TYPICAL
from kernelcg.planning.ranks import Sizes

pytestmark = pytest.mark.filterwarnings("ignore::kernelcg.errors.ConvergenceWarning")

rng = np.random.default_rng(0)
X = rng.normal(size=(420, 2))
F = np.sin(2 * X[:, 0]) + X[:, 1]
Y = F + 0.1 * rng.normal(size=420)

MODELS = {
    "regressor": (lambda **o: GPRegressor(max_iter=3, **o), Y),
    "ridge": (lambda **o: KernelRidge(kernel="rbf", selection="gcv", max_iter=3, **o), Y),
    "probit": (lambda **o: GPClassifier(max_iter=3, **o), F > 0),
    "softmax": (lambda **o: GPClassifier(max_iter=2, **o), np.digitize(F, [-0.5, 0.5])),
    "one against the rest": (
        lambda **o: GPClassifier(likelihood="logit", max_iter=2, **o),
        np.digitize(F, [-0.5, 0.5]),
    ),
    "counts": (lambda **o: GPGeneralizedRegressor(likelihood="poisson", max_iter=3, **o), np.round(np.exp(F))),
}


class Cauchy(Kernel):
    """σ² / (1 + |x − y|² / w²): a formula of one's own, which no backend fuses."""

    width: Tensor
    variance: Tensor

    def covariance(self, X, Y):
        return self.variance / (1 + squared_distances(X / self.width, Y / self.width))


class Untouchable(Cauchy):
    """A kernel of which not one entry may be computed."""

    def covariance(self, X, Y):
        raise AssertionError("the formula was evaluated")


class Recorded(Cauchy):
    """A kernel that notes how many of its entries are computed."""

    def covariance(self, X, Y):
        ENTRIES.append(len(X) * len(Y))
        return super().covariance(X, Y)


ENTRIES: list[int] = []


def data_of(name):
    """Return inputs and targets: two stages of learning for real numbers, few rows for the others."""
    n = 420 if name in ("regressor", "ridge") else 90
    return X[:n], MODELS[name][1][:n]


def parameters_of(model):
    learned = model.learning_ if isinstance(model.learning_, tuple) else (model.learning_,)
    return np.concatenate([one.gp.log_parameters().numpy() for one in learned])


@pytest.mark.parametrize("method", ["direct", "iterative", "auto"])
@pytest.mark.parametrize("name", MODELS)
def test_a_plan_is_made_without_fitting_and_carried_out_to_the_bit(name, method):
    make, (X, y) = MODELS[name][0], data_of(name)
    model = make(method=method)
    before = dict(vars(model))
    plan = model.plan(X, y)
    assert vars(model) == before, "no attribute of a fit"
    assert plan.outcome is None
    assert plan.backend == backends.default().name()
    freely = make(method=method).fit(X, y)
    assert replace(freely.plan_, outcome=None) == plan
    planned, again = make(method=method).fit(X, y, plan=plan), make(method=method).fit(X, y, plan=freely.plan_)
    assert replace(planned.plan_, outcome=None) == plan == replace(again.plan_, outcome=None)
    for other in (planned, again):
        np.testing.assert_array_equal(parameters_of(other), parameters_of(freely))
        np.testing.assert_array_equal(other.predict(X), freely.predict(X))


@pytest.mark.parametrize("name", MODELS)
def test_the_outcome_says_what_happened_and_is_kept_in_files(name, tmp_path):
    make, (X, y) = MODELS[name][0], data_of(name)
    seen = []
    model = make(method="direct").fit(X, y, callback=seen.append)
    outcome = model.plan_.outcome
    learned = model.learning_[0] if isinstance(model.learning_, tuple) else model.learning_
    assert outcome.evaluations == learned.evaluations > 1
    assert outcome.method is Method.DIRECT
    assert outcome.revisions == ()
    assert learned.seconds <= outcome.seconds <= seen[-1].seconds + 1e-9
    model.save(tmp_path / "model")
    assert kernelcg.load(tmp_path / "model").plan_ == model.plan_


def test_plans_of_other_fits_are_refused():
    plan = GPRegressor().plan(X, Y)

    def refused(why, model, X=X, y=Y):
        with pytest.raises(ValueError, match=f"the plan was made for another fit: its {why}; make a new one"):
            model.fit(X, y, plan=plan)
        assert not [name for name in vars(model) if name.endswith("_")]

    refused("rows is 420, not 419", GPRegressor(), X[:419], Y[:419])
    refused("features is 2, not 1", GPRegressor(), X[:, :1])
    refused("number of outputs with noise of their own is 1, not 2", GPRegressor(), X, np.stack([Y, F], 1))
    refused("right-hand sides is 2, not 1", GPRegressor(mean="zero"))
    refused("learning is True, not False", GPRegressor(optimizer=None))
    refused("seed is [0-9]+, not [0-9]+", GPRegressor(random_state=1))
    refused("right-hand sides is 2, not 1", GPGeneralizedRegressor())


@pytest.mark.parametrize("estimator", [GPRegressor, GPClassifier, KernelRidge])
@pytest.mark.parametrize(
    ("argument", "value", "words"),
    [
        ("plan", "direct", "plan must be one that plan"),
        ("callback", 3, "callback must be a function that takes an event, not 3"),
        ("resume", 3, "resume must be a TrainingState, the path of a file or None, not 3"),
        ("checkpoint", 3, "checkpoint must be the path of a file or None, not 3"),
    ],
)
def test_what_a_fit_cannot_follow_is_refused_by_name(estimator, argument, value, words):
    X = np.random.default_rng(0).normal(size=(20, 2))
    with pytest.raises(TypeError, match=words):
        estimator().fit(X, X[:, 0] > 0, **{argument: value})


def test_memory_is_refused_before_a_kernel_is_evaluated_and_the_remedies_work():
    n = 2000
    big = np.random.default_rng(1).normal(size=(n, 2))
    y = big[:, 0]
    for work in (lambda model: model.plan(big, y), lambda model: model.fit(big, y)):
        with pytest.raises(MemoryBudgetExceeded, match=r"method='iterative'.* or memory='[0-9]+MB'") as refused:
            work(KernelRidge(kernel=Untouchable(1.0, 1.0), method="direct", memory="45MB"))
    words = str(refused.value)
    enough = words.rpartition("memory='")[2].partition("'")[0]
    directly = KernelRidge(kernel="rbf", method="direct", memory=enough)
    assert directly.fit(big, y, plan=directly.plan(big, y)).plan_.method is Method.DIRECT
    iteratively = KernelRidge(kernel="rbf", method="iterative", memory="45MB").fit(big, y)
    assert iteratively.plan_.method is Method.ITERATIVE
    np.testing.assert_allclose(iteratively.predict(big), directly.predict(big), atol=1e-6)


def test_a_kernel_of_ones_own_is_priced_and_stored_where_that_pays():
    model = GPRegressor(Cauchy(1.0, 1.0), method="iterative", optimizer=None)
    own, known = model.plan(X, Y), GPRegressor(method="iterative", optimizer=None).plan(X, Y)
    assert own.pricing.price.fused == 0
    assert math.log2(own.pricing.price.seconds).is_integer()
    assert (known.pricing.price.fused, known.pricing.price.seconds) == (1, 0.0)
    assert own.conditioning.storage is Storage.STORED
    many = np.zeros((4000, 2)) + np.arange(4000)[:, None]
    tight = GPRegressor(Cauchy(1.0, 1.0), method="iterative", optimizer=None, memory="200MB")
    assert tight.plan(many, many[:, 0]).conditioning.storage is Storage.RECOMPUTED, "K would take 128 MB"
    fitted = model.fit(X, Y, plan=own)
    K = 1 / (1 + ((X[:, None] - X) ** 2).sum(2)) + fitted.noise_ * np.eye(len(X))
    one, y = np.ones(len(X)), (Y - Y.mean()) / Y.std()
    beta = (one @ np.linalg.solve(K, y)) / (one @ np.linalg.solve(K, one))
    exact = (K - fitted.noise_ * np.eye(len(X))) @ np.linalg.solve(K, y - beta) + beta
    np.testing.assert_allclose(fitted.predict(X), exact * Y.std() + Y.mean(), atol=1e-4)


def test_a_stored_kernel_is_evaluated_less_often():
    model = GPRegressor(Recorded(1.0, 1.0), method="iterative", optimizer=None)
    stored, computed = model.plan(X, Y), []
    recomputed = replace(stored, conditioning=replace(stored.conditioning, storage=Storage.RECOMPUTED))
    for plan in (stored, recomputed):
        ENTRIES.clear()
        model.fit(X, Y, plan=plan)
        computed.append(sum(ENTRIES))
    assert computed[0] < computed[1] - len(X) ** 2


def test_ranks_and_block_sizes_are_those_of_the_plan(tmp_path):
    model = GPRegressor(noise=0.01, method="iterative", optimizer=None)
    plan = model.plan(X, Y)
    assert plan.sizes == Sizes()
    assert "begin with rank 64 and use 0 or 30 or 60 neighbours" in plan.explain()
    few = replace(plan, pricing=replace(plan.pricing, sizes=Sizes(first_rank=7, neighbours=(0, 5), columns=3)))
    usual, other = GPRegressor(noise=0.01, method="iterative", optimizer=None).fit(X, Y), model.fit(X, Y, plan=few)
    assert usual.posterior_.columns_at_once() == 128
    assert other.posterior_.columns_at_once() == 3
    assert other.plan_.sizes == other.posterior_.problem.pricing.sizes == few.sizes
    np.testing.assert_allclose(other.predict(X), usual.predict(X), atol=1e-5)
    other.save(tmp_path / "model")
    loaded = kernelcg.load(tmp_path / "model")
    assert loaded.plan_ == other.plan_
    assert loaded.posterior_.problem.pricing.sizes == few.sizes
    with pytest.raises(ValueError, match="0 or more with 0 among them"):
        Sizes(neighbours=(30,))
    with pytest.raises(ValueError, match="parts of the memory must be above 0 and at most 1"):
        Sizes(for_columns=0.0)


def test_the_rank_behind_a_certificate_is_that_of_the_plan():
    model = GPRegressor(noise=0.1, method="iterative", preconditioner="rp_cholesky", optimizer=None)
    usual = model.fit(X, Y).posterior_.bound
    few = replace(model.plan_.pricing, sizes=Sizes(bound_rank=11, bound_work=0.0))
    changed = model.fit(X, Y, plan=replace(model.plan_, pricing=few)).posterior_.bound
    assert len(usual.pivots) > 100
    assert len(changed.pivots) == 11


@pytest.mark.parametrize("classes", [2, 3])
def test_ranks_of_newtons_systems_are_those_of_the_plan(classes):
    y = np.digitize(F[:200], [-0.5, 0.5][: classes - 1])
    model = GPClassifier(method="iterative", optimizer=None)
    plan = model.plan(X[:200], y)
    assert "preconditioners of Newton's systems have rank 256 or more" in plan.explain()
    work = 200 * 9 * 9**2  # n C² m² for rank m = 9
    few = Sizes(bound_rank=9, newton_work=0.0, class_work=work, covariance_work=work, newton_neighbours=4)
    model.fit(X[:200], y, plan=replace(plan, pricing=replace(plan.pricing, sizes=few)))
    assert len(model.posterior_.system.systems.pivots) == 9
    usual = GPClassifier(method="iterative", optimizer=None).fit(X[:200], y)
    np.testing.assert_allclose(model.predict_proba(X), usual.predict_proba(X), atol=1e-3)


# what learning finds out


def hard_problem(n=1200, d=12):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d))
    return X, np.sin(X @ rng.normal(size=d) / 3) + X[:, 0] * X[:, 1] / 3 + 1e-3 * rng.normal(size=n)


@pytest.fixture
def slow_factorisations(tmp_path, monkeypatch):
    """Choices as on a machine whose factorisations are ten times slower, also for gradients, before rows show noise."""
    monkeypatch.setattr("kernelcg.estimators.settings.previewed_noise", lambda *_: None)
    monkeypatch.setattr("kernelcg.planning.planner.PROBED_PART", 0.0)  # traces come from the inverse
    slow = replace(TYPICAL, multiply=TYPICAL.multiply / 10, factorise=TYPICAL.factorise / 10)
    (tmp_path / "profile.json").write_text(slow.to_json())
    monkeypatch.setenv("KERNELCG_PROFILE", str(tmp_path / "profile.json"))


def fitted_with_evaluations(model):
    evaluations = []

    def listen(event):
        if event.kind is EventKind.EVALUATION:
            evaluations.append((event.payload.rows, event.payload.method))

    return model.fit(*hard_problem(), callback=listen), Counter(evaluations)


def test_a_plan_is_revised_where_iterating_is_hopeless(slow_factorisations):
    model, evaluations = fitted_with_evaluations(GPRegressor(max_iter=8))
    plan = model.plan_
    assert plan.stages[-1].method is Method.ITERATIVE, "what was planned stays"
    assert plan.outcome.method is plan.method is Method.DIRECT
    assert "direct: " in plan.outcome.revisions[0], "also that of an early stage is told"
    assert all(revision in plan.explain() for revision in plan.outcome.revisions)
    assert evaluations[1200, "iterative"] <= 4 < evaluations[1200, "direct"]
    again = GPRegressor(max_iter=8).fit(*hard_problem(), plan=plan)
    np.testing.assert_array_equal(parameters_of(again), parameters_of(model))
    assert again.plan_.outcome.revisions == plan.outcome.revisions


def test_what_was_asked_for_is_not_revised(slow_factorisations):
    model, evaluations = fitted_with_evaluations(GPRegressor(method="iterative", max_iter=6))
    assert model.plan_.outcome.method is Method.ITERATIVE
    assert not any("1,200" in revision for revision in model.plan_.outcome.revisions)
    assert evaluations[1200, "iterative"] > 4
    assert evaluations[1200, "direct"] == 0


def test_a_plan_of_other_options_is_refused():
    X = np.random.default_rng(0).normal(size=(60, 2))
    y = np.sin(X[:, 0])
    plan = GPRegressor(max_iter=2).plan(X, y)
    for other in ({"probes": 4}, {"dtype": "float64"}, {"preconditioner": "nystrom"}):
        with pytest.raises(ValueError, match="made with other options"):
            GPRegressor(max_iter=2, **other).fit(X, y, plan=plan)


# seeds


@pytest.mark.parametrize("state", [lambda: None, lambda: np.random.RandomState(5)], ids=["none", "a RandomState"])
@pytest.mark.parametrize("name", MODELS)
def test_a_seed_that_was_not_given_is_drawn_once_and_kept_in_the_plan(name, state):
    make, (X, y) = MODELS[name][0], data_of(name)
    model = make(method="iterative", random_state=state()).fit(X, y)
    again = make(method="iterative", random_state=state()).fit(X, y, plan=model.plan_)
    assert again.plan_.seed == model.plan_.seed
    np.testing.assert_array_equal(parameters_of(again), parameters_of(model))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    machines = getattr(model, "estimators_", (model,))
    assert {machine.plan_.seed for machine in machines} == {model.plan_.seed}


def test_fits_without_a_seed_differ_and_each_agrees_with_itself(tmp_path):
    model, other = (GPRegressor(method="iterative", max_iter=2, random_state=None).fit(X, Y) for _ in range(2))
    assert model.plan_.seed != other.plan_.seed
    assert (parameters_of(model) != parameters_of(other)).any()
    np.testing.assert_array_equal(model.loo().std, model.loo().std)
    model.save(tmp_path / "model")
    loaded = kernelcg.load(tmp_path / "model")
    np.testing.assert_allclose(loaded.loo().std, model.loo().std, rtol=1e-9)
    assert model.update(X[:5] + 0.1, Y[:5]).plan_.seed == loaded.plan_.seed


@pytest.mark.parametrize("name", MODELS)
def test_learning_without_a_seed_is_resumed_to_the_same_bits(name):
    make, (X, y) = MODELS[name][0], data_of(name)
    states = []

    def listen(event):
        if event.kind is EventKind.STEP:
            states.append(event.payload.state)

    model = make(method="iterative", random_state=None).fit(X, y, callback=listen)
    again = make(method="iterative", random_state=None).fit(X, y, resume=states[0])
    assert again.plan_.seed == model.plan_.seed
    np.testing.assert_array_equal(parameters_of(again), parameters_of(model))
