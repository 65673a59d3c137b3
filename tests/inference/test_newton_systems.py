"""Newton's systems are values: nothing changes them, solves return their record, records add up."""

from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
import torch
from laplace_cases import case, softmax_case

from kernelcg.inference import Numerics
from kernelcg.inference.laplace.mode import find_mode
from kernelcg.inference.laplace.newton_by_cholesky import DirectSystems, Inverse
from kernelcg.inference.laplace.newton_methods import systems_for
from kernelcg.inference.laplace.newton_system import Spent
from kernelcg.inference.laplace.posterior import condition_laplace
from kernelcg.inference.laplace.softmax_factor import SoftmaxFactor
from kernelcg.solvers import Status, Stopping

METHODS = ("direct", "iterative")
TIGHT = Stopping(rtol=1e-10)


def made(name, method, **numerics):
    """Return a case, its systems and two expansions."""
    one = softmax_case(3) if name == "softmax" else case(name)
    problem = one.problem.with_kernel(one.gp.kernel)
    flat = torch.zeros(problem.size, 1, dtype=torch.float64)
    expansions = [problem.expansion(one.gp, f) for f in (flat, flat + torch.linspace(-1, 1, problem.size)[:, None])]
    return problem, systems_for(problem, one.gp, method, Numerics(**numerics)), expansions


def columns(problem, k=3):
    return torch.tensor(np.random.default_rng(0).normal(size=(problem.size, k)))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["probit", "softmax"])
def test_each_system_solves_with_its_own_matrix(name, method):
    """One that was made earlier is not changed by those made later."""
    problem, systems, expansions = made(name, method)
    first = systems.at(expansions[0])
    second = first.systems.at(expansions[1])
    B = columns(problem)
    for system, expansion in zip((second, first), reversed(expansions), strict=True):
        A = expansion.system(systems.K).dense()
        torch.testing.assert_close(system.solve(B, TIGHT).solution, torch.linalg.solve(A, B), rtol=1e-7, atol=1e-7)
    with pytest.raises(FrozenInstanceError):
        first.expansion = expansions[1]
    with pytest.raises(FrozenInstanceError):
        systems.problem = problem


@pytest.mark.parametrize("method", ["Direct", "auto", ""])
def test_a_method_that_nobody_has_is_refused(method):
    with pytest.raises(ValueError, match=f"method must be 'direct' or 'iterative', not {method!r}"):
        made("probit", method)


@pytest.mark.parametrize("name", ["probit", "softmax"])
def test_pivots_are_chosen_once_and_handed_on(name):
    problem, systems, (one, other) = made(name, "iterative")
    first = systems.at(one)
    assert systems.pivots is None
    assert systems.prepared is None
    assert first.systems.pivots is not None
    later = first.systems.at(other)
    assert later.systems.pivots is first.systems.pivots
    assert later.systems.prepared is first.systems.prepared
    assert later.telling(None).systems.pivots is first.systems.pivots
    found = find_mode(problem, systems.gp, systems, rtol=1e-6)
    torch.testing.assert_close(found.systems.pivots, first.systems.pivots, rtol=0, atol=0)


def test_sharpening_makes_other_systems():
    _, systems, (expansion, _) = made("softmax", "iterative")
    plain = systems.at(expansion)
    sharp = plain.sharpened()
    assert sharp.systems.for_covariances
    assert not plain.systems.for_covariances
    assert sharp.sharpened() is sharp
    for method in METHODS:
        _, systems, (expansion, _) = made("probit", method)
        system = systems.at(expansion)
        assert system.sharpened() is system


@pytest.mark.parametrize("name", ["probit", "softmax"])
def test_direct_systems_have_what_traces_need(name):
    problem, systems, (_, expansion) = made(name, "direct")
    assert isinstance(systems, DirectSystems)
    A, B = expansion.system(systems.K).dense(), columns(problem)
    system, (n, C) = systems.traced_at(expansion), (len(problem), problem.classes)
    inverse, expected = torch.linalg.inv(A), torch.linalg.solve(A, B)
    S = torch.block_diag(*expansion.half_blocks(torch.arange(n)))
    own = torch.stack([inverse[C * i : C * (i + 1), C * i : C * (i + 1)] for i in range(n)])
    total = (S @ inverse @ S.T).reshape(n, C, n, C).diagonal(dim1=1, dim2=3).sum(-1)
    torch.testing.assert_close(system.own, own)
    torch.testing.assert_close(system.total, total)
    for one in (system, systems.at(expansion), replace(system, factor=Inverse(inverse))):
        assert one.log_determinant == pytest.approx(float(torch.logdet(A)))
        torch.testing.assert_close(one.solve(B, TIGHT).solution, expected)


