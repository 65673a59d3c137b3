"""Weak default priors of several outputs: those of each output, in the places of its hyperparameters."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernelcg.inference.gaussian.model import GaussianProcess, Regression
from kernelcg.inference.learning.default_priors import DefaultPriors, Priors, default_priors
from kernelcg.inference.outputs.model import OutputProcesses, Outputs, labelled
from kernelcg.parameters import Parametric


@dataclass(frozen=True, eq=False)
class OutputsPriors:
    """The default priors of each output, None for one without observations; densities are multiplied.

    Attributes
    ----------
    lower, upper : (p,) bounds of all log hyperparameters; those of a shared kernel are the widest of any output
    """

    each: tuple[DefaultPriors | None, ...]
    lower: Tensor
    upper: Tensor

    def log_density(self, gp: Parametric) -> tuple[float, Tensor]:
        """Return the sum of the log densities, and its gradient in all log hyperparameters."""
        total, gradient = 0.0, torch.zeros_like(gp.log_parameters().detach())
        if isinstance(gp, OutputProcesses):
            for j, one in enumerate(self.each):
                if one is not None:
                    density, slope = one.log_density(gp.output(j))
                    total += density
                    gradient[gp.positions(j)] += slope
        return total, gradient

    def findings(self, gp: Parametric) -> tuple[str, ...]:
        """Return in words where the priors of each output decided, and which features it does not depend on."""
        if not isinstance(gp, OutputProcesses):
            return ()
        present = [(j, one) for j, one in enumerate(self.each) if one is not None]
        return tuple(labelled(j, words) for j, one in present for words in one.findings(gp.output(j)))


def priors_of_outputs(gp: GaussianProcess | OutputProcesses, problem: Regression | Outputs) -> Priors:
    """Return the default priors of one process, or of those of several outputs."""
    if not isinstance(gp, OutputProcesses):
        if not isinstance(problem, Regression):
            raise TypeError("several outputs with systems of their own need a process for each")
        return default_priors(gp, problem)
    if not isinstance(problem, Outputs):
        raise TypeError("one system has one process")
    lower = torch.full_like(gp.log_parameters().detach(), torch.inf)
    upper = -lower
    each = [None if one is None else default_priors(gp.output(j), one) for j, one in enumerate(problem.each)]
    for j, one in enumerate(each):
        if one is not None:
            places = gp.positions(j)
            lower[places] = torch.minimum(lower[places], one.lower)
            upper[places] = torch.maximum(upper[places], one.upper)
    untouched = lower > upper  # the noise of outputs without observations
    lower, upper = lower.where(~untouched, -torch.inf), upper.where(~untouched, torch.inf)
    return OutputsPriors(tuple(each), lower, upper)
