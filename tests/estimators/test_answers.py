"""What fitted estimators answer beside means: quantiles, components, draws, updates, scores, weights, relevances."""

import numpy as np
import pytest
from scipy import stats
from scipy.special import log_ndtr, ndtr
from sklearn.feature_selection import SelectFromModel
from sklearn.metrics import log_loss
from sklearn.model_selection import cross_val_score

from kernelcg import GPClassifier, GPGeneralizedRegressor, GPRegressor, load
from kernelcg.kernels import RBF, Matern
from kernelcg.likelihoods import Poisson

rng = np.random.default_rng(0)
X, NEW = rng.uniform(-2, 2, (50, 2)), rng.uniform(-2, 2, (7, 2))
f = np.sin(2 * X[:, 0]) + 0.3 * X[:, 1]
y = 5 + 2 * f + 0.2 * rng.normal(size=50)
counts = rng.poisson(np.exp(f)).astype(float)
three = np.array(["low", "middle", "high"])[np.digitize(f, [-0.5, 0.5])]
two = np.where(f > 0.4, "yes", "no")


def rbf(lengthscale, variance, X, Y):
    return variance * np.exp(-0.5 * ((X[:, None] - Y) ** 2).sum(-1) / lengthscale**2)


# numbers with Gaussian noise


def test_quantiles_of_a_regressor():
    model = GPRegressor(optimizer=None).fit(X, y)
    mean, std = model.predict(NEW, return_std=True)
    found = model.predict(NEW, quantiles=[0.05, 0.5, 0.975])
    np.testing.assert_allclose(found, stats.norm.ppf([0.05, 0.5, 0.975], mean[:, None], std[:, None]), rtol=1e-12)
    np.testing.assert_allclose(model.predict(NEW, quantiles=0.5), mean)
    _, of_function = model.predict(NEW, return_std=True, include_noise=False)
    found = model.predict(NEW, quantiles=[0.9], include_noise=False)
    np.testing.assert_allclose(found[:, 0], mean + stats.norm.ppf(0.9) * of_function)
    several = GPRegressor(optimizer=None).fit(X, np.c_[y, -y]).predict(NEW, quantiles=[0.1, 0.9])
    assert several.shape == (7, 2, 2)
    np.testing.assert_allclose(several[:, 0, 0] + several[:, 1, 1], 0, atol=1e-8)
    for wrong in (0.0, [0.5, 1.0], [[0.5]], np.nan):
        with pytest.raises(ValueError, match="between 0 and 1"):
            model.predict(NEW, quantiles=wrong)
    with pytest.raises(ValueError, match="quantiles are returned alone"):
        model.predict(NEW, quantiles=0.5, return_std=True)


@pytest.mark.parametrize("mean", ["zero", "constant", "linear"])
@pytest.mark.parametrize("method", ["direct", "iterative"])
def test_components_of_a_regressor(mean, method):
    """A = K₁ + K₂ + σ²I, P = A⁻¹ − A⁻¹H S⁻¹HᵀA⁻¹: part j has mean k_jᵀPy and variance k_j(x, x) − k_jᵀPk_j."""
    model = GPRegressor(
        RBF(0.6, 1.0) + RBF(3.0, 2.0), noise=0.05, optimizer=None, mean=mean, method=method, normalize_y=True
    ).fit(X, y)
    A = rbf(0.6, 1.0, X, X) + rbf(3.0, 2.0, X, X) + 0.05 * np.eye(50)
    H, h = (np.c_[np.ones(len(Z)), Z] for Z in (X, NEW))
    width = {"zero": 0, "constant": 1, "linear": 3}[mean]
    H, h, inverse = H[:, :width], h[:, :width], np.linalg.inv(A)
    S = H.T @ inverse @ H
    P = inverse - inverse @ H @ np.linalg.solve(S, H.T @ inverse)
    scale, offset = model.y_scale_[0], model.y_mean_[0]
    standard = (y - offset) / scale
    components = model.components(NEW, return_std=True)
    for component, own in zip(components, [(0.6, 1.0), (3.0, 2.0)], strict=False):
        k = rbf(*own, X, NEW)
        np.testing.assert_allclose(component.mean, scale * (k.T @ P @ standard), atol=1e-4)
        variance = own[1] - np.einsum("it,ij,jt->t", k, P, k)
        np.testing.assert_allclose(component.std, scale * np.sqrt(variance), rtol=5e-3)
    level = components[-1]
    assert level.kernel is None
    beta = np.linalg.solve(S, H.T @ inverse @ standard)
    np.testing.assert_allclose(level.mean, offset + scale * (h @ beta), atol=1e-4)
    np.testing.assert_allclose(level.std, scale * np.sqrt((h @ np.linalg.inv(S) * h).sum(1)), atol=1e-4)
    np.testing.assert_allclose(sum(one.mean for one in components), model.predict(NEW), atol=1e-8)
    cheap = model.components(NEW)
    assert [one.std for one in cheap] == [None] * 3
    np.testing.assert_allclose(cheap[0].mean, components[0].mean)


