"""Printed formulas of "Preconditioning Kernel Matrices" (ICML 2016) that are wrong, beside the right ones.

The items are numbered as the project counts them. Each printed form must fail the test that the right one passes.
Algorithm 1 is items 1 to 5, preconditioners are 6, 7, 11 to 16 and 33 to 36; the Laplace approximation is to join.
"""

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from bound import bound_system

from kernelcg.backends import Tiles
from kernelcg.kernels import RBF
from kernelcg.operators import Counting
from kernelcg.preconditioners import available, recipe
from kernelcg.preconditioners.inducing import inducing_factor
from kernelcg.randomness import seeded
from kernelcg.solvers import Status, Stopping, solve


@dataclass
class Steps:
    """The iterates of a hand-written PCG: what each formula of Algorithm 1 leads to."""

    x: list
    r: list
    p: list


def right_alpha(r, z, p, A):
    return (r @ z) / (p @ A @ p)


def right_residual(r, alpha, A, p):
    return r - alpha * A @ p


def right_beta(r, z, r_old, z_old):
    return (r @ z) / (r_old @ z_old)


def right_direction(z, beta, p):
    return z + beta * p


def algorithm_1(A, P, v, steps, alpha=right_alpha, residual=right_residual, beta=right_beta, direction=right_direction):
    """Run Algorithm 1 with each formula as given."""
    x, r = np.zeros_like(v), v.copy()
    z = np.linalg.solve(P, r)
    p = z.copy()
    done = Steps([x], [r], [p])
    with np.errstate(all="ignore"):
        for _ in range(steps):
            a = alpha(r, z, p, A)
            x, r_old, z_old = x + a * p, r, z
            r = residual(r, a, A, p)
            z = np.linalg.solve(P, r)
            p = direction(z, beta(r, z, r_old, z_old), p)
            done.x.append(x)
            done.r.append(r)
            done.p.append(p)
    return done


