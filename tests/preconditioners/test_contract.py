"""Every recipe of the folder keeps the contract, on drawn systems."""

import numpy as np
import pytest
import torch
from bound import bound_system
from contract import Case, cases, check_contract, check_exact, check_solves, needs_stationary, z_scores_of_draws
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import array, system_matrix
from strategies import normal

from kernelcg.backends import Tiles
from kernelcg.kernels import RBF, Linear, Matern
from kernelcg.preconditioners import available
from kernelcg.randomness import seeded

RECIPES = list(available())
EXACT = [name for name, cls in available().items() if cls.EXACT_AT_FULL_RANK]
RANDOM = ["fitc", "low_rank_vecchia", "nystrom", "pitc", "randomized_svd", "rp_cholesky", "spectral", "vecchia"]
SMALL = {"rank": 3, "neighbours": 2, "frequencies": 3, "block_size": 2}
"""Options that leave a system of 12 points far from exactly solved."""


def system(n=12, scale=None, **options):
    return bound_system(Matern([0.8, 1.5]), normal(n, 2, 3), np.linspace(0.1, 0.4, n), scale, Tiles(), **options)


def small(name):
    """Return the recipe of this name with options that keep it small."""
    cls = available()[name]
    return cls(**{option: value for option, value in SMALL.items() if option in cls.options()})


@pytest.mark.parametrize("name", RECIPES)
@settings(max_examples=20)
@given(st.data())
def test_contract(name, data):
    check_contract(data.draw(cases(name)))


@pytest.mark.parametrize("name", RECIPES)
@settings(max_examples=10)
@given(st.data())
def test_preconditioned_solve_equals_the_dense_solution(name, data):
    check_solves(data.draw(cases(name, noises=(1e-4, 1e-2, 1.0))))


@pytest.mark.parametrize("name", EXACT)
@settings(max_examples=20)
@given(st.data())
def test_exact_at_full_rank(name, data):
    check_exact(data.draw(cases(name, full=True)))


@pytest.mark.parametrize("name", RECIPES)
def test_one_point_with_default_options(name):
    A = bound_system(RBF(1.0, 2.0), torch.zeros(1, 1, dtype=torch.float64), 0.5, torch.tensor([3.0]), Tiles())
    case = Case(available()[name](), A, 0)
    check_contract(case)
    if name in EXACT:
        assert float(case.build().dense()) == pytest.approx(3.0**2 * 2.0 + 0.5, rel=1e-9)


@pytest.mark.parametrize("scale", [None, np.linspace(0, 2, 12)], ids=["no S", "S"])
@pytest.mark.parametrize("name", RECIPES)
def test_draws_have_covariance_p(name, scale):
    P = small(name).build(system(scale=scale), seeded(5))
    if not P.is_constant:
        pytest.skip("an inner solve draws nothing")
    assert np.abs(z_scores_of_draws(P)).max() < 4.5
    draws = array(P.sample(seeded(2), 20_000))
    assert np.abs(draws.mean(1) / np.sqrt(np.diag(array(P.dense())) / 20_000)).max() < 4.5


@pytest.mark.parametrize("name", RECIPES)
def test_draws_are_the_generators(name):
    P = small(name).build(system(), seeded(5))
    if not P.is_constant:
        pytest.skip("an inner solve draws nothing")
    first, again, other = (P.sample(seeded(seed), 3) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("name", RANDOM)
def test_another_seed_gives_another_p(name):
    """The draws are used at all: recipes that claim to be random are not stuck at one choice."""
    dense = [small(name).build(system(), seeded(seed)).dense() for seed in range(4)]
    assert not all(torch.equal(dense[0], other) for other in dense[1:])


@pytest.mark.parametrize("name", [name for name in RECIPES if name != "jacobi"])
def test_better_than_nothing(name):
    """At generous options P⁻¹A is better conditioned than A, which a wrong scale would spoil; Jacobi promises less."""
    X = normal(40, 1, 11)
    A = bound_system(RBF(1.0), X, 1e-3 * np.geomspace(1, 30, 40), np.linspace(0.5, 1.5, 40), Tiles())
    options = {"rank": 20, "neighbours": 20, "frequencies": 40, "block_size": 20}
    cls = available()[name]
    P = cls(**{option: value for option, value in options.items() if option in cls.options()}).build(A, seeded(0))
    M = system_matrix(A.kernel, X, A.diagonal, A.scale)
    L = np.linalg.cholesky(array(P.dense()))
    preconditioned = np.linalg.solve(L, np.linalg.solve(L, M).T)
    assert np.linalg.cond(preconditioned) < 0.7 * np.linalg.cond(M)


@pytest.mark.parametrize("name", RECIPES)
def test_kernel_is_refused_in_words_or_taken(name):
    """A recipe that needs a stationary kernel says so; all others take any kernel."""
    A = bound_system(Linear(1.0), normal(8, 2), 0.1, backend=Tiles())
    if needs_stationary(available()[name]):
        with pytest.raises(TypeError, match="stationary"):
            available()[name]().build(A, seeded(0))
    else:
        check_contract(Case(available()[name](), A, 0))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("scale", [None, np.linspace(0, 2, 12)], ids=["no S", "S"])
@pytest.mark.parametrize("name", RECIPES)
def test_device_is_kept(name, scale):
    """On a GPU everything stays there, and P is the same as on the CPU."""
    here = system(scale=scale)
    there = bound_system(here.kernel, here.X.cuda(), here.diagonal.cuda(), scale, Tiles())
    P, Q, R = small(name).build(here, seeded(1)), small(name).build(there, seeded(1)), normal(12, 2)
    assert Q.dense().is_cuda
    assert Q.solve(R.cuda()).is_cuda
    torch.testing.assert_close(Q.dense().cpu(), P.dense(), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(Q.solve(R.cuda()).cpu(), P.solve(R), rtol=1e-9, atol=1e-9)
    if P.is_constant:
        torch.testing.assert_close(Q.sample(seeded(2), 3).cpu(), P.sample(seeded(2), 3), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(Q.log_determinant().cpu(), P.log_determinant(), rtol=1e-9, atol=1e-9)
