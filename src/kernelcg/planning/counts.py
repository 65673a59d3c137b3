"""How many evaluations of the criterion and iterations of a solve a work is expected to take.

The constants were set by `benchmarks/plan_against_reality.py`, on two quiet cores.
"""

import math

from kernelcg.planning.plan import Family, Method
from kernelcg.planning.workload import Workload

# evaluations of the criterion

PART_EVALUATIONS, EXACT_EVALUATIONS, ESTIMATED_EVALUATIONS = (9.0, 0.25), (8.0, 0.45), (4.0, 0.4)
PROBED_EVALUATIONS = ESTIMATED_EVALUATIONS
"""Evaluations of a stage, beside so many for each hyperparameter: on a part of the rows, exact ones on all rows, and
estimated ones on all rows, which the noise of the estimate ends earlier; so it ends exact ones with traces from random
columns."""

FIRST_EVALUATIONS = 2.0
"""Further ones in the first stage, which knows no curvature yet."""

MIDDLING_NOISE, LEAST_PATH, LONGEST_PATH, LONGEST_ESTIMATED_PATH = 0.005, 0.5, 1.6, 2.4
"""Noise relative to the signal at which these are the numbers of evaluations. With other noise the search takes
(this / noise)^¼ times as many, within limits: the less noise, the further from the start it ends, and the more
estimated gradients mislead it."""

# iterations of a solve

USUAL_NOISE, NOISE_OF_MANY_FEATURES, MANY_FEATURES = 0.05, 0.005, 15
"""Noise relative to the signal that is assumed as long as nothing is known of it: with many features a process can come
near to interpolating a part of the rows."""

ITERATIONS_AT_NOISE_1, MOST_ITERATIONS = 3.5, 80.0
"""Iterations of a preconditioned solve are this over √noise, up to a limit where a stronger preconditioner is made."""

NEWTON_ITERATIONS = 12.0
"""Iterations of a solve in a step of Newton's method, whatever the features: 10 on Spam, 37 on EEG. Curvatures are
small where a likelihood is certain, and the preconditioner knows where it is not."""

FEW_FEATURES, EASE = 3, 0.5
"""With so few features neighbours make a good preconditioner, and a solve takes this part of the iterations."""


def evaluations(work: Workload, method: Method, *, first: bool, last: bool, columns: int = 0) -> float:
    """Return how many evaluations of the criterion a stage is expected to take.

    Exact ones take the traces of their gradient from so many random ``columns``, or from A⁻¹ if there are none.
    """
    (some, each), longest = PART_EVALUATIONS, LONGEST_PATH
    if last and method is Method.DIRECT:
        some, each = PROBED_EVALUATIONS if columns else EXACT_EVALUATIONS
    elif last:
        (some, each), longest = ESTIMATED_EVALUATIONS, LONGEST_ESTIMATED_PATH
    path = min(max((MIDDLING_NOISE / max(relative_noise(work), 1e-12)) ** 0.25, LEAST_PATH), longest)
    return (some + each * work.parameters) * path + (FIRST_EVALUATIONS if first else 0.0)


def iterations(work: Workload) -> float:
    """Return how many iterations a preconditioned solve in learning takes: the less noise, the more."""
    if work.family is Family.LAPLACE:
        return NEWTON_ITERATIONS
    ease = EASE if work.features <= FEW_FEATURES else 1.0
    return ease * min(ITERATIONS_AT_NOISE_1 / math.sqrt(max(relative_noise(work), 1e-12)), MOST_ITERATIONS)


def relative_noise(work: Workload) -> float:
    """Return the noise relative to the signal, as it is known or usual."""
    if work.noise is not None:
        return work.noise
    return NOISE_OF_MANY_FEATURES if work.features >= MANY_FEATURES else USUAL_NOISE
