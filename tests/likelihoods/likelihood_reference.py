"""The truth about likelihoods: textbook formulas in mpmath or SciPy. Imports nothing of the package.

A likelihood object is only read as a dataclass: its class name picks the formula, its fields are the hyperparameters.
"""

from dataclasses import fields

import mpmath as mp
import numpy as np
from scipy import stats
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp

DIGITS = 80


def _probit(y, f, e):
    z = (2 * y - 1) * f / mp.sqrt(2)
    return mp.log1p(-mp.erfc(z) / 2) if z > 0 else mp.log(mp.erfc(-z) / 2)


def _bernoulli(y, f, e):
    return -mp.log1p(mp.exp(-(2 * y - 1) * f))


def _binomial(y, f, e):
    return mp.log(mp.binomial(e, y)) - y * mp.log1p(mp.exp(-f)) - (e - y) * mp.log1p(mp.exp(f))


def _poisson(y, f, e):
    return y * (f + mp.log(e)) - e * mp.exp(f) - mp.loggamma(y + 1)


def _negative_binomial(y, f, e, dispersion):
    r, mu = 1 / dispersion, e * mp.exp(f)
    choices = mp.loggamma(y + r) - mp.loggamma(r) - mp.loggamma(y + 1)
    return choices + r * mp.log(r / (r + mu)) + y * mp.log(mu / (r + mu))


def _gamma(y, f, e, shape):
    rate = shape / mp.exp(f)
    return shape * mp.log(rate) - mp.loggamma(shape) + (shape - 1) * mp.log(y) - rate * y


def _student(y, f, e, scale, nu):
    constant = mp.loggamma((nu + 1) / 2) - mp.loggamma(nu / 2) - mp.log(nu * mp.pi * scale**2) / 2
    return constant - (nu + 1) / 2 * mp.log1p(((y - f) / scale) ** 2 / nu)


def _gaussian(y, f, e, variance):
    return -mp.log(2 * mp.pi * variance) / 2 - (y - f) ** 2 / (2 * variance)


LOG_DENSITIES = {
    "BernoulliProbit": _probit,
    "BernoulliLogit": _bernoulli,
    "Binomial": _binomial,
    "Poisson": _poisson,
    "NegativeBinomial": _negative_binomial,
    "Gamma": _gamma,
    "StudentT": _student,
    "Gaussian": _gaussian,
}


def parameters(likelihood):
    return [mp.mpf(getattr(likelihood, field.name).item()) for field in fields(likelihood)]


def log_density_and_derivatives(likelihood, y, f, e=1.0):
    """Return log p, ∂log p, W and ∂W/∂f of one observation, to all digits of a float."""
    formula, own = LOG_DENSITIES[type(likelihood).__name__], parameters(likelihood)
    with mp.workdps(DIGITS):
        values = mp.diffs(lambda f: formula(mp.mpf(y), f, mp.mpf(e), *own), mp.mpf(f), 3)
        value, first, second, third = values
        return [float(number) for number in (value, first, -second, -third)]


def parameter_derivatives(likelihood, y, f, e=1.0):
    """Return rows (∂ log p, ∂ ∂log p/∂f, ∂ W) in the logarithm of each hyperparameter, for one observation."""
    formula, own = LOG_DENSITIES[type(likelihood).__name__], parameters(likelihood)
    rows = []
    with mp.workdps(DIGITS):
        for i in range(len(own)):

            def shifted(step, f, i=i):
                changed = [value * mp.exp(step) if j == i else value for j, value in enumerate(own)]
                return formula(mp.mpf(y), f, mp.mpf(e), *changed)

            mixed = [mp.diff(shifted, (0, mp.mpf(f)), (1, order)) for order in (0, 1, 2)]
            rows.append([float(mixed[0]), float(mixed[1]), float(-mixed[2])])
    return np.array(rows).reshape(-1, 3)


def distribution(likelihood, f, e=1.0):
    """Return y given f as a SciPy distribution."""
    name, own = type(likelihood).__name__, [float(value) for value in parameters(likelihood)]
    mu, p = e * np.exp(f), 1 / (1 + np.exp(-np.asarray(f)))
    return {
        "BernoulliProbit": lambda: stats.bernoulli(stats.norm.cdf(f)),
        "BernoulliLogit": lambda: stats.bernoulli(p),
        "Binomial": lambda: stats.binom(e, p),
        "Poisson": lambda: stats.poisson(mu),
        "NegativeBinomial": lambda phi: stats.nbinom(1 / phi, 1 / (1 + phi * mu)),
        "Gamma": lambda shape: stats.gamma(shape, scale=np.exp(f) / shape),
        "StudentT": lambda scale, nu: stats.t(nu, loc=f, scale=scale),
        "Gaussian": lambda variance: stats.norm(f, np.sqrt(variance)),
    }[name](*own)


def log_gaussian_integral(log_function, m, v, centres):
    """Return log ∫ e^l(f) N(f; m, v) df by 20-point Gauss–Legendre on a geometric mesh around every place that matters.

    Those are the mean, the given centres (where l turns or peaks) and the peak of the integrand, found by Brent.
    """
    if v == 0:
        return float(log_function(np.array(float(m))))
    with np.errstate(over="ignore", invalid="ignore"):

        def log_integrand(f):
            value = log_function(f) - (f - m) ** 2 / (2 * v) - 0.5 * np.log(2 * np.pi * v)
            return np.nan_to_num(value, nan=-1e308, neginf=-1e308)

        steps = 1.25 ** np.arange(-150, 150.0)
        steps = np.concatenate([-steps[::-1], [0.0], steps])
        mesh = np.unique(np.concatenate([m + np.sqrt(v) * steps] + [centre + steps for centre in centres]))
        best = np.argmax(log_integrand(mesh))
        bounds = mesh[max(best - 1, 0)], mesh[min(best + 1, len(mesh) - 1)]
        found = minimize_scalar(lambda f: -log_integrand(f), bounds=bounds, method="bounded", options={"xatol": 1e-13})
        mesh = np.unique(np.concatenate([mesh, found.x + steps]))
        nodes, weights = np.polynomial.legendre.leggauss(20)
        half = np.diff(mesh)[:, None] / 2
        values = log_integrand(mesh[:-1, None] + half * (1 + nodes))
        return float(logsumexp(values, b=half * weights))


def softmax_curvature(pi):
    """Return W = diag(π) − ππᵀ and the array ∂W_ab / ∂f_c of one point."""
    C = len(pi)
    W, identity = np.diag(pi) - np.outer(pi, pi), np.eye(C)
    d_pi = pi[:, None] * (identity - pi[None, :])  # ∂π_a / ∂f_c
    dW = np.einsum("ab,ac->abc", identity, d_pi)
    return W, dW - np.einsum("ac,b->abc", d_pi, pi) - np.einsum("a,bc->abc", pi, d_pi)
