"""What is maximised when the likelihood is not Gaussian: Laplace's log marginal likelihood."""

from dataclasses import dataclass

from kernelcg.events import Listener
from kernelcg.inference.gaussian.likelihood_by_pcg import Numerics
from kernelcg.inference.laplace.evidence import laplace_estimate
from kernelcg.inference.laplace.latent_model import LatentProcess, Observations
from kernelcg.inference.laplace.trail import LaplaceTrail
from kernelcg.inference.learning.criterion_value import CriterionValue
from kernelcg.inference.learning.planned_criterion import PlannedCriterion
from kernelcg.planning.plan import UNPLANNED, Method, Plan, method_named
from kernelcg.planning.planner import Options, Resources, planned


@dataclass(frozen=True, eq=False)
class LaplaceObjective(PlannedCriterion):
    """The approximate log marginal likelihood of data as a function of the hyperparameters; as `Objective`.

    Parameters
    ----------
    problem : the data
    method : "direct", "iterative" or "auto"
    numerics : how iterative evaluations work
    """

    problem: Observations
    method: str = Method.AUTO
    numerics: Numerics = Numerics()
    learns_in_stages: bool = True
    """Whether learning begins with a part of the rows: a subset shows the way at a fraction of the cost."""
    plan: Plan = UNPLANNED
    """How each part of the rows is evaluated; if it is not given, it is made for these data, ``method`` and stages."""

    def __post_init__(self) -> None:
        if self.plan is UNPLANNED:
            object.__setattr__(self, "plan", self._planned())
        object.__setattr__(self, "problem", self.problem.storing(self.stage.storage))

    @property
    def measures_noise(self) -> bool:
        """Whether standard errors must be measured: they have no known relation to the information in the data here."""
        return not self.is_direct

    def relative_noise(self, gp: LatentProcess) -> None:
        """Return nothing: the noise is part of the likelihood."""

    def lean(self, trail: LaplaceTrail) -> LaplaceTrail:
        """Return a trail as it can be stored: it is lean already."""
        return trail

    def restored(self, trail: LaplaceTrail, gp: LatentProcess) -> LaplaceTrail:
        """Return a stored trail as it was."""
        return trail.on(self.problem.X.device)

    def __call__(
        self,
        gp: LatentProcess,
        trail: LaplaceTrail | None = None,
        *,
        value: bool = True,
        errors: bool = False,
        callback: Listener | None = None,
    ) -> tuple[CriterionValue, LaplaceTrail | None]:
        """Return value and gradient, and what helps the next evaluation; the exact method gives all it can anyway."""
        return laplace_estimate(
            self.problem, gp, self.stage.method, self.numerics, trail, value=value, errors=errors, callback=callback
        )

    def _planned(self) -> Plan:
        problem, numerics = self.problem, self.numerics
        options = Options(method_named(self.method), probes=numerics.probes, seed=numerics.seed)
        resources = Resources.of(problem.backend, problem.X.device, problem.pricing)
        return planned(problem.workload(in_stages=self.learns_in_stages), options, resources)
