"""Inference: the model, its evidence, learning, prediction, certificates."""

from kernelcg.inference.gaussian.conditioning import condition
from kernelcg.inference.gaussian.evidence import evidence
from kernelcg.inference.gaussian.leave_one_out import LeaveOneOut, leave_one_out
from kernelcg.inference.gaussian.likelihood_by_pcg import Numerics, iterative_estimate
from kernelcg.inference.gaussian.model import GaussianProcess, Noise, Regression
from kernelcg.inference.gaussian.objective import Objective
from kernelcg.inference.gaussian.posterior import Posterior
from kernelcg.inference.gaussian.prediction import Prediction
from kernelcg.inference.gaussian.sampling import draws, pathwise
from kernelcg.inference.laplace.evidence import laplace_estimate
from kernelcg.inference.laplace.latent_model import LatentProcess, Observations
from kernelcg.inference.laplace.objective import LaplaceObjective
from kernelcg.inference.laplace.posterior import LaplacePosterior, LatentPrediction, condition_laplace
from kernelcg.inference.learning.criterion_value import CriterionValue
from kernelcg.inference.learning.learn import Learned, learn
from kernelcg.inference.learning.state import Step, TrainingState

__all__ = [
    "CriterionValue",
    "GaussianProcess",
    "LaplaceObjective",
    "LaplacePosterior",
    "LatentPrediction",
    "LatentProcess",
    "Learned",
    "LeaveOneOut",
    "Noise",
    "Numerics",
    "Objective",
    "Observations",
    "Posterior",
    "Prediction",
    "Regression",
    "Step",
    "TrainingState",
    "condition",
    "condition_laplace",
    "draws",
    "evidence",
    "iterative_estimate",
    "laplace_estimate",
    "learn",
    "leave_one_out",
    "pathwise",
]
