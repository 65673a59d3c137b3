"""Saved estimators: they come back as they were, at the size of the data, and nothing else is taken for one."""

import json
import pickle
import re
import subprocess
import sys
from dataclasses import fields

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process import kernels as sk
from torch import Tensor

import kernelcg
from kernelcg import GPRegressor, KernelRidge, load
from kernelcg.errors import ModelFileError
from kernelcg.estimators import model_files
from kernelcg.inference.gaussian.model import Noise
from kernelcg.kernels import RBF, Constant, Kernel, Linear, Matern, Periodic, Product, Sum, squared_distances
from kernelcg.preconditioners import recipe


class Cauchy(Kernel):
    width: Tensor
    power: int = 1

    def covariance(self, X: Tensor, Y: Tensor) -> Tensor:
        return (1 + squared_distances(X / self.width, Y / self.width)) ** -self.power


def data(n=40, d=3, outputs=0, seed=0):
    source = np.random.default_rng(seed)
    X = source.standard_normal((n, d))
    y = np.sin(2 * X[:, 0]) + 0.1 * source.standard_normal(n)
    return X, np.c_[y, 100 - 20 * y][:, :outputs] if outputs else y


def kept(estimator, path, **options):
    """Return the estimator after a visit to the disk."""
    estimator.save(path)
    return load(path, **options)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.kcg"


# round trips

COMPOSITE = Sum(Product(RBF([1.0, 2.0, 3.0]), Periodic(1.0, 2.0)), Linear(0.3).fixed("variance"))

MODELS = {
    "default": GPRegressor(),
    "iterative": GPRegressor(method="iterative"),
    "composite": GPRegressor(COMPOSITE + Constant(2.0).bounded(variance=(0.1, 10)), noise=0.2, optimizer=None),
    "restricted": GPRegressor(Matern(1.0, nu=2.5).with_prior(lengthscale=(1.0, 0.5)), noise=Noise(0.1).fixed()),
    "linear drift": GPRegressor(mean="linear"),
    "as given": GPRegressor(RBF(0.1 + 0.2), noise=1 / 3, mean="zero", normalize_y=False, optimizer=None),
    "of scikit-learn": GPRegressor(sk.RBF([1.0, 2.0, 3.0]) * 2.0 + sk.WhiteKernel(0.1)),
    "ridge": KernelRidge(0.1, kernel="rbf", gamma=0.7),
    "selected ridge": KernelRidge(kernel=sk.Matern(1.5) + sk.WhiteKernel(0.1), selection="loo"),
}


def reports(model):
    """Return the report of each system."""
    return model.report_ if isinstance(model.report_, tuple) else (model.report_,)