@pytest.fixture(scope="module")
def system():
    """A kernel system, a preconditioner that is neither exact nor useless, and a right-hand side."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 2))
    K = np.exp(-0.5 * ((X[:, None] - X) ** 2).sum(-1))
    A = K + 0.1 * np.eye(30)
    F = K[:, :8] @ np.linalg.inv(np.linalg.cholesky(K[:8, :8] + 1e-10 * np.eye(8))).T
    return A, F @ F.T + 0.1 * np.eye(30), rng.normal(size=30)


def energy_error(A, v, x):
    error = np.linalg.solve(A, v) - x
    return error @ A @ error


def worst_conjugacy(A, p):
    """Return the largest |pᵢᵀApⱼ| / (‖pᵢ‖_A ‖pⱼ‖_A) over the first directions."""
    P = np.array(p[:6])
    gram = P @ A @ P.T
    size = np.sqrt(np.diag(gram))
    return np.max(np.abs(gram / np.outer(size, size) - np.eye(len(P))))


def test_1_step_length_searches_along_the_direction(system):
    A, P, v = system

    def printed(r, z, p, A):
        return (r @ z) / (r @ A @ z)

    def falls(alpha):
        errors = [energy_error(A, v, x) for x in algorithm_1(A, P, v, 4, alpha=alpha).x]
        return all(later < earlier for earlier, later in itertools.pairwise(errors))

    assert falls(right_alpha)
    assert not falls(printed)


def test_2_residual_falls_with_the_product(system):
    A, P, v = system

    def printed(r, alpha, A, p):
        return r + alpha * A @ p

    def drift(residual):
        run = algorithm_1(A, P, v, 5, residual=residual)
        return max(np.linalg.norm(r - (v - A @ x)) for r, x in zip(run.r, run.x, strict=True)) / np.linalg.norm(v)

    assert drift(right_residual) < 1e-12
    assert drift(printed) > 0.1


def test_3_beta_uses_the_preconditioned_inner_product(system):
    A, P, v = system

    def printed(r, z, r_old, z_old):
        return (r @ r) / (r_old @ r_old)

    assert worst_conjugacy(A, algorithm_1(A, P, v, 6).p) < 1e-8
    assert worst_conjugacy(A, algorithm_1(A, P, v, 6, beta=printed).p) > 1e-3


def test_4_direction_starts_from_the_preconditioned_residual(system):
    A, P, v = system

    def printed(z, beta, p):
        return p + beta * p

    def relative_residual(direction):
        x = algorithm_1(A, P, v, 30, direction=direction).x[-1]
        return np.linalg.norm(v - A @ x) / np.linalg.norm(v)

    assert relative_residual(right_direction) < 1e-8
    assert not relative_residual(printed) < 0.1


def test_1_to_4_our_solver_takes_the_right_steps(system):
    A, P, v = system
    exact = algorithm_1(A, P, v, 6)

    class Preconditioner:
        is_constant = True

        def solve(self, R):
            return torch.from_numpy(np.linalg.solve(P, R.numpy()))

    for steps in range(7):
        report = solve(
            A, v[:, None], method="pcg", preconditioner=Preconditioner(), stopping=Stopping(1e-14, max_iterations=steps)
        )
        assert report.solution[:, 0].numpy() == pytest.approx(exact.x[steps], rel=1e-8, abs=1e-10)


def test_5_loop_makes_exactly_t_steps_tests_first_and_returns_at_the_cap(system):
    A, _, v = system
    counted = Counting(bound_system(RBF(1.0), np.zeros((1, 1)), 1.0))
    exact_start = solve(counted, torch.ones(1, 1), start=torch.full((1, 1), 0.5))
    assert exact_start.iterations.tolist() == [0]
    assert exact_start.solution.isfinite().all()
    assert torch.count_nonzero(solve(A, 0 * v[:, None]).solution) == 0
    capped = solve(A, v[:, None], method="cg", stopping=Stopping(rtol=1e-12, max_iterations=4))
    assert capped.status is Status.MAX_ITERATIONS
    assert capped.iterations.tolist() == [4]
    assert capped.products == 4 + 1, "four steps and the check of the result"
    assert torch.count_nonzero(capped.solution) > 0


def test_18_stopping_bounds_the_residual_not_the_error(system):
    """The paper reads ‖r‖² < n·1e-10 as an error of 1e-5 in each entry; the error may be larger by 1/λ_min."""
    values = np.geomspace(1e-8, 1, 30)
    Q, _ = np.linalg.qr(np.random.default_rng(1).normal(size=(30, 30)))
    A = Q @ np.diag(values) @ Q.T
    x = Q[:, 0]  # the eigenvector of the smallest eigenvalue
    b = (A + A.T) @ x / 2
    assert np.linalg.norm(b) ** 2 < 30 * 1e-10, "the zero vector meets the printed rule …"
    report = solve((A + A.T) / 2, b[:, None], method="direct", stopping=Stopping(rtol=1e-6))
    assert np.linalg.norm(0 - x) > 0.9, "… although it is entirely wrong"
    assert torch.linalg.vector_norm(report.solution) > 0.9, "a relative tolerance does not take it"


@dataclass
class Kernels:
    """K, what the points U see of it, Q = K_XU K_UU⁻¹ K_UX, and the same data for our recipes."""

    X: np.ndarray
    U: tuple

    def __post_init__(self):
        self.K = np.exp(-0.5 * ((self.X[:, None] - self.X) ** 2).sum(-1))
        self.K_xu, self.K_uu = self.K[:, list(self.U)], self.K[np.ix_(self.U, self.U)]
        self.Q = self.K_xu @ np.linalg.solve(self.K_uu, self.K_xu.T)

    def build(self, name, noise, seed=0, X=None, **options):
        A = bound_system(RBF(1.0), self.X if X is None else X, noise, backend=Tiles())
        return recipe(name, **options).build(A, seeded(seed))


@pytest.fixture(scope="module")
def kernels():
    return Kernels(np.random.default_rng(3).normal(size=(30, 2)), (1, 4, 9, 16, 25, 29))


def inverse_error(inverse, P):
    return np.abs(inverse @ P - np.eye(len(P))).max()


def applied_inverse(P):
    return P.solve(torch.eye(len(P), dtype=torch.float64)).numpy()


@pytest.mark.parametrize("noise", [1e-2, 1e-4])
def test_6_nystrom_inverse_weighs_k_uu_by_the_noise(kernels, noise):
    K_xu, K_uu, eye = kernels.K_xu, kernels.K_uu, np.eye(30)

    def inverse(noise, weight):
        return (eye - K_xu @ np.linalg.solve(weight * K_uu + K_xu.T @ K_xu, K_xu.T)) / noise

    P = kernels.Q + noise * eye
    assert inverse_error(inverse(noise, noise), P) < 1e-8
    assert inverse_error(inverse(noise, 1.0), P) > 1
    assert inverse_error(inverse(1.0, 1.0), kernels.Q + eye) < 1e-8, "at λ = 1 no test can tell"
    assert inverse_error(applied_inverse(kernels.build("nystrom", noise, points=kernels.U, jitter=0.0)), P) < 1e-8


@pytest.mark.parametrize("noise", [1e-2, 1e-4])
def test_7_factor_inverse_weighs_the_identity_by_the_noise(kernels, noise):
    ours = kernels.build("spectral", noise, frequencies=4)
    P, eye = ours.dense().numpy(), np.eye(30)
    values, V = np.linalg.eigh(P - noise * eye)
    Phi = V[:, -8:] * np.sqrt(values[-8:])

    def inverse(weight):
        return (eye - Phi @ np.linalg.solve(weight * np.eye(8) + Phi.T @ Phi, Phi.T)) / noise

    assert inverse_error(inverse(noise), P) < 1e-8
    assert inverse_error(inverse(1.0), P) > 1
    assert inverse_error(applied_inverse(ours), P) < 1e-8


def test_11_block_jacobi_adds_the_noise_once(kernels):
    noise, blocks = 0.3, np.kron(np.eye(3), np.ones((10, 10)))
    K_y = kernels.K + noise * np.eye(30)
    printed = blocks * K_y + noise * np.eye(30)
    P = kernels.build("block_jacobi", noise, blocks="contiguous", block_size=10).dense().numpy()
    assert np.abs(P - blocks * K_y).max() < 1e-12
    assert np.abs(printed - blocks * K_y).max() > 0.2


def test_12_costs_are_those_of_the_products_with_all_n_points():
    """Printed: O(m³). K_UX K_XU alone costs n m²; applying costs n m, the 3/2 power of n at m = √n."""
    for name in ("nystrom", "fitc", "spectral", "pivoted_cholesky", "rp_cholesky"):
        assert available()[name].COST == "build O(n m²), apply O(n m k)"


def test_13_training_points_are_independent_given_those_at_u(kernels):
    """Printed: the latents *at U* are. That would replace K_UU by its diagonal and spoil the rest."""
    noise, K_y = 0.1, kernels.K + 0.1 * np.eye(30)
    block = np.kron(np.eye(3), np.ones((10, 10))).astype(bool)
    printed = kernels.K_xu @ np.diag(1 / np.diag(kernels.K_uu)) @ kernels.K_xu.T + noise * np.eye(30)
    for name, kept in (("fitc", np.eye(30, dtype=bool)), ("pitc", block)):
        options = {"blocks": "contiguous", "block_size": 10} if name == "pitc" else {}
        P = kernels.build(name, noise, points=kernels.U, **options).dense().numpy()
        assert P[kept] == pytest.approx(K_y[kept], abs=1e-8)
        assert P[~kept] == pytest.approx(kernels.Q[~kept], abs=1e-8)
        assert np.abs(printed[kept] - K_y[kept]).max() > 0.1
        assert np.abs(printed[~kept] - kernels.Q[~kept]).max() > 0.1


def test_14_fitc_inverse_has_no_noise_beside_k_uu(kernels):
    noise, K_xu, K_uu, eye = 0.01, kernels.K_xu, kernels.K_uu, np.eye(30)
    D = np.diag(np.diag(kernels.K - kernels.Q)) + noise * eye
    P, D_inverse = kernels.Q + D, np.linalg.inv(D)

    def inverse(weight):
        middle = np.linalg.inv(weight * K_uu + K_xu.T @ D_inverse @ K_xu)
        return D_inverse - D_inverse @ K_xu @ middle @ K_xu.T @ D_inverse

    as_before = D_inverse @ (eye - K_xu @ np.linalg.solve(K_uu + K_xu.T @ K_xu, K_xu.T))
    assert inverse_error(inverse(1.0), P) < 1e-8
    assert inverse_error(inverse(noise), P) > 1e-2, "item 6 put in place of it"
    assert inverse_error(as_before, P) > 0.1, "the printed inverse with a diagonal in place of λI"
    assert inverse_error(applied_inverse(kernels.build("fitc", noise, points=kernels.U, jitter=0.0)), P) < 1e-8


def test_15_spectral_features_are_cosines_and_sines_in_input_space(kernels):
    """m frequencies of d entries, 2m columns; m columns of cosines alone have the wrong mean."""
    X, K, m = kernels.X[:6], kernels.K[:6, :6], 3
    ours, printed = [], []
    for seed in range(400):
        frequencies = RBF(1.0).sample_frequencies(2, m, seeded(seed)).numpy()
        assert frequencies.shape == (m, 2)
        P = kernels.build("spectral", 1.0, seed, X=X, frequencies=m)
        assert P.Q.shape == (6, 2 * m)
        ours.append(P.dense().numpy() - np.eye(6))
        cosines = np.cos(X @ frequencies.T)
        printed.append(cosines @ cosines.T / m)

    def worst_z_score(draws):
        error = np.std(draws, axis=0, ddof=1) / np.sqrt(len(draws))
        return np.max(np.abs(np.mean(draws, axis=0) - K) / np.maximum(error, 1e-12))

    assert worst_z_score(ours) < 4
    assert worst_z_score(printed) > 10


def test_16_truncated_svd_is_made_symmetric(kernels):
    """U Σ Vᵀ of a randomised SVD approximates K, but PCG needs a symmetric P; eigenvectors of QᵀKQ give one."""
    K = np.exp(-0.5 * 9 * ((kernels.X[:, None] - kernels.X) ** 2).sum(-1))  # a short lengthscale: slow decay
    Q, _ = np.linalg.qr(K @ np.random.default_rng(0).normal(size=(30, 8)))
    U, values, Vt = np.linalg.svd(Q.T @ K)
    printed = (Q @ U[:, :5] * values[:5]) @ Vt[:5]
    assert np.abs(printed - printed.T).max() > 1e-2
    A = bound_system(RBF(1 / 3), kernels.X, 1e-4, backend=Tiles())
    P = recipe("randomized_svd", rank=5, oversampling=3).build(A, seeded(0))
    assert np.abs(applied_inverse(P) - applied_inverse(P).T).max() <= 1e-10 * np.abs(applied_inverse(P)).max()
    assert np.linalg.matrix_rank(P.dense().numpy() - 1e-4 * np.eye(30), tol=1e-8) == 5


@pytest.mark.parametrize("kind", ["indefinite", "unsymmetric"])
def test_16_and_19_preconditioner_must_be_symmetric_positive_definite(system, kind):
    A, P, v = system
    rng = np.random.default_rng(2)
    wrong = -np.linalg.inv(P) if kind == "indefinite" else np.linalg.inv(P) + np.triu(rng.normal(size=P.shape), 1)

    class Preconditioner:
        is_constant = True

        def solve(self, R):
            return torch.from_numpy(wrong @ R.numpy())

    report = solve(A, v[:, None], method="pcg", preconditioner=Preconditioner())
    expected = Status.INDEFINITE_PRECONDITIONER if kind == "indefinite" else Status.UNSYMMETRIC_PRECONDITIONER
    assert report.status is expected


def test_28_to_30_capped_runs_have_a_status_and_products_are_counted(system):
    """The authors' grids hold 10001 and 15001 for "did not converge", and steps − 1 for those that did."""
    A, _, v = system
    tally = Counting(bound_system(RBF(0.5), np.random.default_rng(0).normal(size=(20, 2)), 0.1))
    report = solve(tally, v[:20, None], method="cg")
    assert report.status is Status.CONVERGED
    assert report.products == tally.tally.products == int(report.iterations[0]) + 1
    assert solve(A, v[:, None], method="cg", stopping=Stopping(max_iterations=2)).status is Status.MAX_ITERATIONS


