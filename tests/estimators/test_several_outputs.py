"""Regressors of several outputs: noise of their own, holes in y, kernels shared or not, files, resumed learning."""

import pickle
import warnings
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

import kernelcg
from kernelcg import GPRegressor
from kernelcg.errors import ConvergenceWarning, ModelFileError, StateMismatch
from kernelcg.estimators.training_files import load_state, save_state
from kernelcg.events import EventKind
from kernelcg.inference.gaussian.model import Noise
from kernelcg.inference.gaussian.posterior import Posterior
from kernelcg.inference.outputs.posterior import OutputsPosterior
from kernelcg.kernels import RBF, Matern

METHODS = ("direct", "iterative")


def truth(X):
    return np.c_[np.sin(X[:, 0]), 10 * np.cos(X[:, 1]), np.sin(X[:, 0] + X[:, 1])]


def data(n=60, seed=0, noise=0.1):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3, 3, (n, 2))
    return X, truth(X) + noise * rng.standard_normal((n, 3))


def with_holes(Y, seed=0):
    holes = Y.copy()
    holes[np.random.default_rng(seed).uniform(size=Y.shape) < 0.2] = np.nan
    holes[5] = np.nan
    return holes


def fixed(noise=(0.01, 0.2, 0.05), **options):
    return GPRegressor(RBF([1.5, 2.0]), noise=list(noise), optimizer=None, **options)


def answers(model, X):
    mean, std, bounds = model.predict(X, return_std=True, return_bound=True)
    left = model.loo()
    return {
        "mean": mean,
        "std": std,
        "bound": bounds.std_upper,
        "covariance": model.predict(X, return_cov=True)[1],
        "latent": model.predict(X, return_std=True, include_noise=False)[1],
        "residuals": left.residuals,
        "left std": left.std,
        "densities": left.log_densities,
    }


# learning


def test_each_output_learns_its_noise_and_is_covered_as_promised():
    """Issued with one noise for all: std 0.075, 0.81, 0.11 and coverage 0.84, 1.0, 0.97."""
    (X, Y), (new, observed) = data(300), data(2000, seed=1)
    for options in ({}, {"kernel_per_output": True}):
        model = GPRegressor(RBF([1.0, 1.0]), **options).fit(X, Y)
        mean, std = model.predict(new, return_std=True)
        np.testing.assert_allclose(np.sqrt(model.noise_) * model.y_scale_, 0.1, rtol=0.2)
        np.testing.assert_allclose(np.sqrt(np.mean(std**2, axis=0)), 0.1, rtol=0.3)
        covered = (np.abs(observed - mean) <= 2 * std).mean(axis=0)
        assert ((covered >= 0.92) & (covered <= 0.98)).all(), covered


def test_kernels_of_their_own_are_those_of_single_fits():
    X, Y = data()
    model = GPRegressor(RBF(1.0), kernel_per_output=True).fit(X, Y)
    single = [GPRegressor(RBF(1.0)).fit(X, Y[:, j]) for j in range(3)]
    assert [repr(one) for one in model.kernel_] == [repr(one.kernel_) for one in single]
    np.testing.assert_allclose(model.noise_, [one.noise_ for one in single], rtol=1e-10)
    np.testing.assert_allclose(model.predict(X), np.c_[tuple(one.predict(X) for one in single)], rtol=1e-8, atol=1e-10)
    assert model.learning_.evaluations == sum(one.learning_.evaluations for one in single)
    assert "output 2: " in model.learning_.reason


def test_a_shared_kernel_has_a_higher_likelihood_than_its_start_and_a_lower_one_than_kernels_of_their_own():
    X, Y = data()
    start = GPRegressor(RBF(1.0), optimizer=None).fit(X, Y)
    shared, own = (GPRegressor(RBF(1.0), kernel_per_output=each).fit(X, Y) for each in (False, True))
    values = [model.log_marginal_likelihood_value_ for model in (start, shared, own)]
    assert values == sorted(values)
    assert shared.learning_.converged


def test_the_iterative_method_learns_what_the_direct_one_does():
    X, Y = data(250)
    direct, iterative = (GPRegressor(RBF(1.0), method=method).fit(X, Y) for method in METHODS)
    np.testing.assert_allclose(iterative.noise_, direct.noise_, rtol=0.25)
    there = direct.log_marginal_likelihood(iterative.posterior_.gp.log_parameters())
    assert there > direct.log_marginal_likelihood_value_ - 2.0, "eight probes may cost about 5 / 16 nats"


