"""Each likelihood is the distribution its docstring says: densities, moments, admissible observations, records."""

import copy
import math
import pickle

import mpmath as mp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from likelihood_cases import LIKELIHOODS, TRIALS, column, latents, names, observations, table
from likelihood_reference import distribution, log_density_and_derivatives

from kernelcg import likelihoods as library
from kernelcg.likelihoods import (
    ONE,
    BernoulliLogit,
    BernoulliProbit,
    Binomial,
    Gamma,
    Gaussian,
    Likelihood,
    NegativeBinomial,
    Poisson,
    Softmax,
    StudentT,
)
from kernelcg.likelihoods.log_gamma import log_power_over_gamma, log_rising


def scipy_log_density(likelihood, y, f, exposure):
    known = distribution(likelihood, f.numpy(), exposure.numpy())
    return known.logpmf(y.numpy()) if hasattr(known, "logpmf") else known.logpdf(y.numpy())


# SciPy's parameter is the probability: those near 1 lose their digits
known_to_scipy = names.filter(lambda name: name != "nearly poisson")
moderate = st.lists(st.floats(-4, 4), min_size=1, max_size=5)


@given(known_to_scipy, moderate)
def test_the_density_is_that_of_scipy(name, values):
    y, f, exposure = table(LIKELIHOODS[name], values)
    result = LIKELIHOODS[name].log_density(y, f, exposure)
    truth = scipy_log_density(LIKELIHOODS[name], y, f, exposure)
    seen = truth > -500  # SciPy's logarithm of a mass is that of a rounded one
    np.testing.assert_allclose(result[seen], truth[seen], rtol=2e-9, atol=2e-9)


@given(names, latents)
def test_the_density_is_the_formula_to_all_digits(name, f):
    likelihood = LIKELIHOODS[name]
    y, f, exposure = table(likelihood, [f])
    result = likelihood.log_density(y, f, exposure)
    truth = [
        log_density_and_derivatives(likelihood, *row)[0] for row in zip(*map(_list, (y, f, exposure)), strict=True)
    ]
    np.testing.assert_allclose(result, truth, rtol=2e-13, atol=1e-11)


def _list(values):
    return values.tolist()


