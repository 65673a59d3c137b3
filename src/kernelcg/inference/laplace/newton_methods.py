"""The methods by which Newton's systems are solved, by name."""

from torch import Tensor

from kernelcg.events import Listener
from kernelcg.inference.gaussian.likelihood_by_pcg import Numerics
from kernelcg.inference.laplace.latent_model import LatentProcess, Observations
from kernelcg.inference.laplace.newton_by_cholesky import DirectSystems
from kernelcg.inference.laplace.newton_by_pcg import IterativeSystems
from kernelcg.planning.plan import Method, definite_method


def systems_for(
    problem: Observations,
    gp: LatentProcess,
    method: str,
    numerics: Numerics,
    pivots: Tensor | None = None,
    callback: Listener | None = None,
) -> DirectSystems | IterativeSystems:
    """Return what solves the systems of a Newton step by this method."""
    if definite_method(method) is Method.DIRECT:
        return DirectSystems(problem, gp, numerics.stopping)
    return IterativeSystems(
        problem, gp, numerics.preconditioner, numerics.seed, numerics.stopping, pivots, callback=callback
    )
