"""The contract of a preconditioner: drawn cases, and one check for each sentence of it.

A check takes a `Case` and raises. Recipes are never named here: options are recognised by their names, so that a
recipe dropped into the folder is tried like all others.
"""

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from bound import bound_system
from hypothesis import strategies as st
from reference import array, kernel_matrix, system_matrix
from strategies import points

from kernelcg import backends
from kernelcg.kernels import RBF, Kernel, Linear, Matern
from kernelcg.operators import ConstantInvertible, CountsInner, KernelPlusDiagonal
from kernelcg.preconditioners import Preconditioner, available
from kernelcg.randomness import seeded
from kernelcg.solvers import Status, Stopping, solve

TINY = 1e-10
"""The smallest noise promised to work, relative to the variance."""

OPTIONS = {
    "rank": lambda n: st.one_of(st.none(), st.integers(1, n + 5)),
    "neighbours": lambda n: st.integers(0, n + 5),
    "frequencies": lambda n: st.one_of(st.none(), st.integers(1, n + 5)),
    "block_size": lambda n: st.one_of(st.none(), st.integers(1, n + 5)),
    "blocks": lambda n: st.sampled_from(["spatial", "contiguous"]),
    "tolerance": lambda n: st.sampled_from([0.0, 0.1]),
    "oversampling": lambda n: st.integers(0, 10),
    "power": lambda n: st.integers(0, 2),
    "multiple": lambda n: st.sampled_from([1.0, 100.0]),
    "inner_tolerance": lambda n: st.sampled_from([1e-1, 1e-3]),
}
"""What an option of this name may be for n points; options not listed keep their default."""

FULL = {"rank": lambda n: n + 3, "neighbours": lambda n: n - 1, "tolerance": lambda n: 0.0}
"""What the options have to be at least for P = A, of the recipes that claim it."""


@dataclass(frozen=True)
class Case:
    """A recipe, a system and a seed."""

    recipe: Preconditioner
    A: KernelPlusDiagonal
    seed: int

    def build(self):
        return self.recipe.build(self.A, seeded(self.seed))

    def columns(self, k=3):
        """Return a right-hand side that has nothing to do with the recipe's own draws."""
        return torch.from_numpy(np.random.default_rng(self.seed).standard_normal((len(self.A), k)))


@cache
def needs_stationary(cls):
    """Say whether the recipe refuses, with a `TypeError`, a kernel that is not a function of x − y."""
    try:
        cls().prepare(backends.Tiles().bind(Linear(1.0), torch.ones(1, 1, dtype=torch.float64)), seeded(0))
    except TypeError:
        return True
    return False


@st.composite
def kernels(draw, d, stationary):
    """Draw RBF, Matérn or a sum, with lengthscales from far below to far above the spacing of the points."""
    lengthscales = st.one_of(st.floats(-3, 3), st.lists(st.floats(-3, 3), min_size=d, max_size=d)).map(np.exp)
    variances = st.sampled_from([1e-3, 1.0, 50.0])
    parts = {
        "rbf": st.builds(RBF, lengthscales, variances),
        "matern": st.builds(Matern, lengthscales, variances, nu=st.sampled_from((0.5, 1.5, 2.5))),
    }
    kind = draw(st.sampled_from(["rbf", "matern", "sum"] if stationary else ["rbf", "matern", "sum", "with linear"]))
    if kind in parts:
        return draw(parts[kind])
    return draw(parts["rbf"]) + (draw(parts["matern"]) if kind == "sum" else Linear(draw(variances)))


@st.composite
def systems(draw, *, stationary=False, noises=(TINY, 1e-6, 1e-2, 1.0), largest=40):
    """Draw A = S K S + D, n from 1: points repeated or not, S absent, partly zero or all zero, D constant or not."""
    n, d = draw(st.integers(1, largest)), draw(st.integers(1, 3))
    X = draw(points(n, d))
    X = X[:1].expand(n, d) if draw(st.integers(0, 9)) == 9 else X  # now and then one point, n times
    kernel: Kernel = draw(kernels(d, stationary))
    rng = np.random.default_rng(draw(st.integers(0, 2**31 - 1)))
    variance = float(np.mean(np.diag(kernel_matrix(kernel, X, X)))) or 1.0
    diagonal = variance * draw(st.sampled_from(noises)) * np.exp(draw(st.sampled_from([0, 1])) * rng.uniform(-2, 2, n))
    kind = draw(st.sampled_from(["none", "none", "positive", "some zero", "some zero", "all zero"]))
    kept = {"none": 1, "positive": 1, "some zero": rng.integers(0, 2, n), "all zero": 0}[kind]
    scale = None if kind == "none" else rng.uniform(0.1, 1, n) * kept
    X = X.to(draw(st.sampled_from([torch.float32, torch.float64]))).contiguous()
    backend = draw(st.sampled_from([backends.Tiles(), backends.default()]))
    return bound_system(kernel, X, diagonal, scale, backend)


