"""How a regressor learns several outputs: with noise of their own, or as one system where nothing tells them apart."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kernelcg.inference.bounds.certificate import Certificate, certificate
from kernelcg.inference.gaussian.add_observations import joined_observations
from kernelcg.inference.gaussian.model import GaussianProcess, Regression
from kernelcg.inference.gaussian.posterior import Posterior
from kernelcg.inference.learning.learn import Learned
from kernelcg.inference.outputs.certificate import OutputsCertificate, certificate_of_outputs
from kernelcg.inference.outputs.model import OutputProcesses, Outputs, labelled
from kernelcg.inference.outputs.posterior import OutputsPosterior, joined_data
from kernelcg.planning import Method

Floats = NDArray[np.float64]

Model = tuple[Regression, GaussianProcess] | tuple[Outputs, OutputProcesses]
"""Data and processes that belong together."""


def simplest(problem: Outputs, gp: OutputProcesses, *, learns: bool) -> Model:
    """Return the outputs as right-hand sides of one system where all have the same matrix and will keep it.

    That is so if all are observed at all rows with the same noise, and this noise is not learned.
    """
    variances = {one.variance.item() for one in gp.noise}
    learned = learns and not all(one.fixed for noise in gp.noise for one in noise.restrictions())
    complete = problem.noise_variance is None and not bool(problem.Y.isnan().any())
    if learned or not complete or len(variances) > 1 or gp.has_kernel_each:
        return problem, gp
    return as_regression(problem), gp.output(0)


def as_regression(problem: Outputs) -> Regression:
    """Return complete data without known noise as one problem, whose outputs share all of their matrix."""
    return Regression(
        problem.X, problem.Y, None, problem.mean, problem.backend, problem.precision, problem.pricing, problem.stored
    )


def apart(gp: GaussianProcess | OutputProcesses, outputs: int) -> OutputProcesses:
    """Return the process of outputs that shared their noise as one with a noise for each."""
    return gp if isinstance(gp, OutputProcesses) else OutputProcesses(gp.kernel, (gp.noise,) * outputs)


def with_more(posterior: Posterior | OutputsPosterior, more: Regression | Outputs, *, learns: bool) -> Model:
    """Return the data of a fit and further ones together, and the process of the fit.

    Outputs that shared a system get their own where the new data, or noise that is learned now, tell them apart.
    """
    old, gp = posterior.problem, posterior.gp
    if isinstance(more, Regression) and isinstance(old, Regression) and isinstance(gp, GaussianProcess):
        return joined_observations(old, more.X, more.Y, more.noise_variance), gp
    problem, each = joined_data(old, more.X, more.Y, more.noise_variance), apart(gp, more.Y.shape[1])
    return (problem, each) if isinstance(old, Outputs) else simplest(problem, each, learns=learns)


def certified(
    posterior: Posterior | OutputsPosterior, scales: Floats, offsets: Floats, *, probes: int, seed: int
) -> Certificate | OutputsCertificate:
    """Return the certificate of a fit, in the units of y; ``scales`` (c,) and ``offsets`` (c,) standardised it."""
    units, levels = scales.tolist(), np.abs(offsets).tolist()
    if isinstance(posterior, OutputsPosterior):
        return certificate_of_outputs(posterior, probes=probes, seed=seed, units=units, offsets=levels)
    return certificate(posterior, probes=probes, seed=seed, unit=max(units), offset=max(levels))


def learned_one_by_one(
    problem: Outputs, gp: OutputProcesses, learn_one: Callable[[int, Regression, GaussianProcess], Learned]
) -> Learned:
    """Learn the kernel and the noise of each output by itself; return the records as one."""
    found = [learn_one(j, problem.output(j), gp.output(j)) for j in range(len(gp))]
    revised = [one.plan for one in found if one.plan is not None and one.plan.rows == len(problem)]
    return Learned(
        OutputProcesses.of([one.gp for one in found]),
        tuple(step for one in found for step in one.steps),
        sum(one.evaluations for one in found),
        all(one.converged for one in found),
        "; ".join(labelled(j, one.reason) for j, one in enumerate(found)),
        sum(one.seconds for one in found),
        sum(one.failures for one in found),
        any(one.stopped for one in found),
        next((plan for plan in revised if plan.method is Method.DIRECT), revised[0] if revised else None),
        interrupted=any(one.interrupted for one in found),
    )