def test_constant_outputs_do_not_disturb_the_others():
    X, Y = data()
    Y[:, 1] = 7.0
    model = GPRegressor(RBF(1.0)).fit(X, Y)
    others = GPRegressor(RBF(1.0)).fit(X, Y[:, [0, 2]])
    np.testing.assert_allclose(model.noise_[[0, 2]], others.noise_, rtol=1e-6)
    np.testing.assert_allclose(model.predict(X)[:, 1], 7.0, rtol=1e-12)


# answers at given hyperparameters


@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_all_answers_are_those_of_single_fits(method, holes):
    X, Y = data()
    known = np.random.default_rng(3).uniform(0, 0.1, Y.shape)
    if holes:
        Y = with_holes(Y)
        with pytest.warns(UserWarning, match="are NaN and left out: .* of output 0, .* of output 1"):
            model = fixed(method=method, missing="drop", rtol=1e-10).fit(X, Y, noise_variance=known)
    else:
        model = fixed(method=method, rtol=1e-10).fit(X, Y, noise_variance=known)
    assert isinstance(model.posterior_, OutputsPosterior)
    found, total = answers(model, X[:9]), 0.0
    kept = ~np.isnan(Y).all(axis=1)
    for j in range(3):
        there = ~np.isnan(Y[:, j])
        single = GPRegressor(RBF([1.5, 2.0]), noise=model.noise_[j], optimizer=None, method=method, rtol=1e-10)
        single.fit(X[there], Y[there, j], noise_variance=known[there, j])
        total += single.log_marginal_likelihood_value_
        for name, expected in answers(single, X[:9]).items():
            mine = found[name][..., j]
            if name in ("residuals", "left std", "densities"):
                assert np.array_equal(np.isnan(mine), ~there[kept])
                mine = mine[there[kept]]
            loose = method == "iterative"
            np.testing.assert_allclose(mine, expected, rtol=2e-2 if loose else 1e-7, atol=1e-3 if loose else 1e-9)
        assert single.certificate_.relative_residuals.max() <= 1e-10
    assert model.log_marginal_likelihood_value_ == pytest.approx(total, rel=1e-9 if method == "direct" else 1e-2)
    assert model.sample_y(X[:4], 5).shape == (4, 3, 5)
    assert model.noise_.tolist() == [0.01, 0.2, 0.05]


def test_the_likelihood_has_a_gradient_in_all_hyperparameters():
    X, Y = data()
    model = fixed().fit(X, Y)
    theta = model.posterior_.gp.log_parameters().numpy()
    assert len(theta) == 3 + 3
    value, gradient = model.log_marginal_likelihood(theta + 0.1, eval_gradient=True)
    for i, step in enumerate(1e-5 * np.eye(len(theta))):
        ends = [model.log_marginal_likelihood(theta + 0.1 + sign * step) for sign in (1, -1)]
        assert gradient[i] == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-5, abs=1e-5)
    assert value != model.log_marginal_likelihood_value_ == model.log_marginal_likelihood()


def test_outputs_with_the_same_noise_share_a_system_unless_it_is_learned():
    X, Y = data()
    assert isinstance(GPRegressor(RBF(1.0), noise=0.1, optimizer=None).fit(X, Y).posterior_, Posterior)
    kept = GPRegressor(RBF(1.0), noise=Noise(0.1).fixed()).fit(X, Y)
    assert isinstance(kept.posterior_, Posterior)
    np.testing.assert_allclose(kept.noise_, [0.1, 0.1, 0.1], rtol=1e-14)
    together, apart = (
        GPRegressor(RBF(1.0), noise=noise, optimizer=None).fit(X, Y) for noise in (0.1, [0.1, 0.1, 0.1 + 1e-12])
    )
    assert isinstance(apart.posterior_, OutputsPosterior)
    for name, expected in answers(together, X[:5]).items():
        np.testing.assert_allclose(answers(apart, X[:5])[name], expected, rtol=1e-6, atol=1e-9, err_msg=name)


def test_one_output_is_as_it_was():
    X, Y = data()
    model = GPRegressor(RBF(1.0)).fit(X, Y[:, 0])
    assert isinstance(model.noise_, float)
    assert isinstance(model.posterior_, Posterior)
    assert model.plan_.systems == 1


