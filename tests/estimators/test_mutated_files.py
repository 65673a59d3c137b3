"""Model files with something changed and valid checksums: refused in words, or models that work."""

import math
import warnings

import mutated_files
import pytest
import torch

import kernelcg
from kernelcg.errors import ModelFileError
from kernelcg.estimators import model_files

CHANGES_OF_A_TEST = 60


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        saved = mutated_files.saved_models(tmp_path_factory.mktemp("models"))
    return {name: model_files.read(path) for name, path in saved.items()}


def test_the_files_that_are_changed_give_models_that_work(originals, tmp_path):
    for name, model in originals.items():
        path = tmp_path / f"{name}.kcg"
        model_files.write(path, model.kind, model.header, model.tensors)
        kernelcg.load(path)
        assert mutated_files.fault_of(path) is None


@pytest.mark.filterwarnings("ignore::kernelcg.errors.ConvergenceWarning")
@pytest.mark.parametrize("seed", range(0, 5 * CHANGES_OF_A_TEST, CHANGES_OF_A_TEST))
def test_changed_files_are_refused_or_give_models_that_work(seed, originals, tmp_path):
    assert mutated_files.try_changes(originals, seed, CHANGES_OF_A_TEST, tmp_path) == []


NAN, INF = math.nan, math.inf

CHANGES = {
    "a mean of y that is no number": ("regressor", "y_mean_", NAN),
    "a scale of y that is infinite": ("regressor_outputs", "y_scale_", INF),
    "a negative scale of y": ("regressor", "y_scale_", -1.0),
    "weights that are no numbers": ("ridge", "weights.X", NAN),
    "a negative noise": ("ridge", "data.noise_variance", -1.0),
    "a drift without functions": ("regressor", "drift.T", 0.0),
    "residuals beyond their bounds": ("regressor", "drift_weights.R", -1.0),
    "weights of the drift without their residuals": ("regressor", "drift_weights.X", -1e-300),
    "weights without their residuals": ("ridge", "weights.X", 0.5),
    "coefficients of the drift that are infinite": ("regressor_iterative", "beta", INF),
    "a mode that is not that of the weights": ("counts", "0.mode.f", 0.0),
    "a mode that is no number": ("classifier_softmax", "0.mode.f", NAN),
    "labels that are none": ("classifier", "0.data.y", 3.0),
    "counts that are negative": ("counts", "0.data.y", -1.0),
    "observations that are too large": ("student", "0.data.y", 1e200),
}


@pytest.mark.parametrize("change", CHANGES)
def test_numbers_that_cannot_be_are_refused(change, originals, tmp_path):
    name, tensor, value = CHANGES[change]
    model, path = originals[name], tmp_path / "model.kcg"
    tensors = {**model.tensors, tensor: torch.full_like(model.tensors[tensor], value)}
    model_files.write(path, model.kind, model.header, tensors)
    with pytest.raises(ModelFileError, match="malformed"):
        kernelcg.load(path)


HEADERS = {
    "names of features": ("regressor", ("feature_names_in",), ["a"]),
    "a tolerance": ("classifier", ("machines", 0, "posterior", "variance_tolerance"), -1),
    "labels": ("classifier_split", ("labels", "values"), [0, 1, 1]),
    "too many labels": ("classifier_softmax", ("labels", "values"), [0, 1, 2, 3]),
    "a seed": ("regressor", ("parameters", "random_state"), -1),
    "rates of a machine": ("regressor", ("plan", "pricing", "profile", "stream"), 0.0),
    "a kernel for other features": (
        "regressor",
        ("gp", "fields", "kernel", "fields", "lengthscale"),
        {"tensor": [1.0] * 3, "shape": [3], "dtype": "float64"},
    ),
}


@pytest.mark.parametrize("change", HEADERS)
def test_headers_that_cannot_be_are_refused(change, originals, tmp_path):
    name, (*way, last), value = HEADERS[change]
    model, path = originals[name], tmp_path / "model.kcg"
    header = mutated_files.copy.deepcopy(model.header)
    at = header
    for key in way:
        at = at[key]
    at[last] = value
    model_files.write(path, model.kind, header, model.tensors)
    with pytest.raises(ModelFileError, match="malformed"):
        kernelcg.load(path)