@pytest.mark.parametrize("outputs", [0, 1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_comes_back_with_the_same_mean_and_the_same_records(name, outputs, path):
    X, y = data(outputs=outputs)
    model = clone(MODELS[name]).fit(X, y)
    other = kept(model, path)
    assert type(other) is type(model)
    assert vars(other).keys() == vars(model).keys()
    new = data(seed=1)[0]
    assert other.predict(new).tobytes() == model.predict(new).tobytes()
    assert other.predict(new).shape == model.predict(new).shape
    assert other.posterior_.is_lean, "a mean needs no factor"
    assert other.score(X, y) == model.score(X, y)
    assert other.plan_ == model.plan_
    assert other.learning_.steps == model.learning_.steps or name == "iterative"
    assert str(other.certificate_) == str(model.certificate_)
    for mine, theirs in zip(reports(other), reports(model), strict=True):
        assert str(mine) == str(theirs)
    assert repr(other.kernel_) == repr(model.kernel_)
    assert other.posterior_.gp.restrictions() == model.posterior_.gp.restrictions()


@pytest.mark.parametrize("name", [name for name, model in MODELS.items() if isinstance(model, GPRegressor)])
def test_everything_else_works_after_loading(name, path):
    X, y = data()
    new = data(5, seed=1)[0]
    model = clone(MODELS[name]).fit(X, y)
    other = kept(model, path)
    tight = {"rtol": 1e-2} if model.method == "iterative" else {"rtol": 1e-12}
    np.testing.assert_allclose(other.predict(new, return_std=True)[1], model.predict(new, return_std=True)[1], **tight)
    np.testing.assert_allclose(other.predict(new, return_cov=True)[1], model.predict(new, return_cov=True)[1], **tight)
    assert other.predict(new, return_std=True, return_bound=True)[2].mean.shape == (5,)
    assert other.sample_y(new, 3).shape == (5, 3)
    np.testing.assert_allclose(other.loo().residuals, model.loo().residuals, **tight)
    assert other.log_marginal_likelihood() == model.log_marginal_likelihood()
    value, gradient = other.log_marginal_likelihood(eval_gradient=True)
    np.testing.assert_allclose(value, model.log_marginal_likelihood(eval_gradient=True)[0], rtol=1e-6)
    assert gradient.shape == model.posterior_.gp.log_parameters().shape
    copy = pickle.loads(pickle.dumps(other))
    np.testing.assert_array_equal(copy.predict(new), model.predict(new))
    np.testing.assert_array_equal(kept(other, path).predict(new), model.predict(new))
    more_X, more_y = data(6, seed=2)
    other.update(more_X, more_y)
    model.update(more_X, more_y)
    np.testing.assert_allclose(other.predict(new), model.predict(new), rtol=1e-5, atol=1e-7)
    assert other.fit(X, y).predict(new).shape == (5,)


def test_learning_again_from_a_loaded_model_starts_where_the_original_would(path):
    X, y = data()
    for name in ("of scikit-learn", "restricted", "selected ridge"):
        model = clone(MODELS[name]).fit(X, y)
        again = kept(model, path).fit(X, y)
        np.testing.assert_allclose(again.predict(X), model.predict(X), rtol=1e-10)


def test_kernels_of_the_caller_need_their_classes(path):
    X, y = data()
    model = GPRegressor(Sum(Cauchy(1.0, power=2), Matern(1.0)) + Cauchy(3.0).fixed("width"), optimizer=None)
    model.fit(X, y)
    model.save(path)
    with pytest.raises(ModelFileError, match=re.escape("load(path, kernels=[Cauchy])")):
        load(path)
    with pytest.raises(TypeError, match="classes of kernels"):
        load(path, kernels=[Cauchy(1.0)])
    other = load(path, kernels=[Cauchy])
    assert repr(load(path, kernels=Cauchy).kernel_) == repr(other.kernel_)
    assert other.predict(X).tobytes() == model.predict(X).tobytes()
    assert repr(other.kernel_) == repr(model.kernel_)


def test_a_periodic_kernel_of_scikit_learn_needs_no_class(path):
    X, y = data(d=1)
    model = GPRegressor(sk.ExpSineSquared() + sk.WhiteKernel(0.1)).fit(X, y)
    assert kept(model, path).predict(X).tobytes() == model.predict(X).tobytes()


def test_known_noise_comes_back(path):
    X, y = data(outputs=2)
    known = np.linspace(0.01, 0.5, len(y))
    model = GPRegressor().fit(X, y, noise_variance=known)
    other = kept(model, path)
    np.testing.assert_array_equal(other.predict(X), model.predict(X))
    np.testing.assert_array_equal(other.posterior_.problem.noise_variance, model.posterior_.problem.noise_variance)
    np.testing.assert_array_equal(other.predict(X, return_std=True)[1], model.predict(X, return_std=True)[1])
    ridge = KernelRidge(kernel="rbf").fit(X, y, sample_weight=known)
    np.testing.assert_array_equal(kept(ridge, path).predict(X), ridge.predict(X))


def test_names_of_features_come_back(path):
    pandas = pytest.importorskip("pandas")
    X, y = data()
    table = pandas.DataFrame(X, columns=["längd", "b", "c"])
    other = kept(GPRegressor(optimizer=None).fit(table, y), path)
    assert other.feature_names_in_.tolist() == ["längd", "b", "c"]
    assert other.n_features_in_ == 3
    other.predict(table)
    with pytest.raises(ValueError, match="feature names should match"):
        other.predict(table.rename(columns={"b": "B"}))
    with pytest.raises(ValueError, match="2 features"):
        kept(GPRegressor(optimizer=None).fit(X, y), path).predict(X[:, :2])


def test_ridge_attributes_come_back(path):
    X, y = data(outputs=2)
    model = KernelRidge(0.2, kernel="laplacian").fit(X, y)
    other = kept(model, path)
    assert isinstance(other, KernelRidge)
    assert other.alpha_ == model.alpha_ == 0.2
    np.testing.assert_array_equal(other.dual_coef_, model.dual_coef_)
    np.testing.assert_array_equal(other.X_fit_, X)
    assert np.isnan(other.certificate_.log_marginal_likelihood)
    assert other.certificate_.lower == -np.inf


def test_every_number_of_the_records_keeps_its_bits(path):
    X, y = data()
    model = GPRegressor(method="iterative").fit(X, y)
    other = kept(model, path)
    pairs = [(model.posterior_, other.posterior_, ("weights", "drift_weights")), (model, other, ("certificate_",))]
    for a, b, names in pairs:
        for name in names:
            for field in fields(getattr(a, name)):
                left, right = (getattr(getattr(each, name), field.name) for each in (a, b))
                assert np.asarray(left).tobytes() == np.asarray(right).tobytes() or left is right, field.name
    assert other.y_mean_.tobytes() == model.y_mean_.tobytes()
    assert other.y_scale_.tobytes() == model.y_scale_.tobytes()
    assert other.noise_ == model.noise_
    assert other.posterior_.stopping == model.posterior_.stopping
    assert [step.value for step in other.learning_.steps if step.value == step.value] == [
        step.value for step in model.learning_.steps if step.value == step.value
    ]
    np.testing.assert_allclose(other.report_.solution, model.report_.solution, rtol=1e-6, atol=1e-9)


# parameters of the constructor


def test_parameters_of_the_constructor_come_back(path):
    X, y = data()
    model = GPRegressor(
        noise=np.float64(0.3),
        method="direct",
        preconditioner="vecchia",
        optimizer=None,
        max_iter=np.int64(7),
        step_size=0.1,
        n_restarts=1,
        rtol=1e-9,
        missing="drop",
        device=torch.device("cpu"),
        dtype=np.float32,
        memory="2GB",
        n_jobs=1,
        random_state=None,
        verbose=False,
    ).fit(X, y)
    expected = {**model.get_params(), "device": "cpu", "dtype": "float32"}
    assert kept(model, path).get_params() == expected
    assert isinstance(load(path).max_iter, int)


def test_parameters_that_a_file_cannot_hold_take_their_defaults(path):
    X, y = data()
    state = np.random.RandomState(3)
    model = GPRegressor(preconditioner=recipe("jacobi"), random_state=state, optimizer=None).fit(X, y)
    other = kept(model, path)
    assert other.random_state == 0
    assert other.preconditioner == "auto"
    assert kept(GPRegressor(random_state=None, optimizer=None).fit(X, y), path).random_state is None


def test_kernels_of_scikit_learn_are_kept_as_kernels_of_the_library(path):
    X, y = data()
    other = kept(GPRegressor(2.0 * sk.RBF(1.5) + sk.WhiteKernel(0.25), optimizer=None).fit(X, y), path)
    assert isinstance(other.kernel, RBF)
    assert other.noise.variance == 0.25
    assert other.noise_ == 0.25
    ridge = kept(KernelRidge(0.5, kernel=sk.RBF(1.5) + sk.WhiteKernel(0.25)).fit(X, y), path)
    assert ridge.alpha == ridge.alpha_ == 0.75


def test_a_device_that_is_not_here_becomes_the_cpu(path):
    X, y = data()
    model = GPRegressor(optimizer=None, device="cpu").fit(X, y)
    model.device = "cuda:77"
    other = kept(model, path)
    assert other.device == "cpu"
    np.testing.assert_array_equal(other.predict(X), model.predict(X))
    other.update(X[:2] + 0.1, y[:2])


# files


@pytest.mark.parametrize("mean", ["constant", "linear"])
def test_files_and_pickles_have_the_size_of_the_data(path, mean):
    X, y = data(1000, 4)
    model = GPRegressor(Matern([1.0] * 4), optimizer=None, mean=mean, method="direct").fit(X, y)
    model.save(path)
    drift = model.posterior_.problem.H.shape[1]
    numbers = len(X) * (X.shape[1] + 3 + 2 * drift)  # X, Y, weights, and the drift's; both with residuals
    assert path.stat().st_size < 8 * numbers + 10_000
    assert len(pickle.dumps(model)) < 3 * 8 * numbers + 20_000


def test_only_fitted_estimators_of_the_library_can_be_saved(path):
    class Mine(GPRegressor):
        pass

    for estimator in (GPRegressor(), KernelRidge()):
        with pytest.raises(NotFittedError):
            estimator.save(path)
    with pytest.raises(TypeError, match=r"only GPRegressor, KernelRidge, .* can be saved, not Mine"):
        Mine(optimizer=None).fit(*data()).save(path)
    assert not path.exists()
    with pytest.raises(FileNotFoundError, match="no directory"):
        GPRegressor(optimizer=None).fit(*data()).save(path / "in" / "nowhere")


@pytest.fixture
def saved(path):
    GPRegressor(optimizer=None).fit(*data()).save(path)
    return path


def rewritten(path, change):
    """Write the file again with a changed header and a valid checksum."""
    model = model_files.read(path)
    change(model.header, model.tensors)
    model_files.write(path, model.kind, model.header, model.tensors)


def test_missing_files_are_reported_as_ever(path):
    with pytest.raises(FileNotFoundError):
        load(path)


def test_files_of_other_programs_are_refused(path):
    for content in (b"", b"hello", b"PK\x03\x04" + bytes(100), pickle.dumps([1, 2, 3])):
        path.write_bytes(content)
        with pytest.raises(ModelFileError, match="not a model file of kernelcg, or it is damaged"):
            load(path)
    save_file({"X": torch.zeros(3)}, path)
    with pytest.raises(ModelFileError, match="a safetensors file, but not a model file of kernelcg"):
        load(path)


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9, 0.999])
def test_truncated_files_are_refused(saved, part):
    content = saved.read_bytes()
    saved.write_bytes(content[: int(part * len(content))])
    with pytest.raises(ModelFileError, match="damaged"):
        load(saved)