@st.composite
def cases(draw, name, *, full=False, **limits):
    """Draw a case for the recipe of this name; ``full`` asks for the rank at which it should be exact."""
    cls = available()[name]
    A = draw(systems(stationary=needs_stationary(cls), **limits))
    chosen = {option: draw(OPTIONS[option](len(A))) for option in cls.options() if option in OPTIONS}
    if full:
        chosen |= {option: value(len(A)) for option, value in FULL.items() if option in chosen}
    chosen = {option: cls.options()[option] if value is None else value for option, value in chosen.items()}
    return Case(cls(**chosen), A, draw(st.integers(0, 2**31 - 1)))


def tolerance(P, A):
    """Return n ε ‖P‖ / δ with δ the smallest of D and the spectrum of P: written once, for every use of P⁻¹.

    D comes in because P = F Fᵀ + D is inverted in units of D: what F adds to its smallest entries costs digits.
    """
    values = np.linalg.eigvalsh(array(P.dense()))
    return 30 * len(A) * np.finfo(float).eps * values[-1] / min(values[0], float(A.diagonal.min()))


def relative(error, size):
    return np.linalg.norm(array(error)) / np.linalg.norm(array(size))


def check_positive_definite(case, P):
    dense = array(P.dense())
    assert dense.shape == (len(case.A), len(case.A))
    assert np.abs(dense - dense.T).max() <= 1e-14 * np.abs(dense).max()
    assert np.linalg.eigvalsh(dense)[0] > 0


def check_symmetric_inverse(case, P):
    """What `solve` applies is symmetric and positive definite too: all that CG asks."""
    inverse = array(P.solve(torch.eye(len(case.A), dtype=torch.float64)))
    assert relative(inverse - inverse.T, inverse) <= tolerance(P, case.A)
    assert np.linalg.eigvalsh((inverse + inverse.T) / 2)[0] > 0


def check_inverse(case, P):
    """P P⁻¹ R = R to rounding, or to the tolerance of the inner solve."""
    R = case.columns()
    error = torch.linalg.vector_norm(P.dense() @ P.solve(R) - R, dim=0) / torch.linalg.vector_norm(R, dim=0)
    assert float(error.max()) <= (tolerance(P, case.A) if P.is_constant else 1.01 * P.stopping.rtol)


def check_log_determinant(case, P):
    sign, value = np.linalg.slogdet(array(P.dense()))
    assert sign == 1
    assert P.log_determinant().shape == ()
    assert abs(float(P.log_determinant()) - value) <= len(case.A) * tolerance(P, case.A) + 1e-13 * abs(value)


def check_linear(case, P):
    R = case.columns(4)
    combined = P.solve(2.0 * R[:, :2] - 3.0 * R[:, 2:])
    parts = 2.0 * P.solve(R[:, :2]) - 3.0 * P.solve(R[:, 2:])
    assert relative(combined - parts, parts) <= tolerance(P, case.A)


def check_argument_left_alone(case, P):
    R = case.columns()
    before = R.clone()
    Z = P.solve(R)
    assert torch.equal(R, before)
    assert Z.data_ptr() != R.data_ptr()


def check_dtype_and_device(case, P):
    """The result has the dtype and device of R; the arithmetic is float64 whatever R is."""
    R = case.columns()
    for dtype in (torch.float32, torch.float64):
        Z = P.solve(R.to(dtype))
        assert (Z.dtype, Z.device, Z.shape) == (dtype, R.device, R.shape)
    assert P.dense().dtype == torch.float64
    exact, rounded = P.solve(R.float().double()), P.solve(R.float())
    assert relative(rounded.double() - exact, exact) <= np.finfo(np.float32).eps
    if P.is_constant:
        assert P.sample(seeded(0), 2).dtype == torch.float64
        assert P.sample(seeded(0), 2).shape == (len(case.A), 2)


def check_reproducible(case, P):
    """Same seed, same P; nothing is drawn from torch's or NumPy's global state."""
    states = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    again, R = case.build(), case.columns()
    assert torch.equal(P.dense(), again.dense())
    assert torch.equal(P.solve(R), again.solve(R))
    assert torch.equal(states[0], torch.get_rng_state())
    assert np.array_equal(states[1], np.random.get_state()[1])  # noqa: NPY002


