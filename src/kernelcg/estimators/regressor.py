"""Gaussian process regression with scikit-learn's interface."""

import os
from collections.abc import Callable
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from kernelcg.estimators.data import Holes, checked_noise_variance, scaling, standardised, without_missing
from kernelcg.estimators.gaussian_estimator import Problem, Process
from kernelcg.estimators.inputs import checked_data
from kernelcg.estimators.learning_warnings import unlearned
from kernelcg.estimators.regression_answers import RegressionAnswers
from kernelcg.estimators.session import Resumable, Session
from kernelcg.estimators.settings import (
    check_options,
    first_process,
    first_processes,
    learned_count,
    most_steps,
    on_own_threads,
    planned_fit,
    require_range,
    seed_of,
    with_noise_shown,
)
from kernelcg.estimators.several_outputs import apart, certified, learned_one_by_one, simplest, with_more
from kernelcg.events import EventKind, Listener
from kernelcg.inference.gaussian.add_observations import updated
from kernelcg.inference.gaussian.model import GaussianProcess, Regression
from kernelcg.inference.gaussian.posterior import Posterior
from kernelcg.inference.learning.given_optimizer import GivenOptimizer
from kernelcg.inference.learning.learn import Learned, learn
from kernelcg.inference.learning.optimizer import Optimizer
from kernelcg.inference.outputs.default_priors import priors_of_outputs
from kernelcg.inference.outputs.model import OutputProcesses, Outputs
from kernelcg.inference.outputs.posterior import OutputsPosterior, updated_outputs
from kernelcg.planning import Plan
from kernelcg.planning.planner import Workload
from kernelcg.randomness import child, seeded

Floats = NDArray[np.float64]


