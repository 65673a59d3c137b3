"""Of which data, process and options a state of learning is: short texts that can be compared."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum, StrEnum
from typing import Any

import torch
from torch import Tensor

from kernelcg.backends import Backend
from kernelcg.errors import StateMismatch
from kernelcg.parameters import Parametric
from kernelcg.planning.plan import Plan

PLAIN = (str, int, float, bool, type(None), Enum, torch.dtype)
"""Values that their ``repr`` describes to the last bit."""

PLANNED = ("pricing", "stored")
"""Fields of a problem that come from its plan and are no data."""


WORDS = ("workers", "passed_over")
"""Fields of a plan that decide nothing; neither do the seconds of its stages, which count the workers."""


@dataclass(frozen=True)
class Origin:
    """What decides the numbers of learning, beside its state; limits on steps and time are not part of it.

    Attributes
    ----------
    rows : n
    data : digest of all numbers of the data
    process : digest of kernel, noise or likelihood: their kinds, starting values, bounds and priors
    options : names and values of everything else, in words
    plan : how the criterion is evaluated, if there is a plan
    """

    rows: int
    data: str
    process: str
    options: tuple[tuple[str, str], ...]
    plan: Plan | None = None

    @classmethod
    def of(cls, objective: Any, gp: Parametric, options: Mapping[str, Any], parts: str) -> "Origin":
        """Return that of a criterion, a frozen record with its data in ``problem``, learned on these parts of them."""
        own = {one.name: getattr(objective, one.name) for one in fields(objective)}
        plan = own.pop("plan", None)
        own.pop("problem")
        named = {**options, "objective": type(objective).__name__, **own, "parts of the data": parts}
        texts = tuple(text for name, value in named.items() for text in _texts(name, value))
        return cls(len(objective.problem), data_digest(objective.problem), _digest(_described(gp)), texts, plan)

    def require(self, other: "Origin") -> None:
        """Raise `StateMismatch` with the reason unless a state of the other origin can go on here."""
        if self.rows != other.rows:
            raise StateMismatch(f"the state is of other data: of {other.rows} rows, not {self.rows}")
        if self.data != other.data:
            raise StateMismatch("the state is of other data: there are as many rows, but their numbers differ")
        if self.process != other.process:
            raise StateMismatch(
                "the state is of another process: its kernel, likelihood, starting values, bounds or priors differ"
            )
        theirs = dict(other.options)
        for name, value in self.options:
            if theirs.get(name, "None") != value:
                raise StateMismatch(f"the state is of other options: {name} was {theirs.get(name)}, not {value}")
        if self.plan is not None and other.plan is not None:
            for one in fields(self.plan):
                if one.name in WORDS:
                    continue
                was, now = getattr(other.plan, one.name), getattr(self.plan, one.name)
                if was != now:
                    raise StateMismatch(
                        f"the state is of another plan: {one.name} was {_words(was)}, not {_words(now)}"
                    )


def _words(value: Any) -> str:
    return "; ".join(str(item) for item in value) if isinstance(value, tuple) else str(value)


def data_digest(problem: Any) -> str:
    """Return a digest of all numbers and options of the data."""
    return _digest(_described(problem))


def _texts(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Return an option, and those of a record one by one, with their values in words."""
    if is_dataclass(value) and not isinstance(value, type):
        yield name, type(value).__name__
        for one in fields(value):
            yield from _texts(f"{name}.{one.name}", getattr(value, one.name))
    else:
        yield name, _described(value)


def _described(value: Any) -> str:
    """Return a text that is the same for equal values and differs for others; where they are computed is left out."""
    if isinstance(value, Tensor):
        content = value.detach().cpu().contiguous()
        return f"{content.dtype}{tuple(content.shape)}:{_digest(content.numpy().tobytes())}"
    if isinstance(value, Backend):
        return "a backend"
    if is_dataclass(value) and not isinstance(value, type):
        own = (
            f"{one.name}={_described(getattr(value, one.name))}"
            for one in fields(value)
            if one.init and one.name not in PLANNED
        )
        limits = f" {value.restrictions()!r}" if isinstance(value, Parametric) else ""
        return f"{type(value).__name__}({', '.join(own)}){limits}"
    if isinstance(value, tuple | list):
        return f"({', '.join(_described(item) for item in value)})"
    if isinstance(value, StrEnum):
        return repr(str(value))
    return repr(value) if isinstance(value, PLAIN) else type(value).__name__


def _digest(content: str | bytes) -> str:
    encoded = content.encode() if isinstance(content, str) else content
    return hashlib.blake2b(encoded, digest_size=16).hexdigest()