def check_prepared_once(case, P):
    """One prepared object serves every S and D, and factoring again leaves the first P as it was."""
    A = case.A
    scale = torch.linspace(0.0, 2.0, len(A), dtype=torch.float64) if A.scale is None else None
    other = replace(case, A=replace(A, diagonal=3.0 * A.diagonal.flip(0), scale=scale))
    prepared = case.recipe.prepare(A.K, seeded(case.seed))
    first, R = prepared.factor(A.scale, A.diagonal), case.columns()
    before = first.solve(R)
    second = prepared.factor(other.A.scale, other.A.diagonal)
    assert torch.equal(second.dense(), other.build().dense())
    assert torch.equal(second.solve(R), other.build().solve(R))
    assert torch.equal(first.solve(R), before)
    assert torch.equal(before, P.solve(R))


def check_numbers(case, P):
    """``numbers`` says how many floating-point numbers P keeps alive, no more and hardly fewer."""
    kept = stored_numbers(P)
    assert kept <= P.numbers <= 1.1 * kept


def stored_numbers(P):
    """Return the floating-point numbers in all distinct storages reachable from an object."""
    found, queue = {}, [P]
    while queue:
        value = queue.pop()
        if isinstance(value, torch.Tensor):
            value = value.values() if value.layout == torch.sparse_csr else value
            if value.is_floating_point():
                found[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes() // value.itemsize
        elif isinstance(value, np.ndarray):
            if value.dtype.kind == "f":
                found[value.ctypes.data] = value.size
        elif isinstance(value, (list, tuple)):
            queue += value
        else:
            queue += getattr(value, "__dict__", {}).values()
    return sum(found.values())


def check_solves(case, rtol=1e-8):
    """A solve with P meets its tolerance, recomputed in dense NumPy, and so is near the dense solution."""
    P, B = case.build(), case.columns()
    A = case.A.with_precision(torch.float64)  # how solvers cope with rounded products is their own test
    report = solve(A, B, preconditioner=P, stopping=Stopping(rtol=rtol, max_iterations=2000))
    assert report.status is Status.CONVERGED, report
    A, X = system_matrix(case.A.kernel, case.A.X, case.A.diagonal, case.A.scale), array(report.solution)
    residuals = np.linalg.norm(array(B) - A @ X, axis=0) / np.linalg.norm(array(B), axis=0)
    assert residuals.max() <= rtol * 1.01
    exact = np.linalg.solve(A, array(B))
    assert relative(X - exact, exact) <= 2 * rtol * np.linalg.cond(A)


def check_stays_definite(case, P):
    """Whatever rounding does to the solve, P is never to blame for its end."""
    report = solve(case.A, case.columns(), preconditioner=P, stopping=Stopping(max_iterations=10))
    blamed = (Status.INDEFINITE_PRECONDITIONER, Status.UNSYMMETRIC_PRECONDITIONER, Status.NOT_FINITE)
    assert not set(report.column_status) & set(blamed), report


def check_exact(case):
    """P = A to rounding, which a sparse factor of the inverse amplifies, and to the jitter that was asked for."""
    P, A = case.build(), system_matrix(case.A.kernel, case.A.X, case.A.diagonal, case.A.scale)
    jitter = getattr(case.recipe, "jitter", 0.0) * float(case.A.kernel_diagonal().mean())
    largest = 1.0 if case.A.scale is None else float(case.A.scale.max())
    rounding = tolerance(P, case.A) if "neighbours" in case.recipe.options() else 100 * len(A) * np.finfo(float).eps
    assert np.linalg.norm(array(P.dense()) - A, 2) <= 1.01 * jitter * largest**2 + rounding * np.linalg.norm(A, 2)


def z_scores_of_draws(P, count=20_000, seed=1):
    """Return how many standard errors the second moments of draws from N(0, P) are away from P."""
    dense, draws = array(P.dense()), array(P.sample(seeded(seed), count))
    errors = np.sqrt((np.outer(np.diag(dense), np.diag(dense)) + dense**2) / count)
    return (draws @ draws.T / count - dense) / errors


EVERY = (
    check_positive_definite,
    check_inverse,
    check_argument_left_alone,
    check_dtype_and_device,
    check_reproducible,
    check_prepared_once,
    check_stays_definite,
)
"""What holds for every shape on every system …"""

CONSTANT = (check_symmetric_inverse, check_log_determinant, check_linear, check_numbers)
"""… and for those whose P⁻¹ is the same linear map every time."""


def check_contract(case):
    P = case.build()
    assert isinstance(P, ConstantInvertible if P.is_constant else CountsInner)
    for check in EVERY + (CONSTANT if P.is_constant else ()):
        check(case, P)