def test_components_need_one_output():
    with pytest.raises(ValueError, match="one output"):
        GPRegressor(optimizer=None).fit(X, np.c_[y, y]).components(NEW)


def test_scores_of_a_regressor():
    model = GPRegressor(optimizer=None).fit(X, y)
    densities = model.log_predictive_density(X, y)
    assert model.score(X, y, scoring="log_predictive_density") == pytest.approx(densities.mean())
    weights = np.arange(50.0)
    weighted = model.score(X, y, weights, scoring="log_predictive_density")
    assert weighted == pytest.approx(np.average(densities, weights=weights))
    assert model.score(X, y) > 0.9
    with pytest.raises(ValueError, match="scoring must be 'r2' or 'log_predictive_density', not 'mse'"):
        model.score(X, y, scoring="mse")

    def proper(model, X, y):
        return model.score(X, y, scoring="log_predictive_density")

    assert np.isfinite(cross_val_score(GPRegressor(optimizer=None), X, y, scoring=proper, cv=3)).all()


def test_relevance_of_features():
    Z = np.c_[X, rng.uniform(size=50)]
    model = GPRegressor(RBF([0.8, 3.0, 1e4]), optimizer=None).fit(Z, y)
    found = model.feature_importances_
    assert found.shape == (3,)
    assert found[0] > 2 * found[1] > 0
    assert found[2] < 1e-6
    assert SelectFromModel(model, prefit=True, threshold=0.01).get_support().tolist() == [True, True, False]
    three_classes = GPClassifier(RBF([0.8, 3.0, 1e4]), likelihood="logit", optimizer=None).fit(Z, three)
    assert three_classes.feature_importances_[2] < 1e-6
    with pytest.raises(AttributeError):
        _ = GPRegressor().feature_importances_


def test_notebooks_show_the_verdict_and_the_kernel():
    model = GPRegressor(RBF(1.0), optimizer=None)
    assert "numerics" not in model._repr_html_()
    model.fit(X, y)
    for shown in (model._repr_html_(), model._repr_mimebundle_()["text/html"]):
        assert "certified" in shown
        assert "RBF(lengthscale=1" in shown
    assert model._repr_mimebundle_()["text/plain"] == str(model)
    split = GPClassifier(RBF(1.0), likelihood="logit", optimizer=None).fit(X, three)
    assert "numerics" in split._repr_html_()


# counts


def test_quantiles_of_counts():
    model = GPGeneralizedRegressor(RBF(1.0), likelihood="poisson", optimizer=None).fit(X, counts)
    mean, std = model.latent(NEW, return_std=True)
    found = model.predict(NEW, exposure=3.0, quantiles=[0.025, 0.975])
    z = np.linspace(-9, 9, 3001)
    weights = stats.norm.pdf(z) * (z[1] - z[0])
    for i in range(7):
        rate = 3 * np.exp(mean[i] + std[i] * z)
        for count, level in zip(found[i], (0.025, 0.975), strict=True):
            assert weights @ stats.poisson.cdf(count, rate) >= level - 1e-6
            assert weights @ stats.poisson.cdf(count - 1, rate) < level + 1e-6
    with pytest.raises(ValueError, match="alone"):
        model.predict(NEW, quantiles=0.5, return_std=True)


