"""Hyperparameters in and out, and kernels as values: checked, immutable, copied, pickled, printed."""

import copy
import dataclasses
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import kernel_matrix, log_parameters
from strategies import KERNELS, columns, features, kernels, points

from kernelcg import kernels as library
from kernelcg.kernels import RBF, Constant, Linear, Matern, Periodic, RationalQuadratic, Sum

X = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(6, 2)


@given(st.data(), features)
def test_log_parameters_are_the_logarithms_in_the_order_of_the_fields(data, d):
    kernel = data.draw(kernels(d))
    theta = kernel.log_parameters()
    assert theta.dtype == torch.float64
    np.testing.assert_allclose(theta, log_parameters(kernel), rtol=1e-15, atol=1e-15)
    assert len(kernel.parameter_names()) == len(set(kernel.parameter_names())) == len(theta)


@given(st.data(), features)
def test_new_log_parameters_are_read_back_and_used(data, d):
    kernel, points_ = data.draw(kernels(d)), data.draw(points(7, d))
    before = kernel.log_parameters().clone()
    theta = 0.5 * data.draw(columns(len(before), 1))[:, 0]
    other = kernel.with_log_parameters(theta)
    assert type(other) is type(kernel)
    torch.testing.assert_close(other.log_parameters(), theta, rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(kernel.log_parameters(), before, rtol=0, atol=0)
    expected = kernel_matrix(kernel, points_, points_, theta)
    np.testing.assert_allclose(other(points_, points_).numpy(), expected, rtol=1e-12, atol=1e-13)


def test_parameter_names_say_which_is_which():
    kernel = RBF([1.0, 2.0]) + 3.0 * Matern(4.0, nu=0.5)
    names = dict(zip(kernel.parameter_names(), kernel.log_parameters().exp().tolist(), strict=True))
    assert names == pytest.approx(
        {
            "left.lengthscale[0]": 1.0,
            "left.lengthscale[1]": 2.0,
            "left.variance": 1.0,
            "right.left.lengthscale": 4.0,
            "right.left.variance": 1.0,
            "right.right.variance": 3.0,
        }
    )


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 1), (1, 2)])
def test_log_parameters_of_the_wrong_shape_are_refused(shape):
    with pytest.raises(ValueError, match="2 hyperparameters"):
        RBF(1.0).with_log_parameters(torch.zeros(shape, dtype=torch.float64))


FIELDS = [
    (lambda value: RBF(value), "RBF.lengthscale"),
    (lambda value: RBF(1.0, value), "RBF.variance"),
    (lambda value: Matern(value), "Matern.lengthscale"),
    (lambda value: Matern(1.0, value), "Matern.variance"),
    (lambda value: RationalQuadratic(value), "RationalQuadratic.lengthscale"),
    (lambda value: RationalQuadratic(1.0, value), "RationalQuadratic.variance"),
    (lambda value: RationalQuadratic(1.0, 1.0, value), "RationalQuadratic.alpha"),
    (lambda value: Periodic(value, 1.0), "Periodic.lengthscale"),
    (lambda value: Periodic(1.0, value), "Periodic.period"),
    (lambda value: Periodic(1.0, 1.0, value), "Periodic.variance"),
    (lambda value: Linear(value), "Linear.variance"),
    (lambda value: Constant(value), "Constant.variance"),
]
BAD = [0, 0.0, -1.0, float("nan"), float("inf"), [1.0, 0.0], [1.0, float("nan")], [[1.0]], [], torch.zeros(())]


@pytest.mark.parametrize("value", BAD, ids=repr)
@pytest.mark.parametrize(("make", "name"), FIELDS, ids=[name for _, name in FIELDS])
def test_bad_hyperparameters_are_refused_by_name(make, name, value):
    with pytest.raises(ValueError, match=name):
        make(value)


@pytest.mark.parametrize(("make", "name"), FIELDS, ids=[name for _, name in FIELDS])
def test_hyperparameters_that_are_no_numbers_are_refused_by_name(make, name):
    with pytest.raises(TypeError, match=name):
        make("long")


SCALARS = [(make, name) for make, name in FIELDS if name.endswith(("variance", "alpha")) and name != "Linear.variance"]


@pytest.mark.parametrize(("make", "name"), SCALARS, ids=[name for _, name in SCALARS])
def test_a_vector_is_refused_where_there_is_one_number_for_all_features(make, name):
    """It would be spread over the columns of K, one number for each y."""
    with pytest.raises(ValueError, match=name.split(".")[1]):
        make([1.0, 2.0])(X[:2], X[:2])


@pytest.mark.parametrize("nu", [0.0, 1.0, 3.5, float("inf"), "3/2", None])
def test_matern_knows_three_smoothnesses(nu):
    with pytest.raises(ValueError, match=r"Matern\.nu"):
        Matern(1.0, nu=nu)


@pytest.mark.parametrize("other", [2.0, None, "RBF"])
def test_only_kernels_can_be_added(other):
    with pytest.raises(TypeError):
        RBF(1.0) + other
    with pytest.raises(TypeError):
        Sum(RBF(1.0), other)


@pytest.mark.parametrize("factor", [3, 3.0, np.float64(3), np.float32(3), torch.tensor(3.0)])
def test_multiples_from_both_sides(factor):
    truth = 3 * kernel_matrix(RBF(0.5), X, X)
    np.testing.assert_allclose((factor * RBF(0.5))(X, X), truth, rtol=1e-14)
    np.testing.assert_allclose((RBF(0.5) * factor)(X, X), truth, rtol=1e-14)


@pytest.mark.parametrize("factor", [0.0, -1.0, "2"])
def test_a_negative_or_meaningless_multiple_is_refused(factor):
    with pytest.raises((ValueError, TypeError), match="variance"):
        factor * RBF(1.0)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda kernel: pickle.loads(pickle.dumps(kernel))])
def test_copies_compute_the_same(name, duplicate):
    kernel = KERNELS[name](2)
    other = duplicate(kernel)
    assert other is not kernel
    assert other.parameter_names() == kernel.parameter_names()
    np.testing.assert_allclose(other(X, X), kernel_matrix(kernel, X, X), rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_cannot_be_changed(name):
    kernel = KERNELS[name](2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(kernel, dataclasses.fields(kernel)[0].name, torch.ones(()))


def test_a_kernel_does_not_change_with_the_tensor_it_was_made_from():
    lengthscale = torch.tensor([0.5, 2.0], dtype=torch.float64)
    kernel = RBF(lengthscale)
    lengthscale.fill_(-1.0)
    assert kernel.lengthscale.tolist() == [0.5, 2.0]


@given(st.data(), features)
def test_what_is_printed_can_be_read_back(data, d):
    kernel, points_ = data.draw(kernels(d)), data.draw(points(5, d))
    other = eval(repr(kernel), vars(library))
    truth = kernel_matrix(kernel, points_, points_)
    np.testing.assert_allclose(other(points_, points_).numpy(), truth, rtol=1e-3, atol=1e-4 * np.abs(truth).max())


def test_a_kernel_is_printed_readably():
    assert repr(2.5 * (RBF([1.0, 0.5]) + Matern(1 / 3))) == (
        "(RBF(lengthscale=[1, 0.5], variance=1) + Matern(lengthscale=0.333333, variance=1, nu=1.5)) "
        "* Constant(variance=2.5)"
    )
