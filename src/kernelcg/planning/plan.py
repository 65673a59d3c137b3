"""The plan of a fit: everything that is decided before work starts, in one frozen record."""

import math
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Self

from kernelcg.planning.costs import Pricing
from kernelcg.planning.predicting import Expected, expected_prediction
from kernelcg.planning.ranks import Sizes
from kernelcg.planning.workers import Workers, sharing


class Method(StrEnum):
    """How systems with A are solved."""

    AUTO = "auto"
    DIRECT = "direct"
    ITERATIVE = "iterative"


class Storage(StrEnum):
    """What becomes of K in products."""

    RECOMPUTED = "recomputed"
    STORED = "stored"


class Precision(StrEnum):
    """The precision of products in iterative work; AUTO is float32 where its rounding stays below the noise."""

    AUTO = "auto"
    FLOAT32 = "float32"
    FLOAT64 = "float64"


class Family(StrEnum):
    """Which posterior is computed: that of Gaussian noise, exactly, or Laplace's approximation."""

    GAUSSIAN = "gaussian"
    LAPLACE = "laplace"


@dataclass(frozen=True)
class Stage:
    """One stage of learning, or the conditioning on all rows: how it is done, and what it is expected to take."""

    rows: int
    method: Method
    storage: Storage
    precision: Precision
    evaluations: float
    """Evaluations of the criterion that are expected; solves, for conditioning."""
    seconds: float = field(compare=False)
    """Expected of this machine and the workers of a cluster, if there is one; they decide nothing."""
    bytes: int
    reason: str
    asked: bool = False
    """Whether the user asked for this method or the criterion needs it: it is then kept, whatever turns out."""
    patience: int | None = None
    """Evaluations by iteration after which the stage turns to exact ones, which would have cost no more."""
    random_columns: int = 0
    """Random columns from which exact evaluations take the traces of a gradient; 0 where they take A⁻¹."""

    def __str__(self) -> str:
        kept = ", K stored" if self.storage is Storage.STORED and self.method is Method.ITERATIVE else ""
        if self.method is Method.DIRECT and self.random_columns:
            kept = f", traces from {self.random_columns} random columns"
        return f"{self.rows:,} rows {self.method}{kept} ({self.reason}), about {in_time(self.seconds)}"


SHOWN_POINTS = 1000
"""Points for which a printed plan says what predictions take."""


@dataclass(frozen=True)
class Outcome:
    """What really happened in a fit.

    Attributes
    ----------
    evaluations : of the learning criterion
    method : by which the process was conditioned
    revisions : what was decided otherwise than planned in the course of the fit, and why
    peak_bytes : by how much the process grew at its largest, where the system says
    """

    seconds: float
    evaluations: int
    method: Method
    revisions: tuple[str, ...] = ()
    peak_bytes: int | None = None


