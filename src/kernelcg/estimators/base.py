"""What all estimators share: a process that is stored without its factors, and fits that succeed or change nothing."""

import copy
import html
import os
from abc import ABC
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import torch
from sklearn.base import BaseEstimator, _clone_parametrized
from torch import Tensor

from kernelcg.backends import Backend, named
from kernelcg.backends.dask import Dask
from kernelcg.backends.references import Reference
from kernelcg.errors import MemoryBudgetExceeded
from kernelcg.estimators.cluster_connection import connected, insisting_on
from kernelcg.estimators.data import as_tensor
from kernelcg.estimators.inputs import checked_points
from kernelcg.estimators.session import Resumable, Session
from kernelcg.estimators.settings import (
    chosen_backend,
    chosen_device,
    narrated,
    planned_fit,
    require_same_plan,
    require_same_work,
    seed_of,
    threads_of,
)
from kernelcg.events import Listener, together
from kernelcg.inference.gaussian.model import Regression
from kernelcg.inference.laplace.latent_model import Observations
from kernelcg.inference.learning.learn import Learned
from kernelcg.inference.outputs.model import Outputs
from kernelcg.kernels import Kernel
from kernelcg.kernels.mapped import with_numbered_columns
from kernelcg.planning import Plan
from kernelcg.planning.planner import Workload
from kernelcg.planning.pricing import pricing_of
from kernelcg.threads import working

Problem = TypeVar("Problem", Regression, Outputs, Regression | Outputs, Observations)

LEARNED = ("kernel_", "noise_", "alpha_", "likelihood_")
"""Attributes that are shown of a fitted estimator."""


