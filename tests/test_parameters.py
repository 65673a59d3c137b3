"""What is known about hyperparameters beforehand: that they stay, their bounds, their priors."""

import copy
import math
import pickle

import pytest
import torch

from kernelcg.kernels import RBF, Constant, Linear, Matern, Polynomial, Power, Product, Sum
from kernelcg.parameters import FREE, Restriction

KERNEL = (
    RBF([1.0, 2.0])
    .fixed("variance")
    .bounded(lengthscale=(0.1, 10))
    .with_prior(lengthscale=(1.0, 0.5), variance=(3.0, 2.0))
)
EXPECTED = [
    Restriction(lower=0.1, upper=10.0, median=1.0, spread=0.5),
    Restriction(lower=0.1, upper=10.0, median=1.0, spread=0.5),
    Restriction(fixed=True, median=3.0, spread=2.0),
]


def moved(record):
    return record.with_log_parameters(record.log_parameters() + 0.25)


COPIES = {
    "with_log_parameters": moved,
    "twice": lambda record: moved(moved(record)),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda record: pickle.loads(pickle.dumps(record)),
    "all of them": lambda record: pickle.loads(pickle.dumps(copy.deepcopy(moved(copy.copy(record))))),
}


def test_nothing_is_known_at_first():
    assert RBF([1.0, 2.0]).restrictions() == [FREE] * 3
    assert Restriction(fixed=False, lower=0.0, upper=math.inf, median=None) == FREE


def test_restrictions_accumulate():
    assert KERNEL.restrictions() == EXPECTED


def test_the_last_word_counts():
    kernel = KERNEL.bounded(lengthscale=(0.2, 5.0)).with_prior(variance=(4.0, 1.0))
    assert kernel.restrictions()[0] == Restriction(lower=0.2, upper=5.0, median=1.0, spread=0.5)
    assert kernel.restrictions()[2] == Restriction(fixed=True, median=4.0, spread=1.0)


def test_restricting_changes_neither_the_original_nor_the_numbers():
    plain = RBF([1.0, 2.0])
    restricted = plain.fixed().bounded(lengthscale=(0.1, 10)).with_prior(variance=(1.0, 1.0))
    assert plain.restrictions() == RBF([3.0, 4.0]).restrictions() == [FREE] * 3
    assert type(restricted) is RBF
    assert torch.equal(restricted.log_parameters(), plain.log_parameters())
    assert KERNEL.restrictions() == EXPECTED


@pytest.mark.parametrize("duplicate", COPIES.values(), ids=COPIES)
def test_restrictions_survive(duplicate):
    assert duplicate(KERNEL).restrictions() == EXPECTED


@pytest.mark.parametrize("duplicate", COPIES.values(), ids=COPIES)
@pytest.mark.parametrize("combine", [Sum, Product, lambda a, b: (a + b) * 2.0, lambda a, b: Power(a + b, 2)])
def test_restrictions_survive_in_the_parts_of_other_kernels(duplicate, combine):
    kernel = duplicate(combine(KERNEL, Matern(1.0).fixed("lengthscale")))
    assert kernel.restrictions()[:5] == [*EXPECTED, Restriction(fixed=True), FREE]
    assert len(kernel.restrictions()) == len(kernel.parameter_names()) == len(kernel.log_parameters())


def test_restrictions_survive_a_change_of_dtype():
    assert KERNEL._beside(torch.ones(2, 2)).restrictions() == EXPECTED


def test_every_hyperparameter_is_fixed_by_default_those_of_parts_too():
    kernel = (RBF([1.0, 2.0]) + 2.0 * Linear(1.0)).fixed()
    assert all(restriction.fixed for restriction in kernel.restrictions())
    assert len(kernel.restrictions()) == 5


def test_a_part_is_fixed_by_its_name_and_keeps_its_bounds():
    kernel = (KERNEL + Matern(1.0)).fixed("left")
    left, right = kernel.restrictions()[:3], kernel.restrictions()[3:]
    assert [restriction.fixed for restriction in left] == [True] * 3
    assert [restriction.lower for restriction in left] == [0.1, 0.1, 0.0]
    assert right == [FREE, FREE]


def test_several_names_at_once():
    kernel = Matern(1.0).bounded(lengthscale=(0, 2), variance=(1, math.inf))
    assert kernel.restrictions() == [Restriction(upper=2.0), Restriction(lower=1.0)]
    assert [restriction.fixed for restriction in kernel.fixed("variance", "lengthscale").restrictions()] == [True] * 2


@pytest.mark.parametrize("name", ["lengthscales", "nu", "", "Variance"])
@pytest.mark.parametrize(
    "restrict",
    [
        lambda name: Matern(1.0).fixed("variance", name),
        lambda name: Matern(1.0).bounded(**{"variance": (0.5, 1.0), name: (0.5, 1.0)}),
        lambda name: Matern(1.0).with_prior(**{"variance": (0.5, 1.0), name: (0.5, 1.0)}),
    ],
    ids=["fixed", "bounded", "with_prior"],
)
def test_wrong_names_are_refused_with_the_right_ones(restrict, name):
    with pytest.raises(ValueError, match=rf"Matern has no hyperparameter '{name}'; it has lengthscale, variance"):
        restrict(name)


def test_a_kernel_made_of_others_says_where_its_hyperparameters_are():
    with pytest.raises(ValueError, match="Sum has no hyperparameter 'lengthscale'; it has left, right"):
        (RBF(1.0) + Constant(1.0)).fixed("lengthscale")
    with pytest.raises(ValueError, match="restrict its parts"):
        (RBF(1.0) + Constant(1.0)).bounded(left=(0.1, 1.0))


def test_what_is_no_hyperparameter_cannot_be_restricted():
    with pytest.raises(ValueError, match="Polynomial has no hyperparameter 'degree'; it has gamma"):
        Polynomial(1.0).fixed("degree")


@pytest.mark.parametrize(
    "bounds", [(2.0, 1.0), (1.0, 1.0), (-1.0, 1.0), (0.0, 0.0), (math.nan, 1.0), (1.0, math.nan), (math.inf, math.inf)]
)
def test_wrong_bounds_are_refused(bounds):
    with pytest.raises(ValueError, match="bounds of lengthscale"):
        RBF(1.0).bounded(lengthscale=bounds)


@pytest.mark.parametrize("prior", [(0.0, 1.0), (-1.0, 1.0), (1.0, 0.0), (1.0, -1.0), (math.inf, 1.0), (1.0, math.nan)])
def test_wrong_priors_are_refused(prior):
    with pytest.raises(ValueError, match="prior of lengthscale"):
        RBF(1.0).with_prior(lengthscale=prior)


@pytest.mark.parametrize("value", [1.0, None, (1.0,), (1.0, 2.0, 3.0), ("short", "long"), "fixed"])
def test_what_is_no_pair_of_numbers_is_refused(value):
    with pytest.raises(TypeError, match="the bounds of variance must be two numbers"):
        RBF(1.0).bounded(variance=value)
    with pytest.raises(TypeError, match="the prior of variance must be two numbers"):
        RBF(1.0).with_prior(variance=value)
