"""The processes of several outputs given the data: their posteriors side by side."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Generator, Tensor

from kernelcg.events import Chunk, Event, EventKind, Listener
from kernelcg.inference.gaussian.add_observations import updated
from kernelcg.inference.gaussian.conditioning import condition
from kernelcg.inference.gaussian.leave_one_out import LeaveOneOut, leave_one_out
from kernelcg.inference.gaussian.posterior import Posterior
from kernelcg.inference.gaussian.prediction import Prediction
from kernelcg.inference.gaussian.sampling import joint_draws
from kernelcg.inference.outputs.model import OutputProcesses, Outputs, first_failure
from kernelcg.planning.plan import Method
from kernelcg.preconditioners import Preconditioner
from kernelcg.randomness import child
from kernelcg.solvers import SolveReport, Status, Stopping


@dataclass(frozen=True, eq=False)
class OutputsPosterior:
    """Conditioned processes, one for each output; answers have the outputs as their second or last axis."""

    gp: OutputProcesses
    problem: Outputs
    each: tuple[Posterior, ...]

    def __repr__(self) -> str:
        return f"<OutputsPosterior of {len(self.each)} outputs: {self.gp}>"

    @property
    def report(self) -> tuple[SolveReport, ...]:
        """Return the solve behind the weights of each output."""
        return tuple(one.report for one in self.each)

    @property
    def is_lean(self) -> bool:
        """Whether it holds nothing but O(n d) numbers: the mean is at hand, everything else needs `restored`."""
        return any(one.is_lean for one in self.each)

    def lean(self) -> "OutputsPosterior":
        """Return it without factors and preconditioners, to be stored."""
        return replace(self, each=tuple(one.lean() for one in self.each))

    def restored(
        self, method: str, generator: Generator, preconditioner: str | Preconditioner | None = "auto"
    ) -> "OutputsPosterior":
        """Return it with what `Posterior.restored` adds to each output."""
        pairs = self._with_generators(generator)
        return replace(self, each=tuple(one.restored(method, own, preconditioner) for one, own in pairs))

    def mean(self, X: Tensor) -> Tensor:
        """Return the means, (t, c)."""
        return torch.cat([one.mean(X) for one in self.each], dim=1)

    def predict(
        self,
        X: Tensor,
        *,
        variance: bool = False,
        bound: bool = False,
        latent: bool = False,
        callback: Listener | None = None,
    ) -> Prediction:
        """Return the prediction of `Posterior.predict` for all outputs; variances and their brackets are (t, c)."""
        parts = [
            one.predict(
                X, variance=variance, bound=bound, latent=latent, callback=_counted(callback, j, len(self.each))
            )
            for j, one in enumerate(self.each)
        ]

        def joined(name: str) -> Tensor | None:
            values = [getattr(part, name) for part in parts]
            return None if values[0] is None else torch.stack([value.reshape(len(X)) for value in values], dim=1)

        names = ("mean_bound", "variance", "variance_error", "variance_lower", "variance_upper")
        return Prediction(
            torch.cat([part.mean for part in parts], dim=1),
            **{name: joined(name) for name in names},
            status=first_failure([part.status for part in parts], Status.CONVERGED),
        )

    def joint(self, X: Tensor, *, copies: int = 1, latent: bool = True) -> tuple[Tensor, Status]:
        """Return the (t, t, c) covariances of the latent values, as `Posterior.joint` does, and the status."""
        found = [one.joint(X, copies=copies, latent=latent) for one in self.each]
        covariances = torch.stack([covariance for covariance, _ in found], dim=2)
        return covariances, first_failure([status for _, status in found], Status.CONVERGED)

    def leave_one_out(self, *, probes: int | None = None, generator: Generator) -> LeaveOneOut:
        """Return what `leave_one_out` says of each output, (n, c) in all fields, NaN where nothing was observed."""
        found = [leave_one_out(one, probes=probes, generator=own) for one, own in self._with_generators(generator)]

        def placed(name: str) -> Tensor:
            values = torch.full_like(self.problem.Y, torch.nan)
            for j, (rows, one) in enumerate(zip(self.problem.rows, found, strict=True)):
                values[rows, j] = getattr(one, name).reshape(len(rows))
            return values

        names = ("residuals", "variances", "log_densities", "relative_errors")
        status = first_failure([one.status for one in found], Status.CONVERGED)
        return LeaveOneOut(**{name: placed(name) for name in names}, status=status)

    def draws(self, X: Tensor, count: int, generator: Generator, *, noisy: bool = False) -> tuple[Tensor, Status]:
        """Return (t, c, count) draws, jointly over the rows of X and independent for each output, and their status."""
        found = [joint_draws(one, X, count, own, noisy=noisy) for one, own in self._with_generators(generator)]
        drawn = torch.cat([one for one, _ in found], dim=1)
        return drawn, first_failure([status for _, status in found], Status.CONVERGED)

    def _with_generators(self, generator: Generator) -> list[tuple[Posterior, Generator]]:
        return [(one, child(generator, f"output {j}")) for j, one in enumerate(self.each)]


def condition_outputs(
    problem: Outputs,
    gp: OutputProcesses,
    *,
    method: str = Method.ITERATIVE,
    stopping: Stopping = Stopping(),
    preconditioner: str | Preconditioner | None = "auto",
    generator: Generator,
    callback: Listener | None = None,
) -> OutputsPosterior:
    """Condition each process on the observations of its output, as `condition` does."""

    def conditioned(j: int) -> Posterior:
        return condition(
            problem.output(j),
            gp.output(j),
            method=method,
            stopping=stopping,
            preconditioner=preconditioner,
            generator=child(generator, f"output {j}"),
            callback=callback,
        )

    return _together(problem, gp, [conditioned(j) for j in range(len(gp))])


def updated_outputs(
    posterior: OutputsPosterior,
    X: Tensor,
    Y: Tensor,
    noise_variance: Tensor | None,
    *,
    method: str = Method.ITERATIVE,
    preconditioner: str | Preconditioner | None = "auto",
    generator: Generator,
    callback: Listener | None = None,
) -> OutputsPosterior:
    """Return the processes conditioned on further observations Y (m, c), NaN where there is none, as `updated` does."""
    problem = joined_data(posterior.problem, X, Y, noise_variance)

    def one(j: int, old: Posterior) -> Posterior:
        rows = (~Y[:, j].isnan()).nonzero()[:, 0]
        if len(rows) == 0:
            return old
        known = None if noise_variance is None else noise_variance[rows, j]
        own, new = child(generator, f"output {j}"), Y[rows, j][:, None]
        return updated(
            old, X[rows], new, known, method=method, preconditioner=preconditioner, generator=own, callback=callback
        )

    return _together(problem, posterior.gp, [one(j, old) for j, old in enumerate(posterior.each)])


def joined_data(old: Any, X: Tensor, Y: Tensor, noise_variance: Tensor | None) -> Outputs:
    """Return the data of an earlier problem, of whatever kind, and further ones together."""
    known = None
    if old.noise_variance is not None or noise_variance is not None:
        before = torch.zeros_like(old.Y) if old.noise_variance is None else old.noise_variance
        before = before if before.ndim == 2 else before[:, None].expand_as(old.Y)
        known = torch.cat([before, torch.zeros_like(Y) if noise_variance is None else noise_variance])
    X, Y = torch.cat([old.X, X]), torch.cat([old.Y, Y])
    return Outputs(X, Y, known, old.mean, old.backend, old.precision, old.pricing, old.stored)


def _together(problem: Outputs, gp: OutputProcesses, each: list[Posterior]) -> OutputsPosterior:
    """Return the posteriors as one; the data of each output are those that its posterior was made with."""
    return OutputsPosterior(gp, problem.with_each(tuple(one.problem for one in each)), tuple(each))


def _counted(callback: Listener | None, j: int, outputs: int) -> Listener | None:
    """Return a listener that is told of the chunks of output j as of a part of those of all outputs."""
    if callback is None:
        return None
    heard: Callable[[Event], bool | None] = callback

    def told(event: Event) -> bool | None:
        if event.kind is not EventKind.CHUNK:
            return heard(event)
        total = event.payload.total
        return heard(replace(event, payload=Chunk(j * total + event.payload.done, outputs * total)))

    return told
