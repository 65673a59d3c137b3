"""How far a mode that was found may be from the exact one, rounding included, and what else is off because of it."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kernelcg.inference.bounds.product_rounding import ProductRounding
from kernelcg.inference.bounds.rounding import UNIT_ROUNDOFF, error_of_drift
from kernelcg.inference.laplace.expansion import ClassExpansion, ScalarExpansion
from kernelcg.inference.laplace.latent_model import LatentProcess, Observations
from kernelcg.inference.laplace.mode import Mode, NewtonStep
from kernelcg.likelihoods import Likelihood
from kernelcg.solvers.least_squares import least_squares

ARITHMETIC = 8 * UNIT_ROUNDOFF
"""Relative rounding of log p, of its derivatives and of f within them, generously."""

TRIALS = 40
"""Radii that are tried for a ball that holds the mode; each is a little larger than what the last one asks for."""

ROOM = 2.2
"""Radius of the ball, in units of the decrement times the widening within it; more than 2 is needed."""

LARGEST_WIDENING, HUGE = 1e6, 1e200
REACHED = 1e-3
"""Part of a right-hand side that may be left of a system of the drift which is solved."""

LARGEST_REACH = 600.0
"""Change of f beyond which exponentials overflow."""


@dataclass(frozen=True)
class ModeError:
    r"""How far the computed f = Ka + Hβ may be from the exact mode f̂, and what follows.

    With M = K⁻¹ + W at f, Σ = M⁻¹ and r = ∇log p − a, a drift taken as part of f with a flat prior:

    Within a ball of radius η in the norm of M around f, let M/s ⪯ M' ⪯ sM; s = s(η) comes from the range of W that the
    likelihood states. Then Ψ(f + δ) ≤ Ψ(f) + ‖r‖_Σ ‖δ‖_M − ‖δ‖²_M / 2s, so that f̂ is in the ball if η > 2s‖r‖_Σ, and

    .. math:: \|f - \hat f\|_M \le s \|r\|_\Sigma, \qquad
        0 \le \Psi(\hat f) - \Psi(f) \le \tfrac{s}{2} \|r\|_\Sigma^2, \qquad
        \Sigma / s \preceq \hat\Sigma \preceq s \Sigma.

    The mean at any x is off by √v(x) times the first, v being its latent variance, since
    :math:`k_*^\top K^{-1} \Sigma K^{-1} k_* \le v`. For log-concave likelihoods without a drift
    ‖f − f̂‖_{K⁻¹} ≤ ‖r‖_K holds besides, whatever s is.

    Attributes
    ----------
    deviations : bound of the error of every latent mean, in units of its standard deviation
    energy : bound of ‖f − f̂‖ in the norm of K⁻¹; ∞ with a drift, unless the deviations say more
    widening : s: latent variances at the exact mode are within this factor of those at f
    psi : bound of Ψ(f̂) − Ψ(f)
    psi_rounding : how far Ψ(f) itself may be off
    determinant : how far log|I + KW| may be off, because f is and by rounding
    is_certain : whether these are bounds; otherwise W is known at some places only, or log p is not concave, and they
        are estimates
    """

    deviations: float
    energy: float
    widening: float
    psi: float
    psi_rounding: float
    determinant: float
    is_certain: bool


GIVEN_UP = 0.25
"""Curvature that stands for that of a point where log p is not concave, relative to the usual one."""

NOWHERE = ModeError(math.inf, math.inf, math.inf, math.inf, math.inf, math.inf, is_certain=False)
"""The error of a point that is no maximum: another Newton step would lead away."""


def mode_error(problem: Observations, gp: LatentProcess, mode: Mode, step: NewtonStep) -> ModeError:
    """Return how far the mode may be off, from the Newton step that would come next: two or three products."""
    return _Surroundings.of(problem, gp, mode, step).error(step)


@dataclass(frozen=True, eq=False)
class _Surroundings:
    """What is known around f; vectors with one entry a point are (n,), those with one a latent value (N, 1)."""

    problem: Observations
    gp: LatentProcess
    mode: Mode
    rounding: ProductRounding
    prior: Tensor  # (n,) k(x, x)
    variances: Tensor  # (n,) no less than the posterior variance of f_i; for classes, of a difference of two
    f_error: Tensor  # (N, 1) rounding of f
    g_error: Tensor  # (N, 1) what that and other rounding makes of ∇log p

    @classmethod
    def of(cls, problem: Observations, gp: LatentProcess, mode: Mode, step: NewtonStep) -> "_Surroundings":
        rounding, C = ProductRounding.of(problem.matrix(gp.kernel)), problem.classes
        prior = rounding.root.square()
        unit = problem.y.double().abs().clamp_max(1.0) if C == 1 else torch.ones_like(prior)  # that of f, or of log μ
        size = mode.f.abs() + (unit + problem.exposure.log().abs()).repeat_interleave(C)[:, None]
        f_error = rounding.of_product(mode.a.reshape(len(problem), -1)).reshape(-1, 1) + ARITHMETIC * size
        if problem.H.shape[1]:
            f_error = f_error + error_of_drift(problem.drift, problem.X) @ mode.beta.abs()
        known = cls(problem, gp, mode, rounding, prior, prior, f_error, torch.zeros_like(f_error))
        g_error = known._change_of_gradient(f_error)
        return cls(problem, gp, mode, rounding, prior, known._variances(step), f_error, g_error)

    # rounding

    def _change_of_gradient(self, change: Tensor) -> Tensor:
        """Return (N, 1) how far ∇log p may move when every f moves by up to the change, and by rounding."""
        expansion, g = self.mode.expansion, self.mode.expansion.gradient.abs()
        if isinstance(expansion, ClassExpansion):
            pi = expansion.pi.reshape(-1, 1)
            largest = change.reshape(expansion.pi.shape).amax(1).repeat_interleave(expansion.pi.shape[1])[:, None]
            return pi * (1 - pi) * torch.expm1(2 * largest.clamp_max(LARGEST_REACH)) + ARITHMETIC * (g + pi)
        low, high = self._range(change[:, 0])
        return torch.maximum(low.abs(), high.abs())[:, None] * change + ARITHMETIC * g

    def _range(self, reach: Tensor) -> tuple[Tensor, Tensor]:
        """Return (n,) the least and the largest W within reach of f."""
        likelihood, problem = self.gp.likelihood, self.problem
        if not isinstance(likelihood, Likelihood):
            raise TypeError("classes have blocks of W")
        return likelihood.curvature_range(
            problem.y, self.mode.f[:, 0], reach.clamp_max(LARGEST_REACH), problem.exposure
        )

    # the exact mode

    def _variances(self, step: NewtonStep) -> Tensor:
        """Return `variances`: no more than the prior's and what the drift adds, nor than 1/W.

        Where log p is not concave this is an estimate: a point whose observation is given up is taken to be known
        about as well as its neighbours are, a quarter of their usual W standing for its own.
        """
        expansion, problem = self.mode.expansion, self.problem
        if isinstance(expansion, ClassExpansion):
            return 2 * self.prior
        found = self.prior
        if problem.H.shape[1]:
            G, P = problem.H.T @ step.RH, problem.H - problem.product(self.gp.kernel, step.RH)
            added = (P * solved_for_drift(G, P.T).T).sum(1).clamp_min(0.0)
            found = found + (added if drift_condition(problem, self.mode, G) < 1e10 else torch.inf)
        W = expansion.trace()
        if not self.gp.is_log_concave and bool((W > 0).any()):
            W = W.clamp_min(GIVEN_UP * float(W[W > 0].median()))
        return torch.minimum(found, torch.where(W > 0, 1 / W, torch.inf))

    def widening(self, reach: Tensor) -> tuple[float, float]:
        r"""Return s and a bound of the change of log|I + KW| where every f_i moves by up to its reach ρ_i.

        Where W moves within factors t_i and within an interval of length d_i,
        M' ⪯ tM + D, t the largest of some t_i and D the d_i of the other points, D ⪯ (Σ d_i v_i) M. The softmax has
        t = e^ρ, ρ bounding the change of the difference of two latent values, since W is a variance under π. As a
        function of log W_i, log|I + KW| has a slope between 0 and 1, or C − 1; as one of W_i, of up to k_ii.
        """
        expansion, reach = self.mode.expansion, reach.clamp_max(LARGEST_REACH)
        if isinstance(expansion, ClassExpansion):
            log_ratio, gap, slope = reach, expansion.trace() * torch.expm1(reach), expansion.pi.shape[1] - 1
        elif isinstance(expansion, ScalarExpansion):
            low, high = self._range(reach)
            W, gap, slope = expansion.derivatives.curvature, high - low, 1
            log_ratio = torch.maximum(high.log() - W.log(), W.log() - low.log())
            log_ratio = torch.where(gap == 0, 0.0, log_ratio.nan_to_num(nan=torch.inf))
        gap = gap.nan_to_num(nan=HUGE, posinf=HUGE)
        own, ratio = gap * self.variances, torch.expm1(log_ratio)
        by_gap = len(own) * own < ratio if self.gp.is_log_concave else torch.ones_like(own, dtype=torch.bool)
        kappa = float(own[by_gap].sum())
        t = 1 + float(torch.where(by_gap, 0.0, ratio).max())
        determinant = torch.minimum(slope * log_ratio, gap * self.prior)
        return (t / (1 - kappa) if kappa < 1 else math.inf), float(determinant.sum())

    def norm(self, x: Tensor) -> float:
        """Return an upper bound of ‖x‖_Σ, x (N, 1) in place of a gradient of log p, from its entries.

        Σ ⪯ W⁻¹ where W is large, and each entry counts for √v_i elsewhere.
        """
        expansion, (n, C) = self.mode.expansion, (len(self.problem), self.problem.classes)
        v = self.variances.repeat_interleave(C)[:, None]
        W = expansion.pi.reshape(-1, 1) if isinstance(expansion, ClassExpansion) else expansion.trace()[:, None]
        by_W = W * v >= 0.5
        some, others = torch.where(by_W, x, 0.0), torch.where(by_W, 0.0, x)
        found = math.sqrt(float((some.square() / torch.where(by_W, W, 1.0)).sum())) + self._by_entries(others)
        if C > 1:  # Σ ⪯ diag(π)⁻¹ only between vectors that sum to 0 at each point
            found += float((some.reshape(n, C).sum(1).abs() * self.variances.sqrt()).sum())
        return found

    def _by_entries(self, x: Tensor) -> float:
        return float((x.abs() * self.variances.sqrt().repeat_interleave(self.problem.classes)[:, None]).sum())

    def error(self, step: NewtonStep) -> ModeError:
        r"""Return the bounds.

        With the step δa, δβ and what is left of its equations, ω = r − δa − Wδf, δf = Kδa + Hδβ,
        :math:`\|r\|_\Sigma \le \sqrt{\|\delta a\|_K^2 + \|\delta f\|_W^2} + \|\omega\|_\Sigma`.
        """
        problem, mode, n = self.problem, self.mode, len(self.problem)
        r = mode.expansion.gradient - mode.a
        both = torch.cat([r, step.da], dim=1)
        K_both = problem.product(self.gp.kernel, both)
        energy, length = (both * K_both).sum(0).clamp_min(0.0).sqrt().tolist()
        lost = self.rounding.of_product(r.reshape(n, -1)).reshape(-1, 1)
        df = K_both[:, 1:] + problem.H @ step.dbeta
        W_df = self._curved(df)
        moved = math.sqrt(length**2 + float((df * W_df).sum().clamp_min(0.0)))
        left = self.norm(r - step.da - W_df) + self._drift_left(step)
        decrement = moved + left + self.norm(self.g_error)
        energy = math.sqrt(energy**2 + float((r.abs() * lost).sum())) + self._by_prior(self.g_error)
        bounded = self.gp.is_log_concave and problem.H.shape[1] == 0
        return self._within(decrement, energy if bounded else math.inf)

    def _within(self, decrement: float, energy: float) -> ModeError:
        """Return the bounds from ‖r‖_Σ and ‖r‖_K: in the ball that the one or the other gives."""
        deviation, root = self.variances.sqrt(), self.rounding.root * math.sqrt(min(self.problem.classes, 2))
        radius = self._ball(decrement)
        s, determinant = self.widening(radius * deviation) if math.isfinite(radius) else (math.inf, math.inf)
        if math.isfinite(energy):
            s_prior, determinant_prior = self.widening(energy * root)
            s, determinant = min(s, s_prior), min(determinant, determinant_prior)
        deviations = s * decrement if s < LARGEST_WIDENING else math.inf
        return ModeError(
            deviations=deviations,
            energy=min(energy, deviations) if self.problem.H.shape[1] == 0 else math.inf,
            widening=s,
            psi=0.5 * min(deviations * decrement, energy**2) if decrement > 0 else 0.0,
            psi_rounding=self._psi_rounding(),
            determinant=determinant + self._determinant_rounding(),
            is_certain=self.gp.is_log_concave and self._states_its_curvature(),
        )

    def _ball(self, decrement: float) -> float:
        """Return the radius, in the norm of M, of a ball around f that holds the mode; ∞ if none is found."""
        radius, deviation = ROOM * decrement, self.variances.sqrt()
        for _ in range(TRIALS):
            if not math.isfinite(radius):
                return math.inf
            s, _ = self.widening(radius * deviation)
            if not s < LARGEST_WIDENING:
                return math.inf
            if radius >= 2 * s * decrement:
                return s * decrement
            radius = ROOM * s * decrement
        return math.inf

    # parts of these

    def _states_its_curvature(self) -> bool:
        likelihood, problem = self.gp.likelihood, self.problem
        if not isinstance(likelihood, Likelihood):
            return True
        return likelihood.curvature_extremes(problem.y, problem.exposure) is not None

    def _curved(self, V: Tensor) -> Tensor:
        """Return W V, with W as it is where it is negative, too."""
        expansion = self.mode.expansion
        if isinstance(expansion, ScalarExpansion):
            return expansion.derivatives.curvature[:, None] * V
        return expansion.half(expansion.half_transposed(V))

    def _drift_left(self, step: NewtonStep) -> float:
        """Return the part of the decrement that Hᵀ(a + δa), which should be 0, accounts for.

        Infinite where HᵀRH is singular in float64 and does not reach it: the coefficients may be anywhere. Counts of 0
        at rows that the drift tells apart from all others, for which no finite ones are best, end there.
        """
        H = self.problem.H
        if H.shape[1] == 0:
            return 0.0
        weights, G = self.mode.a + step.da, H.T @ step.RH
        z = H.T @ weights
        found = solved_for_drift(G, z)
        rounded = len(H) * UNIT_ROUNDOFF * (H.abs().T @ weights.abs())
        if not bool(((z - G @ found).abs() <= REACHED * z.abs().amax() + rounded).all()):
            return math.inf
        return math.sqrt(max(float((z * found).sum()), 0.0))

    def _by_prior(self, x: Tensor) -> float:
        """Return an upper bound of ‖x‖_K from the entries of x (N, 1)."""
        return float((x.abs() * self.rounding.root.repeat_interleave(self.problem.classes)[:, None]).sum())

    def _psi_rounding(self) -> float:
        """Return how far log p(y | f) − ½ aᵀKa may be off: f by its rounding, the terms and their sums by theirs."""
        mode, g = self.mode, self.mode.expansion.gradient.abs()
        by_f = float(((g + self.g_error) * self.f_error).sum()) + 0.5 * float((mode.a.abs() * self.f_error).sum())
        sums = ARITHMETIC * math.sqrt(len(self.problem))
        return by_f + sums * (abs(mode.expansion.log_density) + abs(mode.quadratic) + len(self.problem))

    def _determinant_rounding(self) -> float:
        """Return how far log|A| may be off for the rounding E of A: |tr(A⁻¹E)| ≤ Σ_ij |δk_ij| √(tr W_i tr W_j)."""
        root = self.mode.expansion.trace().sqrt()[:, None]
        entries = float((root * self.rounding.of_product(root)).sum())
        return entries + ARITHMETIC * math.sqrt(len(root)) * self.problem.size


def drift_condition(problem: Observations, mode: Mode, G: Tensor) -> float:
    """Return by how much relative errors of RH are amplified in G⁻¹, G = HᵀRH ⪯ HᵀWH: ∞ if it is singular."""
    if not bool(G.isfinite().all()):
        return math.inf
    expansion, H = mode.expansion, problem.H
    largest = float(torch.linalg.matrix_norm(expansion.half_transposed(H)).square())
    least = float(torch.linalg.svdvals(G).min())
    return largest / least if least > 0 else math.inf


def solved_for_drift(G: Tensor, B: Tensor) -> Tensor:
    """Return G⁻¹B for the small matrix of a drift; NaN where it is not finite."""
    if not bool(G.isfinite().all() and B.isfinite().all()):
        return torch.full_like(B, math.nan)
    return least_squares(G, B)
