"""What came of one generated problem, and how answers are watched for flags."""

import contextlib
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

LEARNING = ("learning ended", "nothing was learned", "while learning", "ended at", "ended on", "at a bound")
"""Words of warnings about learned hyperparameters, which say nothing about the numbers at those hyperparameters."""

CERTIFIED = ("exact to tolerance", "certified")
"""How the first line of a certificate begins if it makes a promise."""


@dataclass
class Outcome:
    """One problem: what it was, and what was found.

    Attributes
    ----------
    family, seed : they make the problem again
    story : the problem in a few words
    violations : promises that the truth contradicts, whether or not something was flagged
    failures : answers that are off by more than the stated tolerance though nothing was flagged; crashes
    flags : numerical warnings, and verdicts other than certified
    learning_flags : warnings about hyperparameters; they excuse no wrong number
    refused : the message of a ValueError or TypeError, by which the library declines a problem
    numbers : what else is summarised, such as bound / error
    """

    family: str
    seed: int
    story: str = ""
    violations: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)
    learning_flags: list[str] = field(default_factory=list)
    refused: str | None = None
    numbers: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def good(self) -> bool:
        """Whether no promise was broken."""
        return not self.violations and not self.failures

    def record(self) -> dict[str, object]:
        """Return it as what JSON can hold."""
        return asdict(self)

    @contextlib.contextmanager
    def watching(self, call: str) -> Iterator[list[str]]:
        """Record the warnings of a call as flags; yields the list of the numerical ones, filled when the call ends."""
        own: list[str] = []
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield own
        for warning in caught:
            text = f"{call}: {warning.message}"
            if not issubclass(warning.category, UserWarning | RuntimeWarning):
                continue
            sentences = re.sub(r"\([^)]*\)", "", str(warning.message)).split("; ")
            about_learning = all(any(word in sentence for word in LEARNING) for sentence in sentences)
            (self.learning_flags if about_learning else own).append(text)
        self.flags += own

    def verdict(self, certificate: object) -> bool:
        """Flag a certificate that promises nothing; returns whether it does promise."""
        first = str(certificate).partition("\n")[0]
        promised = first.startswith(CERTIFIED)
        if not promised:
            self.flags.append(f"verdict: {first}")
        return promised

    def refuse(self, error: Exception) -> None:
        """Record that the library declines the problem; a complaint about a NaN that it made itself is a failure."""
        if "nan" in re.findall(r"\w+", str(error)):
            self.failures.append(f"crash: {type(error).__name__}: {error}")
        else:
            self.refused = str(error)

    def fit(self, fitted: Callable[[], Any]) -> tuple[Any, bool] | None:
        """Return the model and whether the fit or its certificate was flagged; None if the library declines."""
        try:
            with self.watching("fit") as flags:
                model = fitted()
        except (ValueError, TypeError) as error:
            self.refuse(error)
            return None
        return model, not self.verdict(model.certificate_) or bool(flags)

    def check(self, call: str, off: float, allowed: float, *, flagged: bool) -> None:
        """Record a failure if an answer is off by more than allowed, or is no number, and nothing was flagged."""
        if not flagged and not off <= allowed:
            self.failures.append(f"{call}: off by {off:.3g}, allowed {allowed:.3g}")