def test_draws_of_counts():
    model = GPGeneralizedRegressor(RBF(1.0), likelihood="poisson", optimizer=None).fit(X, counts)
    mean, std = model.predict(NEW, exposure=2.0, return_std=True)
    drawn = model.sample_y(NEW, 4000, exposure=2.0)
    assert drawn.shape == (7, 4000)
    assert (drawn == np.round(drawn)).all()
    assert (np.abs(drawn.mean(1) - mean) < 4.5 * std / np.sqrt(4000)).all()
    latent = model.sample_y(NEW, 4000, latent=True)
    centre, width = model.latent(NEW, return_std=True)
    assert (np.abs(latent.mean(1) - centre) < 4.5 * width / np.sqrt(4000)).all()
    np.testing.assert_array_equal(model.sample_y(NEW, 3, random_state=5), model.sample_y(NEW, 3, random_state=5))
    assert (model.sample_y(NEW, 3, random_state=5) != model.sample_y(NEW, 3, random_state=6)).any()
    with pytest.raises(ValueError, match="n_samples"):
        model.sample_y(NEW, 0)


@pytest.mark.parametrize("method", ["direct", "iterative"])
def test_an_updated_model_is_that_of_all_data(method):
    options = {"optimizer": None, "method": method}
    for make, target, extra in (
        (lambda: GPGeneralizedRegressor(RBF(1.0), likelihood=Poisson(), mean="linear", **options), counts, True),
        (lambda: GPClassifier(Matern(1.0, 4.0), **options), two, False),
        (lambda: GPClassifier(Matern(1.0, 4.0), **options), three, False),
        (lambda: GPClassifier(Matern(1.0, 4.0), likelihood="logit", class_weight="balanced", **options), three, False),
    ):
        amounts = [{"exposure": part} for part in (np.ones(30), np.full(20, 2.0))] if extra else [{}, {}]
        updated = make().fit(X[:30], target[:30], **amounts[0])
        updated.update(X[30:], target[30:], **amounts[1])
        whole = make().fit(X, target, **({"exposure": np.repeat([1.0, 2.0], [30, 20])} if extra else {}))
        np.testing.assert_allclose(updated.latent(NEW), whole.latent(NEW), atol=1e-4)
        assert updated.log_marginal_likelihood_value_ == pytest.approx(whole.log_marginal_likelihood_value_, abs=0.3)
        if not extra:
            np.testing.assert_allclose(updated.class_weight_, whole.class_weight_)


@pytest.mark.filterwarnings("ignore::kernelcg.errors.ConvergenceWarning")
def test_updates_may_learn_or_be_refused():
    model = GPClassifier(Matern(1.0, 4.0), max_iter=3, optimizer=None).fit(X[:30], two[:30])
    before = model.kernel_.log_parameters()
    model.update(X[30:], two[30:], learn=True)
    assert (model.kernel_.log_parameters() != before).any()
    latent = model.latent(NEW)
    with pytest.raises(ValueError, match="the label 'perhaps', which was not in the fit"):
        model.update(NEW[:2], ["yes", "perhaps"])
    np.testing.assert_array_equal(model.latent(NEW), latent)
    with pytest.raises(ValueError, match="count"):
        GPGeneralizedRegressor(RBF(1.0), likelihood="poisson", optimizer=None).fit(X, counts).update(NEW[:1], [0.5])


# classes


@pytest.mark.parametrize("likelihood", ["auto", "logit"])
def test_draws_of_labels(likelihood):
    for target in (two, three):
        model = GPClassifier(RBF(1.0, 2.0), likelihood=likelihood, optimizer=None).fit(X, target)
        drawn, P = model.sample_y(NEW, 4000), model.predict_proba(NEW)
        assert set(np.unique(drawn)) <= set(np.unique(target))
        shares = np.stack([(drawn == label).mean(1) for label in model.classes_], 1)
        # one against the rest, the mean of normalised probabilities is not the normalised mean
        slack = 0.05 if likelihood == "logit" and len(model.classes_) == 3 else 0.0
        assert (np.abs(shares - P) < slack + 4.5 * np.sqrt(P * (1 - P) / 4000) + 2e-3).all()
        shape = (7, 5) if len(model.classes_) == 2 else (7, 3, 5)
        assert model.sample_y(NEW, 5, latent=True).shape == shape