@pytest.mark.parametrize("f", [-2.0, 0.3, 3.0])
@pytest.mark.parametrize("name", [name for name, one in LIKELIHOODS.items() if isinstance(one, (Poisson, Binomial))])
def test_the_probabilities_of_all_counts_add_up(name, f):
    exposure = torch.tensor(float(TRIALS), dtype=torch.float64)
    counts = torch.arange(0, 1500 if isinstance(LIKELIHOODS[name], Poisson) else TRIALS + 1, dtype=torch.float64)
    total = LIKELIHOODS[name].log_density(counts, torch.full_like(counts, f), exposure).exp().sum().item()
    assert total == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("name", LIKELIHOODS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_observations_broadcast_and_results_follow_the_dtype(name, dtype):
    likelihood, f = LIKELIHOODS[name], torch.linspace(-1, 2, 5, dtype=dtype)
    y, exposure = (values.to(dtype) for values in observations(likelihood))
    block = likelihood.log_density(y[:, None], f, exposure[:, None])
    assert block.shape == (len(y), 5)
    assert block.dtype == dtype
    entry = log_density_and_derivatives(likelihood, y[0].item(), f[3].item(), exposure[0].item())[0]
    assert block[0, 3].item() == pytest.approx(entry, rel=1e-5 if dtype == torch.float32 else 1e-11)
    derivatives = likelihood.derivatives(y[0].expand(5), f, exposure[0].expand(5))
    for value in vars(derivatives).values():
        assert value.shape == (5,)
        assert value.dtype == dtype


@given(known_to_scipy, moderate)
def test_moments_are_those_of_scipy(name, values):
    likelihood = LIKELIHOODS[name]
    _, f, exposure = table(likelihood, values)
    mean, variance = likelihood.moments(f, exposure)
    known = distribution(likelihood, f.numpy(), exposure.numpy())
    if name != "cauchy":
        np.testing.assert_allclose(mean, known.mean(), rtol=1e-9, atol=1e-15)
    expected = np.full(len(f), np.inf) if name == "cauchy" else known.var()
    np.testing.assert_allclose(variance, expected, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("degrees", [0.5, 1.0, 2.0])
def test_few_degrees_of_freedom_have_no_variance(degrees):
    mean, variance = StudentT(1.0, degrees).moments(column(1.5))
    assert (mean.item(), variance.item()) == (1.5, float("inf"))
    mean, variance = StudentT(1.0, degrees).predict(column(1.5), column(0.2))
    assert (mean.item(), variance.item()) == (1.5, float("inf"))


STARTS = [
    (BernoulliProbit(), [1.0, 1.0, 0.0, 1.0], None, 0.6744897501960817),  # Φ⁻¹(3/4)
    (BernoulliLogit(), [1.0, 1.0, 0.0, 1.0], None, np.log(3.0)),
    (Binomial(), [2.0, 1.0], [10.0, 2.0], np.log(3 / 9)),
    (Poisson(), [2.0, 1.0], [10.0, 2.0], np.log(3 / 12)),
    (NegativeBinomial(), [6.0, 0.0], None, np.log(3)),
    (Gamma(), [0.01, 0.03], None, np.log(0.02)),
    (Gaussian(), [1.0, 5.0, 3.0], None, 3.0),
    (StudentT(), [1.0, 2.0, 3e6], None, 2.0),
]


@pytest.mark.parametrize(("likelihood", "y", "exposure", "expected"), STARTS, ids=lambda value: repr(value)[:20])
def test_the_start_suits_the_data(likelihood, y, exposure, expected):
    start = likelihood.start(column(*y), ONE if exposure is None else column(*exposure))
    assert isinstance(start, float)
    assert start == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("likelihood", [BernoulliProbit(), BernoulliLogit(), Poisson(), NegativeBinomial(), Binomial()])
@pytest.mark.parametrize("value", [0.0, 1.0])
def test_the_start_is_finite_and_on_the_right_side_when_all_observations_agree(likelihood, value):
    start = likelihood.start(torch.full((50,), value, dtype=torch.float64))
    assert np.isfinite(start)
    if isinstance(likelihood, (BernoulliProbit, BernoulliLogit, Binomial)):
        assert (start > 1.5) if value else (start < -1.5)
    else:
        assert start == pytest.approx(0.0 if value else np.log(0.01))


REFUSED = [
    (Poisson(), [0.0, -1.0], None, r"non-negative whole number, not -1 \(row 1\)"),
    (Poisson(), [2.0, 1.0, 0.5], None, r"non-negative whole number, not 0.5 \(row 2\)"),
    (NegativeBinomial(), [1.5], None, "non-negative whole number, not 1.5"),
    (Poisson(), [1.0], [0.0], "exposure must be positive and finite, not 0"),
    (Poisson(), [1.0, 2.0], [1.0, float("inf")], r"exposure must be positive and finite, not inf \(row 1\)"),
    (Gaussian(), [1.0, float("nan")], None, r"y must be finite, not nan \(row 1\)"),
    (StudentT(), [float("-inf")], None, "y must be finite, not -inf"),
    (BernoulliProbit(), [0.0, -1.0], None, "y must be 0 or 1, not -1"),
    (BernoulliLogit(), [0.0, 2.0], None, "from 0 to 1, not 2"),
    (BernoulliLogit(), [0.5], None, "from 0 to 1, not 0.5"),
    (Binomial(), [3.0, 4.0], [3.0, 3.0], r"from 0 to the number of trials, not 4 \(row 1\)"),
    (Binomial(), [3.0, 1.0], [3.0, 2.5], r"trials and must hold whole numbers, not 2.5 \(row 1\)"),
    (Binomial(), [-1.0], [3.0], "not -1"),
    (Gamma(), [1.0, 0.0], None, r"y must be positive, not 0 \(row 1\)"),
    (Gamma(), [-2.0], None, "y must be positive, not -2"),
]


@pytest.mark.parametrize(("likelihood", "y", "exposure", "message"), REFUSED, ids=lambda value: repr(value)[:30])
def test_impossible_observations_are_refused_in_words(likelihood, y, exposure, message):
    with pytest.raises(ValueError, match=message):
        likelihood.check(column(*y), ONE if exposure is None else column(*exposure))


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_possible_observations_pass(name):
    assert LIKELIHOODS[name].check(*observations(LIKELIHOODS[name])) is None


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_likelihoods_are_printed_copied_and_pickled(name):
    likelihood = LIKELIHOODS[name]
    y, exposure = observations(likelihood)
    truth = [
        log_density_and_derivatives(likelihood, a, 0.5, b)[0] for a, b in zip(_list(y), _list(exposure), strict=True)
    ]
    for other in (
        eval(repr(likelihood), vars(library)),
        copy.deepcopy(likelihood),
        pickle.loads(pickle.dumps(likelihood)),
    ):
        np.testing.assert_allclose(other.log_density(y, torch.full_like(y, 0.5), exposure), truth, rtol=1e-10)


@pytest.mark.parametrize("make", [NegativeBinomial, Gamma, Gaussian, StudentT])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), [1.0, 2.0]])
def test_hyperparameters_are_positive_numbers(make, value):
    with pytest.raises(ValueError, match=make.__name__):
        make(value)