@pytest.mark.parametrize(("sharpness", "variance"), [(0.0, 1.0), (3.0, 10.0), (30.0, 1e4)])
def test_classes_are_factored_by_their_structure(sharpness, variance):
    """Beside A, written from its formula: also where classes are certain and next to nothing is left of W."""
    generator, n, C = np.random.default_rng(0), 40, 4
    X, F = generator.normal(size=(n, 2)), sharpness * generator.normal(size=(n, C))
    K = variance * np.exp(-0.5 * ((X[:, None] - X) ** 2).sum(2))
    pi = np.exp(F - F.max(1, keepdims=True))
    pi /= pi.sum(1, keepdims=True)
    S = np.zeros((n * C, n * C))
    for i, p in enumerate(np.sqrt(pi)):
        S[C * i : C * (i + 1), C * i : C * (i + 1)] = np.diag(p) @ (np.eye(C) - np.outer(p, p))
    A = S.T @ np.kron(K, np.eye(C)) @ S + np.eye(n * C)
    factor, B = SoftmaxFactor(torch.tensor(K), torch.tensor(pi)), generator.normal(size=(n * C, 3))
    inverse = np.linalg.inv(A)
    scale = 1e-14 * np.linalg.cond(A) + 1e-12
    np.testing.assert_allclose(factor.solve(torch.tensor(B)), inverse @ B, atol=10 * scale)
    assert float(factor.log_determinant()) == pytest.approx(np.linalg.slogdet(A)[1], abs=1e-9)
    own, total = factor.traced()
    blocks = (S @ inverse @ S.T).reshape(n, C, n, C)
    np.testing.assert_allclose(own, [inverse.reshape(n, C, n, C)[i, :, i] for i in range(n)], atol=scale)
    np.testing.assert_allclose(total, np.einsum("icjc->ij", blocks), atol=scale)


def test_solves_return_what_they_took():
    problem, systems, (expansion, _) = made("probit", "iterative", preconditioner=None)
    system = systems.at(expansion)
    solved = system.solve(columns(problem), TIGHT)
    again = system.solve(columns(problem), TIGHT)
    assert solved.spent.status is Status.CONVERGED
    assert solved.spent.products == solved.spent.report.columns == again.spent.products > 0
    assert len(solved.spent.report.solution) == 0
    short = system.solve(columns(problem), replace(TIGHT, max_iterations=1))
    assert short.spent.status is Status.MAX_ITERATIONS
    _, systems, (expansion, _) = made("probit", "direct")
    direct = systems.at(expansion).solve(columns(problem), TIGHT)
    assert (direct.spent.status, direct.spent.products, direct.spent.report) == (Status.CONVERGED, 0, None)


def test_records_add_up():
    """The first failure stays, with its report; otherwise the last report."""
    problem, systems, (expansion, _) = made("probit", "iterative", preconditioner=None)
    system, B = systems.at(expansion), columns(problem)
    good, better = (system.solve(B, replace(TIGHT, rtol=rtol)).spent for rtol in (1e-2, 1e-10))
    bad, worse = (system.solve(B, replace(TIGHT, max_iterations=limit)).spent for limit in (2, 1))
    assert (good + better).report is better.report
    assert (better + Spent()).report is better.report
    assert (Spent() + bad + good + worse).report is bad.report
    total = good + bad + better
    assert total.status is bad.status is Status.MAX_ITERATIONS
    assert total.report is bad.report
    assert total.products == good.products + bad.products + better.products


def test_a_retried_solve_counts_all_its_products():
    """A bad preconditioner is replaced: what it cost is counted, its failure is not."""
    problem, systems, (expansion, _) = made("probit", "iterative")
    good = systems.at(expansion)
    bad = replace(good, P=Indefinite())
    found = bad.solve(columns(problem), TIGHT)
    assert found.spent.status is Status.CONVERGED
    assert found.spent.products > found.spent.report.columns
    A = expansion.system(systems.K).dense()
    expected = torch.linalg.solve(A, columns(problem))
    torch.testing.assert_close(found.solution, expected, rtol=1e-6, atol=1e-6)


class Indefinite:
    """A preconditioner that is none."""

    is_constant = True

    def solve(self, R):
        return -R


def test_the_record_of_a_mode_is_that_of_its_solves(monkeypatch):
    problem, systems, _ = made("student_t", "iterative", preconditioner=None)
    kind, taken = type(systems.at(problem.expansion(systems.gp, columns(problem, 1)))), []
    solve = kind.solve

    def watched(self, B, stopping, start=None):
        found = solve(self, B, stopping, start)
        taken.append(found.spent.products)
        return found

    monkeypatch.setattr(kind, "solve", watched)
    found = find_mode(problem, systems.gp, systems, rtol=1e-8)
    assert found.spent.products == sum(taken) > 0
    assert found.spent.status is found.mode.inner
    taken.clear()
    posterior = condition_laplace(problem, systems.gp, numerics=Numerics(preconditioner=None))
    assert posterior.spent.products == sum(taken) > 0
    before = posterior.spent
    posterior.predict(problem.X[:3], covariance=True)
    assert posterior.spent is before
