"""Model files of classifiers and generalized regressors: the same numbers, the same records, plain refusals."""

import json

import numpy as np
import pytest
from sklearn.gaussian_process import kernels as sk
from test_classifier import LABELS
from test_generalized import HyperbolicSecant, counts

from kernelcg import GPClassifier, GPGeneralizedRegressor, load
from kernelcg.errors import ModelFileError
from kernelcg.estimators import model_files
from kernelcg.kernels import Matern
from kernelcg.likelihoods import NegativeBinomial

pytestmark = pytest.mark.filterwarnings("ignore::kernelcg.errors.ConvergenceWarning")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.kcg"


def kept(estimator, path, **options):
    estimator.save(path)
    return load(path, **options)


def labelled(labels, n=45):
    source = np.random.default_rng(0)
    X = source.uniform(-2, 2, (n, 2))
    edges = np.quantile(X[:, 0], np.arange(1, len(labels)) / len(labels))
    return X, np.asarray(labels)[np.digitize(X[:, 0], edges)]


def same_records(one, two):
    assert str(one.certificate_) == str(two.certificate_)
    assert one.certificate_ == two.certificate_
    assert str(one.plan_) == str(two.plan_)
    assert repr(one.kernel_) == repr(two.kernel_)
    assert repr(one.likelihood_) == repr(two.likelihood_)
    assert one.n_iter_ == two.n_iter_
    assert one.log_marginal_likelihood_value_ == two.log_marginal_likelihood_value_
    assert repr(one.get_params()) == repr(two.get_params())


@pytest.mark.parametrize("method", ["direct", "iterative"])
@pytest.mark.parametrize("likelihood", ["auto", "probit", "logit", "softmax"])
@pytest.mark.parametrize("classes", [2, 3])
def test_a_classifier_comes_back(classes, likelihood, method, path):
    X, y = labelled(["cat", "dog", "eel"][:classes])
    model = GPClassifier(likelihood=likelihood, method=method, max_iter=2).fit(X, y)
    loaded = kept(model, path)
    same_records(model, loaded)
    assert loaded.calibration_ == model.calibration_
    np.testing.assert_array_equal(loaded.latent(X), model.latent(X))
    np.testing.assert_allclose(
        loaded.predict_proba(X), model.predict_proba(X), atol=1e-12 if method == "direct" else 4e-3
    )
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    reports = [one.report_ if isinstance(one.report_, tuple) else (one.report_,) for one in (model, loaded)]
    assert [str(report) for report in reports[0]] == [str(report) for report in reports[1]]


@pytest.mark.parametrize("name", LABELS)
def test_labels_come_back(name, path):
    if name == "floats":
        pytest.skip("not labels to scikit-learn")
    X, y = labelled(LABELS[name])
    loaded = kept(GPClassifier(optimizer=None).fit(X, y), path)
    assert loaded.classes_.dtype == np.asarray(LABELS[name]).dtype
    np.testing.assert_array_equal(loaded.classes_, LABELS[name])
    assert loaded.score(X, y) > 0.8


@pytest.mark.parametrize("mean", ["zero", "constant", "linear"])
@pytest.mark.parametrize("method", ["direct", "iterative"])
def test_a_generalized_regressor_comes_back(method, mean, path):
    X, y = counts()
    exposure = np.linspace(0.5, 2, len(y))
    likelihood = NegativeBinomial(0.3).bounded(dispersion=(0.01, 1.0))
    model = GPGeneralizedRegressor(likelihood=likelihood, mean=mean, method=method, max_iter=2).fit(X, y, exposure)
    loaded = kept(model, path)
    same_records(model, loaded)
    assert loaded.likelihood.restrictions() == likelihood.restrictions()
    np.testing.assert_array_equal(loaded.latent(X), model.latent(X))
    np.testing.assert_allclose(
        loaded.predict(X, return_std=True),
        model.predict(X, return_std=True),
        rtol=1e-10 if method == "direct" else 1e-2,
    )
    theta = model.posterior_.gp.log_parameters().numpy() + 0.1
    rtol = 1e-12 if method == "direct" else 1e-6
    assert loaded.log_marginal_likelihood(theta) == pytest.approx(model.log_marginal_likelihood(theta), rel=rtol)


