"""Comparison of methods for learning and prediction: error and likelihood against time, on the same data."""

from kernelcg.comparison.data import table
from kernelcg.comparison.harness import Evaluation, Run, run
from kernelcg.comparison.methods import METHODS, Method
from kernelcg.comparison.own_data import Comparison, compare
from kernelcg.comparison.tasks import ClassificationTask, RegressionTask

__all__ = [
    "METHODS",
    "ClassificationTask",
    "Comparison",
    "Evaluation",
    "Method",
    "RegressionTask",
    "Run",
    "compare",
    "run",
    "table",
]
