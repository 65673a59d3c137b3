"""Laplace's approximation in dense float64 NumPy, from the textbook formulas. Imports nothing of the package.

The model: f = H β + g, g ~ N(0, K(θ)), y_j ~ p(y_j | f_j, φ). θ and φ are logarithms of hyperparameters. β has a flat
prior and is plugged in at the joint maximum with g of

    Ψ = Σ_j log p(y_j | f_j) − ½ gᵀK⁻¹g,       f̂ = K a + H β,   a = ∇log p(y | f̂),   Hᵀa = 0.

With W = −∇∇log p at f̂, which may be negative, and never a root or an inverse of W or K:

    M = (I + KW)⁻¹,   Σ = M K = (K⁻¹ + W)⁻¹,   R = W M = (K + W⁻¹)⁻¹,   G = HᵀRH,
    log q = −½ aᵀ(f̂ − Hβ) + Σ_j log p(y_j | f̂_j) − ½ log|I + KW|.

References: Rasmussen & Williams (2006), chapter 3, with the corrections 8, 9, 10, 23 and 24 of the paper's errata.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
from reference import FORMULAS, kernel_matrix
from scipy.integrate import quad
from scipy.special import digamma, erfcx, expit, gammaln, log_ndtr, logsumexp, ndtr

# likelihoods


@dataclass(frozen=True, eq=False)
class Parts:
    """What a likelihood says at f: one value for each observation, natural logarithms, every constant included."""

    log_density: np.ndarray  # log p(y_j | f_j)
    score: np.ndarray  # ∂ log p / ∂f
    W: np.ndarray  # −∂² log p / ∂f²; (n,), or (nC, nC) for C classes
    dW: np.ndarray  # ∂W/∂f = −∂³ log p / ∂f³: mind the sign; (n,), or (n, C, C, C)
    by_phi: tuple = ()  # for each log hyperparameter: the derivatives of log_density, score and W
    W_direction: np.ndarray | None = None  # positive, in place of W for the Newton direction, where W may be negative


class Likelihood(ABC):
    """p(y | f): formulas of f (n,), y (n,), exposure (n,) or a number, and the log hyperparameters phi."""

    names = ()
    """Of the hyperparameters, in the order of phi."""

    @abstractmethod
    def parts(self, f, y, exposure, phi):
        """Return log p and its derivatives."""

    @abstractmethod
    def moments(self, f, exposure, phi):
        """Return mean and variance of y given f."""

    @abstractmethod
    def draw(self, f, exposure, phi, generator):
        """Return one y for each f."""


def inverse_mills(z):
    """Return p = N(z)/Φ(z), p' and p'' to full precision for every z.

    p' = −p (p + z) and p'' = −p'(2p + z) − p cancel where t = −z is large; there the asymptotic series of
    p(t) = t + Σ_k (−1)^k c_k t^−(2k+1), c = 1, 2, 10, 74, 706, … is differentiated term by term.
    """
    z = np.asarray(z, dtype=float)
    with np.errstate(over="ignore", under="ignore"):
        p = np.sqrt(2 / np.pi) / erfcx(-z / np.sqrt(2))
    slope = -p * (p + z)
    bend = -slope * (2 * p + z) - p
    t, far = np.maximum(-z, 12.0), z < -12
    k = np.arange(20)
    terms = (-1.0) ** k * mills_coefficients(20) * t[..., None] ** -(2.0 * k + 1)
    series = (
        t + terms.sum(-1),
        -1 + (terms * (2 * k + 1)).sum(-1) / t,
        (terms * (2 * k + 1) * (2 * k + 2)).sum(-1) / t**2,
    )
    return tuple(np.where(far, *pair) for pair in zip(series, (p, slope, bend), strict=True))


def mills_coefficients(count):
    """Return 1, 2, 10, 74, … of N(t)/Φ(−t) = t + 1/t − 2/t³ + 10/t⁵ − … = t / Σ_k (−1)^k (2k−1)!! t^−2k."""
    odd = np.cumprod([1.0, *(2 * k - 1.0 for k in range(1, count + 1))])  # (2k − 1)!!
    c = np.ones(count + 1)
    for k in range(1, count + 1):
        c[k] = odd[k] - sum(odd[j] * c[k - j] for j in range(1, k))
    return c[1:]


class Probit(Likelihood):
    """p(y = 1) = Φ(f), y in {0, 1}. With s = 2y − 1 and p = N(f)/Φ(sf): score s p, W = p (p + sf)."""

    def parts(self, f, y, exposure, phi):
        s = 2 * y - 1.0
        p, slope, bend = inverse_mills(s * f)
        return Parts(log_ndtr(s * f), s * p, -slope, -s * bend)

    def moments(self, f, exposure, phi):
        return ndtr(f), ndtr(f) * ndtr(-f)

    def draw(self, f, exposure, phi, generator):
        return (generator.random(len(f)) < ndtr(f)) * 1.0


class Binomial(Likelihood):
    """p(y) = C(N, y) π^y (1 − π)^(N−y), π = 1/(1 + e^−f), N = exposure: W = N π(1 − π)."""

    def parts(self, f, y, exposure, phi):
        N, pi, rest = exposure, expit(f), expit(-f)
        choices = gammaln(N + 1.0) - gammaln(y + 1.0) - gammaln(N - y + 1.0)
        log_density = choices - y * np.logaddexp(0, -f) - (N - y) * np.logaddexp(0, f)
        return Parts(log_density, y * rest - (N - y) * pi, N * pi * rest, -N * pi * rest * np.tanh(f / 2))

    def moments(self, f, exposure, phi):
        return exposure * expit(f), exposure * expit(f) * expit(-f)

    def draw(self, f, exposure, phi, generator):
        return generator.binomial(np.broadcast_to(exposure, len(f)).astype(int), expit(f)) * 1.0


class Logit(Likelihood):
    """p(y = 1) = 1/(1 + e^−f), y in {0, 1}."""

    def parts(self, f, y, exposure, phi):
        s = 2 * y - 1.0
        W = expit(f) * expit(-f)
        return Parts(-np.logaddexp(0, -s * f), s * expit(-s * f), W, -W * np.tanh(f / 2))

    def moments(self, f, exposure, phi):
        return expit(f), expit(f) * expit(-f)

    def draw(self, f, exposure, phi, generator):
        return (generator.random(len(f)) < expit(f)) * 1.0


class Poisson(Likelihood):
    """p(y) = μ^y e^−μ / y!, μ = exposure · e^f."""

    def parts(self, f, y, exposure, phi):
        mu = exposure * np.exp(f)
        return Parts(y * (f + np.log(exposure)) - mu - gammaln(y + 1.0), y - mu, mu, mu)

    def moments(self, f, exposure, phi):
        return exposure * np.exp(f), exposure * np.exp(f)

    def draw(self, f, exposure, phi, generator):
        return generator.poisson(exposure * np.exp(f)) * 1.0


class NegativeBinomial(Likelihood):
    """Counts with mean μ = exposure · e^f and variance μ + αμ², α = dispersion.

    log p = Σ_{i<y} log(1 + αi) + y log μ − log y! − (y + 1/α) log(1 + αμ), score (y − μ)/(1 + αμ),
    W = μ(1 + αy)/(1 + αμ)².
    """

    names = ("dispersion",)

    def parts(self, f, y, exposure, phi):
        alpha, mu, log_mu = np.exp(phi[0]), exposure * np.exp(f), f + np.log(exposure)
        i = np.arange(np.max(y, initial=0))
        below = i < np.asarray(y)[..., None]
        one = 1 + alpha * mu
        log_density = (
            np.sum(np.log1p(alpha * i) * below, axis=-1)
            + y * log_mu
            - gammaln(y + 1.0)
            - (y + 1 / alpha) * np.log1p(alpha * mu)
        )
        by_log_density = (
            np.sum(alpha * i / (1 + alpha * i) * below, axis=-1)
            + np.log1p(alpha * mu) / alpha
            - (alpha * y + 1) * mu / one
        )
        by_score = -alpha * (y - mu) * mu / one**2
        by_W = alpha * mu * (y - alpha * mu * y - 2 * mu) / one**3
        W = mu * (1 + alpha * y) / one**2
        return Parts(log_density, (y - mu) / one, W, W * (1 - alpha * mu) / one, ((by_log_density, by_score, by_W),))

    def moments(self, f, exposure, phi):
        mu = exposure * np.exp(f)
        return mu, mu + np.exp(phi[0]) * mu**2

    def draw(self, f, exposure, phi, generator):
        alpha = np.exp(phi[0])
        return generator.poisson(exposure * np.exp(f) * generator.gamma(1 / alpha, alpha, len(f))) * 1.0


class Gamma(Likelihood):
    """p(y) = (k/μ)^k y^(k−1) e^(−ky/μ) / Γ(k), k = shape, μ = e^f; the exposure is not used."""

    names = ("shape",)

    def parts(self, f, y, exposure, phi):
        k, ratio = np.exp(phi[0]), y * np.exp(-f)
        log_density = k * np.log(k) - gammaln(k) + (k - 1) * np.log(y) - k * f - k * ratio
        by_log_density = k * (np.log(k) + 1 - digamma(k) + np.log(y) - f - ratio)
        score, W = k * (ratio - 1), k * ratio
        return Parts(log_density, score, W, -W, ((by_log_density, score, W),))

    def moments(self, f, exposure, phi):
        return np.exp(f), np.exp(2 * f - phi[0])

    def draw(self, f, exposure, phi, generator):
        return generator.gamma(np.exp(phi[0]), np.exp(f - phi[0]))


class StudentT(Likelihood):
    """y = f + scale · t with the given degrees of freedom ν. With r = y − f, s = ν scale², D = s + r²:

    score (ν+1) r/D, W = (ν+1)(s − r²)/D², negative beyond r² = s; (ν+1)/D is its positive substitute (that of EM).
    """

    names = ("scale", "degrees")

    def parts(self, f, y, exposure, phi):
        scale, nu = np.exp(phi)
        r, s = y - f, nu * scale**2
        D = s + r**2
        constant = gammaln((nu + 1) / 2) - gammaln(nu / 2) - np.log(nu * np.pi) / 2 - np.log(scale)
        W = (nu + 1) * (s - r**2) / D**2
        by_scale = (
            -1 + (nu + 1) * r**2 / D,
            -2 * s * (nu + 1) * r / D**2,
            2 * s * (nu + 1) * (3 * r**2 - s) / D**3,
        )
        by_degrees = (
            nu / 2 * (digamma((nu + 1) / 2) - digamma(nu / 2) - np.log1p(r**2 / s)) - 0.5 + (nu + 1) * r**2 / D / 2,
            nu * r / D - (nu + 1) * r * s / D**2,
            nu * (s - r**2) / D**2 + (nu + 1) * s * (3 * r**2 - s) / D**3,
        )
        return Parts(
            constant - (nu + 1) / 2 * np.log1p(r**2 / s),
            (nu + 1) * r / D,
            W,
            2 * (nu + 1) * r * (3 * s - r**2) / D**3,
            (by_scale, by_degrees),
            np.where(W > 0, W, (nu + 1) / D),
        )

    def moments(self, f, exposure, phi):
        scale, nu = np.exp(phi)
        return f, np.full_like(f, scale**2 * nu / (nu - 2) if nu > 2 else np.inf)

    def draw(self, f, exposure, phi, generator):
        scale, nu = np.exp(phi)
        return f + scale * generator.standard_t(nu, len(f))


class Gaussian(Likelihood):
    """y ~ N(f, variance)."""

    names = ("variance",)

    def parts(self, f, y, exposure, phi):
        variance, r = np.exp(phi[0]), y - f
        W = np.ones_like(f) / variance
        log_density = -0.5 * (np.log(2 * np.pi * variance) + r**2 / variance)
        return Parts(log_density, r / variance, W, 0 * W, ((r**2 / variance / 2 - 0.5, -r / variance, -W),))

    def moments(self, f, exposure, phi):
        return f, np.full_like(f, np.exp(phi[0]))

    def draw(self, f, exposure, phi, generator):
        return f + np.exp(phi[0] / 2) * generator.standard_normal(len(f))


LIKELIHOODS = {
    "probit": Probit(),
    "logit": Logit(),
    "binomial": Binomial(),
    "poisson": Poisson(),
    "negative_binomial": NegativeBinomial(),
    "gamma": Gamma(),
    "student_t": StudentT(),
    "gaussian": Gaussian(),
}
"""By name; softmax, whose f has a value for each class, is `SoftmaxTruth`."""


def softmax_parts(F, y):
    """Return the parts of p(y = c) = π_c = e^f_c / Σ e^f for F (n, C) and y in 0..C−1, the point before the class.

    score e_y − π; W is block diagonal with blocks diag(π) − ππᵀ;
    ∂W_ab/∂f_c = δ_abc π_a − δ_ab π_a π_c − δ_ac π_a π_b − δ_bc π_a π_b + 2 π_a π_b π_c.
    """
    n, C = F.shape
    log_pi = F - logsumexp(F, axis=1, keepdims=True)
    pi, one = np.exp(log_pi), np.eye(C)
    W = np.zeros((n, C, n, C))
    W[np.arange(n), :, np.arange(n), :] = np.einsum("ia,ab->iab", pi, one) - np.einsum("ia,ib->iab", pi, pi)
    dW = (
        np.einsum("ia,ab,ac->iabc", pi, one, one)
        - np.einsum("ab,ia,ic->iabc", one, pi, pi)
        - np.einsum("ac,ia,ib->iabc", one, pi, pi)
        - np.einsum("bc,ia,ib->iabc", one, pi, pi)
        + 2 * np.einsum("ia,ib,ic->iabc", pi, pi, pi)
    )
    return Parts(log_pi[np.arange(n), y], (one[y] - pi).ravel(), W.reshape(n * C, n * C), dW)


# the mode


def times(W, X):
    """Return W X for a diagonal (n,) or a matrix (n, n)."""
    return W[:, None] * X if W.ndim == 1 else W @ X


def newton_target(K, H, f, score, W):
    """Return a, β at the maximum of the quadratic model at f: (I + WK) a + WH β = W f + score, Hᵀa = 0."""
    n, b = H.shape
    system = np.zeros((n + b, n + b))
    system[:n, :n], system[:n, n:], system[n:, :n] = times(W, K), times(W, H), H.T
    system[np.arange(n), np.arange(n)] += 1
    solution = np.linalg.solve(system, np.append(times(W, f[:, None])[:, 0] + score, np.zeros(b)))
    return solution[:n], solution[n:]


def mode(K, H, parts, start=None):
    """Return a, β of f̂ = K a + H β: Newton with step control on Ψ, then with the true W down to rounding.

    ``parts`` is a function f → `Parts`. Where a posterior has several modes, ``start`` = (a, β) picks one.
    Raises ArithmeticError where no stationary point is found.
    """
    n, b = H.shape
    a, beta = (np.zeros(n), np.zeros(b)) if start is None else start
    with np.errstate(over="ignore", invalid="ignore"):
        a, beta = climb(K, H, parts, a, beta)
        return polish(K, H, parts, a, beta)


def objective(K, H, parts, a, beta):
    """Return f = K a + H β, the parts there and Ψ = Σ log p(y | f) − ½ aᵀKa; Ψ = −∞ where it overflows."""
    g = K @ a
    f = g + H @ beta
    at = parts(f)
    psi = np.sum(at.log_density) - 0.5 * a @ g
    return f, at, psi if np.isfinite(psi) else -np.inf


def ascent(K, H, f, at, a, beta, W):
    """Return the Newton step of a and β, and the slope of Ψ along it."""
    target_a, target_beta = newton_target(K, H, f, at.score, W)
    da, dbeta = target_a - a, target_beta - beta
    return da, dbeta, at.score @ (K @ da + H @ dbeta) - a @ (K @ da)


def climb(K, H, parts, a, beta, limit=10_000):
    """Return a, β after damped Newton steps, until one promises to raise Ψ by less than 1e-13 of it.

    Steps with the positive substitute of W are safe but may be slow: where they promise no more, the true W is asked.
    """
    f, at, psi = objective(K, H, parts, a, beta)
    for _ in range(limit):
        enough = 1e-13 * (1 + abs(psi))
        da, dbeta, slope = ascent(K, H, f, at, a, beta, at.W if at.W_direction is None else at.W_direction)
        if slope <= enough and at.W_direction is not None:
            da, dbeta, slope = ascent(K, H, f, at, a, beta, at.W)
        if slope <= enough:
            return a, beta
        step, trial = 1.0, objective(K, H, parts, a + da, beta + dbeta)
        while not trial[2] >= psi + 1e-4 * step * slope and step > 1e-12:
            step /= 2
            trial = objective(K, H, parts, a + step * da, beta + step * dbeta)
        if trial[2] <= psi:
            return a, beta
        a, beta, (f, at, psi) = a + step * da, beta + step * dbeta, trial
    raise ArithmeticError(f"{limit} Newton steps do not reach the mode")


def stationarity(K, H, parts, a, beta):
    """Return the largest of |a − ∇log p(f)| and |Hᵀa| / |H|₁, relative to the largest |∇log p(f)|; f and the parts."""
    f, at, _ = objective(K, H, parts, a, beta)
    error = np.append(a - at.score, (H.T @ a) / np.sum(np.abs(H), axis=0))
    error = np.max(np.abs(error)) / max(np.max(np.abs(at.score)), np.finfo(float).tiny)
    return error if np.isfinite(error) else np.inf, f, at


def polish(K, H, parts, a, beta, limit=100):
    """Return a, β after Newton steps with the true W, as long as they bring a closer to ∇log p(K a + H β)."""
    psi = objective(K, H, parts, a, beta)[2]
    error, f, at = stationarity(K, H, parts, a, beta)
    for _ in range(limit):
        target_a, target_beta = newton_target(K, H, f, at.score, at.W)
        for step in 0.5 ** np.arange(8):
            trial = a + step * (target_a - a), beta + step * (target_beta - beta)
            found = stationarity(K, H, parts, *trial)
            if found[0] < error:
                break
        else:
            break
        (a, beta), (error, f, at) = trial, found
    lost = psi - objective(K, H, parts, a, beta)[2]
    if error > 1e-6 or lost > 1e-7 * (1 + abs(psi)):
        raise ArithmeticError(f"no mode: a differs from ∇log p by {error:.1e} of it, and Ψ fell by {lost:.1e}")
    return a, beta


# the approximation


class Laplace(ABC):
    """The algebra common to one latent value for each observation and to C of them: N = n or nC.

    A subclass has fields ``theta``, ``start``, and says what K, H and p are.
    """

    @cached_property
    @abstractmethod
    def K(self):
        """Return the prior covariance (N, N)."""

    @cached_property
    @abstractmethod
    def drift(self):
        """Return H (N, b); b may be 0."""

    @cached_property
    @abstractmethod
    def dK(self):
        """Return ∂K/∂θ_i, (p, N, N)."""

    @property
    @abstractmethod
    def parameters(self):
        """Return θ and φ in one vector."""

    @abstractmethod
    def at(self, parameters):
        """Return the same model with other θ and φ, to be started from this mode."""

    @abstractmethod
    def parts(self, f):
        """Return the parts of the likelihood at f (N,)."""

    @abstractmethod
    def determinant_slope(self, Sigma, dW):
        """Return u = ∇_f log|I + KW(f)|."""

    # the mode

    @cached_property
    def solution(self):
        """Return a (N,) and the coefficients (b,)."""
        return mode(self.K, self.drift, self.parts, self.start)

    @property
    def a(self):
        return self.solution[0]

    @cached_property
    def f(self):
        return self.K @ self.a + self.drift @ self.solution[1]

    @cached_property
    def at_mode(self):
        """Return the parts of the likelihood at f̂."""
        return self.parts(self.f)

    @property
    def W(self):
        return self.at_mode.W

    @property
    def stationarity(self):
        """Return the error of a = ∇log p(f̂), Hᵀa = 0, relative to the largest |a|."""
        return stationarity(self.K, self.drift, self.parts, *self.solution)[0]

    @property
    def psi(self):
        """Return Ψ = Σ log p(y | f̂) − ½ aᵀ(f̂ − Hβ), without ½ log|K|."""
        return np.sum(self.at_mode.log_density) - 0.5 * self.a @ (self.K @ self.a)

    # the evidence

    @cached_property
    def system(self):
        """Return I + KW."""
        return np.eye(len(self.a)) + times(self.W, self.K).T

    @cached_property
    def signed_log_determinant(self):
        """Return sign and logarithm of det(I + KW), from a general LU factorisation."""
        return np.linalg.slogdet(self.system)

    @property
    def log_determinant(self):
        """Return log|I + KW|; NaN where the determinant is negative."""
        sign, logarithm = self.signed_log_determinant
        return logarithm if sign > 0 else np.nan

    @cached_property
    def positive_definite(self):
        """Return whether f̂ is a proper maximum: K⁻¹ + W and HᵀRH positive definite. (K = SSᵀ: I + SᵀWS.)"""
        proper = True
        if self.W.ndim == 1 and np.min(self.W) < 0:
            values, V = np.linalg.eigh(self.K)
            S = V * np.sqrt(np.maximum(values, 0))
            proper = np.min(np.linalg.eigvalsh(np.eye(len(S)) + S.T @ times(self.W, S))) > 0
        return bool(proper and (self.drift.shape[1] == 0 or np.min(np.linalg.eigvalsh(self.G)) > 0))

    @property
    def log_evidence(self):
        """Return log q = −½ aᵀ(f̂ − Hβ) + Σ log p(y | f̂) − ½ log|I + KW|."""
        return self.psi - 0.5 * self.log_determinant

    # its gradient

    @cached_property
    def M(self):
        """Return (I + KW)⁻¹."""
        return np.linalg.inv(self.system)

    @cached_property
    def Sigma(self):
        """Return (K⁻¹ + W)⁻¹ = M K, the covariance of g given β."""
        return symmetric(self.M @ self.K)

    @cached_property
    def R(self):
        """Return (K + W⁻¹)⁻¹ = W M."""
        return symmetric(times(self.W, self.M))

    @cached_property
    def G(self):
        """Return HᵀRH, the precision of β."""
        return symmetric(self.drift.T @ self.R @ self.drift)

    @property
    def Sigma_with_drift(self):
        """Return the covariance of f = Hβ + g: Σ + M H G⁻¹ (M H)ᵀ."""
        MH = self.M @ self.drift
        return self.Sigma + MH @ np.linalg.solve(self.G, MH.T)

    @cached_property
    def adjoint(self):
        """Return v' (N,) and t (N,): for a change of K by dK and of ∇log p by s, uᵀdf̂ = v'ᵀ dK a + tᵀ s.

        From df̂ = dK a + K da + H dβ, da = s − W df̂, Hᵀda = 0:
        v = (I + WK)⁻¹u, c = G⁻¹Hᵀv, v' = v − R H c, t = K v' + H c. (t = (Σ with drift) u and v' = u − W t.)
        """
        u = self.determinant_slope(self.Sigma, self.at_mode.dW)
        v = self.M.T @ u
        c = np.linalg.solve(self.G, self.drift.T @ v)
        v = v - self.R @ (self.drift @ c)
        return v, self.K @ v + self.drift @ c

    @property
    def gradient_terms(self):
        """Return ∂log q in θ, then φ, as three rows: of the log determinant, of Ψ, and of both through f̂.

        θ: −½ tr(R ∂K), ½ aᵀ∂K a, −½ v'ᵀ∂K a.     φ: −½ Σ_j Σ_jj ∂W_j, Σ_j ∂log p_j, −½ tᵀ∂∇log p.
        """
        v, t = self.adjoint
        by_theta = [(-np.sum(self.R * dK) / 2, self.a @ (dK @ self.a) / 2, -v @ (dK @ self.a) / 2) for dK in self.dK]
        by_phi = [
            (-np.diag(self.Sigma) @ W / 2, np.sum(log_density), -t @ score / 2)
            for log_density, score, W in self.at_mode.by_phi
        ]
        return np.array([*by_theta, *by_phi]).T

    @property
    def gradient(self):
        """Return ∂log q in all log hyperparameters, θ then φ."""
        return self.gradient_terms.sum(axis=0)

    def numerical_gradient(self, step=2e-3):
        """Return the same by finite differences of log q, the mode found again for each value."""
        return richardson(lambda parameters: self.at(parameters).log_evidence, self.parameters, step)

    # prediction

    def posterior(self, K_new, K_new_new, drift_new):
        """Return mean (N*,) and covariance (N*, N*) of f*, β uncertain too.

        k*ᵀa + h*ᵀβ;   k** − k*ᵀRk* + (h* − HᵀRk*)ᵀ(HᵀRH)⁻¹(h* − HᵀRk*), rows of K_new (N*, N) and drift_new (N*, b).
        """
        RK = self.R @ K_new.T
        D = drift_new - RK.T @ self.drift
        mean = K_new @ self.a + drift_new @ self.solution[1]
        return mean, symmetric(K_new_new - K_new @ RK + D @ np.linalg.solve(self.G, D.T))


@dataclass(frozen=True, eq=False)
class LaplaceTruth(Laplace):
    """One latent value for each observation.

    ``kernel`` is a function θ → K (n, n), of complex θ too unless ``kernel_derivatives`` θ → (p, n, n) is given.
    """

    kernel: Callable
    theta: np.ndarray
    likelihood: Likelihood
    y: np.ndarray
    phi: np.ndarray = ()
    exposure: np.ndarray | float = 1.0
    H: np.ndarray | None = None
    start: tuple | None = None
    kernel_derivatives: Callable | None = None

    @cached_property
    def K(self):
        return self.kernel(np.asarray(self.theta, dtype=float))

    @cached_property
    def dK(self):
        return (self.kernel_derivatives or complex_step(self.kernel))(np.asarray(self.theta, dtype=float))

    @cached_property
    def drift(self):
        return np.zeros((len(self.y), 0)) if self.H is None else np.asarray(self.H, dtype=float)

    @property
    def beta(self):
        return self.solution[1]

    @property
    def parameters(self):
        return np.append(self.theta, self.phi)

    def at(self, parameters):
        p = len(self.theta)
        return replace(self, theta=parameters[:p], phi=parameters[p:], start=self.solution)

    def parts(self, f):
        return self.likelihood.parts(f, np.asarray(self.y), self.exposure, np.asarray(self.phi, dtype=float))

    def determinant_slope(self, Sigma, dW):
        """Return u_j = Σ_jj ∂W_j/∂f_j."""
        return np.diag(Sigma) * dW

    # prediction

    def latent(self, K_new, K_new_new, H_new=None):
        """Return mean (n*,) and covariance (n*, n*) of f*, from K(X*, X) and K(X*, X*)."""
        return self.posterior(K_new, K_new_new, np.zeros((len(K_new), 0)) if H_new is None else H_new)

    def predictive_moments(self, mean, variance, exposure=1.0):
        """Return mean and variance of y* (n*,) for f* ~ N(mean, variance), by quadrature."""
        phi = np.asarray(self.phi, dtype=float)
        points = zip(mean, variance, np.broadcast_to(exposure, len(mean)), strict=True)
        return tuple(np.array([moments_of_y(self.likelihood, m, v, e, phi) for m, v, e in points]).T)

    def log_predictive(self, mean, variance, y, exposure=1.0):
        """Return log p(y*) = log ∫ p(y*|f) N(f; mean, variance) df, (n*,)."""
        phi = np.asarray(self.phi, dtype=float)
        points = zip(mean, variance, y, np.broadcast_to(exposure, len(mean)), strict=True)
        return np.array([log_integral(self.likelihood, m, v, y, e, phi) for m, v, y, e in points])


@dataclass(frozen=True, eq=False)
class SoftmaxTruth(Laplace):
    """C latent values for each observation, independent a priori with the same K: covariance K ⊗ I_C, full algebra.

    A common drift of all classes changes no probability, so that its coefficients sum to 0 over the classes: H ⊗ Q
    with the columns of Q (C, C−1) orthonormal and orthogonal to 1.
    """

    kernel: Callable
    theta: np.ndarray
    y: np.ndarray
    classes: int
    H: np.ndarray | None = None
    start: tuple | None = None
    kernel_derivatives: Callable | None = None

    @cached_property
    def K(self):
        return self.per_class(self.kernel(np.asarray(self.theta, dtype=float)))

    @cached_property
    def dK(self):
        derivatives = (self.kernel_derivatives or complex_step(self.kernel))(np.asarray(self.theta, dtype=float))
        return np.array([self.per_class(dK) for dK in derivatives])

    @cached_property
    def drift(self):
        return np.kron(np.zeros((len(self.y), 0)) if self.H is None else self.H, self.contrasts)

    def per_class(self, K):
        """Return K ⊗ I_C: the point before the class."""
        return np.kron(K, np.eye(self.classes))

    @property
    def contrasts(self):
        """Return Q (C, C−1)."""
        return np.linalg.qr(np.c_[np.ones(self.classes), np.eye(self.classes)[:, 1:]])[0][:, 1:]

    @property
    def F(self):
        """Return the mode (n, C)."""
        return self.f.reshape(-1, self.classes)

    @property
    def A(self):
        """Return ∇log p(F̂) (n, C); K A = F̂ − Hβ."""
        return self.a.reshape(-1, self.classes)

    @property
    def beta(self):
        """Return the coefficients of the drift (b, C)."""
        return self.solution[1].reshape(-1, self.classes - 1) @ self.contrasts.T

    @property
    def parameters(self):
        return np.asarray(self.theta, dtype=float)

    def at(self, parameters):
        return replace(self, theta=parameters, start=self.solution)

    def parts(self, f):
        return softmax_parts(f.reshape(-1, self.classes), self.y)

    def determinant_slope(self, Sigma, dW):
        """Return u_ic = Σ_ab Σ_(ia,ib) ∂W_ab/∂f_c at point i."""
        return np.einsum("iab,iabc->ic", blocks(Sigma, self.classes), dW).ravel()

    def latent(self, K_new, K_new_new, H_new=None):
        """Return mean (n*, C) and, for each new point, the covariance between classes (n*, C, C)."""
        drift_new = np.kron(np.zeros((len(K_new), 0)) if H_new is None else H_new, self.contrasts)
        mean, covariance = self.posterior(self.per_class(K_new), self.per_class(K_new_new), drift_new)
        return mean.reshape(-1, self.classes), blocks(covariance, self.classes)

    def probabilities(self, mean, covariance, count=200_000, seed=0):
        """Return the mean of softmax(f*) over ``count`` draws of f*, and its standard error, (n*, C) each."""
        generator = np.random.default_rng(seed)
        found = []
        for m, S in zip(mean, covariance, strict=True):
            values, V = np.linalg.eigh(S)
            f = m + generator.standard_normal((count, len(m))) @ (V * np.sqrt(np.maximum(values, 0))).T
            pi = np.exp(f - logsumexp(f, axis=1, keepdims=True))
            found.append((pi.mean(axis=0), pi.std(axis=0) / np.sqrt(count)))
        return tuple(np.array(found).swapaxes(0, 1))


# small tools


def covariance(kernel, X, jitter=0.0):
    """Return the function θ → K(X, X) + jitter I of a kernel object, read field by field."""
    return lambda theta: kernel_matrix(kernel, X, X, theta) + jitter * np.eye(len(X))


def rbf(X, Y, jitter=0.0):
    """Return the function (log lengthscales, log variance) → σ² exp(−½ Σ_r ((x_r − y_r)/l_r)²) + jitter I."""

    def matrix(theta):
        K = FORMULAS["RBF"](X, Y, np.exp(theta[:-1]), np.exp(theta[-1]))
        return K + jitter * np.eye(*K.shape) if jitter else K

    return matrix


def complex_step(function, h=1e-30):
    """Return the function θ → ∂function/∂θ_i, stacked, to rounding: Im function(θ + ih e_i) / h."""
    return lambda theta: np.array([function(step).imag / h for step in theta + 1j * h * np.eye(len(theta))])


def richardson(function, x, step=2e-3):
    """Return the derivatives of a function in each entry of x, stacked: central differences, extrapolated twice."""
    x = np.asarray(x, dtype=float)
    slopes = []
    for e in np.eye(len(x)):
        table = [(function(x + h * e) - function(x - h * e)) / (2 * h) for h in (step, step / 2, step / 4)]
        for order in (2, 4):
            table = [fine + (fine - rough) / (2**order - 1) for rough, fine in pairwise(table)]
        slopes.append(table[0])
    return np.array(slopes)


def symmetric(A):
    return (A + A.T) / 2


def blocks(A, size):
    """Return the diagonal blocks of A, (n, size, size)."""
    n = len(A) // size
    return A.reshape(n, size, n, size)[np.arange(n), :, np.arange(n), :]


def integral(function, centres):
    """Return ∫ function(f) df over ±12 widths around each centre, a pair (f, width): adaptive, between many nodes."""
    nodes = np.unique([centre + width * k for centre, width in centres for k in np.arange(-12, 12.5, 1.5)])
    with np.errstate(over="ignore", under="ignore"):
        found = [
            quad(function, *piece, epsabs=0, epsrel=1e-10, limit=200, full_output=True)[:2] for piece in pairwise(nodes)
        ]
    value, error = np.sum(found, axis=0)
    if error > 1e-9 * abs(value):
        raise ArithmeticError(f"the integral {value} has an error of {error}")
    return value


def expectation(function, m, v):
    """Return E function(f), f ~ N(m, v), for a function that grows no faster than e^(2f)."""
    centres = [(m + k * v, np.sqrt(v)) for k in range(3)]  # e^(kf) N(f; m, v) is largest at m + kv
    return integral(lambda f: function(f) * np.exp(-((f - m) ** 2) / (2 * v)), centres) / np.sqrt(2 * np.pi * v)


def moments_of_y(likelihood, m, v, exposure, phi):
    """Return E y = E[E(y|f)] and V y = E[V(y|f) + (E(y|f) − E y)²], f ~ N(m, v)."""

    def given(f):
        return likelihood.moments(np.asarray(f), exposure, phi)

    average = expectation(lambda f: float(given(f)[0]), m, v)
    return average, expectation(lambda f: float(given(f)[1] + (given(f)[0] - average) ** 2), m, v)


def log_integral(likelihood, m, v, y, exposure, phi):
    """Return log ∫ p(y|f) N(f; m, v) df, the integrand divided by its largest value."""

    def parts(f):
        return likelihood.parts(np.atleast_1d(f), np.atleast_1d(y), exposure, phi)

    a, _ = mode(np.array([[v]]), np.zeros((1, 0)), lambda g: parts(m + g))
    peak = m + v * a[0]
    at = parts(peak)
    W = at.W if at.W_direction is None else at.W_direction

    def logarithm(f):
        return float(parts(f).log_density[0]) - (f - m) ** 2 / (2 * v)

    top = logarithm(peak)
    area = integral(lambda f: np.exp(logarithm(f) - top), [(m, np.sqrt(v)), (peak, float(1 / np.sqrt(W[0] + 1 / v)))])
    return top + np.log(area) - 0.5 * np.log(2 * np.pi * v)
