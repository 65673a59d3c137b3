"""Laplace's approximation with hundreds of binary digits, from the formulas; imports nothing of the package.

f = Ka + Hβ maximises Ψ = log p(y | f) − ½ aᵀKa; with W = −∂²log p at the mode, R = (I + WK)⁻¹W and G = HᵀRH the latent
value at x has the mean kᵀa + hᵀβ and the variance k** − kᵀRk + ρᵀG⁻¹ρ, ρ = h − HᵀRk; the evidence is
Ψ − ½ log|I + KW|. Nothing is divided by W.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from flint import arb, arb_mat, ctx

from fuzz.high_precision import matrix
from fuzz.kernel_truth import diagonal, entries

DIGITS = 400
"""Binary digits: I + WK may have a condition number of 1e40, and the mode must be found to 1e-30."""

STEPS = 60
CONVERGED = 1e-30
"""Of the largest change of f in a Newton step, relative to f, at which it is the mode."""

Number = Callable[[float], Any]


@dataclass
class Scalar:
    """log p(y | f) of one observation and its first two derivatives in f."""

    value: arb
    gradient: arb
    W: arb


def probit(y: float, f: arb, exposure: float, phi: list[float]) -> Scalar:
    """Return the parts. p(y = 1) = Φ(f); y > 0 stands for 1."""
    s = 1 if y > 0 else -1
    z = s * f
    Phi = (-z / arb(2).sqrt()).erfc() / 2
    p = (-z * z / 2).exp() / (2 * arb.pi()).sqrt() / Phi
    return Scalar(Phi.log(), s * p, p * (p + z))


def binomial(y: float, f: arb, exposure: float, phi: list[float]) -> Scalar:
    """Return the parts. y of N = exposure trials succeed, each with probability 1 / (1 + e^−f)."""
    N, k = arb(exposure), arb(y)
    p, q = 1 / (1 + (-f).exp()), 1 / (1 + f.exp())
    choices = (N + 1).lgamma() - (k + 1).lgamma() - (N - k + 1).lgamma()
    return Scalar(choices + k * p.log() + (N - k) * q.log(), k * q - (N - k) * p, N * p * q)


def logit(y: float, f: arb, exposure: float, phi: list[float]) -> Scalar:
    """Return the parts. One such trial."""
    return binomial(y, f, 1.0, phi)


def poisson(y: float, f: arb, exposure: float, phi: list[float]) -> Scalar:
    """Return the parts. Counts of mean exposure · e^f."""
    mu = arb(exposure) * f.exp()
    return Scalar(arb(y) * mu.log() - mu - (arb(y) + 1).lgamma(), arb(y) - mu, mu)


def negative_binomial(y: float, f: arb, exposure: float, phi: list[float]) -> Scalar:
    """Return the parts. Counts of mean μ = exposure · e^f and variance μ + αμ²."""
    alpha, mu, k = arb(phi[0]), arb(exposure) * f.exp(), arb(y)
    r, one = 1 / alpha, 1 + alpha * mu
    choices = (k + r).lgamma() - r.lgamma() - (k + 1).lgamma()
    value = choices + k * (alpha * mu / one).log() - r * one.log()
    return Scalar(value, (k - mu) / one, mu * (1 + alpha * k) / (one * one))


def gamma(y: float, f: arb, exposure: float, phi: list[float]) -> Scalar:
    """Return the parts. Amounts of mean e^f and shape k."""
    k, ratio = arb(phi[0]), arb(y) * (-f).exp()
    value = k * k.log() - k * f + (k - 1) * arb(y).log() - k * ratio - k.lgamma()
    return Scalar(value, k * (ratio - 1), k * ratio)


def student_t(y: float, f: arb, exposure: float, phi: list[float]) -> Scalar:
    """Return the parts. y − f follows Student's t of scale s with ν degrees of freedom."""
    s, nu, u = arb(phi[0]), arb(phi[1]), arb(y) - f
    total = nu * s * s + u * u
    constant = ((nu + 1) / 2).lgamma() - (nu / 2).lgamma() - (arb.pi() * nu * s * s).log() / 2
    value = constant - (nu + 1) / 2 * (1 + u * u / (nu * s * s)).log()
    return Scalar(value, (nu + 1) * u / total, (nu + 1) * (nu * s * s - u * u) / (total * total))