def test_names_of_features_come_back(path):
    pandas = pytest.importorskip("pandas")
    X, y = counts()
    model = GPGeneralizedRegressor(likelihood="poisson", optimizer=None).fit(pandas.DataFrame(X, columns=["a"]), y)
    assert kept(model, path).feature_names_in_.tolist() == ["a"]


def test_likelihoods_of_the_caller_need_their_classes(path):
    X, y = counts()
    GPGeneralizedRegressor(likelihood=HyperbolicSecant(1.0), optimizer=None).fit(X, y).save(path)
    with pytest.raises(ModelFileError, match="HyperbolicSecant, which is not part of kernelcg; pass its class"):
        load(path)
    assert load(path, kernels=[HyperbolicSecant]).likelihood_.width.item() == 1.0


def test_a_kernel_of_scikit_learn_is_kept_as_one_of_the_library(path):
    X, y = labelled([0, 1])
    model = GPClassifier(2.0 * sk.RBF(0.5), optimizer=None).fit(X, y)
    loaded = kept(model, path)
    np.testing.assert_array_equal(loaded.latent(X), model.latent(X))
    np.testing.assert_array_equal(loaded.fit(X, y).latent(X), model.latent(X))


def test_files_have_the_size_of_the_data(path):
    X, y = labelled([0, 1], 500)
    GPClassifier(Matern(1.0), optimizer=None).fit(X, y).save(path)
    assert path.stat().st_size < 8 * 500 * 12 + 10_000


# damaged files

CHANGES = {
    "no machines": lambda header, tensors: header.update(machines=[]),
    "no mode": lambda header, tensors: tensors.pop("0.mode.f"),
    "a mode too short": lambda header, tensors: tensors.update({"0.mode.f": tensors["0.mode.f"][1:]}),
    "weights too short": lambda header, tensors: tensors.update({"0.mode.a": tensors["0.mode.a"][1:]}),
    "rows too few": lambda header, tensors: tensors.update({"X": tensors["X"][1:]}),
    "another kernel": lambda header, tensors: header["machines"][0].update(gp={"class": "kernelcg.RBF"}),
    "no labels": lambda header, tensors: header.update(labels=None),
    "labels of no kind": lambda header, tensors: header["labels"].update(dtype="nonsense"),
    "an unknown option": lambda header, tensors: header["parameters"].update(nonsense=1),
    "no such status": lambda header, tensors: header["machines"][0]["mode"].update(status="FINE"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_malformed_contents_are_refused(name, path):
    X, y = labelled(["a", "b"])
    GPClassifier(optimizer=None).fit(X, y).save(path)
    model = model_files.read(path)
    CHANGES[name](model.header, model.tensors)
    model_files.write(path, model.kind, model.header, model.tensors)
    with pytest.raises(ModelFileError):
        load(path)


def test_a_flipped_bit_is_noticed(path):
    X, y = labelled(["a", "b"])
    GPClassifier(optimizer=None).fit(X, y).save(path)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(ModelFileError, match="damaged"):
        load(path)


def test_the_header_is_plain_json(path):
    X, y = labelled(["a", "b", "c"])
    GPClassifier(optimizer=None).fit(X, y).save(path)
    header = model_files.read(path).header
    assert json.loads(json.dumps(header, allow_nan=False)) == header


def test_a_model_of_data_far_from_the_origin_is_read_again(path):
    """Kernels see such data from their centre; without it the mode cannot be computed again from its weights."""
    X = -5e7 + 7e-8 * np.random.default_rng(0).integers(0, 5, size=(6, 3))
    model = GPGeneralizedRegressor(Matern(1e-7), likelihood="poisson", optimizer=None).fit(X, np.arange(6.0))
    model.save(path)
    np.testing.assert_array_equal(load(path).predict(X), model.predict(X))


def test_a_mode_with_no_slope_at_all_is_loaded(tmp_path):
    """A drift that explains both observations: the gradient of log p is 0 but for rounding."""
    X, y = np.array([[0.0, 1.0], [2.0, 0.5]]), np.array([3.0, 8.0])
    for likelihood in ("gaussian", "student_t", "poisson"):
        model = GPGeneralizedRegressor(likelihood=likelihood, mean="linear", optimizer=None).fit(X, y)
        model.save(tmp_path / "model")
        np.testing.assert_array_equal(load(tmp_path / "model").latent(X), model.latent(X))
