"""Kernel ridge regression without its n × n matrix."""

import os
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import _check_sample_weight, check_is_fitted
from torch import Tensor

from kernelcg.arguments import positive
from kernelcg.errors import StateMismatch
from kernelcg.estimators.chunked_answers import by_chunks
from kernelcg.estimators.data import as_floats, as_tensor
from kernelcg.estimators.gaussian_estimator import GaussianEstimator
from kernelcg.estimators.inputs import checked_data
from kernelcg.estimators.kernel_check import require_covariance
from kernelcg.estimators.learning_warnings import unlearned
from kernelcg.estimators.precomputed import Precomputed
from kernelcg.estimators.session import Resumable, Session, predicting, tell_of_all
from kernelcg.estimators.settings import (
    check_options,
    chosen_device,
    learned_count,
    on_own_threads,
    require_range,
)
from kernelcg.estimators.sklearn_kernels import converted, sklearn_pairwise
from kernelcg.events import EventKind, Listener
from kernelcg.inference.bounds.certificate import certificate
from kernelcg.inference.gaussian.drift import MeanKind
from kernelcg.inference.gaussian.likelihood_by_cholesky import CriterionName
from kernelcg.inference.gaussian.likelihood_by_pcg import Numerics
from kernelcg.inference.gaussian.model import GaussianProcess, Noise, Regression
from kernelcg.inference.gaussian.objective import Objective
from kernelcg.inference.learning.learn import Learned, learn
from kernelcg.kernels import Kernel
from kernelcg.planning import Plan
from kernelcg.randomness import child, seeded

Floats = NDArray[np.float64]

SELECTIONS = (CriterionName.LOO, CriterionName.GCV, CriterionName.MARGINAL_LIKELIHOOD)

STEPS = 100

LEAST_ALPHA = 1e-8
"""Regularisation that stands for none, relative to the mean of k(x, x): the root of the rounding of float64.

Of y outside the range of K it makes weights 1e8 times as large, whose part in predictions cancels up to 1e-8; what it
changes of the rest is as small.
"""