@dataclass(frozen=True)
class Plan:
    """What a fit is going to do, decided from the data, the options, the seed, ``memory`` and the machine's profile.

    Attributes
    ----------
    rows, features, columns : of X, and right-hand sides: outputs and drift functions
    values : latent values a row; the number of classes for the softmax
    systems : matrices A, each solved with by itself: one, or one for each output with noise of its own
    device, backend, threads : where products run
    memory : bytes above what the process held that fit and predict may take on the host
    device_memory : the same on the device, if that is another
    seed : of everything random
    preconditioner : "auto" or the name of a recipe
    probes : random columns of an iterative evaluation
    stages : of learning, on a growing part of the rows; empty if nothing is learned
    conditioning : on all rows
    most_direct_rows : rows up to which an exact evaluation fits the memory
    pricing : what choices and expectations rest on: rates of the machine, the price of the kernel, and the ranks and
        block sizes between which the work chooses
    revisions : what learning decided otherwise so far, and why
    outcome : what really happened; None before
    parameters : hyperparameters that are learned
    workers : of a cluster, with their rates, where the plan was made: expected seconds count them. Choices go by the
        rates of this machine, so that any number of workers gives the same numbers; the one that workers change is
        where K is stored, by their memory
    passed_over : backends that would suit the device better, and why they cannot be used
    noise : variance of the noise relative to that of the process that a few rows showed before; None if nothing did
    family : "gaussian" or "laplace": which systems are solved
    """

    rows: int
    features: int
    columns: int
    values: int
    family: Family
    device: str
    backend: str
    memory: int
    seed: int
    preconditioner: str
    probes: int
    stages: tuple[Stage, ...]
    conditioning: Stage
    most_direct_rows: int
    threads: int | None = None
    device_memory: int | None = None
    pricing: Pricing = Pricing()
    revisions: tuple[str, ...] = ()
    outcome: Outcome | None = None
    systems: int = 1
    parameters: int = 0
    workers: Workers | None = None
    passed_over: tuple[str, ...] = ()
    noise: float | None = None

    @property
    def method(self) -> Method:
        """Return how the process is conditioned on all rows: what was done, or before that what is planned."""
        return self.conditioning.method if self.outcome is None else self.outcome.method

    @property
    def reason(self) -> str:
        """Return why."""
        return self.conditioning.reason

    @property
    def budget(self) -> int:
        """Return the bytes that may be allocated where the data are."""
        return budget_where_data_are(self.memory, self.device_memory)

    @property
    def sizes(self) -> Sizes:
        """Return the ranks and block sizes between which the work below the plan chooses."""
        return self.pricing.sizes

    @property
    def seconds(self) -> float:
        """Return how long the fit is expected to take."""
        return sum(stage.seconds for stage in (*self.stages, self.conditioning))

    @property
    def bytes(self) -> int:
        """Return the memory that the fit is expected to take at its largest."""
        return max(stage.bytes for stage in (*self.stages, self.conditioning))

    def prediction(self, points: int, *, std: bool = True) -> Expected:
        """Return what predicting so many points is expected to take: the mean alone, or with standard deviations."""
        return expected_prediction(
            self.pricing,
            self.rows,
            self.features,
            self.columns,
            self.budget,
            points,
            sharing(self.workers, self.rows),
            direct=self.method is Method.DIRECT,
            std=std,
            classes=self.values,
        )

    def stage(self, rows: int) -> Stage:
        """Return the stage of learning on so many rows: the smallest that has as many, else the last."""
        for stage in self.stages:
            if rows <= stage.rows:
                return stage
        return self.stages[-1] if self.stages else self.conditioning

    def revised(self, rows: int, why: str) -> Self:
        """Return the plan with the direct method from a stage on, as far as that fits the memory."""

        def directly(stage: Stage) -> Stage:
            fits = rows <= stage.rows <= self.most_direct_rows
            if stage.asked or stage.method is Method.DIRECT or not fits:
                return stage
            return replace(stage, method=Method.DIRECT, reason=why)

        changed = replace(
            self, stages=tuple(directly(stage) for stage in self.stages), conditioning=directly(self.conditioning)
        )
        if changed.stages == self.stages and changed.conditioning == self.conditioning:
            return self
        return replace(changed, revisions=(*self.revisions, f"from {rows:,} rows on, direct: {why}"))

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        several = f", {self.systems} outputs" if self.systems > 1 else ""
        words = "" if self.workers is None else f" ({self.workers.told(self.pricing.profile)})"
        return (
            f"{self.rows} rows, {self.features} features{several} on {self.device} by {self.backend}{words}: "
            f"{self.method} ({self.reason}); about {in_time(self.seconds)} and {in_bytes(self.bytes)} of "
            f"{in_bytes(self.budget)}"
        )

    def explain(self) -> str:
        """Return the plan in several lines: every stage with its reason, then what was revised and what happened."""
        lines = [
            str(self),
            *(f"  backend       {reason}" for reason in self.passed_over),
            *(f"  learning      {stage}" for stage in self.stages),
            f"  conditioning  {self.conditioning}",
            f"  predicting    {self._of_prediction()}",
            f"  sizes         {self.sizes if self.family is Family.GAUSSIAN else self.sizes.of_newton()}",
        ]
        if self.outcome is not None:
            lines += [f"  revised       {revision}" for revision in self.outcome.revisions]
            grown = "" if self.outcome.peak_bytes is None else f", {in_bytes(self.outcome.peak_bytes)} at its largest"
            lines.append(f"  happened      {in_time(self.outcome.seconds)}{grown}")
        return "\n".join(lines)

    def _of_prediction(self) -> str:
        mean, std = self.prediction(SHOWN_POINTS, std=False), self.prediction(SHOWN_POINTS)
        return (
            f"{SHOWN_POINTS:,} points: means about {in_time(mean.seconds)}, with std about {in_time(std.seconds)} and "
            f"{in_bytes(std.bytes)}"
        )

    def after(self, learned: "Plan", seconds: float, evaluations: int, peak_bytes: int | None) -> Self:
        """Return the plan with what happened beside it; ``learned`` is what learning made of it."""
        outcome = Outcome(seconds, evaluations, learned.conditioning.method, learned.revisions, peak_bytes)
        return replace(self, outcome=outcome)


def budget_where_data_are(memory: int, device_memory: int | None) -> int:
    """Return the bytes for matrices: those of the device if the data are on one, whatever the host has beside it.

    A limit that the user sets is a limit of both.
    """
    return memory if device_memory is None else device_memory


def method_named(name: str) -> Method:
    """Return the method of this name; `ValueError` for a name nobody has."""
    if not isinstance(name, str) or name not in tuple(Method):
        raise ValueError(f"method must be one of {', '.join(Method)}, not {name!r}")
    return Method(name)


def definite_method(name: str) -> Method:
    """Return the direct or the iterative method by its name; `ValueError` for "auto" and names nobody has."""
    if name not in (Method.DIRECT, Method.ITERATIVE):
        raise ValueError(f"method must be 'direct' or 'iterative', not {name!r}")
    return Method(name)


_NOTHING = Stage(0, Method.DIRECT, Storage.STORED, Precision.AUTO, 0.0, 0.0, 0, "nothing is planned")

UNPLANNED = Plan(0, 0, 0, 1, Family.GAUSSIAN, "cpu", "", 0, 0, "auto", 0, (), _NOTHING, 0)
"""Stands for a plan that is still to be made."""


def in_bytes(count: float) -> str:
    """Return a number of bytes in words such as "10.9 GB"."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} bytes"


def in_time(seconds: float) -> str:
    """Return a duration in words such as "1 min 40 s"."""
    if not math.isfinite(seconds):
        return "an unknown time"
    if seconds < 60:
        return f"{seconds:.2g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
