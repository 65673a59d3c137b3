"""The names of the optimizers."""

from enum import StrEnum


class Optimizer(StrEnum):
    """How a criterion is maximised; the value is what users type."""

    LBFGS = "lbfgs"
    ADAGRAD = "adagrad"
    ADAM = "adam"


STOCHASTIC = (Optimizer.ADAGRAD, Optimizer.ADAM)
"""The optimizers that take fresh probes at every step."""