def test_31_a_residual_that_stops_changing_is_not_convergence():
    """One flexible variant of the code stops on ‖r_k − r_{k−1}‖²; a plateau would pass for a solution."""
    n = 40
    chain = np.diag(np.full(n, 2.0)) + np.diag(np.full(n - 1, -1.0), 1) + np.diag(np.full(n - 1, -1.0), -1)
    b = np.zeros((n, 1))
    b[0] = 1  # CG moves one node a step; its residual hardly changes until the far end is reached
    report = solve(chain, b, method="flexible_pcg", stopping=Stopping(rtol=1e-8))
    changes = np.abs(np.diff(report.residual_norms[:, 0].numpy()))
    assert changes[:30].min() < 1e-2
    assert report.status is Status.CONVERGED
    assert int(report.iterations[0]) >= n - 1
    assert np.linalg.norm(b - chain @ report.solution.numpy()) <= 1e-8


def test_33_blocks_in_file_order_depend_on_the_file(kernels):
    """The code cuts the file as it comes; shuffled rows are then another preconditioner. Close points are not."""
    rows = np.random.default_rng(1).permutation(30)
    for blocks in ("contiguous", "spatial"):
        options = {"blocks": blocks, "block_size": 10}
        P = kernels.build("block_jacobi", 0.1, **options).dense().numpy()
        shuffled = kernels.build("block_jacobi", 0.1, X=kernels.X[rows], **options).dense().numpy()
        assert np.allclose(shuffled, P[np.ix_(rows, rows)], atol=1e-12) == (blocks == "spatial")
    assert available()["pitc"].options()["blocks"] == "spatial", "which one is an option, and said"


