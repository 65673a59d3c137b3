"""Gaussian process classification with scikit-learn's interface."""

import os
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, clone
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from kernelcg.errors import StateMismatch
from kernelcg.estimators.inputs import checked_data, checked_points
from kernelcg.estimators.laplace_estimator import Floats, LaplaceEstimator
from kernelcg.estimators.session import Resumable, Session, predicting, tell_of_all
from kernelcg.estimators.settings import first_kernel
from kernelcg.events import Listener
from kernelcg.inference.laplace.latent_model import LatentProcess, Observations
from kernelcg.inference.laplace.posterior import LatentPrediction
from kernelcg.inference.learning.given_optimizer import GivenOptimizer
from kernelcg.kernels import Kernel, Linear
from kernelcg.likelihoods import BernoulliLogit, BernoulliProbit, Likelihood, Softmax
from kernelcg.planning import Plan
from kernelcg.randomness import child, seeded

LINKS: Mapping[str, type[Likelihood] | type[Softmax]] = {
    "probit": BernoulliProbit,
    "logit": BernoulliLogit,
    "softmax": Softmax,
}

START_VARIANCE = 10.0
"""Variance of the latent functions from which learning starts: probabilities from 0.001 to 0.999."""

LEAST_VARIANCE, MOST_VARIANCE, MOST_VARIANCE_OF_CLASSES = 1e-2, 30.0, 10.0
"""Between these it is learned, in the default kernel, of two classes and of more.

Where classes are nearly separable Laplace's evidence likes variances of thousands, for which its Gaussian is far wider
than the posterior: averaged over it, probabilities are much too cautious. Measured NLL on test rows: Spam (three folds,
sums) 9.2 up to 30, 10.7 up to 100, 12.1 up to 1,000; EEG (means) 0.148 up to 30, 0.154 up to 100, 0.189 up to 300;
pendigits 0.075 at 10, 0.29 at 100, 1.1 without a limit, at the same number of errors.
"""

PROBABILITY = "(as a probability)"

CLEAR = 0.5
"""Lead of the largest latent mean beyond which it decides without covariances, whose differences matter less."""


def first_latent_kernel(X: Tensor, classes: int, name: str = "matern32") -> Kernel:
    """Return the default kernel from which learning starts, or another that is named."""
    most = MOST_VARIANCE if classes == 2 else MOST_VARIANCE_OF_CLASSES
    kernel = first_kernel(X, START_VARIANCE, name)
    return kernel if isinstance(kernel, Linear) else kernel.bounded(variance=(LEAST_VARIANCE, most))