def test_hyperparameters_by_name():
    assert StudentT().parameter_names() == ["scale", "degrees"]
    assert StudentT().log_parameters().exp().tolist() == pytest.approx([0.3, 4.0])
    assert NegativeBinomial().log_parameters().exp().tolist() == [1.0]
    assert Gamma().log_parameters().exp().tolist() == [1.0]
    assert Gaussian().log_parameters().exp().tolist() == pytest.approx([0.1])
    for plain in (BernoulliProbit(), BernoulliLogit(), Binomial(), Poisson(), Softmax()):
        assert plain.log_parameters().shape == (0,)


@pytest.mark.parametrize("x", [0.3, 9.99, 10.0, 11.0, 1e3, 1e8, 1e15])
def test_differences_of_log_gamma_keep_their_digits(x):
    with mp.workdps(60):
        power = mp.mpf(x) * mp.log(x) - x - mp.loggamma(x)
        rising = [mp.loggamma(mp.mpf(x) + y) - mp.loggamma(x) for y in (0.5, 7, 300)]
    assert log_power_over_gamma(column(x)[0]).item() == pytest.approx(float(power), rel=1e-14)
    result = log_rising(column(x)[0], column(0.5, 7.0, 300.0))
    np.testing.assert_allclose(result, [float(value) for value in rising], rtol=1e-14)


@pytest.mark.parametrize("count", [1e5, 1e9, 1e13])
@pytest.mark.parametrize("likelihood", [Poisson(), NegativeBinomial(1e-4), NegativeBinomial(2.0), Binomial()])
def test_densities_of_large_counts_keep_their_digits(likelihood, count):
    """Near the mean the terms of log p are as large as the count, and cancel."""
    y, exposure = column(count, count, count), column(3 * count, 2 * count, 4 * count)
    odds = count / (exposure - count) if isinstance(likelihood, Binomial) else count / exposure
    f = odds.log() + column(0.0, 3.0, -0.1) / math.sqrt(count)
    result = likelihood.log_density(y, f, exposure)
    truth = [
        log_density_and_derivatives(likelihood, *row)[0] for row in zip(*map(_list, (y, f, exposure)), strict=True)
    ]
    # the rounding of f, of size 1e-16 beside 1/√count, moves log p by itself
    np.testing.assert_allclose(result, np.array(truth, dtype=float), rtol=1e-13, atol=1e-14 * math.sqrt(count))


def test_a_likelihood_needs_its_formula():
    with pytest.raises(TypeError, match="log_density"):
        Likelihood()