def test_predictions_tell_of_their_progress_over_all_outputs():
    X, Y = data()
    seen = []
    fixed().fit(X, Y).predict(X, return_std=True, callback=lambda event: seen.append(event) and None)
    chunks = [event.payload for event in seen if event.kind is EventKind.CHUNK]
    assert [chunk.done for chunk in chunks] == [60, 120, 180]
    assert {chunk.total for chunk in chunks} == {180}


# missing observations


def test_holes_in_y_are_refused_counted_and_never_whole_outputs():
    X, Y = data()
    holes = with_holes(Y)
    with pytest.raises(ValueError, match="contains NaN"):
        fixed().fit(X, holes)
    count = int(np.isnan(holes).sum())
    with pytest.warns(UserWarning, match=f"missing='drop': {count} of 180 entries of y are NaN"):
        model = fixed(missing="drop").fit(X, holes)
    assert model.plan_.rows == 59, "a row without any y is left out"
    holes[:, 1] = np.nan
    with pytest.warns(UserWarning, match="60 of output 1"), pytest.raises(ValueError, match="every y of output 1"):
        fixed(missing="drop").fit(X, holes)
    with pytest.raises(ValueError, match="infinity"):
        fixed(missing="drop").fit(X, np.where(Y > 9, np.inf, Y))


@pytest.mark.parametrize("kernel_per_output", [False, True])
def test_learning_with_holes(kernel_per_output):
    (X, Y), new = data(200), data(500, seed=1)[0]
    holes = with_holes(Y)
    holes[:150, 2] = np.nan
    with pytest.warns(UserWarning, match="left out"):
        model = GPRegressor(RBF(1.0), missing="drop", kernel_per_output=kernel_per_output).fit(X, holes)
    error = np.sqrt(np.mean((model.predict(new) - truth(new)) ** 2, axis=0))
    assert (error < [0.1, 0.2, 0.4]).all()
    np.testing.assert_allclose(np.sqrt(model.noise_) * model.y_scale_, 0.1, rtol=0.5)


# updates


@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("noise", [(0.01, 0.2, 0.05), (0.1, 0.1, 0.1)])
def test_an_update_is_a_fit_to_all_data(noise, holes):
    X, Y = data()
    later = with_holes(Y)[40:] if holes else Y[40:]
    options = {"normalize_y": False, "missing": "drop"}
    whole = np.r_[Y[:40], later]
    model = fixed(noise, **options).fit(X[:40], Y[:40])
    if holes:
        with pytest.warns(UserWarning, match="left out"):
            fresh = fixed(noise, **options).fit(X, whole)
        with pytest.warns(UserWarning, match="left out"):
            model.update(X[40:], later)
    else:
        fresh = fixed(noise, **options).fit(X, whole)
        model.update(X[40:], later)
    for mine, theirs in zip(model.predict(X, return_std=True), fresh.predict(X, return_std=True), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-8, atol=1e-10)
    assert model.log_marginal_likelihood_value_ == pytest.approx(fresh.log_marginal_likelihood_value_, rel=1e-9)


def test_an_update_that_learns_gives_each_output_its_noise():
    X, Y = data()
    model = GPRegressor(RBF(1.0), noise=0.1, optimizer=None).fit(X[:30], Y[:30])
    assert isinstance(model.posterior_, Posterior)
    model.update(X[30:], Y[30:], learn=True)
    assert isinstance(model.posterior_, OutputsPosterior)
    assert len(set(model.noise_.tolist())) == 3


def test_known_noise_may_come_with_an_update():
    X, Y = data()
    model = fixed((0.1, 0.1, 0.1)).fit(X[:40], Y[:40]).update(X[40:], Y[40:], noise_variance=np.full((20, 3), 0.2))
    assert model.posterior_.problem.noise_variance.shape == (60, 3)
    assert not model.posterior_.problem.noise_variance[:40].any()


# options


def test_noise_is_one_or_one_for_each_output():
    X, Y = data()
    with pytest.raises(ValueError, match="one for each of the 3 outputs, not 2"):
        fixed((0.1, 0.2)).fit(X, Y)
    learned = GPRegressor(RBF(1.0), noise=[Noise(0.3).fixed(), 0.1, Noise(0.1).bounded(variance=(0.05, 1))])
    with pytest.warns(ConvergenceWarning, match=r"^noise\[2\].variance ended at its lower bound 0.05"):
        learned.fit(X, Y)
    assert learned.noise_[0] == pytest.approx(0.3, rel=1e-12)
    assert learned.noise_[2] >= 0.05 * (1 - 1e-12)