def test_joint_draws_of_labels_are_correlated():
    """At one point twice, the same latent value decides both labels."""
    model = GPClassifier(RBF(1.0, 100.0), optimizer=None, calibrated=False).fit(X, two)
    far = np.full((2, 2), 30.0)
    first, second = model.sample_y(far, 2000)
    assert (first == second).mean() > 0.8


def test_class_weights_multiply_probabilities():
    for target in (two, three):
        for likelihood in ("auto", "logit"):
            plain = GPClassifier(RBF(1.0, 2.0), likelihood=likelihood, optimizer=None).fit(X, target)
            weights = dict(zip(plain.classes_, [1.0, 3.0, 0.5], strict=False))
            model = GPClassifier(RBF(1.0, 2.0), likelihood=likelihood, optimizer=None, class_weight=weights)
            model.fit(X, target)
            expected = plain.predict_proba(NEW) * list(weights.values())
            expected /= expected.sum(1, keepdims=True)
            np.testing.assert_allclose(model.predict_proba(NEW), expected, rtol=1e-9)
            np.testing.assert_array_equal(model.predict(NEW), model.classes_[expected.argmax(1)])
            odds = model.decision_function(NEW)
            if len(weights) == 2:
                np.testing.assert_allclose(odds, np.log(expected[:, 1] / expected[:, 0]))
            else:
                np.testing.assert_allclose(odds, plain.latent(NEW) + np.log(list(weights.values())))


def test_balanced_weights_survive_a_file(tmp_path):
    model = GPClassifier(RBF(1.0, 2.0), optimizer=None, class_weight="balanced").fit(X, two)
    shares = np.array([(two == label).sum() for label in model.classes_])
    np.testing.assert_allclose(model.class_weight_, 50 / (2 * shares))
    given = GPClassifier(RBF(1.0), optimizer=None, class_weight={"yes": 4.0}).fit(X, two)
    for one in (model, given):
        one.save(tmp_path / "model.kcg")
        np.testing.assert_array_equal(load(tmp_path / "model.kcg").predict_proba(NEW), one.predict_proba(NEW))
    for wrong in ({"yes": 0.0}, {"yes": -1.0}, "even"):
        with pytest.raises(ValueError, match="class_weight"):
            GPClassifier(RBF(1.0), optimizer=None, class_weight=wrong).fit(X, two)


def test_scores_of_a_classifier():
    model = GPClassifier(RBF(1.0, 2.0), optimizer=None).fit(X, three)
    proper = model.score(X, three, scoring="log_predictive_density")
    assert proper == pytest.approx(-log_loss(three, model.predict_proba(X)))
    assert model.score(X, three) == (model.predict(X) == three).mean()
    pair = GPClassifier(RBF(1.0, 2.0), optimizer=None, calibrated=False).fit(X, two)
    mean, std = pair.latent(X, return_std=True)
    exact = log_ndtr(np.where(two == "yes", 1, -1) * mean / np.sqrt(1 + std**2))
    np.testing.assert_allclose(pair.log_predictive_density(X, two), exact, rtol=1e-6)
    np.testing.assert_allclose(pair.predict_proba(X)[:, 1], ndtr(mean / np.sqrt(1 + std**2)), rtol=1e-6)
    with pytest.raises(ValueError, match="the label 'other'"):
        pair.log_predictive_density(NEW[:1], ["other"])


def test_score_of_counts_needs_exposures():
    model = GPGeneralizedRegressor(RBF(1.0), likelihood="poisson", optimizer=None).fit(X, counts, exposure=2.0)
    with pytest.raises(ValueError, match="score needs those of X"):
        model.score(X, counts, scoring="log_predictive_density")
    densities = model.log_predictive_density(X, counts, 2.0)
    assert model.score(X, counts, 2.0, scoring="log_predictive_density") == pytest.approx(densities.mean())