class GPClassifier(ClassifierMixin, LaplaceEstimator):  # type: ignore[misc]  # sklearn is untyped
    """Gaussian process classification that scales: Laplace's approximation by preconditioned conjugate gradients.

    Two classes have one latent function. More have one each, jointly through the softmax: the classes share the
    kernel, and the posterior has the covariances between them. The latent functions have mean zero; add a
    `kernelcg.kernels.Constant` to the kernel where classes are very unequal.

    Parameters
    ----------
    kernel : kernelcg or scikit-learn kernel, or a name as in `GPRegressor`; None means Matérn-3/2 with one lengthscale
        per feature. The variance of the default and of named ones is learned up to 30, of more than two classes up to
        10: beyond, Laplace's approximation is too wide and its probabilities too cautious where classes are nearly
        separable. Hyperparameters are restricted on the kernel itself: ``RBF(1.0).bounded(lengthscale=(0.1, 10))``,
        ``.fixed("variance")``, ``.with_prior(lengthscale=(1.0, 0.5))``. There is no noise: a WhiteKernel is refused
    likelihood : "probit", "logit", "softmax", or "auto": the probit for two classes, the softmax for more. With the
        probit or the logit more than two classes are told apart one against the rest, by independent models whose
        probabilities are normalised; `estimators_` has them
    priors : "weak" or None. "weak" keeps lengthscales that carry neither bounds nor priors of yours within 1e-5 and 1e6
        spreads of their feature, and `learning_` says which features have no visible effect. None supposes nothing
    method : "direct" (Cholesky), "iterative" (preconditioned CG) or "auto"
    preconditioner : "auto", the name of a recipe (see `kernelcg.preconditioners.available`), a recipe, or None for
        plain CG; the softmax has one of its own, unless None
    optimizer : "lbfgs", deterministic, on a growing part of the data; "adagrad" (the paper's) or "adam", stochastic
        gradients; None keeps the hyperparameters; a function as in `GPRegressor`
    max_iter : steps on each part of the data; None means 100, for adagrad 50
    max_seconds : seconds of a fit after which learning ends at the next event with the best hyperparameters so far;
        conditioning on the data comes after it. None means no limit
    step_size : of adagrad (1) and adam (0.1)
    probes : random columns for traces and determinants of the iterative method; None means 64, for the softmax and for
        stochastic gradients 8
    n_restarts : further random starts, on the smallest part of the data
    rtol : relative residual to which the mode is found; certified
    device : "auto", "cpu", "cuda", ...
    dtype : precision of products with K in iterative work: "float64", "float32", or "auto", float32 where its rounding
        stays harmless. Residuals are recomputed in float64 always
    memory : bytes, or words such as "4GB", that an operation may take; None means half of the machine's
    n_jobs : threads of the products; None means all
    cluster : None, or where a Dask cluster does the products (extra ``kernelcg[cluster]``): a `distributed.Client`, the
        address of a scheduler, or "local" for processes on this machine that end with the fit. The same seed gives the
        same bits with any number of workers of one kind
    random_state : seed; the default gives the same numbers every time
    verbose : 1 shows the plan and every step of learning

    Attributes
    ----------
    classes_ : the labels, sorted
    kernel_, likelihood_ : the learned kernel, and the likelihood
    log_marginal_likelihood_value_ : Laplace's approximation of it at the learned hyperparameters; one against the
        rest, the mean over the classes
    certificate_ : residual and steps of Newton's method, error bounds and standard errors of the fit; print it
    learning_, n_iter_ : the steps taken, why they ended, their number
    report_ : the last linear solve; None in the direct method
    plan_ : method and memory, decided before the work started
    posterior_ : the conditioned latent process, for use with torch
    estimators_ : one classifier for each class, if they are told apart one against the rest. Then `kernel_`,
        `certificate_`, `learning_` and `report_` are tuples, and there is no `posterior_`
    """

    def __init__(
        self,
        kernel: Any = None,
        *,
        likelihood: str = "auto",
        priors: str | None = "weak",
        method: str = "auto",
        preconditioner: Any = "auto",
        optimizer: str | GivenOptimizer | None = "lbfgs",
        max_iter: int | None = None,
        max_seconds: float | None = None,
        step_size: float | None = None,
        probes: int | None = None,
        n_restarts: int = 0,
        rtol: float = 1e-6,
        device: str = "auto",
        dtype: str = "auto",
        memory: int | str | None = None,
        n_jobs: int | None = None,
        cluster: Any = None,
        random_state: Any = 0,
        verbose: int = 0,
    ):
        self.kernel = kernel
        self.likelihood = likelihood
        self.priors = priors
        self.method = method
        self.preconditioner = preconditioner
        self.optimizer = optimizer
        self.max_iter = max_iter
        self.max_seconds = max_seconds
        self.step_size = step_size
        self.probes = probes
        self.n_restarts = n_restarts
        self.rtol = rtol
        self.device = device
        self.dtype = dtype
        self.memory = memory
        self.n_jobs = n_jobs
        self.cluster = cluster
        self.random_state = random_state
        self.verbose = verbose

    # learning

    def plan(self, X: Any, y: Any) -> Plan:
        """Return what `fit` would do with these data, without doing it; one against the rest, for one class."""
        with self._leaving_no_trace():
            X, codes = self._checked(X, y)
            return self._plan_of_one_class(X, codes, None) if self._is_split() else self._prepared(X, codes, None)[2]

    def fit(
        self,
        X: Any,
        y: Any,
        *,
        plan: Plan | None = None,
        callback: Listener | None = None,
        resume: Resumable = None,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Learn the hyperparameters and condition the latent functions on the data.

        Parameters
        ----------
        X : (n, d)
        y : (n,) labels of any kind: numbers, strings, booleans
        plan, callback, resume, checkpoint : as in `GPRegressor.fit`; one against the rest, the plan serves every class
        """
        with self._fitting(callback, resume, checkpoint) as session:
            X, codes = self._checked(X, y)
            for name in ("posterior_", "estimators_"):
                self.__dict__.pop(name, None)
            fit = self._fit_one_against_the_rest if self._is_split() else self._fit_jointly
            problems = fit(X, codes, plan, session)
        self._warn_of_fit(problems, session)
        return self

    def _checked(self, X: Any, y: Any) -> tuple[Floats, NDArray[np.int64]]:
        """Return the inputs and the numbers of the classes, which are then known."""
        self._check_options()
        if self.likelihood not in ("auto", *LINKS):
            raise ValueError(f"likelihood must be 'auto' or one of {', '.join(LINKS)}, not {self.likelihood!r}")
        X, y = checked_data(self, X, y, y_numeric=False)
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"GPClassifier needs at least two classes; y holds only one class, {self.classes_[0]}")
        return X, codes

    def _is_split(self) -> bool:
        """Say whether the classes are told apart one against the rest."""
        return len(self.classes_) > 2 and self.likelihood in ("probit", "logit")

    def _prepared(
        self, X: Floats, codes: NDArray[np.int64], plan: Plan | None, earlier: Plan | None = None
    ) -> tuple[Observations, LatentProcess, Plan]:
        """Return the data, the process from which learning starts, and the plan."""
        C = len(self.classes_)
        chosen = ("probit" if C == 2 else "softmax") if self.likelihood == "auto" else self.likelihood
        problem = self._observations(X, codes, plan, classes=C if chosen == "softmax" else 1)
        kernel = self._first_kernel(problem.X, lambda name: first_latent_kernel(problem.X, C, name))
        gp = LatentProcess(kernel, LINKS[chosen]())
        problem, made = self._planned_laplace(problem, gp, plan, earlier)
        return problem, gp, made

    def _fit_jointly(self, X: Floats, codes: NDArray[np.int64], plan: Plan | None, session: Session) -> list[str]:
        """Condition one latent function, or one for each class; return what went wrong."""
        problem, gp, made = self._prepared(X, codes, plan, session.earlier)
        return self._learn_and_condition(problem, gp, made, session)

    def _fit_one_against_the_rest(
        self, X: Floats, codes: NDArray[np.int64], plan: Plan | None, session: Session
    ) -> list[str]:
        """Condition one latent function for each class, independently; return what went wrong."""
        sessions = [session.about(self._observations(X, codes == c, plan)) for c in range(len(self.classes_))]
        if session.resume is not None and all(one.resume is None for one in sessions):
            raise StateMismatch("the state is of other data: of none of the classes against the rest")
        machines, problems = [], []
        plan = plan or self._plan_of_one_class(X, codes, session.earlier)
        for c, label in enumerate(self.classes_):
            machine = self._machine()
            found = machine._fit_jointly(X, (codes == c).astype(int), plan, sessions[c])
            problems += [f"class {label!s}: {problem}" for problem in found]
            machines.append(machine)
        self._keep_machines(machines)
        return problems

    def _machine(self) -> "GPClassifier":
        """Return a classifier of its own for one class against the rest."""
        machine = clone(self)
        machine.classes_, machine.n_features_in_ = np.array([False, True]), self.n_features_in_
        return machine

    def _plan_of_one_class(self, X: Floats, codes: NDArray[np.int64], earlier: Plan | None) -> Plan:
        """Return the plan that serves every class against the rest, with one seed for all."""
        return self._machine()._prepared(X, (codes == 0).astype(np.int64), None, earlier)[2]

    def _keep_machines(self, machines: "list[GPClassifier]") -> None:
        self.estimators_ = tuple(machines)
        for name in ("kernel_", "certificate_", "learning_", "report_"):
            setattr(self, name, tuple(getattr(machine, name) for machine in machines))
        self.plan_, self.likelihood_ = machines[0].plan_, machines[0].likelihood_
        self.n_iter_ = max(machine.n_iter_ for machine in machines)
        self.log_marginal_likelihood_value_ = float(np.mean([m.log_marginal_likelihood_value_ for m in machines]))

    def log_marginal_likelihood(self, theta: Any = None, eval_gradient: bool = False) -> Any:
        """Return Laplace's log marginal likelihood of the training data at log hyperparameters of the kernel.

        One against the rest, it is the mean over the classes, and ``theta`` serves them all.
        """
        if not self._is_one_against_the_rest():
            return super().log_marginal_likelihood(theta, eval_gradient)
        found = [machine.log_marginal_likelihood(theta, eval_gradient) for machine in self.estimators_]
        if not eval_gradient:
            return float(np.mean(found))
        return float(np.mean([value for value, _ in found])), np.mean([gradient for _, gradient in found], axis=0)

    # prediction

    def predict(self, X: Any, *, callback: Listener | None = None) -> NDArray[Any]:
        """Return labels: the most probable of two; of more, that of the largest latent mean where it leads by ½.

        Two classes need the latent mean alone. Of more, points without a clear lead are decided by their probabilities,
        which cost C solves a point. With latent variances far above the default's limit the averaged probabilities
        may favour another class than the largest mean. The callback is as in `GPRegressor.predict`.
        """
        if self._is_one_against_the_rest():
            return self.classes_[self.predict_proba(X, callback=callback).argmax(axis=1)]
        points, heard = self._points(X), predicting(callback)
        mean = self.posterior_.mean(points)
        tell_of_all(heard, points)
        if mean.shape[1] == 1:
            return self.classes_[(mean[:, 0] > 0).long().cpu().numpy()]
        best = mean.topk(2, dim=1)
        winners, open_ = best.indices[:, 0].clone(), best.values.diff(dim=1)[:, 0] > -CLEAR
        if bool(open_.any()):
            winners[open_] = self._softmax_probabilities(points[open_], heard).argmax(1)
        return self.classes_[winners.cpu().numpy()]

    def predict_proba(self, X: Any, *, callback: Listener | None = None) -> Floats:
        """Return (t, C) probabilities of the classes, in the order of `classes_`, averaged over the latent values.

        The average is exact for the probit, to 1e-6 for the logit, with standard errors below 1e-3 for the softmax. In
        the iterative method the latent variances under it are certified to 0.1 %, those of the softmax to 1 %.
        The callback is as in `GPRegressor.predict`.
        """
        heard = predicting(callback)
        if self._is_one_against_the_rest():
            X = checked_points(self, X)
            P = np.stack([machine.predict_proba(X, callback=heard)[:, 1] for machine in self.estimators_], axis=1)
            total = P.sum(axis=1, keepdims=True)
            return np.where(total > 0, P / np.where(total > 0, total, 1.0), 1 / P.shape[1])
        points = self._points(X)
        if self.posterior_.problem.classes > 1:
            return self._softmax_probabilities(points, heard).cpu().numpy()
        return self._two_probabilities(points, heard).cpu().numpy()

    def decision_function(self, X: Any) -> Floats:
        """Return the latent means (t, C); for two classes (t,) the log-odds of the second, which order as it does.

        A latent mean would not: the larger its variance, the less it says.
        """
        check_is_fitted(self)
        if len(self.classes_) > 2:
            mean: Floats = self.latent(X)
            return mean
        P = np.maximum(self.predict_proba(X), np.finfo(np.float64).tiny)
        odds: Floats = np.log(P[:, 1]) - np.log(P[:, 0])
        return odds

    def latent(self, X: Any, return_std: bool = False) -> Any:
        """Return the mean of the latent functions at X, and if asked for their standard deviation.

        (t,) for two classes with one latent function, else (t, C).
        """
        if self._is_one_against_the_rest():
            X = checked_points(self, X)
            found = [machine.latent(X, return_std) for machine in self.estimators_]
            if not return_std:
                return np.stack(found, axis=1)
            return tuple(np.stack(values, axis=1) for values in zip(*found, strict=True))
        points = self._points(X)
        if not return_std:
            return self._one_or_many(self.posterior_.mean(points))
        prediction = self._with_covariance(points)
        self._warn_of_latent(prediction)
        return self._one_or_many(prediction.mean), self._one_or_many(prediction.variances.sqrt())

    def _two_probabilities(self, points: Tensor, callback: Listener | None) -> Tensor:
        """Return (t, 2) probabilities of one latent function; small ones keep their digits."""
        found = self._with_covariance(points, callback)
        self._warn_of_prediction(found, _probability_errors(found), PROBABILITY)
        mean = found.mean[:, 0]
        rarer, _ = self.likelihood_.predict(-mean.abs(), found.variances[:, 0])
        first = torch.where(mean > 0, rarer, 1 - rarer)
        return torch.stack([first, torch.where(mean > 0, 1 - rarer, rarer)], 1)

    def _softmax_probabilities(self, points: Tensor, callback: Listener | None) -> Tensor:
        found = self._with_covariance(points, callback)
        self._warn_of_prediction(found, _probability_errors(found), PROBABILITY)
        values, vectors = torch.linalg.eigh(found.covariance)
        root = vectors * values.clamp_min(0).sqrt()[:, None, :]
        generator = child(seeded(self.posterior_.numerics.seed), "probabilities")
        probabilities, _ = self.likelihood_.predictive_probabilities(found.mean, root, generator)
        return probabilities / probabilities.sum(1, keepdim=True)

    def _is_one_against_the_rest(self) -> bool:
        check_is_fitted(self)
        return len(self.classes_) > 2 and not isinstance(self.likelihood_, Softmax)

    def _one_or_many(self, values: Tensor) -> Floats:
        return values[:, 0].cpu().numpy() if values.shape[1] == 1 else values.cpu().numpy()


def _probability_errors(found: LatentPrediction) -> Tensor:
    """Return (t,) how far probabilities may be off because the latent means and variances are.

    E of a function between 0 and 1 changes by no more than the Gaussians do in total variation, and by no more than
    half of what the latent values do.
    """
    C, size = found.mean.shape[1], found.least_variance.clamp_min(1.0)
    of_two = found.solve_error * (min(C, 2) / C)  # it sums over the classes, of which a probability feels two or so
    return 0.5 * found.mean_bound / size.sqrt() + 0.25 * (of_two / size + C * found.relative_error)