def test_34_unknown_names_raise():
    """In the code they silently run FITC."""
    with pytest.raises(ValueError, match="there is no preconditioner"):
        recipe("Regularised")


def test_35_points_are_drawn_without_replacement(kernels):
    """4⌊√n⌋ of them. With replacement, as in the code, K_UU is singular."""
    repeated = np.random.default_rng(0).integers(0, 30, 20)
    assert np.linalg.matrix_rank(kernels.K[np.ix_(repeated, repeated)], tol=1e-14) < 20
    for seed in range(20):
        X, generator = torch.from_numpy(kernels.X), seeded(seed)
        drawn = inducing_factor(Tiles().bind(RBF(1.0), X), generator, rank=None, points=None, jitter=0.0).points
        assert len(drawn) == len(set(drawn.tolist())) == 4 * 5


def test_36_jitter_is_an_option(kernels):
    """The code adds 1e-6 that the paper does not print."""
    with_jitter = kernels.K_xu @ np.linalg.solve(kernels.K_uu + 1e-6 * np.eye(6), kernels.K_xu.T)
    P = kernels.build("nystrom", 0.1, points=kernels.U, jitter=1e-6).dense().numpy() - 0.1 * np.eye(30)
    assert np.abs(P - with_jitter).max() < 1e-11
    assert np.abs(P - kernels.Q).max() > 1e-7