def test_the_plan_counts_the_systems():
    X, Y = data()
    model = GPRegressor(RBF(1.0))
    one, three = model.plan(X, Y[:, 0]), model.plan(X, Y)
    assert (one.systems, three.systems) == (1, 3)
    assert three.seconds > 2 * one.seconds
    assert "3 outputs" in str(three)
    with pytest.raises(ValueError, match="outputs with noise of their own"):
        model.fit(X, Y, plan=one)
    first, second = (model.fit(X, Y, plan=three).predict(X) for _ in range(2))
    assert first.tobytes() == second.tobytes()


# files


@pytest.mark.parametrize("kernel_per_output", [False, True])
def test_a_model_comes_back_from_a_file(kernel_per_output, tmp_path):
    X, Y = data()
    known = np.random.default_rng(3).uniform(0, 0.1, Y.shape)
    model = GPRegressor(Matern(1.0), missing="drop", kernel_per_output=kernel_per_output)
    with pytest.warns(UserWarning, match="left out"):
        model.fit(X, with_holes(Y), noise_variance=known)
    model.save(tmp_path / "model")
    other = kernelcg.load(tmp_path / "model")
    assert other.predict(X).tobytes() == model.predict(X).tobytes()
    for name, expected in answers(model, X[:5]).items():
        np.testing.assert_allclose(answers(other, X[:5])[name], expected, rtol=1e-9, err_msg=name)
    assert str(other.certificate_) == str(model.certificate_)
    assert repr(other.kernel_) == repr(model.kernel_)
    assert other.noise_.tolist() == model.noise_.tolist()
    assert other.log_marginal_likelihood_value_ == model.log_marginal_likelihood_value_
    assert torch.equal(other.posterior_.gp.log_parameters(), model.posterior_.gp.log_parameters())
    assert len(other.report_) == 3
    again = pickle.loads(pickle.dumps(model))
    assert again.predict(X).tobytes() == model.predict(X).tobytes()
    new, _ = data(10, seed=5)
    later = truth(new)
    np.testing.assert_allclose(other.update(new, later).predict(X), model.update(new, later).predict(X), rtol=1e-9)


def test_a_file_whose_rows_are_wrong_is_refused(tmp_path):
    from kernelcg.estimators import model_files

    X, Y = data()
    fixed().fit(X, Y).save(tmp_path / "model")
    stored = model_files.read(tmp_path / "model")
    for wrong in (torch.arange(60).flip(0), torch.arange(1, 61), torch.arange(60).double()):
        tensors = {**stored.tensors, "1.rows": wrong}
        model_files.write(tmp_path / "wrong", stored.kind, stored.header, tensors)
        with pytest.raises(ModelFileError):
            kernelcg.load(tmp_path / "wrong")


# resumed learning


@contextmanager
def few_steps():
    """Expect the count of missing entries, and no more of learning than so many steps."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        with pytest.warns(UserWarning, match="left out"):
            yield


@pytest.mark.parametrize(
    "options",
    [{}, {"method": "iterative"}, {"kernel_per_output": True}, {"optimizer": "adam", "max_iter": 4}],
    ids=["direct", "iterative", "kernel each", "adam"],
)
def test_resumed_learning_ends_at_the_same_bits(options, tmp_path: Path):
    X, Y = data(90)
    Y = with_holes(Y)
    model = GPRegressor(
        RBF(1.0), missing="drop", preconditioner="nystrom", max_iter=options.pop("max_iter", 6), **options
    )
    states = []

    def listen(event):
        if event.kind is EventKind.STEP:
            states.append(event.payload.state)

    with few_steps():
        plan = model.plan(X, Y)
    with few_steps():
        model.fit(X, Y, plan=plan, callback=listen)
    whole = model.predict(X)
    save_state(states[len(states) // 2], tmp_path / "state")
    resumed = GPRegressor(**model.get_params(deep=False))
    with few_steps():
        resumed.fit(X, Y, plan=plan, resume=load_state(tmp_path / "state"))
    assert resumed.predict(X).tobytes() == whole.tobytes()
    with pytest.raises(StateMismatch), pytest.warns(UserWarning, match="left out"):
        resumed.fit(X, Y + 1.0, resume=load_state(tmp_path / "state"))