class KernelRidge(GaussianEstimator):
    """Kernel ridge regression, (K + αI) a = y, solved to a certified residual in O(n d) memory.

    The common parameters and kernels of scikit-learn's KernelRidge mean the same here and give the same predictions.
    There is one alpha for all outputs (for others fit one model each), no ``kernel_params`` and no callable kernel
    (write a subclass of `kernelcg.kernels.Kernel`), and a WhiteKernel is added to alpha.

    Parameters
    ----------
    alpha : regularisation, one number. 0 asks for interpolation, or least squares where the kernel matrix is singular,
        and is taken for 1e-8 of the mean of k(x, x), below which rounding would say more than the data; `alpha_` has it
    kernel : "linear", "rbf", "laplacian", "poly", "cosine", a kernelcg or scikit-learn kernel object (whose
        WhiteKernel is added to alpha), or "precomputed": X then is the (n, n) kernel matrix, in `predict` the (t, n)
        matrix k(x, X). Such a model cannot be saved to a file
    gamma, degree, coef0 : of the named kernels, as in scikit-learn; gamma None means 1/d
    selection : None uses the hyperparameters as given; "loo", "gcv" or "marginal_likelihood" choose alpha and those
        of the kernel (gamma, lengthscales, variances), starting from the given ones, by the least leave-one-out or
        generalised cross-validation error or the greatest marginal likelihood; leave-one-out errors of more
        rows than are quickly factorised are those of as many random ones
    max_iter, max_seconds, method, preconditioner, probes, rtol, device, dtype, memory, n_jobs, cluster, random_state, \
    verbose : as in `GPRegressor`

    Attributes
    ----------
    dual_coef_ : (n,) or (n, c) the weights a
    X_fit_ : (n, d) the training inputs
    alpha_, kernel_ : as given or chosen
    certificate_, report_, learning_, plan_, posterior_ : as in `GPRegressor`

    Examples
    --------
    >>> import numpy as np
    >>> from kernelcg import KernelRidge
    >>> X = np.linspace(0, 10, 60)[:, None]
    >>> model = KernelRidge(alpha=1e-3, kernel="rbf").fit(X, np.sin(X[:, 0]))
    >>> model.predict(X).shape
    (60,)
    """

    def __init__(
        self,
        alpha: float = 1.0,
        *,
        kernel: Any = "linear",
        gamma: float | None = None,
        degree: int = 3,
        coef0: float = 1.0,
        selection: str | None = None,
        max_iter: int | None = None,
        max_seconds: float | None = None,
        method: str = "auto",
        preconditioner: Any = "auto",
        probes: int = 8,
        rtol: float = 1e-8,
        device: str = "auto",
        dtype: str = "auto",
        memory: int | str | None = None,
        n_jobs: int | None = None,
        cluster: Any = None,
        random_state: Any = 0,
        verbose: int = 0,
    ):
        self.alpha = alpha
        self.kernel = kernel
        self.gamma = gamma
        self.degree = degree
        self.coef0 = coef0
        self.selection = selection
        self.max_iter = max_iter
        self.max_seconds = max_seconds
        self.method = method
        self.preconditioner = preconditioner
        self.probes = probes
        self.rtol = rtol
        self.device = device
        self.dtype = dtype
        self.memory = memory
        self.n_jobs = n_jobs
        self.cluster = cluster
        self.random_state = random_state
        self.verbose = verbose

    @on_own_threads
    def plan(self, X: Any, y: Any, sample_weight: Any = None) -> Plan:
        """Return what `fit` would do with these data, without doing it; as in `GPRegressor.plan`.

        Parameters
        ----------
        X, y, sample_weight : as in `fit`
        """
        with self._leaving_no_trace():
            return self._prepared(X, y, sample_weight, None)[2]

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        plan: Plan | None = None,
        callback: Listener | None = None,
        resume: Resumable = None,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Choose the hyperparameters if that was asked for, and solve for the weights.

        Parameters
        ----------
        sample_weight : (n,) weights of the squared errors: αᵢ = α / wᵢ; rows of weight 0 are left out
        plan, callback, resume, checkpoint : as in `GPRegressor.fit`
        """
        with self._fitting(callback, resume, checkpoint) as session:
            problem, gp, plan = self._prepared(X, y, sample_weight, plan, session.earlier)
            self._select_and_solve(problem, gp, plan, session)
        return self

    def _prepared(
        self, X: Any, y: Any, sample_weight: Any, plan: Plan | None, earlier: Plan | None = None
    ) -> tuple[Regression, GaussianProcess, Plan]:
        """Return the checked data, the process with the hyperparameters as given, and the plan."""
        check_options(self.get_params(deep=False))
        if self.selection not in (None, *SELECTIONS):
            raise ValueError(f"selection must be None or one of {', '.join(SELECTIONS)}, not {self.selection!r}")
        X, y = checked_data(self, X, y, multi_output=True)
        self.X_fit_ = X
        kernel = self._first_kernel(X)
        X = Precomputed.rows(len(X)) if isinstance(kernel, Precomputed) else X
        noise = self._first_noise(kernel, X)
        Y, extra = y.reshape(len(y), -1).astype(np.float64), None
        if sample_weight is not None:
            given = as_floats(sample_weight, "sample_weight")
            weights = _check_sample_weight(given if given.ndim else given.item(), X, ensure_non_negative=True)
            X, Y, noise, extra = self._weighted(X, Y, weights, noise)
        self._y_shape = y.shape[1:]
        problem = self._regression(X, Y, extra, MeanKind.ZERO, plan, relative=True)
        problem = self._within_memory(problem, self.probes, learns=self.selection is not None)
        require_covariance(kernel, problem.X, learned=self.selection is not None)
        gp = GaussianProcess(kernel, noise)
        count = learned_count(gp, self.selection is not None)
        exact_only = self.selection == CriterionName.LOO
        work = problem.workload(parameters=count, exact_only=exact_only, needs_inverse=True)
        problem, made = self._planned(problem, kernel, work, self.probes, plan, earlier)
        return problem, gp, made

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = isinstance(self.kernel, str) and self.kernel == "precomputed"
        return tags

    @by_chunks
    @on_own_threads
    def predict(self, X: Any, *, callback: Listener | None = None) -> Floats:
        """Return k(x, X) a, in the units of y.

        Parameters
        ----------
        X : (t, d)
        callback : as in `GPRegressor.predict`
        """
        check_is_fitted(self)
        points, heard = self._points(X), predicting(callback)
        if isinstance(self.kernel_, Precomputed):
            posterior = self.posterior_
            found = points[:, posterior.problem.X[:, 0].long()] @ posterior.weights.X
        else:
            found = self.posterior_.mean(points)
        mean = self._shaped(found.cpu().numpy())
        tell_of_all(heard, points)
        return mean

    def _first_kernel(self, X: Floats) -> Kernel:
        """Return the kernel as given."""
        if not isinstance(self.kernel, str):
            return converted(self._with_numbered_columns(self.kernel))[0]
        if self.kernel == "precomputed":
            if self.cluster is not None:
                raise ValueError("kernel='precomputed' has its whole matrix here; leave cluster out")
            return Precomputed.of(X, chosen_device(self.device))
        return sklearn_pairwise(self.kernel, self.gamma, self.degree, self.coef0, X.shape[1])

    def _first_noise(self, kernel: Kernel, X: Floats) -> Noise:
        """Return alpha, the white part of the kernel included."""
        if isinstance(self.alpha, str) or np.size(self.alpha) != 1:
            raise ValueError(f"alpha must be one number, not {self.alpha!r}; fit one model for each alpha")
        alpha = float(as_floats(self.alpha, "alpha").reshape(()))
        if not alpha >= 0:
            raise ValueError(f"alpha must be positive, or 0 for interpolation, not {self.alpha!r}")
        white = None if isinstance(self.kernel, str) else converted(self.kernel)[1]
        total = alpha + (0.0 if white is None else white.variance.item())
        return Noise(positive(total or LEAST_ALPHA * (float(kernel.diagonal(as_tensor(X)).mean()) or 1.0), "alpha"))

    def _weighted(self, X: Floats, Y: Floats, weights: Floats, noise: Noise) -> tuple[Floats, Floats, Noise, Tensor]:
        """Return the rows of positive weight, the least of their αᵢ = α / wᵢ, and what each has beyond that."""
        if self.selection is not None:
            raise ValueError("selection with sample_weight is not supported; give the hyperparameters")
        present = weights > 0
        if not present.any():
            raise ValueError("every sample_weight is zero: there is nothing to fit")
        alphas = as_tensor(noise.variance.item() / weights[present])
        least = alphas.min()
        return X[present], Y[present], Noise(least), alphas - least

    def _select_and_solve(self, problem: Regression, gp: GaussianProcess, plan: Plan, session: Session) -> None:
        session.tell(EventKind.PLAN, plan)
        require_range(gp.kernel, problem)
        if self.selection is None:
            if session.resume is not None:
                raise StateMismatch(
                    "selection is None: nothing is learned here, so that there is nothing to go on with"
                )
            self.learning_ = Learned(gp, (), 0, True, "hyperparameters as given", 0.0)
        else:
            numerics = Numerics(self.probes, preconditioner=self.preconditioner, seed=plan.seed)
            with session.learning() as callback:
                self.learning_ = (unlearned(problem, gp) if session.resume is None else None) or learn(
                    Objective(problem, self.selection, numerics=numerics, plan=plan),
                    gp,
                    max_steps=STEPS if self.max_iter is None else self.max_iter,
                    generator=child(seeded(plan.seed), "selection"),
                    callback=callback,
                    resume=session.resume,
                )
        done = self.learning_.revised(plan)
        self.posterior_ = self._conditioned(problem, self.learning_.gp, done, session)
        self.plan_ = session.outcome(plan, done, self.learning_)
        self.n_iter_ = max(len(self.learning_.steps), 1)
        self.kernel_, self.alpha_ = self.posterior_.gp.kernel, self.posterior_.gp.noise.variance.item()
        if not isinstance(self.kernel_, Precomputed):
            self.X_fit_ = problem.X.cpu().numpy()
        self.dual_coef_ = self._shaped(self.posterior_.weights.X.cpu().numpy())
        self.report_ = self.posterior_.report
        self.certificate_ = certificate(self.posterior_, probes=0, seed=plan.seed)
        session.tell(EventKind.END, self.certificate_)
        self._warn_of_fit(gp, session)