class ProcessEstimator(BaseEstimator, ABC):  # type: ignore[misc]  # sklearn is untyped
    """An estimator built on a process that is conditioned on data."""

    device: str
    dtype: str
    max_seconds: float | None
    verbose: int
    memory: int | str | None
    method: str
    n_jobs: int | None
    preconditioner: Any
    random_state: Any
    rtol: float
    plan_: Plan
    posterior_: Any
    certificate_: Any
    learning_: Learned
    cluster: Any
    _client: Any = None
    """The connection of a fit under way to its cluster."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to a file that `kernelcg.load` reads: O(n d) numbers, no code.

        Parameters
        ----------
        path : the file; one that exists is replaced in one step
        """
        from kernelcg.estimators.saving import save

        save(self, path)

    def __str__(self) -> str:
        """Return the parameters and, once fitted, what was learned and where it was computed."""
        if "plan_" not in vars(self):
            return repr(self)
        found = {name: vars(self)[name] for name in LEARNED if name in vars(self)}
        learned = [
            f"  {name:12}{value:.6g}" if type(value) is float else f"  {name:12}{value}"
            for name, value in found.items()
        ]
        backend = f"  {'backend':12}{self.plan_.backend} on {self.plan_.device}, {self.plan_.method}"
        return "\n".join([repr(self), *learned, backend])

    def _repr_html_inner(self) -> str:
        """Return scikit-learn's diagram and, once fitted, a table of what was learned and how exact it is."""
        diagram: str = super()._repr_html_inner()
        return diagram + self._table_of_results()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """Return what a notebook shows: `print` as text and the diagram with the table as HTML."""
        bundle: dict[str, str] = super()._repr_mimebundle_()
        if "text/html" in bundle:
            bundle["text/html"] += self._table_of_results()
        return {**bundle, "text/plain": str(self)}

    def _table_of_results(self) -> str:
        if "plan_" not in vars(self):
            return ""
        certificates = self.certificate_ if isinstance(self.certificate_, tuple) else (self.certificate_,)
        shown = {"numerics": "; ".join(dict.fromkeys(str(one).splitlines()[0] for one in certificates))}
        shown |= {name: str(vars(self)[name]) for name in LEARNED if name in vars(self)}
        shown["computed"] = f"{self.plan_.backend} on {self.plan_.device}, {self.plan_.method}"
        rows = "".join(
            f'<tr><th style="text-align:left">{name}</th><td style="text-align:left">{html.escape(value)}</td></tr>'
            for name, value in shown.items()
        )
        return f"<table>{rows}</table>"

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without factors and preconditioners, which are made again where they are needed."""
        state = dict(super().__getstate__())
        state.pop("_client", None)
        if "posterior_" in state:
            state["posterior_"] = state["posterior_"].lean()
        if not isinstance(self.cluster, str | None):
            state["cluster"] = self.cluster.scheduler.address  # connections stay where they are
        return state

    def __sklearn_clone__(self) -> Any:
        """Return an unfitted copy, on the same cluster: a connection cannot be copied."""
        alone = copy.copy(self)
        alone.cluster = None
        cloned = _clone_parametrized(alone)
        cloned.cluster = self.cluster
        return cloned

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    @contextmanager
    def _fitting(
        self,
        callback: Listener | None,
        resume: Resumable = None,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> Iterator[Session]:
        """Do a fit: it succeeds or leaves the estimator as it was, and it is told to the callback and the log."""
        with working(threads_of(self.n_jobs)), self._all_or_nothing(), narrated(self.verbose), self._on_cluster():
            yield Session.of(together(callback, insisting_on(self._client)), self.max_seconds, resume, checkpoint)

    @contextmanager
    def _on_cluster(self) -> Iterator[None]:
        """Connect to the cluster that was asked for, if any, while this lasts; for a model of an address, longer."""
        with connected(self.cluster, threads_of(self.n_jobs)) as client:
            self._client = client
            try:
                yield
            finally:
                del self._client

    def _within_memory(self, problem: Problem, probes: int, *, learns: bool) -> Problem:
        """Return the problem; raise `MemoryBudgetExceeded`, before a kernel is touched, if no kernel fits.

        The memory that is named is enough where the kernel has one lengthscale for each feature.
        """
        try:
            planned_fit(self, problem, problem.workload(parameters=0), 1, seed=0)
        except MemoryBudgetExceeded:
            if learns:
                planned_fit(self, problem, problem.workload(), probes, seed=0)
            raise
        return problem

    def _planned(
        self,
        problem: Problem,
        kernel: Kernel,
        work: Workload,
        probes: int,
        given: Plan | None,
        earlier: Plan | None,
    ) -> tuple[Problem, Plan]:
        """Return the problem with its prices and the plan of a fit: the one that was given, or one that is made now.

        Prices are those of this machine, or of the ``earlier`` fit that this one goes on from. Where ``random_state``
        is not an integer the seed, too, is that of the given plan or the earlier fit; else it is drawn here, once.
        """
        seed = seed_of(self.random_state, given or earlier)
        if given is None:
            pricing = pricing_of(kernel, problem.X, problem.backend) if earlier is None else earlier.pricing
            priced = problem.at_price(pricing)
            return priced, planned_fit(self, priced, work, probes, seed)
        require_same_work(given, work, seed)
        priced, plan = problem.at_price(given.pricing), replace(given, revisions=(), outcome=None)
        require_same_plan(plan, planned_fit(self, priced, work, probes, seed))
        return priced, plan

    def _device(self) -> torch.device:
        """Return where the data are in this process; the workers of a cluster each choose for themselves."""
        return chosen_device(self.device if self.cluster is None else "cpu")

    def _backend(self, X: Any, device: torch.device, plan: Plan | None) -> Backend:
        """Return the backend that was asked for, or that of a plan which is to be carried out again.

        The workers of a cluster read the matrix X themselves if this process has mapped it from a file.
        """
        if not (plan is None or isinstance(plan, Plan)):
            raise TypeError(f"plan must be one that plan(X, y) made, or None, not {plan!r}")
        memory, threads = (self.memory, threads_of(self.n_jobs)) if plan is None else (plan.memory, plan.threads)
        if self._client is not None:
            return Dask(memory, threads, client=self._client, reference=Reference.of(X))
        return chosen_backend(memory, threads, device) if plan is None else named(plan.backend, memory, threads)

    @contextmanager
    def _leaving_no_trace(self) -> Iterator[None]:
        """Leave the estimator as it was, whatever happens."""
        before = dict(self.__dict__)
        try:
            with self._on_cluster():
                yield
        finally:
            self.__dict__.clear()
            self.__dict__.update(before)

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Leave the estimator as it was, old fit included, if what follows does not succeed."""
        before = dict(self.__dict__)
        try:
            yield
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    def _log_parameters(self, theta: Any) -> tuple[Tensor, bool]:
        """Return the log hyperparameters that are given, None meaning the fitted ones, and whether they are these."""
        gp = self.posterior_.gp
        fitted = gp.log_parameters()
        given = fitted if theta is None else as_tensor(theta)
        if given.shape != fitted.shape:
            names = ", ".join(gp.parameter_names())
            raise ValueError(f"theta must hold the logarithms of {names}, not shape {tuple(given.shape)}")
        return given, torch.equal(given, fitted)

    def _with_numbered_columns(self, kernel: Any) -> Any:
        """Return a kernel of this library with numbers for the names of columns; any other as it is."""
        names = [str(name) for name in getattr(self, "feature_names_in_", ())]
        return with_numbered_columns(kernel, names) if isinstance(kernel, Kernel) else kernel

    def _points(self, X: Any) -> Tensor:
        return as_tensor(checked_points(self, X)).to(self.posterior_.problem.X.device)