class GPRegressor(RegressionAnswers):
    """Exact Gaussian process regression that scales: preconditioned conjugate gradients instead of a Cholesky factor.

    Parameters
    ----------
    kernel : kernelcg or scikit-learn kernel, or a name ("rbf", "matern12", "matern32", "matern52",
        "rational_quadratic", "laplacian", "linear"), which means one lengthscale per feature and a variance, started in
        the units of the data; None means "matern32". A kernel of your own is tried on a few rows before it is used.
        Hyperparameters are restricted on the kernel itself: ``RBF(1.0).bounded(lengthscale=(0.1, 10))``,
        ``.fixed("variance")``, ``.with_prior(lengthscale=(1.0, 0.5))`` (log-normal: median, spread). A scikit-learn
        WhiteKernel becomes the noise. Without bounds a hyperparameter stays within five orders of magnitude of its
        start; `learning_` says which ended on a bound.
    noise : variance of the noise from which learning starts, in units of the variance of y if ``normalize_y``; a
        `kernelcg.inference.Noise` may be fixed, bounded or given a prior. Each of several outputs learns a noise of its
        own from there, or from its own if a list is given. None means a tenth of the variance of y, or of that of the
        kernel if that is less
    kernel_per_output : whether each of several outputs learns a kernel of its own, independently of the others; by
        default they share one, which all of them help to learn
    priors : "weak" or None. "weak" supposes something, in the units of the data, of hyperparameters that carry neither
        bounds nor priors of yours, in the default kernel and in your own: lengthscales stay within 1e-5 and 1e6
        spreads of their feature, variances within 1e-8 and 1e4 times that of y, and k(x, x) / noise, where k is
        stationary, below what float64 resolves, about 4e5 for a thousand rows; below a third of that the prior is flat
        and costs nothing. `learning_` says where it was felt and which features have no visible effect. None supposes
        nothing, beyond five orders of magnitude around the start
    method : "direct" (Cholesky), "iterative" (preconditioned CG) or "auto"
    preconditioner : "auto", the name of a recipe (see `kernelcg.preconditioners.available`), a recipe, or None for
        plain CG; where it does not suffice, one is chosen and the report says so
    optimizer : "lbfgs", deterministic, on a growing part of the data; "adagrad" (the paper's) or "adam", stochastic
        gradients; None keeps the hyperparameters; a function ``optimizer(obj_func, initial_theta, bounds)`` as
        scikit-learn takes it, on all data
    max_iter : steps on each part of the data; None means 100, for adagrad 50
    max_seconds : seconds of a fit after which learning ends at the next event with the best hyperparameters so far;
        conditioning on the data comes after it. None means no limit
    step_size : of adagrad (1) and adam (0.1)
    probes : random columns for traces and determinants of the iterative method
    n_restarts : further random starts, on the smallest part of the data
    rtol : relative residual to which the weights are solved for, certified; 0 asks for as much as float64 has to give
    mean : "constant", "zero" or "linear" drift, fitted by generalised least squares; its uncertainty is part of the
        predictive variance (universal kriging)
    normalize_y : standardise y inside; hyperparameters then refer to standardised y, as in scikit-learn
    missing : "error" or "drop": what to do where y is NaN. Of several outputs only those of a row are dropped that are
        NaN; a warning counts them. NaN in X is always an error
    device : "auto", "cpu", "cuda", ...
    dtype : precision of products with K in iterative work: "float64", "float32", or "auto", float32 where its rounding
        stays below the noise. Residuals are recomputed in float64 always
    memory : bytes, or words such as "4GB", by which the process may grow in `fit` and in `predict`; what does not fit
        is refused before it is allocated. None means half of what the machine or container has
    n_jobs : threads of the products; None means all
    cluster : None, or where a Dask cluster does the products (extra ``kernelcg[cluster]``): a `distributed.Client`, the
        address of a scheduler, or "local" for processes on this machine that end with the fit. The same seed gives the
        same bits with any number of workers of one kind
    random_state : seed; the default gives the same numbers every time. None or a NumPy RandomState draws one seed for
        each fit, which ``plan_`` keeps: ``fit(plan=plan_)`` gives the same numbers again
    verbose : 1 shows the plan and every step of learning

    Attributes
    ----------
    kernel_, noise_ : learned kernel and noise variance, in the units of (standardised) y; of several outputs (c,) noise
        variances, and with ``kernel_per_output`` a tuple of kernels
    log_marginal_likelihood_value_ : at the learned hyperparameters, of (standardised) y; the sum over the outputs
    certificate_ : residuals, error bounds and standard errors of the fit; print it. Outputs with noise of their own
        have one each, ``certificate_.each``, and the worst is printed
    learning_, n_iter_ : the steps taken, why they ended, their number
    report_ : the linear solve behind the weights: what was tried, chosen, and what happened; a tuple for outputs with
        noise of their own
    plan_ : method and memory, decided before the work started
    posterior_ : the conditioned process, for use with torch

    Examples
    --------
    >>> import numpy as np
    >>> from kernelcg import GPRegressor
    >>> X = np.linspace(0, 10, 60)[:, None]
    >>> model = GPRegressor("rbf", noise=1e-4, random_state=0).fit(X, np.sin(X[:, 0]))
    >>> mean, std = model.predict([[5.0]], return_std=True)
    >>> bool(abs(mean[0] - np.sin(5.0)) < 0.01), bool(std[0] < 0.1)
    (True, True)
    """

    def __init__(
        self,
        kernel: Any = None,
        *,
        noise: Any = None,
        kernel_per_output: bool = False,
        priors: str | None = "weak",
        method: str = "auto",
        preconditioner: Any = "auto",
        optimizer: str | GivenOptimizer | None = "lbfgs",
        max_iter: int | None = None,
        max_seconds: float | None = None,
        step_size: float | None = None,
        probes: int = 8,
        n_restarts: int = 0,
        rtol: float = 1e-6,
        mean: str = "constant",
        normalize_y: bool = True,
        missing: str = "error",
        device: str = "auto",
        dtype: str = "auto",
        memory: int | str | None = None,
        n_jobs: int | None = None,
        cluster: Any = None,
        random_state: Any = 0,
        verbose: int = 0,
    ):
        self.kernel = kernel
        self.noise = noise
        self.kernel_per_output = kernel_per_output
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
        self.mean = mean
        self.normalize_y = normalize_y
        self.missing = missing
        self.device = device
        self.dtype = dtype
        self.memory = memory
        self.n_jobs = n_jobs
        self.cluster = cluster
        self.random_state = random_state
        self.verbose = verbose

    # learning

    @on_own_threads
    def plan(self, X: Any, y: Any, noise_variance: Any = None) -> Plan:
        """Return what `fit` would do with these data, how long it should take and how much memory, without doing it.

        ``fit(X, y, plan=plan)`` carries it out: the same plan gives the same numbers.

        Parameters
        ----------
        X, y, noise_variance : as in `fit`
        """
        check_options(self.get_params(deep=False))
        with self._leaving_no_trace():
            return self._prepared(X, y, noise_variance, None)[2]

    def fit(
        self,
        X: Any,
        y: Any,
        noise_variance: Any = None,
        *,
        plan: Plan | None = None,
        callback: Listener | None = None,
        resume: Resumable = None,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Learn the hyperparameters and condition the process on the data.

        Parameters
        ----------
        X : (n, d)
        y : (n,) or (n, c); one column counts as a vector, several are independent given the kernel, each with its noise
        noise_variance : (n,) or (n, c) known variances of the observations, in the units of y²; they are added to the
            learned noise (which may be fixed at a small value)
        plan : one that `plan` made, or that an earlier fit to these data had, to be carried out again
        callback : told of every event (see `kernelcg.events`); where it returns True, learning ends and the best
            hyperparameters so far are kept
        resume : the state that came with a step of an earlier fit to the same data, or the path of a file that
            `kernelcg.estimators.training_files.save_state` has written: learning goes on to the same numbers
        checkpoint : path of a file that keeps the state of learning, written every half minute and when learning ends.
            Where the file exists, learning goes on from it; one of other data or options is refused with the reason
        """
        check_options(self.get_params(deep=False))
        with self._fitting(callback, resume, checkpoint) as session:
            problem, gp, plan = self._prepared(X, y, noise_variance, plan, session.earlier)
            self._begin(problem, gp, plan, session)
            learned = self._learned(problem, gp, self.optimizer, plan, session)
            self._condition(problem, learned, plan, session)
            self._warn_of_fit(gp, session)
        return self

    def _prepared(
        self, X: Any, y: Any, noise_variance: Any, plan: Plan | None, earlier: Plan | None = None
    ) -> tuple[Problem, Process, Plan]:
        """Return the checked data, the process from which learning starts, and the plan."""
        X, y, noise_variance = without_missing(X, y, noise_variance, self.missing)
        X, y = self._checked(X, y, reset=True)
        known = checked_noise_variance(noise_variance, y.shape)
        self._y_shape = y.shape[1:] if y.size > len(y) else ()  # one column counts as a vector
        Y = y.reshape(len(y), -1).astype(np.float64)
        self.y_mean_, self.y_scale_ = scaling(Y, self.normalize_y)
        problem, gp = self._start(self._problem(X, Y, known, plan))
        kernel = gp.kernel[0] if isinstance(gp.kernel, tuple) else gp.kernel
        work = with_noise_shown(self._workload(problem, gp), problem, gp, self.priors, plan or earlier)
        problem, made = self._planned(problem, kernel, work, self.probes, plan, earlier)
        return problem, gp, made

    def _checked(self, X: Any, y: Any, *, reset: bool) -> tuple[Floats, Floats]:
        """Return X and y as arrays; y may hold NaN where such entries are to be dropped."""
        with_holes = Holes.of(y, self.missing)
        X, y = checked_data(self, X, with_holes.filled, multi_output=True, reset=reset)
        return X, with_holes.restored(y)

    def _start(self, problem: Problem) -> tuple[Problem, Process]:
        """Return the data, as one system where they allow it, and the process from which learning starts."""
        kernel, learns = self._with_numbered_columns(self.kernel), self.optimizer is not None
        if isinstance(problem, Regression):
            return problem, first_process(kernel, self.noise, problem.X, problem.Y, learned=learns)
        gp = first_processes(kernel, self.noise, problem, kernel_each=self.kernel_per_output, learned=learns)
        return simplest(problem, gp, learns=learns)

    def _workload(self, problem: Problem, gp: Process) -> Workload:
        count = learned_count(gp, self.optimizer is not None)
        if isinstance(gp, OutputProcesses) and gp.has_kernel_each:
            count = count // len(gp)  # those of one output are learned after those of another
        return problem.workload(parameters=count, in_stages=self.optimizer == Optimizer.LBFGS)

    def update(
        self,
        X: Any,
        y: Any,
        noise_variance: Any = None,
        *,
        learn: bool = False,
        callback: Listener | None = None,
    ) -> Self:
        """Condition on more observations, from the old solution and with the old kind of preconditioner.

        The standardisation of y stays as it is, and so do the hyperparameters, unless ``learn`` asks for new ones.

        Parameters
        ----------
        X, y, noise_variance : more observations, as in `fit`
        learn : whether to learn new hyperparameters, starting from the old ones
        callback : as in `fit`
        """
        check_is_fitted(self)
        X, y, noise_variance = without_missing(X, y, noise_variance, self.missing)
        X, y = self._checked(X, y, reset=False)
        outputs = len(self.y_scale_)
        if y.size != len(y) * outputs:
            raise ValueError(f"y has shape {y.shape}, but the model was fitted to {outputs} outputs")
        known = checked_noise_variance(noise_variance, y.shape)
        more = self._problem(X, y.reshape(len(y), -1).astype(np.float64), known)
        problem, gp = with_more(self.posterior_, more, learns=learn)
        plan = self._plan_of_update(problem, gp, learn)
        with self._fitting(callback) as session:
            if learn:
                self._begin(problem, gp, plan, session)
                learned = self._learned(problem, gp, self.optimizer or Optimizer.LBFGS, plan, session)
                self._condition(problem, learned, plan, session)
            else:
                posterior = self._updated(problem, gp, more, plan, session)
                self._keep(posterior, self.learning_, plan, plan, session)
            self._warn_of_fit(gp if learn else None, session)
        return self

    def _updated(self, problem: Problem, gp: Process, more: Problem, plan: Plan, session: Session) -> Any:
        """Return the process conditioned on more data; from the old solution unless the kind of problem changes."""
        old, generator = self._posterior(), seeded(plan.seed)
        if type(problem) is not type(old.problem):
            return self._conditioned(problem, gp, plan, session)
        update: Callable[..., Any] = updated_outputs if isinstance(problem, Outputs) else updated
        return update(
            old,
            more.X,
            more.Y,
            more.noise_variance,
            method=plan.method,
            preconditioner=self.preconditioner,
            generator=generator,
            callback=session.onlooker,
        )

    # steps of a fit

    def _problem(self, X: Floats, Y: Floats, known: Floats | None, plan: Plan | None = None) -> Problem:
        """Return the standardised data on the device; those of one output have no axis for outputs in their noise."""
        Y, known = standardised(Y, known, self.y_mean_, self.y_scale_)
        made: Any = self._outputs
        if Y.shape[1] == 1:
            made, known = self._regression, None if known is None else known[:, 0]
        return self._within_memory(made(X, Y, known, self.mean, plan), self.probes, learns=self.optimizer is not None)

    def _plan_of_update(self, problem: Problem, gp: Process, learns: bool) -> Plan:
        """Return the plan for the old data and further ones together, learned from again or only conditioned on."""
        work = problem.workload(parameters=learned_count(gp, learns))
        return planned_fit(self, problem, work, self.probes, seed_of(self.random_state, self.plan_))

    def _begin(self, problem: Problem, gp: Process, plan: Plan, session: Session) -> None:
        """Tell of the plan; raise if the kernel reaches numbers that float64 cannot work with."""
        session.tell(EventKind.PLAN, plan)
        for kernel in gp.kernel if isinstance(gp.kernel, tuple) else (gp.kernel,):
            require_range(kernel, problem)

    def _learned(
        self,
        problem: Problem,
        gp: Process,
        optimizer: str | GivenOptimizer | None,
        plan: Plan,
        session: Session,
    ) -> Learned:
        """Return the hyperparameters that were learned, for all outputs at once or kernel by kernel."""
        if isinstance(problem, Outputs) and isinstance(gp, OutputProcesses) and gp.has_kernel_each:
            sessions = session.about_each([problem.output(j) for j in range(len(gp))])

            def learn_one(j: int, own: Regression, start: GaussianProcess) -> Learned:
                work = self._workload(own, start)
                part = plan if len(own) == plan.rows else planned_fit(self, own, work, self.probes, plan.seed)
                return self._learned(own, start, optimizer, part, sessions[j])

            return learned_one_by_one(problem, gp, learn_one)
        with session.learning() as callback:
            return (unlearned(problem, gp) if optimizer and session.resume is None else None) or learn(
                self._objective(problem.informative() if isinstance(problem, Outputs) else problem, plan),
                gp,
                optimizer=optimizer,
                max_steps=self.max_iter if self.max_iter is not None else most_steps(optimizer),
                step_size=self.step_size,
                restarts=self.n_restarts,
                generator=child(seeded(plan.seed), "learning"),
                callback=callback,
                resume=session.resume,
                priors=None if self.priors is None else priors_of_outputs(gp, problem),
            )

    def _condition(self, problem: Problem, learned: Learned, plan: Plan, session: Session) -> None:
        """Condition the process on the data with what was learned, and keep both."""
        done = learned.revised(plan)
        self._keep(self._conditioned(problem, learned.gp, done, session), learned, plan, done, session)

    def _keep(
        self, posterior: Posterior | OutputsPosterior, learned: Learned, plan: Plan, done: Plan, session: Session
    ) -> None:
        """Make attributes of what a fit found; ``done`` is what learning made of the plan."""
        self.posterior_, self.learning_ = posterior, learned
        self._name_results()
        self.certificate_ = certified(posterior, self.y_scale_, self.y_mean_, probes=self.probes, seed=plan.seed)
        self.log_marginal_likelihood_value_ = self.certificate_.log_marginal_likelihood
        self.report_ = posterior.report
        self.n_iter_ = max(len(learned.steps), 1)
        self.plan_ = session.outcome(plan, done, learned)
        session.tell(EventKind.END, self.certificate_)

    def _name_results(self) -> None:
        """Make attributes of the hyperparameters, as users look for them."""
        gp, c = self.posterior_.gp, len(self.y_scale_)
        self.kernel_ = gp.kernel
        if c == 1:
            self.noise_ = gp.noise.variance.item()
        else:
            self.noise_ = np.array([one.variance.item() for one in apart(gp, c).noise])
