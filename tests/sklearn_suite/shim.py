"""scikit-learn's constructors and signatures on the estimators of this library.

What is renamed or converted here is what a user who comes from scikit-learn writes differently; everything that is
computed is computed by this library. ``alpha`` is a known noise, the mean is zero, the evidence alone is maximised,
several classes are told apart one against the rest by the logit, and hyperparameters are those of its kernels.
"""

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.gaussian_process import kernels as sk

from kernelcg import GPClassifier, GPRegressor
from kernelcg.estimators.sklearn_kernels import converted
from kernelcg.inference import Noise

STEP = 1e-4

OPTIMIZERS = {"fmin_l_bfgs_b": "lbfgs"}


def default_kernel(bounds="fixed"):
    """Return the kernel that scikit-learn's estimators have where none is given."""
    return sk.ConstantKernel(1.0, constant_value_bounds=bounds) * sk.RBF(1.0, length_scale_bounds=bounds)


def ours(kernel, theta):
    """Return the log hyperparameters of our kernel, and of the noise if there is one, for those of scikit-learn's."""
    own, white = converted(kernel.clone_with_theta(np.asarray(theta, dtype=float)))
    parts = [own] if white is None else [own, white]
    return np.concatenate([part.log_parameters().numpy() for part in parts])


def jacobian(kernel, theta):
    """Return (theirs, ours) derivatives of our log hyperparameters in theirs; constant but for white kernels."""
    steps = STEP * np.eye(len(theta))
    return np.array([(ours(kernel, theta + step) - ours(kernel, theta - step)) / (2 * STEP) for step in steps])


def theirs(kernel, learned):
    """Return scikit-learn's kernel with what was learned, by inverting the map between the logarithms."""
    theta = kernel.theta.copy()
    for _ in range(3 if len(theta) else 0):
        missing = learned - ours(kernel, theta)
        theta = theta + np.linalg.lstsq(jacobian(kernel, theta).T, missing, rcond=None)[0]
    low, high = kernel.bounds.T if len(theta) else (theta, theta)
    near = np.abs([theta - low, theta - high]) < 1e-9  # the map rounds, a bound is a bound
    return kernel.clone_with_theta(np.where(near[0], low, np.where(near[1], high, theta)))


class GaussianProcessRegressor(BaseEstimator):
    def __init__(
        self,
        kernel=None,
        *,
        alpha=1e-10,
        optimizer="fmin_l_bfgs_b",
        n_restarts_optimizer=0,
        normalize_y=False,
        copy_X_train=True,
        n_targets=None,
        random_state=None,
    ):
        self.kernel = kernel
        self.alpha = alpha
        self.optimizer = optimizer
        self.n_restarts_optimizer = n_restarts_optimizer
        self.normalize_y = normalize_y
        self.copy_X_train = copy_X_train
        self.n_targets = n_targets
        self.random_state = random_state

    def fit(self, X, y):
        self._first = default_kernel((1e-5, 1e5)) if self.kernel is None else self.kernel
        model, known = self._made(self._first), self._known(y)
        self._model = model.fit(X, y, noise_variance=known)
        self.kernel_ = theirs(self._first, self._learned())
        self._y_train_std = model.y_scale_
        return self

    def predict(self, X, return_std=False, return_cov=False):
        return self._asked().predict(X, return_std, return_cov, include_noise=self._is_noisy())

    def sample_y(self, X, n_samples=1, random_state=0):
        return self._asked().sample_y(X, n_samples, random_state, include_noise=self._is_noisy())

    def log_marginal_likelihood(self, theta=None, eval_gradient=False, clone_kernel=True):
        if theta is None:
            return self._model.log_marginal_likelihood(eval_gradient=eval_gradient)
        if not clone_kernel:
            self.kernel_.theta = theta
        at = self._model.posterior_.gp.log_parameters().numpy()
        given, slopes = ours(self._first, theta), jacobian(self._first, theta)
        found = self._model.log_marginal_likelihood(np.r_[given, at[len(given) :]], eval_gradient)
        return (found[0], slopes @ found[1][: len(given)]) if eval_gradient else np.float64(found)

    def _made(self, kernel):
        white = not isinstance(kernel, sk.Kernel) or converted(kernel)[1] is not None
        return GPRegressor(
            kernel,
            noise=None if white else Noise(np.min(self.alpha)).fixed(),
            optimizer=OPTIMIZERS.get(self.optimizer, self.optimizer) if self.optimizer else None,
            n_restarts=self.n_restarts_optimizer,
            normalize_y=self.normalize_y,
            mean="zero",
            priors=None,
        )

    def _known(self, y):
        """Return the part of alpha that is not the noise, in the units of y²."""
        known = np.asarray(self.alpha) - (0.0 if self._is_noisy() else np.min(self.alpha))
        scale = np.std(y) if self.normalize_y and np.std(y) > 0 else 1.0
        return known * scale**2 if np.any(known) else None

    def _is_noisy(self):
        return self.kernel is not None and converted(self.kernel)[1] is not None

    def _learned(self):
        gp = self._model.posterior_.gp
        parts = [gp.kernel, gp.noise] if self._is_noisy() else [gp.kernel]
        return np.concatenate([part.log_parameters().numpy() for part in parts])

    def _asked(self):
        fitted = "_model" in vars(self)
        return self._model if fitted else self._made(default_kernel() if self.kernel is None else self.kernel)


