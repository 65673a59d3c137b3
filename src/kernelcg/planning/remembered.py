"""Times of formulas that are measured once on each machine and stored beside its profile."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

from kernelcg.planning.store import stored


@dataclass(frozen=True)
class Timing:
    """A piece of work whose seconds are measured once on each machine; equal if the labels are."""

    label: str
    seconds: Callable[[], float] = field(compare=False)


@cache
def remembered(timing: Timing) -> float:
    """Return the stored seconds of a piece of work on this machine, or measure and store them.

    They are rounded to a power of two. Work on a busy machine later takes the time that is stored, not a longer one.
    """
    return stored("price", timing.label, _positive, lambda: 2.0 ** round(math.log2(timing.seconds())), repr)


def _positive(text: str) -> float:
    found = float(text)
    if not 0 < found < math.inf:
        raise ValueError(f"{text} is no number of seconds")
    return found
