"""GPClassifier: scikit-learn's contract and numbers, labels of every kind, hostile data, plain words."""

import pickle
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.special import expit, ndtr
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process import kernels as sk
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from kernelcg import GPClassifier
from kernelcg.errors import ConvergenceWarning, MemoryBudgetExceeded
from kernelcg.estimators.class_answers import CLEAR
from kernelcg.inference.bounds import laplace_certificate
from kernelcg.kernels import RBF, Matern


def data(n=60, classes=2, seed=0, d=2):
    """Return inputs and class numbers that follow them with some noise."""
    source = np.random.default_rng(seed)
    X = source.uniform(-2, 2, (n, d))
    f = np.sin(2 * X[:, 0]) + 0.5 * X[:, -1] + 0.2 * source.standard_normal(n)
    return X, np.digitize(f, np.quantile(f, np.arange(1, classes) / classes))


def fixed(kernel=None, **options):
    """Return a classifier that keeps its hyperparameters, and Laplace's approximation as it is."""
    return GPClassifier(kernel or Matern([1.0, 1.5], 4.0), optimizer=None, calibrated=False, **options)


def told(work):
    """Return what a piece of work warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = work()
    return result, [str(one.message) for one in caught if one.category is ConvergenceWarning]


# scikit-learn's contract


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@pytest.mark.filterwarnings("ignore::kernelcg.errors.ConvergenceWarning")
@pytest.mark.parametrize("estimator", [GPClassifier(max_iter=3), GPClassifier(likelihood="logit", optimizer=None)])
def test_it_is_an_estimator(estimator):
    check_estimator(estimator)


def test_pipeline_grid_search_and_cross_validation():
    X, y = data(80)
    model = make_pipeline(StandardScaler(), fixed(RBF(1.0)))
    grid = {"gpclassifier__likelihood": ["probit", "logit"], "gpclassifier__kernel": [RBF(1.0, 4.0), RBF(1e-3)]}
    search = GridSearchCV(model, grid, n_jobs=2, cv=3).fit(X, y)
    assert search.best_params_["gpclassifier__kernel"].variance.item() == 4.0
    assert search.best_score_ > 0.8
    assert search.predict_proba(X).shape == (80, 2)
    assert cross_val_score(fixed(), X, y, cv=3, scoring="neg_log_loss").min() > -0.6


def test_a_class_may_be_missing_in_a_fold():
    X, y = data(40, 3)
    y[-1] = 9  # in one fold the rarest class is not seen
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # scikit-learn's own, of the class with one member
        assert np.isfinite(cross_val_score(fixed(), X, y, cv=2)).all()


def test_tables_with_names():
    X, y = data()
    table = pd.DataFrame(X, columns=["a", "b"])
    target = pd.Series(np.where(y, "yes", "no"), dtype="category")
    model = fixed().fit(table, target)
    assert model.feature_names_in_.tolist() == ["a", "b"]
    assert model.classes_.tolist() == ["no", "yes"]
    np.testing.assert_array_equal(model.predict_proba(table), fixed().fit(X, y).predict_proba(X))
    with pytest.raises(ValueError, match="feature names"):
        model.predict(table[["b", "a"]])


@pytest.mark.parametrize("likelihood", ["auto", "probit"])
def test_tables_of_several_classes(likelihood):
    X, y = data(40, 3)
    table = pd.DataFrame(X, columns=["a", "b"])
    model = fixed(likelihood=likelihood).fit(table, y)
    np.testing.assert_array_equal(model.predict(table), fixed(likelihood=likelihood).fit(X, y).predict(X))
    with pytest.raises(ValueError, match="feature names"):
        model.predict_proba(table[["b", "a"]])


def test_clones_are_unfitted_and_equal():
    model = GPClassifier(RBF([1.0, 2.0]).bounded(lengthscale=(0.1, 10)), likelihood="logit", random_state=3)
    copy = clone(model.fit(*data(20)))
    assert repr(copy.get_params()) == repr(model.get_params())
    with pytest.raises(NotFittedError):
        copy.predict(data()[0])


# labels

LABELS = {
    "zero and one": [0, 1],
    "minus and plus one": [-1, 1],
    "booleans": [False, True],
    "strings": ["no", "yes"],
    "objects": np.array(["no", "yes"], dtype=object),
    "floats": [0.5, 2.0],
    "gaps": [3, 70],
    "three": ["cat", "dog", "eel"],
    "three with gaps": [-5, 0, 12],
}


@pytest.mark.parametrize("name", LABELS)
def test_labels_of_every_kind(name):
    labels = np.asarray(LABELS[name])
    X, codes = data(45, len(labels))
    if labels.dtype.kind == "f":
        labels = np.array([1.0, 2.0])  # scikit-learn takes other fractions for a continuous target
    model, plain = fixed().fit(X, labels[codes]), fixed().fit(X, codes)
    np.testing.assert_array_equal(model.classes_, labels)
    assert model.classes_.dtype == labels.dtype
    np.testing.assert_array_equal(model.predict(X), labels[plain.predict(X)])
    np.testing.assert_array_equal(model.predict_proba(X), plain.predict_proba(X))
    assert model.score(X, labels[codes]) > 0.8


def test_one_class_is_refused():
    X, _ = data()
    with pytest.raises(ValueError, match="at least two classes; y holds only one class, yes"):
        GPClassifier().fit(X, ["yes"] * len(X))


@pytest.mark.parametrize(
    ("X", "y", "words"),
    [
        ([[1.0], [np.nan]], [0, 1], "NaN"),
        ([[1.0], [np.inf]], [0, 1], "infinity"),
        ([[1.0], [2.0]], [0, np.nan], "NaN"),
        ([[1.0], [2.0]], [0.3, 1.7], "continuous"),
        ([[1.0], [2.0]], [0, 1, 1], "inconsistent"),
        ([[1e200], [2.0]], [0, 1], "scale the features"),
    ],
)
def test_data_that_make_no_sense_are_refused(X, y, words):
    with pytest.raises(ValueError, match=words):
        GPClassifier().fit(X, y)


# scikit-learn's numbers


@pytest.mark.parametrize("method", ["direct", "iterative"])
def test_the_same_as_scikit_learn(method):
    X, y = data(80)
    theirs = GaussianProcessClassifier(4.0 * sk.RBF(0.8), optimizer=None).fit(X, y)
    theirs_ = theirs.base_estimator_
    ours = fixed(4.0 * sk.RBF(0.8), likelihood="logit", method=method, rtol=1e-10, probes=64)
    ours.fit(X, y)
    exact = theirs.log_marginal_likelihood_value_
    tolerance = 1e-6 * abs(exact) + 4 * ours.certificate_.standard_error
    assert abs(ours.log_marginal_likelihood_value_ - exact) < tolerance
    new = data(30, seed=1)[0]
    their_mean = theirs_.kernel_(theirs_.X_train_, new).T @ (theirs_.y_train_ - theirs_.pi_)
    np.testing.assert_allclose(ours.latent(new), their_mean, rtol=1e-6, atol=1e-6)
    their_mode = theirs_.kernel_(theirs_.X_train_) @ (theirs_.y_train_ - theirs_.pi_)
    np.testing.assert_allclose(ours.posterior_.mode.f[:, 0].numpy(), their_mode, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(ours.predict(new), theirs.predict(new))
    np.testing.assert_allclose(ours.predict_proba(new), theirs.predict_proba(new), atol=1e-2)


def test_the_gradient_of_the_likelihood_is_that_of_scikit_learn():
    X, y = data(40)
    theirs = GaussianProcessClassifier(2.0 * sk.RBF(1.0), optimizer=None).fit(X, y)
    ours = GPClassifier(2.0 * sk.RBF(1.0), likelihood="logit", optimizer=None).fit(X, y)
    theta = np.log([3.0, 0.7])
    value, gradient = theirs.log_marginal_likelihood(theta, eval_gradient=True)
    names = ours.posterior_.gp.parameter_names()
    order = [0 if "variance" in name else 1 for name in names]
    found, slope = ours.log_marginal_likelihood(theta[order], eval_gradient=True)
    assert found == pytest.approx(value, rel=1e-6)
    np.testing.assert_allclose(slope, gradient[order], rtol=1e-4, atol=1e-5)
    assert ours.log_marginal_likelihood(theta[order]) == found
    assert ours.log_marginal_likelihood() == ours.log_marginal_likelihood_value_
    with pytest.raises(ValueError, match="theta must hold the logarithms of kernel"):
        ours.log_marginal_likelihood([0.0])


def test_learning_ends_where_scikit_learn_ends():
    X, y = data(60)
    theirs = GaussianProcessClassifier(sk.ConstantKernel(10.0, (1e-2, 1e4)) * sk.RBF(1.0)).fit(X, y)
    ours = GPClassifier(sk.ConstantKernel(10.0, (1e-2, 1e4)) * sk.RBF(1.0), likelihood="logit").fit(X, y)
    assert ours.log_marginal_likelihood_value_ > theirs.log_marginal_likelihood_value_ - 0.01


# probabilities


@pytest.mark.parametrize("likelihood", ["probit", "logit"])
def test_probabilities_average_over_the_latent_value(likelihood):
    X, y = data(40)
    model = fixed(likelihood=likelihood).fit(X, y)
    new = data(9, seed=1)[0]
    mean, std = model.latent(new, return_std=True)
    z = np.linspace(-8, 8, 4001)
    weights = np.exp(-(z**2) / 2) / np.exp(-(z**2) / 2).sum()
    link = ndtr if likelihood == "probit" else expit
    exact = (link(mean[:, None] + std[:, None] * z) * weights).sum(axis=1)
    np.testing.assert_allclose(model.predict_proba(new)[:, 1], exact, atol=1e-6)
    odds = np.log(exact / (1 - exact))
    np.testing.assert_allclose(model.decision_function(new), odds, atol=1e-4)


def test_softmax_probabilities_average_over_the_latent_values():
    X, y = data(45, 3)
    model = fixed().fit(X, y)
    new = data(7, seed=1)[0]
    found = model.posterior_.predict(torch.from_numpy(new), covariance=True)
    source = np.random.default_rng(0)
    draws = np.stack(
        [
            source.multivariate_normal(m, C, size=200_000)
            for m, C in zip(found.mean.numpy(), found.covariance.numpy(), strict=True)
        ]
    )
    exact = np.exp(draws - draws.max(-1, keepdims=True))
    exact = (exact / exact.sum(-1, keepdims=True)).mean(1)
    np.testing.assert_allclose(model.predict_proba(new), exact, atol=6e-3)
    mean, std = model.latent(new, return_std=True)
    np.testing.assert_array_equal(mean, model.decision_function(new))
    np.testing.assert_allclose(std**2, found.covariance.diagonal(dim1=1, dim2=2).numpy(), rtol=1e-9)


@pytest.mark.parametrize("method", ["direct", "iterative"])
@pytest.mark.parametrize("likelihood", ["auto", "logit", "softmax"])
@pytest.mark.parametrize("classes", [2, 4])
def test_shapes_sums_and_agreement(classes, likelihood, method):
    X, y = data(60, classes)
    model = fixed(likelihood=likelihood, method=method).fit(X, y)
    new = data(50, seed=3)[0]
    P = model.predict_proba(new)
    assert P.shape == (50, classes)
    assert (P >= 0).all()
    np.testing.assert_allclose(P.sum(axis=1), 1, rtol=1e-12)
    np.testing.assert_array_equal(model.predict(new), model.classes_[P.argmax(axis=1)])
    assert model.decision_function(new).shape == ((50,) if classes == 2 else (50, classes))
    assert model.plan_.method == method
    np.testing.assert_array_equal(P, model.predict_proba(new))
    np.testing.assert_allclose(model.predict_proba(new[:5]), P[:5], atol=1e-12 if method == "direct" else 4e-3)


def test_both_methods_give_the_same():
    for classes in (2, 3):
        X, y = data(60, classes)
        direct, iterative = (fixed(method=method).fit(X, y) for method in ("direct", "iterative"))
        np.testing.assert_allclose(direct.predict_proba(X), iterative.predict_proba(X), atol=2e-3)
        np.testing.assert_allclose(direct.latent(X), iterative.latent(X), atol=1e-4)


def test_two_classes_by_the_softmax_are_the_logit_of_twice_the_kernel():
    X, y = data()
    soft = fixed(RBF(1.0, 2.0), likelihood="softmax").fit(X, y)
    logit = fixed(RBF(1.0, 4.0), likelihood="logit").fit(X, y)
    assert soft.log_marginal_likelihood_value_ == pytest.approx(logit.log_marginal_likelihood_value_, rel=1e-8)
    np.testing.assert_allclose(soft.predict_proba(X), logit.predict_proba(X), atol=3e-3)


def test_one_against_the_rest_is_what_scikit_learn_makes_of_the_binary_one():
    X, y = data(45, 3)
    ours, theirs = fixed(likelihood="probit").fit(X, y), OneVsRestClassifier(fixed(likelihood="probit")).fit(X, y)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), rtol=1e-9)
    assert len(ours.estimators_) == len(ours.kernel_) == len(ours.certificate_) == 3
    values = [one.log_marginal_likelihood_value_ for one in theirs.estimators_]
    assert ours.log_marginal_likelihood_value_ == pytest.approx(np.mean(values))
    assert ours.log_marginal_likelihood(eval_gradient=True)[1].shape == (3,)
    ours.set_params(likelihood="auto").fit(X, y)
    assert not hasattr(ours, "estimators_")


def test_predict_needs_covariances_only_where_means_are_close(monkeypatch):
    X, y = data(60, 3)
    model = fixed().fit(X, y)
    best = np.sort(model.latent(X), axis=1)
    close = best[:, -1] - best[:, -2] < CLEAR
    assert 0 < close.sum() < len(X) / 2
    asked = []
    inner = GPClassifier._with_covariance

    def watched(self, points, callback, **options):
        asked.append(len(points))
        return inner(self, points, callback, **options)

    monkeypatch.setattr(GPClassifier, "_with_covariance", watched)
    model.predict(X)
    assert asked == [close.sum()]


# learning


@pytest.mark.parametrize("classes", [2, 3])
def test_learning_gains(classes):
    X, y = data(90, classes)
    start, model = fixed(Matern([1.0, 1.0], 10.0)).fit(X, y), GPClassifier(Matern([1.0, 1.0], 10.0)).fit(X, y)
    assert model.log_marginal_likelihood_value_ > start.log_marginal_likelihood_value_ + 1
    assert model.score(*data(200, classes, seed=5)) > 0.7
    assert model.n_iter_ == len(model.learning_.steps)
    assert model.certificate_.met
    assert "certified, within Laplace" in str(model.certificate_)


def test_an_irrelevant_feature_is_found_out():
    X, y = data(150)
    X = np.c_[X, np.random.default_rng(9).standard_normal(150)]
    lengthscales = GPClassifier().fit(X, y).kernel_.lengthscale
    assert lengthscales[2] > 3 * lengthscales[0]


def test_two_fits_give_the_same_numbers():
    X, y = data(60, 3)
    one, two = (GPClassifier(method="iterative", max_iter=4) for _ in range(2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        np.testing.assert_array_equal(one.fit(X, y).predict_proba(X), two.fit(X, y).predict_proba(X))


def test_a_white_kernel_is_refused():
    with pytest.raises(ValueError, match="WhiteKernel"):
        GPClassifier(sk.RBF() + sk.WhiteKernel()).fit(*data())


@pytest.mark.parametrize("likelihood", ["poisson", None, 3])
def test_other_likelihoods_are_refused(likelihood):
    with pytest.raises(ValueError, match="likelihood must be 'auto' or one of probit, logit, softmax"):
        GPClassifier(likelihood=likelihood).fit(*data())


# hostile data


@pytest.mark.parametrize("unit", [1e-6, 1e6])
def test_units_of_the_inputs_do_not_matter(unit):
    X, y = data()
    np.testing.assert_allclose(
        GPClassifier().fit(unit * X, y).predict_proba(unit * X), GPClassifier().fit(X, y).predict_proba(X), atol=1e-3
    )


AWKWARD = {
    "two points": (np.array([[0.0], [1.0]]), np.array([0, 1])),
    "separable": (np.linspace(-1, 1, 30)[:, None], (np.arange(30) >= 15).astype(int)),
    "a constant column": (np.c_[data(30)[0], np.full(30, 7.0)], data(30)[1]),
    "nothing but constants": (np.ones((10, 2)), np.arange(10) % 2),
    "duplicates that disagree": (np.repeat(np.arange(6.0), 4)[:, None], np.tile([0, 1, 1, 1], 6)),
    "imbalanced": (data(80)[0], (np.arange(80) == 11).astype(int)),
    "more classes than rows for each": (data(12)[0], np.repeat(np.arange(6), 2)),
    "far from the origin": (data(30)[0] + 1e6, data(30)[1]),
}


@pytest.mark.filterwarnings("ignore::kernelcg.errors.ConvergenceWarning")
@pytest.mark.parametrize("name", AWKWARD)
def test_awkward_data_give_sensible_numbers(name):
    X, y = AWKWARD[name]
    model = GPClassifier().fit(X, y)
    P = model.predict_proba(X)
    assert np.isfinite(P).all()
    np.testing.assert_allclose(P.sum(axis=1), 1)
    assert model.score(X, y) >= np.bincount(y).max() / len(y) - 1e-9
    assert np.isfinite(model.log_marginal_likelihood_value_)
    assert model.certificate_.met


def test_duplicates_that_disagree_give_their_share():
    X, y = np.repeat(np.arange(6.0), 40)[:, None], np.tile([0, 1, 1, 1], 60)
    np.testing.assert_allclose(GPClassifier().fit(X, y).predict_proba(X)[:, 1], 0.75, atol=0.03)


def test_too_little_memory_is_noticed_before_the_work():
    X, y = data()
    model = fixed().fit(X, y)
    before = model.predict_proba(X)
    with pytest.raises(MemoryBudgetExceeded):
        model.set_params(memory="1KB").fit(X[:, :1], y)
    np.testing.assert_array_equal(model.set_params(memory=None).predict_proba(X), before)


# what users are told


def test_one_warning_says_that_learning_ended_early():
    model, messages = told(lambda: GPClassifier(max_iter=1).fit(*data()))
    assert len(messages) == 1
    assert "learning ended early" in messages[0]
    assert not model.learning_.converged


@pytest.mark.parametrize("likelihood", ["probit", "softmax"])
@pytest.mark.parametrize("method", ["direct", "iterative"])
def test_one_warning_says_that_the_mode_was_not_reached(method, likelihood, monkeypatch):
    monkeypatch.setattr(laplace_certificate, "AS_GOOD", 0.0)
    X, y = data(40)
    model, messages = told(lambda: fixed(method=method, rtol=1e-30, likelihood=likelihood).fit(X, y))
    assert len(messages) == 1
    assert "NOT exact: Newton's method for the mode" in messages[0]
    assert not model.certificate_.met
    assert str(model.certificate_).startswith("NOT exact: Newton's method")
    assert model.certificate_.residual < 1e-10, "as good as it gets"
    np.testing.assert_allclose(
        model.log_marginal_likelihood_value_,
        fixed(likelihood=likelihood).fit(X, y).log_marginal_likelihood_value_,
        rtol=0.1 if method == "iterative" else 1e-8,
    )


def test_a_good_fit_warns_of_nothing_and_says_what_it_did():
    model, messages = told(lambda: fixed(method="iterative").fit(*data()))
    assert messages == []
    words = str(model.certificate_)
    assert "Newton steps" in words
    assert "strong concavity" in words
    assert "log marginal likelihood" in words
    assert "converged" in str(model.report_)
    assert fixed(method="direct").fit(*data()).report_ is None


def test_the_latent_mean_is_within_its_bound_of_the_exact_one():
    X, y = data()
    rough, exact = fixed(rtol=1e-2).fit(X, y), fixed(rtol=1e-12).fit(X, y)
    new = data(40, seed=2)[0]
    error = np.abs(rough.latent(new) - exact.latent(new))
    bound = rough.posterior_.mean_bound(torch.from_numpy(new)).numpy()
    assert (error <= bound + 1e-12).all()
    assert error.max() <= rough.certificate_.mean_error


def test_verbose_shows_the_plan_and_the_steps(capsys):
    GPClassifier(verbose=1).fit(*data(30))
    shown = capsys.readouterr().err
    assert "plan: 30 rows" in shown
    assert "step 1" in shown
    assert "Newton steps" in shown


# stored


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("method", ["direct", "iterative"])
def test_pickles_are_small_and_complete(method, classes):
    X, y = data(300, classes)
    model = fixed(method=method).fit(X, y)
    text = pickle.dumps(model)
    assert len(text) < 8 * 300 * 20 * classes + 40_000
    copy = pickle.loads(text)
    np.testing.assert_array_equal(copy.latent(X), model.latent(X))
    assert copy.posterior_.is_lean, "a mean needs no factor"
    assert not model.posterior_.is_lean, "pickling leaves the model as it was"
    np.testing.assert_allclose(copy.predict_proba(X[:20]), model.predict_proba(X[:20]), atol=2e-3)
    assert str(copy.certificate_) == str(model.certificate_)


@pytest.mark.parametrize("likelihood", ["probit", "logit", "softmax"])
def test_probabilities_that_are_not_known_warn(likelihood):
    X, y = data(40)
    model = fixed(likelihood=likelihood).fit(X, y)
    _, messages = told(lambda: model.predict_proba(X))
    assert messages == []
    posterior = model.posterior_
    model.posterior_ = replace(posterior, error=replace(posterior.error, deviations=0.5, energy=0.5))
    _, messages = told(lambda: model.predict_proba(X))
    assert len(messages) == 1
    assert "(as a probability)" in messages[0]


def test_the_certificate_says_how_well_probabilities_are_known():
    model = fixed().fit(*data(40))
    assert str(model.certificate_).startswith("certified, within Laplace's approximation: probabilities to ")
    assert 0 < model.certificate_.probability_error < 1e-4


# calibration


def nearly_separable(n=160, classes=2, seed=0):
    """Return data of which Laplace's probabilities are too cautious."""
    source = np.random.default_rng(seed)
    X = source.uniform(-2, 2, (n, 2))
    return X, np.digitize(X[:, 0] + 0.5 * X[:, 1] ** 2, np.linspace(-1, 2, classes + 1)[1:-1])