class GaussianProcessClassifier(BaseEstimator):
    def __init__(
        self,
        kernel=None,
        *,
        optimizer="fmin_l_bfgs_b",
        n_restarts_optimizer=0,
        max_iter_predict=100,
        warm_start=False,
        copy_X_train=True,
        random_state=None,
        multi_class="one_vs_rest",
        n_jobs=None,
    ):
        self.kernel = kernel
        self.optimizer = optimizer
        self.n_restarts_optimizer = n_restarts_optimizer
        self.max_iter_predict = max_iter_predict
        self.warm_start = warm_start
        self.copy_X_train = copy_X_train
        self.random_state = random_state
        self.multi_class = multi_class
        self.n_jobs = n_jobs

    def fit(self, X, y):
        self._first = default_kernel() if self.kernel is None else self.kernel
        self._model = GPClassifier(
            self._first,
            likelihood="logit",
            optimizer=OPTIMIZERS.get(self.optimizer, self.optimizer) if self.optimizer else None,
            n_restarts=self.n_restarts_optimizer,
            n_jobs=self.n_jobs,
            priors=None,
            calibrated=False,
        ).fit(X, y)
        learned = [theirs(self._first, one.kernel_.log_parameters().numpy()) for one in self._models()]
        self.kernel_ = learned[0] if len(learned) == 1 else sk.CompoundKernel(learned)
        return self

    def predict(self, X):
        return self._model.predict(X)

    def predict_proba(self, X):
        return self._model.predict_proba(X)

    def latent_mean_and_variance(self, X):
        mean, std = self._model.latent(X, return_std=True)
        return mean, std**2

    def log_marginal_likelihood(self, theta=None, eval_gradient=False, clone_kernel=True):
        if theta is None:
            return self._model.log_marginal_likelihood(eval_gradient=eval_gradient)
        if not clone_kernel:
            self.kernel_.theta = theta
        models, theta = self._models(), np.asarray(theta, dtype=float)
        p = len(self._first.theta)
        each = [theta] * len(models) if len(theta) == p else theta.reshape(len(models), p)
        found = [
            model.log_marginal_likelihood(ours(self._first, own), eval_gradient)
            for model, own in zip(models, each, strict=True)
        ]
        if not eval_gradient:
            return np.mean(found)
        return np.mean([value for value, _ in found]), jacobian(self._first, theta) @ found[0][1]

    def _models(self):
        return getattr(self._model, "estimators_", (self._model,))
