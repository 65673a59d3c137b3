"""The certificates of several outputs in one record, which tells of the worst."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kernelcg.inference.bounds.certificate import Certificate, certificate
from kernelcg.inference.bounds.verdict import Verdict
from kernelcg.inference.outputs.model import first_failure, labelled
from kernelcg.inference.outputs.posterior import OutputsPosterior
from kernelcg.randomness import child, seeded
from kernelcg.solvers import Status

BY_SEVERITY = (Verdict.CERTIFIED, Verdict.UNINFORMATIVE, Verdict.NOT_EXACT)


@dataclass(frozen=True, eq=False)
class OutputsCertificate:
    """The certificate of each output, in its units; what is said of all is the worst, and the evidence is the sum."""

    each: tuple[Certificate, ...]

    @property
    def met(self) -> bool:
        """Whether every solve of every output reached its tolerance."""
        return all(one.met for one in self.each)

    @property
    def status(self) -> Status:
        """Return the status of the first output whose solve did not converge, if there is one."""
        status: Status = first_failure([one.status for one in self.each], Status.CONVERGED)
        return status

    @property
    def worst(self) -> int:
        """Return the output that is known least well: by its verdict, then by its error beside its noise."""

        def badness(j: int) -> tuple[int, float]:
            one = self.each[j]
            return BY_SEVERITY.index(one.verdict), one.mean_error / one.noise

        return max(range(len(self.each)), key=badness)

    @property
    def verdict(self) -> Verdict:
        """Return what is known of the output that is known least well."""
        return self.each[self.worst].verdict

    @property
    def reason(self) -> str:
        """Say in words what was not reached for that output, or what makes its bound say little."""
        return labelled(self.worst, self.each[self.worst].reason)

    @property
    def mean_error(self) -> float:
        """Return the bound of the error of the mean of that output, in its units."""
        return self.each[self.worst].mean_error

    @property
    def relative_residuals(self) -> Tensor:
        """Return (c,) the relative residuals of the outputs."""
        return torch.cat([one.relative_residuals for one in self.each])

    @property
    def log_marginal_likelihood(self) -> float:
        """Return the sum over the outputs."""
        return sum(one.log_marginal_likelihood for one in self.each)

    @property
    def standard_error(self) -> float:
        """Return the standard error of that sum: the probes of the outputs are independent."""
        return math.hypot(*(one.standard_error for one in self.each))

    @property
    def lower(self) -> float:
        """Return the sum of the lower ends of the brackets."""
        return sum(one.lower for one in self.each)

    @property
    def upper(self) -> float:
        """Return the sum of the upper ends of the brackets."""
        return sum(one.upper for one in self.each)

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        verdict, _, details = str(self.each[self.worst]).partition("\n")
        value = f"{self.log_marginal_likelihood:.8g}, standard error {self.standard_error:.2g}"
        return (
            f"{verdict} (output {self.worst} of {len(self.each)}, the one that is known least well)\n{details}\n"
            f"  log marginal likelihood of all outputs {value}"
        )


def certificate_of_outputs(
    posterior: OutputsPosterior, *, probes: int, seed: int, units: list[float], offsets: list[float]
) -> OutputsCertificate:
    """Return the certificate of each output; y_j is ``units[j]`` times Y_j plus something no larger than its offset."""

    def one(j: int) -> Certificate:
        own = child(seeded(seed), f"output {j}").initial_seed()
        return certificate(posterior.each[j], probes=probes, seed=own, unit=units[j], offset=offsets[j])

    return OutputsCertificate(tuple(one(j) for j in range(len(posterior.each))))
