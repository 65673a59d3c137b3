"""Times that are measured once on each machine and stored beside its profile."""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from kernelcg.planning.profile import SETTING, _path, _write


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
    path = _place(timing.label)
    if path is not None and path.exists():
        try:
            found = float(path.read_text(encoding="utf-8"))
            if 0 < found < math.inf:
                return found
        except (OSError, ValueError):
            pass  # damaged: measured again
    found = 2.0 ** round(math.log2(timing.seconds()))
    if path is not None:
        _write(path, repr(found))
    return found


def is_typical() -> bool:
    """Say whether the same numbers are to be gone by on every machine, whatever it is."""
    return os.environ.get(SETTING, "") == "typical"


def _place(label: str) -> Path | None:
    """Return where the seconds of a piece of work are stored; None where nothing is to be stored."""
    path = _path(label)
    return None if path is None else path.with_name(path.name.replace("profile", "price", 1))
