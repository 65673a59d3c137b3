"""Inference: the model, its evidence, learning, prediction, certificates."""

from kernelcg.inference.conditioning import condition
from kernelcg.inference.estimate import Estimate
from kernelcg.inference.evidence import evidence, log_marginal_likelihood
from kernelcg.inference.iterative import Numerics, iterative_estimate
from kernelcg.inference.learning import Learned, Step, learn
from kernelcg.inference.leave_one_out import LeaveOneOut, leave_one_out
from kernelcg.inference.model import GaussianProcess, Noise, Regression
from kernelcg.inference.objective import Objective
from kernelcg.inference.posterior import Posterior, Prediction
from kernelcg.inference.sampling import draws, pathwise

__all__ = [
    "Estimate",
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