@pytest.mark.parametrize(("classes", "likelihood"), [(2, "probit"), (2, "logit"), (3, "softmax"), (3, "probit")])
def test_calibrated_probabilities_are_better_and_decide_the_same(classes, likelihood):
    X, y = nearly_separable(classes=classes)
    new, truth = nearly_separable(300, classes, seed=1)
    kernel = RBF([1.0, 1.0], 50.0)
    plain = fixed(kernel, likelihood=likelihood).fit(X, y)
    model = GPClassifier(kernel, optimizer=None, likelihood=likelihood).fit(X, y)
    losses = [-np.log(each.predict_proba(new)[np.arange(300), truth]).mean() for each in (plain, model)]
    assert losses[1] < 0.8 * losses[0]
    assert np.mean(model.predict(new) != plain.predict(new)) < 0.01
    np.testing.assert_array_equal(model.latent(new), plain.latent(new))
    factors = model.calibration_ if isinstance(model.calibration_, tuple) else (model.calibration_,)
    certificates = model.certificate_ if isinstance(model.certificate_, tuple) else (model.certificate_,)
    for each, certificate in zip(factors, certificates, strict=True):
        assert each.changes
        assert each.rows == len(X)
        assert str(each) in str(certificate)
        assert certificate.probability_error < 1e-2


