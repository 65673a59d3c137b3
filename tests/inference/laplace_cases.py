"""Small problems for the Laplace approximation, as the package and as the dense reference see them."""

from dataclasses import dataclass

import numpy as np
import torch
from laplace_truth import LIKELIHOODS, LaplaceTruth, SoftmaxTruth, covariance
from reference import kernel_matrix

from kernelcg import likelihoods
from kernelcg.inference import Numerics
from kernelcg.inference.laplace.latent_model import LatentProcess, Observations
from kernelcg.inference.laplace.mode import find_mode
from kernelcg.inference.laplace.newton_methods import systems_for
from kernelcg.kernels import RBF, Linear, Matern, Periodic
from kernelcg.solvers import Stopping

LIKELIHOOD = {
    "probit": likelihoods.BernoulliProbit(),
    "logit": likelihoods.BernoulliLogit(),
    "binomial": likelihoods.Binomial(),
    "poisson": likelihoods.Poisson(),
    "negative_binomial": likelihoods.NegativeBinomial(0.5),
    "gamma": likelihoods.Gamma(2.0),
    "student_t": likelihoods.StudentT(0.3, 3.0),
    "gaussian": likelihoods.Gaussian(0.2),
}

EXPOSED = ("binomial", "poisson", "negative_binomial")

KERNELS = {
    "rbf": RBF(lengthscale=[0.8, 1.3], variance=1.5),
    "matern 1/2": Matern(1.1, 1.2, nu=0.5),
    "matern 5/2": Matern([0.9, 1.4], 1.2, nu=2.5),
    "sum": RBF(0.8, 1.0) + Linear(0.3),
    "product": Matern(0.9, 0.8, nu=1.5) * Periodic(1.5, 2.0, 1.0) + Linear(0.2),
}

MEANS = ("zero", "constant", "linear")

TIGHT = Numerics(stopping=Stopping(rtol=1e-9))


def drift_of(mean, X):
    """Return H (n, b), or None."""
    columns = {"zero": [], "constant": [np.ones(len(X))], "linear": [np.ones(len(X)), *X.T]}[mean]
    return np.stack(columns, 1) if columns else None


@dataclass(frozen=True, eq=False)
class Case:
    """One data set and one model; C > 1 classes mean softmax."""

    X: np.ndarray
    y: np.ndarray
    kernel: object
    name: str = "softmax"
    likelihood: object = None
    exposure: np.ndarray | float = 1.0
    mean: str = "zero"
    classes: int = 1
    precision: object = None

    @property
    def gp(self):
        return LatentProcess(self.kernel, self.likelihood or likelihoods.Softmax())

    @property
    def problem(self):
        exposure = torch.as_tensor(np.broadcast_to(np.asarray(self.exposure, dtype=float), len(self.y)).copy())
        return Observations(
            torch.tensor(self.X),
            torch.tensor(self.y),
            exposure,
            self.mean,
            self.classes,
            precision=self.precision,
        )

    def truth(self, mode=None):
        """Return the reference; a mode picks one of several."""
        K, theta, H = covariance(self.kernel, self.X), self.kernel.log_parameters().numpy(), drift_of(self.mean, self.X)
        if self.classes > 1:
            return SoftmaxTruth(K, theta, self.y, self.classes)
        start = None if mode is None else (mode.a.numpy()[:, 0], mode.beta.numpy()[:, 0])
        phi = self.likelihood.log_parameters().numpy()
        return LaplaceTruth(K, theta, LIKELIHOODS[self.name], self.y, phi, self.exposure, H, start)

    def latent(self, truth, X_new):
        """Return mean and covariance of the latent values at new points by the reference, (t, C) and (t, C, C)."""
        K, K_new = (kernel_matrix(self.kernel, X_new, other) for other in (self.X, X_new))
        mean, spread = truth.latent(K, K_new, drift_of(self.mean, X_new))
        return (mean, spread) if self.classes > 1 else (mean[:, None], np.diag(spread)[:, None, None])

    def mode(self, method, rtol=1e-10, numerics=TIGHT, **options):
        """Return the mode by the package."""
        systems = systems_for(self.problem, self.gp, method, numerics)
        return find_mode(self.problem, self.gp, systems, rtol=rtol, **options).mode


def case(name, mean="zero", kernel="rbf", n=30, seed=0):
    """Return data drawn from the model, with a few outliers for Student's t."""
    rng = np.random.default_rng(seed)
    X, kernel, likelihood = rng.normal(size=(n, 2)), KERNELS[kernel], LIKELIHOOD[name]
    exposure = rng.integers(1, 9, size=n).astype(float) if name in EXPOSED else 1.0
    f = drawn(kernel, X, rng) + {"zero": 0.0, "constant": 0.7, "linear": 0.5 - 0.4 * X[:, 0]}[mean]
    y = LIKELIHOODS[name].draw(f, exposure, likelihood.log_parameters().numpy(), rng)
    if name == "student_t":
        y[::7] += 5.0
    return Case(X, np.asarray(y, dtype=float), kernel, name, likelihood, exposure, mean)


def softmax_case(classes, kernel="rbf", n=18, seed=0):
    """Return class numbers drawn from the model."""
    rng = np.random.default_rng(seed)
    X, kernel = rng.normal(size=(n, 2)), KERNELS[kernel]
    F = np.stack([drawn(kernel, X, rng) for _ in range(classes)], 1)
    return Case(X, np.argmax(1.5 * F + rng.gumbel(size=F.shape), 1), kernel, classes=classes)


def drawn(kernel, X, rng):
    """Return a draw from the prior at X."""
    values, V = np.linalg.eigh(kernel_matrix(kernel, X, X))
    return V @ (np.sqrt(np.maximum(values, 0)) * rng.standard_normal(len(X)))