def gaussian(y: float, f: arb, exposure: float, phi: list[float]) -> Scalar:
    """Return the parts. y − f is normal."""
    v, u = arb(phi[0]), arb(y) - f
    return Scalar(-(u * u / v + (2 * arb.pi() * v).log()) / 2, u / v, 1 / v)


LIKELIHOODS = {
    "BernoulliProbit": (probit, ()),
    "BernoulliLogit": (logit, ()),
    "Binomial": (binomial, ()),
    "Poisson": (poisson, ()),
    "NegativeBinomial": (negative_binomial, ("dispersion",)),
    "Gamma": (gamma, ("shape",)),
    "StudentT": (student_t, ("scale", "degrees")),
    "Gaussian": (gaussian, ("variance",)),
}


@dataclass
class Truth:
    """What exact arithmetic gives: means (t, C), covariances (t, C, C), evidence, f at the data (N,)."""

    mean: np.ndarray
    covariance: np.ndarray
    evidence: float
    f: np.ndarray
    is_maximum: bool

    @property
    def variances(self) -> np.ndarray:
        """Return (t, C)."""
        return np.diagonal(self.covariance, axis1=1, axis2=2)


@dataclass
class Process:
    """A latent process given data.

    ``likelihood`` is the class name of the library's and ``phi`` its hyperparameters; "Softmax" has C classes. The
    drift is [1, x − centre] T as in `gaussian_truth`. ``start`` are weights a (N,) and coefficients β (b,) near a mode.
    """

    kernel: tuple[Any, ...]
    likelihood: str
    phi: list[float]
    X: np.ndarray
    y: np.ndarray
    exposure: np.ndarray
    classes: int
    centre: np.ndarray
    T: np.ndarray
    start: tuple[np.ndarray, np.ndarray]

    def truth(self, Xs: np.ndarray) -> Truth | None:
        """Return the truth, or None if Newton's method from the start finds no mode."""
        before = ctx.prec
        try:
            ctx.prec = DIGITS
            return self._truth(Xs)
        finally:
            ctx.prec = before

    def drift(self, X: np.ndarray) -> arb_mat:
        """Return the drift functions at the rows of X."""
        if self.T.shape[1] == 0:
            return arb_mat(len(X) * self.classes, 0)
        centred = (matrix(X) - matrix(np.repeat(self.centre[None], len(X), 0))).tolist()
        return arb_mat([[arb(1), *row] for row in centred]) * matrix(self.T)

    def at(self, f: list[arb]) -> tuple[arb, list[arb], arb_mat]:
        """Return log p(y | f), its gradient and W (N, N)."""
        N, C = len(f), self.classes
        if C == 1:
            formula = LIKELIHOODS[self.likelihood][0]
            parts = [formula(float(self.y[i]), f[i], float(self.exposure[i]), self.phi) for i in range(N)]
            W = arb_mat(N, N, [parts[i].W.mid() if i == j else arb(0) for i in range(N) for j in range(N)])
            return sum((part.value for part in parts), arb(0)).mid(), [part.gradient.mid() for part in parts], W
        total, gradient, W = arb(0), [], [arb(0)] * (N * N)
        for i in range(N // C):
            own = f[i * C : (i + 1) * C]
            weights = [(value - own[0]).exp() for value in own]
            whole = sum(weights, arb(0))
            pi, label = [(weight / whole).mid() for weight in weights], int(self.y[i])
            total = total + own[label] - own[0] - whole.log()
            gradient += [(int(c == label) - pi[c]) for c in range(C)]
            for a in range(C):
                for b in range(C):
                    W[(i * C + a) * N + i * C + b] = ((pi[a] if a == b else arb(0)) - pi[a] * pi[b]).mid()
        return total.mid(), gradient, arb_mat(N, N, W)

    def _classes_of(self, K: arb_mat) -> arb_mat:
        """Return K ⊗ I."""
        if self.classes == 1:
            return K
        C, rows = self.classes, K.tolist()
        values = [
            [rows[i][j] if a == b else arb(0) for j in range(K.ncols()) for b in range(C)]
            for i in range(K.nrows())
            for a in range(C)
        ]
        return arb_mat(values)

    def _truth(self, Xs: np.ndarray) -> Truth | None:
        K, H = self._classes_of(entries(self.kernel, self.X, self.X).mid()), self.drift(self.X)
        found = self._mode(K, H)
        if found is None:
            return None
        a, beta, f = found
        N, b, C, t = K.nrows(), H.ncols(), self.classes, len(Xs)
        value, _, W = self.at(f)
        system = (_eye(N) + W * K).mid()
        psi = value - (a.transpose() * K * a)[0, 0] / 2
        determinant = system.det()
        k = self._classes_of(entries(self.kernel, self.X, Xs).mid())  # (N, tC)
        solved = system.solve(W * _beside(k, H)).mid()  # R [k, H]
        Rk, RH = _columns(solved, 0, t * C), _columns(solved, t * C, t * C + b)
        explained = (k.transpose() * Rk).mid()
        mean = k.transpose() * a
        added = arb_mat(t * C, t * C)
        if b:
            h = self.drift(Xs)
            rho = (h.transpose() - H.transpose() * Rk).mid()  # (b, t)
            added = (rho.transpose() * (H.transpose() * RH).mid().solve(rho)).mid()
            mean = mean + h * beta
        prior = diagonal(self.kernel, Xs)
        blocks = np.zeros((t, C, C))
        for i, p, q in np.ndindex(t, C, C):
            own = prior[i] if p == q else arb(0)
            blocks[i, p, q] = float((own - explained[i * C + p, i * C + q] + added[i * C + p, i * C + q]).mid())
        return Truth(
            np.array([float(value.mid()) for value in mean.entries()]).reshape(t, C),
            blocks,
            float((psi - determinant.log() / 2).mid()) if determinant > 0 else float("nan"),
            np.array([float(value.mid()) for value in f]),
            bool(determinant > 0),
        )

    def _mode(self, K: arb_mat, H: arb_mat) -> tuple[arb_mat, arb_mat, list[arb]] | None:
        """Return a, β and f by Newton's method: (I + WK) a + WHβ = ∇log p + Wf, Hᵀa = 0, halved until Ψ rises."""
        N, b = K.nrows(), H.ncols()
        a, beta = matrix(self.start[0].reshape(N, 1)), matrix(self.start[1].reshape(b, 1))
        f = (K * a + H * beta).mid()
        psi = self._psi(K, a, f)
        for _ in range(STEPS):
            _, gradient, W = self.at(f.entries())
            right = arb_mat(N, 1, gradient) + W * f
            lower = _beside(H.transpose(), arb_mat(b, b)) if b else arb_mat(0, N)
            whole = arb_mat((_beside(_eye(N) + W * K, W * H)).tolist() + lower.tolist())
            solved = whole.mid().solve(arb_mat(right.tolist() + arb_mat(b, 1).tolist()).mid()).mid()
            new_a, new_beta = _rows(solved, 0, N), _rows(solved, N, N + b)
            length = arb(1)
            for _ in range(60):
                trial_a, trial_beta = (a + length * (new_a - a)).mid(), (beta + length * (new_beta - beta)).mid()
                trial_f = (K * trial_a + H * trial_beta).mid()
                trial = self._psi(K, trial_a, trial_f)
                if trial >= psi - abs(psi) * arb(2) ** (-300):
                    break
                length = length / 2
            else:
                return None
            change = max(abs(float(x - y)) for x, y in zip(trial_f.entries(), f.entries(), strict=True))
            size = max(*(abs(float(x)) for x in trial_f.entries()), float(max(K[i, i] for i in range(N))) ** 0.5)
            a, beta, f, psi = trial_a, trial_beta, trial_f, trial
            if change <= CONVERGED * max(size, 1e-200):
                return a, beta, f.entries()
        return None

    def _psi(self, K: arb_mat, a: arb_mat, f: arb_mat) -> arb:
        return (self.at(f.entries())[0] - (a.transpose() * K * a)[0, 0] / 2).mid()


def _eye(n: int) -> arb_mat:
    return arb_mat(n, n, [arb(int(i == j)) for i in range(n) for j in range(n)])


def _beside(A: arb_mat, B: arb_mat) -> arb_mat:
    if B.ncols() == 0:
        return A
    return arb_mat([[*left, *right] for left, right in zip(A.tolist(), B.tolist(), strict=True)])


def _columns(A: arb_mat, first: int, last: int) -> arb_mat:
    if first == last:
        return arb_mat(A.nrows(), 0)
    return arb_mat([row[first:last] for row in A.tolist()])


def _rows(A: arb_mat, first: int, last: int) -> arb_mat:
    return arb_mat(A.tolist()[first:last]) if last > first else arb_mat(0, A.ncols())
