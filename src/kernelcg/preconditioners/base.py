"""What a recipe for a preconditioner is, and how all of them are found."""

import math
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Protocol, dataclass_transform

from torch import Generator, Tensor

from kernelcg.backends import KernelMatrix
from kernelcg.backends.memory import require_memory
from kernelcg.operators import Invertible, KernelPlusDiagonal
from kernelcg.subclasses import concrete_subclasses


class Prepared(Protocol):
    """The part of a preconditioner that depends on the kernel and the data alone: kept while S and D change."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Return what was changed beside the formula, such as jitter, in words."""
        ...

    @property
    def setup_products(self) -> int:
        """Return how many columns were multiplied with K in the preparation."""
        ...

    def factor(self, scale: Tensor | None, diagonal: Tensor) -> Invertible:
        """Return P ≈ S K S + D for n entries of S (None means I) and n of D, both float64."""
        ...


@dataclass_transform(frozen_default=True)
class Preconditioner(ABC):
    """A recipe.

    A subclass becomes a frozen dataclass by itself; its fields are options with defaults, the first line of
    its docstring describes it in lists, and its name in lower case with underscores is the one users type.
    """

    COST: ClassVar[str]
    """The cost of building and of applying it, in terms of n rows, rank m, q neighbours and k columns."""

    IN_PAPER: ClassVar[bool] = False
    """Whether it is one of the eight of Cutajar et al. (2016)."""

    EXACT_AT_FULL_RANK: ClassVar[bool] = False
    """Whether P = A once its rank option reaches n."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        dataclass(frozen=True)(cls)

    @abstractmethod
    def prepare(self, K: KernelMatrix, generator: Generator) -> Prepared:
        """Do the work that depends on the kernel and the data alone."""

    def build(self, A: KernelPlusDiagonal, generator: Generator) -> Invertible:
        """Return P ≈ A: both stages at once."""
        return self.prepare(A.K, generator).factor(A.scale, A.diagonal)

    @classmethod
    def name(cls) -> str:
        """Return the name users type, such as ``block_jacobi``."""
        return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", cls.__name__).lower()

    @classmethod
    def description(cls) -> str:
        """Return one line that says what it is."""
        return (cls.__doc__ or cls.__name__).strip().splitlines()[0]

    @classmethod
    def options(cls) -> dict[str, Any]:
        """Return its options and their defaults."""
        return {field.name: field.default for field in fields(cls)}  # type: ignore[arg-type]


def available() -> dict[str, type[Preconditioner]]:
    """Return every recipe that has been imported, by name.

    Examples
    --------
    >>> from kernelcg.preconditioners import available
    >>> "nystrom" in available()
    True
    """
    return concrete_subclasses(Preconditioner)  # type: ignore[type-abstract]


def recipe(name: str, **options: Any) -> Preconditioner:
    """Return the recipe of this name with these options; `ValueError` for a name nobody has.

    Parameters
    ----------
    name : as in `available`
    options : fields of the recipe, such as ``rank=200``

    Examples
    --------
    >>> from kernelcg.preconditioners import recipe
    >>> type(recipe("jacobi")).__name__
    'Jacobi'
    """
    found = available()
    if name not in found:
        raise ValueError(f"there is no preconditioner {name!r}; choose one of {', '.join(found)}")
    unknown = sorted(set(options) - set(found[name].options()))
    if unknown:
        known = ", ".join(found[name].options()) or "none"
        raise ValueError(f"{name} has no option {', '.join(unknown)}; its options are: {known}")
    return found[name](**options)


def catalogue() -> str:
    """Return a table of all recipes in words: name, what it is, what it costs, its options.

    Examples
    --------
    >>> from kernelcg.preconditioners import catalogue
    >>> "nystrom" in catalogue()
    True
    """
    lines = []
    for name, cls in available().items():
        options = ", ".join(f"{option}={default!r}" for option, default in cls.options().items()) or "none"
        source = " (Cutajar et al. 2016)" if cls.IN_PAPER else ""
        lines += [f"{name}{source}: {cls.description()}", f"    cost: {cls.COST}", f"    options: {options}"]
    return "\n".join(lines)


FACTORS_AT_ONCE = 6
"""Blocks of n × rank numbers that exist together while Woodbury's form is made: F, S F, C⁻¹ S F, two of QR, Q."""


ROUNDED_FACTORS_AT_ONCE, SQUARES_AT_ONCE = 0.8, 4
"""The same for a factor in float32 beside a diagonal alone: F and the smaller one that it grew from; and blocks of
rank² numbers: the square of F, its triangle, copies."""


def rank_bytes(n: int, rank: int, *, rounded: bool = False) -> int:
    """Return the bytes that preparing and factoring at this rank takes, with F in float64 or ``rounded`` to float32."""
    if rounded:
        return int(8 * rank * (n * ROUNDED_FACTORS_AT_ONCE + SQUARES_AT_ONCE * rank))
    return 8 * n * rank * FACTORS_AT_ONCE


def largest_rounded_rank(n: int, memory: float) -> float:
    """Return the rank of a rounded F that takes all of so many bytes by `rank_bytes`."""
    if not math.isfinite(memory):
        return math.inf
    half = n * ROUNDED_FACTORS_AT_ONCE / (2 * SQUARES_AT_ONCE)
    return math.sqrt(half**2 + max(memory, 0.0) / (8 * SQUARES_AT_ONCE)) - half


def require_rank_memory(n: int, rank: int, budget: int, *, rounded: bool = False) -> None:
    """Raise before anything is allocated if preparing and factoring at this rank does not fit the budget."""
    require_memory(rank_bytes(n, rank, rounded=rounded), budget, f"a preconditioner of rank {rank} for {n} rows")


def checked_count(value: int | None, default: int, n: int, name: str) -> int:
    """Return an option that counts points, at most n; None means ``default``."""
    count = default if value is None else value
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise ValueError(f"{name} must be a non-negative integer or None, not {value!r}")
    return min(count, n)
