"""Hyperparameters: positive numbers in frozen records, and the same numbers as one vector on a log scale."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any, ClassVar, Self, dataclass_transform

import torch
from torch import Tensor

from kernelcg.arguments import positive


@dataclass(frozen=True)
class Restriction:
    """What is known about a hyperparameter θ beforehand: that it stays, its bounds, log θ ~ N(log median, spread²)."""

    fixed: bool = False
    lower: float = 0.0
    upper: float = math.inf
    median: float | None = None
    spread: float = 1.0


FREE = Restriction()


@dataclass_transform(frozen_default=True, eq_default=False)
class Parametric:
    """A record with hyperparameters.

    A subclass is a frozen dataclass without further ado: every field annotated ``Tensor`` is a positive
    hyperparameter (a number or a vector, optimised on a log scale, kept in float64 on the CPU), a field holding
    another such record, or a tuple of them, has parts, anything else is fixed. Learning may be restricted:

    >>> kernel = RBF(lengthscale=[1.0, 2.0]).bounded(lengthscale=(0.1, 10)).fixed("variance")
    >>> kernel = RBF(lengthscale=1.0).with_prior(lengthscale=(1.0, 0.5))  # median, standard deviation of the log
    """

    SCALARS: ClassVar[tuple[str, ...]] = ()
    """Hyperparameters that must be one number; the others may be vectors."""

    _restrictions: ClassVar[Mapping[str, Restriction]] = MappingProxyType({})

    _field_names: ClassVar[tuple[str, ...]] = ()
    """The fields of the class, in their order."""

    _tensor_names: ClassVar[tuple[str, ...]] = ()
    """Those of them that are hyperparameters."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        own = fields(dataclass(frozen=True, eq=False, repr=False)(cls))  # type: ignore[arg-type]
        cls._field_names = tuple(field.name for field in own)
        cls._tensor_names = tuple(field.name for field in own if str(field.type).endswith(("Tensor", "Tensor'>")))

    def __post_init__(self) -> None:
        for name in self._tensor_names:
            value, label = getattr(self, name), f"{type(self).__name__}.{name}"
            checked = positive(value, label)
            if checked.ndim != 0 and name in self.SCALARS:
                raise ValueError(f"{label} must be one number, not {value!r}")
            object.__setattr__(self, name, checked)

    # as one vector

    def log_parameters(self) -> Tensor:
        """Return every hyperparameter, on a log scale, as one flat float64 vector."""
        own = [_flatten(value) for _, value in self._parts()]
        return torch.cat(own) if own else torch.zeros(0, dtype=torch.float64)

    def with_log_parameters(self, values: Tensor) -> Self:
        """Return a copy that reads its hyperparameters from ``values``."""
        parts = self._parts()
        sizes = [_size(old) for _, old in parts]
        if values.shape != (sum(sizes),):
            raise ValueError(f"{self!r} has {sum(sizes)} hyperparameters, not shape {tuple(values.shape)}")
        updated = {
            name: old.with_log_parameters(own) if isinstance(old, Parametric) else own.exp().reshape(old.shape)
            for (name, old), own in zip(parts, values.split(sizes), strict=True)
        }
        return self._with(**updated)

    def detached(self) -> Self:
        """Return a copy with the same numbers that autograd does not follow."""
        return self._with(
            **{
                name: value.detached() if isinstance(value, Parametric) else value.detach()
                for name, value in self._parts()
            }
        )

    def parameter_names(self) -> list[str]:
        """Return one readable name for each entry of `log_parameters`."""
        names: list[str] = []
        for name, value in self._parts():
            if isinstance(value, Parametric):
                names += [f"{name}.{inner}" for inner in value.parameter_names()]
            else:
                names += [name] if value.ndim == 0 else [f"{name}[{i}]" for i in range(len(value))]
        return names

    def restrictions(self) -> list[Restriction]:
        """Return one restriction for each entry of `log_parameters`."""
        found: list[Restriction] = []
        for name, value in self._parts():
            if isinstance(value, Parametric):
                found += value.restrictions()
            else:
                found += [self._restrictions.get(name, FREE)] * value.numel()
        return found

    # restrictions

    def fixed(self, *names: str) -> Self:
        """Return a copy in which these hyperparameters, or by default all of them, are not learned."""
        changed = self
        for name, value in self._parts():
            if isinstance(value, Parametric) and (not names or name in names):
                changed = changed._with(**{name: value.fixed()})
        own = [name for name in self._own_names() if not names or name in names]
        self._require_known(names, [name for name, _ in self._parts()])
        return changed._restricted({name: replace(self._restriction(name), fixed=True) for name in own})

    def bounded(self, **bounds: tuple[float, float]) -> Self:
        """Return a copy in which hyperparameters are learned within (lower, upper)."""
        self._require_known(bounds, self._own_names())
        bounds = {name: _pair(value, f"the bounds of {name}") for name, value in bounds.items()}
        for name, (lower, upper) in bounds.items():
            if not 0 <= lower < upper:
                raise ValueError(f"bounds of {name} must be positive and increasing, not ({lower!r}, {upper!r})")
        return self._restricted(
            {name: replace(self._restriction(name), lower=low, upper=high) for name, (low, high) in bounds.items()}
        )

    def with_prior(self, **priors: tuple[float, float]) -> Self:
        """Return a copy with log-normal priors, given as (median, standard deviation of the log)."""
        self._require_known(priors, self._own_names())
        priors = {name: _pair(value, f"the prior of {name}") for name, value in priors.items()}
        for name, (median, spread) in priors.items():
            if not (0 < median < math.inf and 0 < spread < math.inf):
                raise ValueError(f"the prior of {name} needs a positive median and spread, not {median!r}, {spread!r}")
        return self._restricted(
            {name: replace(self._restriction(name), median=mid, spread=sd) for name, (mid, sd) in priors.items()}
        )

    def _own_names(self) -> list[str]:
        return [name for name, value in self._parts() if isinstance(value, Tensor)]

    def _restriction(self, name: str) -> Restriction:
        return self._restrictions.get(name, FREE)

    def _require_known(self, names: Any, known: list[str]) -> None:
        for name in names:
            if name not in known:
                own = ", ".join(known) or "none of its own, restrict its parts"
                raise ValueError(f"{type(self).__name__} has no hyperparameter {name!r}; it has {own}")

    def _restricted(self, new: Mapping[str, Restriction]) -> Self:
        changed = copy.copy(self)
        object.__setattr__(changed, "_restrictions", {**self._restrictions, **new})
        return changed

    def _with(self, **updated: Any) -> Self:
        """Return a copy with some parts or fields replaced and the restrictions kept."""
        for name, several in self._tuples():
            updated[name] = tuple(updated.pop(f"{name}[{i}]", part) for i, part in enumerate(several))
        changed = replace(self, **updated)  # type: ignore[type-var]  # __init_subclass__ makes it a dataclass
        return changed._restricted(self._restrictions) if self._restrictions else changed

    def _parts(self) -> list[tuple[str, Parametric | Tensor]]:
        """Return what holds hyperparameters, in the order of the fields; the parts of a tuple are ``name[i]``."""
        found = list[tuple[str, Parametric | Tensor]]()
        for name in self._field_names:
            value = getattr(self, name)
            if isinstance(value, (Parametric, Tensor)):
                found.append((name, value))
            elif _is_tuple_of_parts(value):
                found += [(f"{name}[{i}]", part) for i, part in enumerate(value)]
        return found

    def _tuples(self) -> list[tuple[str, tuple[Parametric, ...]]]:
        """Return the fields that hold tuples of parts."""
        values = ((name, getattr(self, name)) for name in self._field_names)
        return [(name, value) for name, value in values if _is_tuple_of_parts(value)]

    def __repr__(self) -> str:
        shown = (f"{name}={_readable(getattr(self, name))}" for name in self._field_names)
        return f"{type(self).__name__}({', '.join(shown)})"


def _flatten(value: Parametric | Tensor) -> Tensor:
    return value.log_parameters() if isinstance(value, Parametric) else value.log().reshape(-1)


def _size(value: Parametric | Tensor) -> int:
    """Return how many hyperparameters there are."""
    return sum(_size(part) for _, part in value._parts()) if isinstance(value, Parametric) else value.numel()


def _is_tuple_of_parts(value: object) -> bool:
    return isinstance(value, tuple) and value != () and all(isinstance(part, Parametric) for part in value)


def _pair(value: Any, label: str) -> tuple[float, float]:
    """Return two numbers as floats."""
    try:
        first, second = (float(number) for number in value)
    except (TypeError, ValueError):
        raise TypeError(f"{label} must be two numbers, not {value!r}") from None
    return first, second


def _readable(value: object) -> str:
    if not isinstance(value, Tensor):
        return repr(value)
    numbers = [f"{number:.6g}" for number in value.detach().reshape(-1).tolist()]
    return numbers[0] if value.ndim == 0 else f"[{', '.join(numbers)}]"
