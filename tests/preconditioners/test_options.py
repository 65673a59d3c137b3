"""Names, options and the memory budget: misuse is refused at once, in words."""

import math
from dataclasses import FrozenInstanceError, dataclass

import numpy as np
import pytest
import torch
from bound import bound_system
from strategies import normal

from kernelcg.backends import Tiles
from kernelcg.backends.tiles import TilesMatrix
from kernelcg.errors import MemoryBudgetExceeded
from kernelcg.kernels import RBF
from kernelcg.preconditioners import Preconditioner, available, recipe
from kernelcg.randomness import seeded

PAPER = {"block_jacobi", "fitc", "nystrom", "pitc", "randomized_svd", "regularized", "ski", "spectral"}
MODERN = {"jacobi", "low_rank_vecchia", "pivoted_cholesky", "rp_cholesky", "vecchia"}

WRONG = {
    "rank": [-1, 2.5, True, "10"],
    "neighbours": [-1, 2.5, True],
    "frequencies": [-1, 2.5, True],
    "block_size": [0, -3, 2.5, True],
    "blocks": ["round", None],
    "points": [(), (-1,), (8,), (0.5,)],
    "jitter": [-1e-3, 1.0, math.nan],
    "tolerance": [-0.1, 1.5, math.nan],
    "oversampling": [-1, 2.5],
    "power": [-1, 2.5],
    "multiple": [-1.0, math.nan, math.inf],
    "delta": [-1.0, math.nan, math.inf],
    "inner_tolerance": [-1e-3, 1.0, math.nan],
    "inner_iterations": [-1, 2.5],
    "interpolation": ["linear", None],
    "grid": [0, 1, 2.5, True],
}
"""Values that an option of this name must not have, for 8 points."""

MISUSES = [
    (name, option, value)
    for name, cls in available().items()
    for option in cls.options()
    for value in WRONG.get(option, [])
]


@pytest.mark.parametrize(("name", "option", "value"), MISUSES)
def test_wrong_values_are_refused_by_name(name, option, value):
    A = bound_system(RBF(1.0), normal(8, 2), 0.1, backend=Tiles())
    with pytest.raises(ValueError, match=option):
        recipe(name, **{option: value}).build(A, seeded(0))


def test_all_recipes_are_found():
    assert set(available()) >= PAPER | MODERN
    assert {name for name, cls in available().items() if cls.IN_PAPER} == PAPER
    assert list(available()) == sorted(available())


@pytest.mark.parametrize("name", available())
def test_a_recipe_describes_itself(name):
    cls = available()[name]
    assert cls.name() == name
    assert issubclass(cls, Preconditioner)
    assert len(cls.description()) > 10
    assert cls.description()[-1] in ".:" or cls.description().endswith((")", "CG."))
    assert "build" in cls.COST
    assert "apply" in cls.COST
    made = recipe(name)
    assert type(made) is cls
    assert {option: getattr(made, option) for option in cls.options()} == cls.options()
    assert "COST" not in cls.options()


@pytest.mark.parametrize("name", ["nystrom", "spectral"])
def test_options_are_frozen(name):
    made = recipe(name)
    with pytest.raises(FrozenInstanceError):
        made.rank = 3
    assert made == recipe(name)
    assert made != recipe("jacobi")


@pytest.mark.parametrize("name", ["Nystrom", "nyström", "", "fitc ", "preconditioner", "cholesky"])
def test_unknown_names_are_refused(name):
    with pytest.raises(ValueError, match="nystrom"):
        recipe(name)


def test_unknown_options_are_refused():
    with pytest.raises(ValueError, match="neighbors"):
        recipe("vecchia", neighbors=3)
    with pytest.raises(ValueError, match="rank"):
        recipe("jacobi", rank=3)


# the memory budget


@dataclass(frozen=True, eq=False)
class IdleMatrix(TilesMatrix):
    """A matrix with which nothing may be done: whatever is refused has to be refused before."""

    def _product(self, *arguments):
        raise AssertionError("work began before the memory was checked")

    _cross = _block = _cross_block = _local_factors = _product


LARGE = {
    "nystrom": {"rank": 1500},
    "fitc": {"rank": 1500},
    "pitc": {"rank": 1500},
    "pivoted_cholesky": {"rank": 1500},
    "rp_cholesky": {"rank": 1500},
    "low_rank_vecchia": {"rank": 1500},
    "vecchia": {"neighbours": 1500},
    "randomized_svd": {"rank": 1500},
    "spectral": {"frequencies": 1500},
    "block_jacobi": {"block_size": 2000},
    "ski": {"grid": 5000},
}
"""Options with which 2,000 points in two dimensions need far more than 4 MB."""


@pytest.mark.parametrize("name", LARGE)
def test_what_does_not_fit_is_refused_before_it_is_made(name):
    X = normal(2000, 2)
    before = torch.get_rng_state()
    with pytest.raises(MemoryBudgetExceeded, match="budget"):
        recipe(name, **LARGE[name]).prepare(IdleMatrix(RBF(1.0), Tiles(memory=4_000_000).place(X)), seeded(0))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("name", LARGE)
def test_what_fits_is_not_refused(name):
    """The same with small options, within 40 MB."""
    small = {"rank": 20, "neighbours": 5, "frequencies": 10, "block_size": 40, "grid": 20}
    X = normal(500, 2)
    A = bound_system(RBF(1.0), X, 0.1, backend=Tiles(memory=40_000_000))
    cls = available()[name]
    P = recipe(name, **{option: small[option] for option in LARGE[name]}).build(A, seeded(0))
    assert P.numbers <= 500 * 200, cls
    assert np.isfinite(P.solve(normal(500, 1)).numpy()).all()
