"""A preconditioner that is chosen where the first one did not suffice is drawn from the seed of the fit."""

from dataclasses import replace

import pytest
import torch
from inference.gaussian_truth import drawn
from numpy.linalg import LinAlgError

from kernelcg import planning
from kernelcg.inference import GaussianProcess, LatentProcess, Noise, Numerics, Observations, Regression, condition
from kernelcg.inference.gaussian import conditioning
from kernelcg.inference.laplace import newton_by_pcg
from kernelcg.inference.laplace.newton_methods import systems_for
from kernelcg.kernels import RBF
from kernelcg.likelihoods import BernoulliProbit
from kernelcg.planning import Method
from kernelcg.randomness import seeded
from kernelcg.solvers import Status, Stopping

X, Y = (torch.from_numpy(part) for part in drawn(RBF(1.0), 60, 2, 0.1))
GP = GaussianProcess(RBF(1.0), Noise(0.1))


@pytest.fixture
def seeds(monkeypatch):
    """The seeds of all automatic choices, in their order."""
    found, choose = [], planning.solve_automatically

    def noted(A, B, start, stopping, callback, generator=None, **options):
        found.append(generator.initial_seed())
        return choose(A, B, start, stopping, callback, generator, **options)

    monkeypatch.setattr(planning, "solve_automatically", noted)
    return found


def test_further_solves_of_a_posterior(seeds):
    for seed in (1, 2, 1):
        posterior = condition(Regression(X, Y), GP, preconditioner=None, generator=seeded(seed))
        assert posterior.P is None
        posterior.solved(Y, Stopping())
    again = posterior.lean().restored(Method.ITERATIVE, seeded(1), None)
    again.solved(Y, Stopping())
    one, other, *same = seeds
    assert one != other
    assert same == [one, one]


def test_conditioning_without_a_factor(seeds, monkeypatch):
    def impossible(P):
        raise LinAlgError

    monkeypatch.setattr(conditioning, "CholeskyFactor", impossible)
    for seed in (1, 2, 1):
        condition(Regression(X, Y), GP, method=Method.DIRECT, generator=seeded(seed))
    assert len(set(seeds)) == 2
    assert seeds[0] == seeds[-1]


def test_newton_systems_whose_preconditioner_does_not_suffice(seeds, monkeypatch):
    solve = newton_by_pcg.solve
    monkeypatch.setattr(
        newton_by_pcg, "solve", lambda *given, **options: replace(solve(*given, **options), status=Status.STAGNATED)
    )
    problem, gp = Observations(X, (Y[:, 0] > 0).double()), LatentProcess(RBF(1.0), BernoulliProbit())
    for seed in (1, 2, 1):
        systems = systems_for(problem.with_kernel(gp.kernel), gp, Method.ITERATIVE, Numerics(seed=seed))
        systems.at(problem.expansion(gp, Y)).solve(Y, Stopping())
    assert len(set(seeds)) == 2
    assert seeds[0] == seeds[-1]