@pytest.mark.parametrize("likelihood", ["probit", "logit", "softmax"])
@pytest.mark.parametrize("covariance", [0.0, 0.25])
def test_probabilities_average_with_the_factors(likelihood, covariance):
    X, y = data(40)
    model = fixed(likelihood=likelihood).fit(X, y)
    new = data(9, seed=1)[0]
    factors = replace(model.calibration_, mean=2.0, covariance=covariance)
    model.calibration_ = factors
    found = model.posterior_.predict(torch.from_numpy(new), covariance=True)
    z = np.random.default_rng(0).standard_normal((400_000, 2))
    for i, p in enumerate(model.predict_proba(new)[:, 1]):
        mean, spread = 2 * found.mean[i].numpy(), covariance * found.covariance[i].numpy()
        values, V = np.linalg.eigh(spread)
        f = mean + (z[:, : len(mean)] * np.sqrt(np.maximum(values, 0))) @ V.T
        link = {"probit": lambda f: ndtr(f[:, 0]), "logit": lambda f: expit(f[:, 0])}
        exact = link.get(likelihood, lambda f: expit(f[:, 1] - f[:, 0]))(f).mean()
        assert p == pytest.approx(exact, abs=5e-3)


def test_without_covariances_none_are_computed(monkeypatch):
    X, y = nearly_separable(classes=3)
    model = fixed(RBF([1.0, 1.0], 50.0)).fit(X, y)
    model.calibration_ = replace(model.calibration_, covariance=0.0)
    monkeypatch.setattr(GPClassifier, "_with_covariance", lambda *_, **__: pytest.fail("covariances were computed"))
    assert model.predict_proba(X).shape == (160, 3)
    assert model.score(X, y) > 0.95


def test_calibrated_is_a_yes_or_no():
    with pytest.raises(TypeError, match="calibrated must be True or False, not 'sigmoid'"):
        GPClassifier(calibrated="sigmoid").fit(*data())
