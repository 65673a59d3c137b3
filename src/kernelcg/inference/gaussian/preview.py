"""Learning from a few rows before the plan of a fit is made: they show how much noise the data have."""

import math
from dataclasses import replace

import torch

from kernelcg.errors import MemoryBudgetExceeded
from kernelcg.events import Event, EventKind
from kernelcg.inference.gaussian.model import GaussianProcess, Regression
from kernelcg.inference.gaussian.objective import Objective, relative_noise
from kernelcg.inference.learning.default_priors import Priors
from kernelcg.inference.learning.learn import learn
from kernelcg.inference.learning.stages import STAGE_GAIN
from kernelcg.inference.outputs.model import is_explained
from kernelcg.randomness import child, seeded

PREVIEW_ROWS, PART = 300, 4
"""Rows of a preview, which learns from them in about a tenth of a second, and at most such a part of all rows."""

FEWEST_ROWS = 600
"""Rows below which a fit takes little longer than a preview."""

MOST_STEPS = 30
"""Steps of a preview. The noise is known to a factor of three after about ten."""


def previewed_noise(problem: Regression, gp: GaussianProcess, priors: Priors | None) -> float | None:
    """Return the noise relative to the signal that exact learning from a few rows finds; None where it is not worth it.

    The noise is rounded to a power of two, so that the last digits of a sum decide nothing. The rows that are looked at
    depend on their number alone, not on the seed of the fit.
    """
    n = len(problem)
    if n < FEWEST_ROWS:
        return None
    rows = torch.randperm(n, generator=child(seeded(0), "preview"))[: min(PREVIEW_ROWS, n // PART)]
    part = replace(problem.subset(rows), backend=problem.backend.here)
    if is_explained(part):
        return None
    try:
        learned = learn(
            Objective(part, learns_in_stages=False),
            gp,
            max_steps=MOST_STEPS,
            generator=seeded(0),
            callback=_ends_at_small_gains,
            priors=priors,
        )
    except MemoryBudgetExceeded:  # the plan of all rows will say what would do
        return None
    noise = relative_noise(learned.gp, part.X)
    return 2.0 ** round(math.log2(noise)) if 0 < noise < math.inf else None


def _ends_at_small_gains(event: Event) -> bool:
    """Whether a step gained so little that learning from more rows is the better way to go on."""
    return event.kind is EventKind.STEP and event.payload.step.gain < STAGE_GAIN
