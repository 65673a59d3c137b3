"""Comparison of methods for learning and prediction: error and likelihood against time, on the same data."""

from kernelcg.comparison.harness import Evaluation, Run, run
from kernelcg.comparison.methods import METHODS, Method
from kernelcg.comparison.tasks import ClassificationTask, RegressionTask

__all__ = [
    "METHODS",
    "ClassificationTask",
    "Evaluation",
    "Method",
    "RegressionTask",
    "Run",
    "run",
]
