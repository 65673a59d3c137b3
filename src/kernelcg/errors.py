"""Exceptions and warnings of the library."""

import inspect
import warnings
from pathlib import Path

FOLDER = str(Path(__file__).parent)
"""Of the files of the library."""


class SolveFailed(RuntimeError):
    """A linear solve did not reach its tolerance and the caller asked for an exception."""


class MemoryBudgetExceeded(MemoryError):
    """The work does not fit the memory budget it was given; nothing was allocated."""


class ClusterFailed(RuntimeError):
    """The workers of a cluster were lost or cannot do the work; the message says what to do."""


class StopRequested(Exception):
    """A listener wants the work to end; the message is the reason."""


class Interrupted(StopRequested):
    """The user wants the work to end, by Ctrl-C."""


class ConvergenceWarning(UserWarning):
    """An estimator finished, but some of its linear solves did not converge."""


class StateMismatch(ValueError):
    """A state of learning belongs to other data, another process or other options; the message says which."""


class ModelFileError(ValueError):
    """A file is no model of this library, is damaged, or needs a class or a version that is not here."""


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line that called the library, however deep in it this is said."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_code.co_filename.startswith(FOLDER):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