@pytest.mark.parametrize("place", [0.3, 0.7, 0.99])
def test_a_flipped_bit_is_noticed(saved, place):
    content = bytearray(saved.read_bytes())
    content[int(place * len(content))] ^= 4
    saved.write_bytes(content)
    with pytest.raises(ModelFileError, match="damaged"):
        load(saved)


def test_files_of_a_newer_version_are_refused(saved, monkeypatch):
    monkeypatch.setattr(model_files, "VERSION", model_files.VERSION + 1)
    model = model_files.read(saved)
    model_files.write(saved, model.kind, model.header, model.tensors)
    monkeypatch.undo()
    with pytest.raises(ModelFileError, match=r"newer kernelcg.*upgrade"):
        load(saved)


def test_models_that_are_not_known_are_refused(saved):
    model = model_files.read(saved)
    model_files.write(saved, "GPUnheardOf", model.header, model.tensors)
    with pytest.raises(ModelFileError, match="'GPUnheardOf', which is not known here; upgrade"):
        load(saved)


CHANGES = {
    "no kernel": lambda header, tensors: header.pop("gp"),
    "a kernel of nothing": lambda header, tensors: header.update(gp={"class": "os.system"}),
    "not a process": lambda header, tensors: header.update(gp=header["gp"]["fields"]["kernel"]),
    "no parameters": lambda header, tensors: header.pop("parameters"),
    "a parameter nobody has": lambda header, tensors: header["parameters"].update(beans=3),
    "no plan": lambda header, tensors: header.pop("plan"),
    "no status": lambda header, tensors: header["certificate"].pop("status"),
    "an unknown status": lambda header, tensors: header["certificate"].update(status="PERFECT"),
    "a word for a number": lambda header, tensors: header["stopping"].update(rtol="small"),
    "no data": lambda header, tensors: tensors.pop("data.X"),
    "no scale": lambda header, tensors: tensors.pop("y_scale_"),
    "fewer rows": lambda header, tensors: tensors.update({"data.X": tensors["data.X"][:-1].clone()}),
    "fewer weights": lambda header, tensors: tensors.update({"weights.X": tensors["weights.X"][:-1].clone()}),
    "no weights at all": lambda header, tensors: tensors.update({"weights.X": tensors["weights.X"][:0].clone()}),
    "too large a drift": lambda header, tensors: tensors.update({"drift.T": torch.eye(4, dtype=torch.float64)}),
    "NaN": lambda header, tensors: tensors["data.X"].fill_(np.nan),
    "more features": lambda header, tensors: header.update(n_features_in=17),
}


@pytest.mark.parametrize("name", CHANGES)
def test_malformed_contents_are_refused(saved, name):
    rewritten(saved, CHANGES[name])
    with pytest.raises(ModelFileError, match="malformed"):
        load(saved)


def test_the_header_is_plain_json(saved):
    with safe_open(saved, framework="np") as file:
        header = json.loads(file.metadata()["header"])
    assert header["certificate"]["status"] == "CONVERGED"
    assert header["plan"]["conditioning"]["method"] == "direct"
    assert header["learning"]["reason"] == "nothing to learn"


def test_load_is_where_users_look_for_it():
    assert kernelcg.load is kernelcg.estimators.load


def test_importing_the_estimators_does_not_import_safetensors():
    code = "import sys, kernelcg.estimators; assert not any(name.startswith('safetensors') for name in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
