"""Inference: the model, its evidence, learning, prediction, certificates."""

from kernelcg.inference.gaussian.conditioning import condition
from kernelcg.inference.gaussian.evidence import evidence, log_marginal_likelihood
from kernelcg.inference.gaussian.leave_one_out import LeaveOneOut, leave_one_out
from kernelcg.inference.gaussian.likelihood_by_pcg import Numerics, iterative_estimate
from kernelcg.inference.gaussian.model import GaussianProcess, Noise, Regression
from kernelcg.inference.gaussian.objective import Objective
from kernelcg.inference.gaussian.posterior import Posterior, Prediction
from kernelcg.inference.gaussian.sampling import draws, pathwise
from kernelcg.inference.learning.criterion_value import CriterionValue
from kernelcg.inference.learning.learn import Learned, learn
from kernelcg.inference.learning.state import Step

__all__ = [
    "CriterionValue",
    "GaussianProcess",
    "Learned",
    "LeaveOneOut",
    "Noise",
    "Numerics",
    "Objective",
    "Posterior",
    "Prediction",
    "Regression",
    "Step",
    "condition",
    "draws",
    "evidence",
    "iterative_estimate",
    "learn",
    "leave_one_out",
    "log_marginal_likelihood",
    "pathwise",
]
