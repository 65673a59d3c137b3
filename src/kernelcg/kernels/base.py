"""The kernel interface, and how a kernel's hyperparameters become one vector and back."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self, dataclass_transform

import torch
from torch import Generator, Tensor

from kernelcg.arguments import positive

if TYPE_CHECKING:
    from kernelcg.kernels.composite import Product, Sum

ROWS_PER_DIAGONAL_BLOCK = 32


@dataclass_transform(frozen_default=True, eq_default=False)
class Kernel(ABC):
    """A covariance function.

    A subclass is a frozen dataclass without further ado: every field annotated ``Tensor`` is a positive
    hyperparameter (a number or a vector, optimised on a log scale), a field holding a kernel is a part,
    anything else is fixed. Only the formula has to be written:

    >>> class Cauchy(Kernel):
    ...     width: Tensor
    ...     def covariance(self, X, Y):
    ...         return 1 / (1 + squared_distances(X / self.width, Y / self.width))

    Hyperparameters are kept in float64 on the CPU; the formula sees them with the dtype and device of X.
    """

    SCALARS: ClassVar[tuple[str, ...]] = ()
    """Hyperparameters that are one number for all features; the others may be vectors."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        dataclass(frozen=True, eq=False, repr=False)(cls)

    def __post_init__(self) -> None:
        for field in fields(self):  # type: ignore[arg-type]  # __init_subclass__ makes it a dataclass
            value, label = getattr(self, field.name), f"{type(self).__name__}.{field.name}"
            if str(field.type).endswith(("Tensor", "Tensor'>")):
                object.__setattr__(self, field.name, positive(value, label))
                if field.name in self.SCALARS and getattr(self, field.name).ndim != 0:
                    raise ValueError(f"{label} must be one number, not {value!r}")
            elif str(field.type).endswith(("Kernel", "Kernel'>")) and not isinstance(value, Kernel):
                raise TypeError(f"{label} must be a kernel, not {value!r}")

    @abstractmethod
    def covariance(self, X: Tensor, Y: Tensor) -> Tensor:
        """Return k(x_i, y_j) as an (n, m) tensor, differentiable in the hyperparameters."""

    @property
    def is_stationary(self) -> bool:
        """Whether k(x, y) depends on x − y alone, so that the data may be centred."""
        return False

    @property
    def rounds_well(self) -> bool:
        """Whether centred data may be rounded to float32 before the formula sees them.

        False for formulas that depend on the position, or on its phase after many periods: their entries are
        computed in float64, whatever the precision of the product.
        """
        return self.is_stationary

    def __call__(self, X: Tensor, Y: Tensor) -> Tensor:
        """Return k(x_i, y_j) as an (n, m) tensor with the dtype and device of X."""
        if X.shape[1] != Y.shape[1]:
            raise ValueError(f"X has {X.shape[1]} features but Y has {Y.shape[1]}; they must be equal")
        return self._beside(X).covariance(X, Y)

    def diagonal(self, X: Tensor) -> Tensor:
        """Return k(x_i, x_i) for every row of X, from small diagonal blocks."""
        own = self._beside(X)
        return torch.cat([own.covariance(rows, rows).diagonal() for rows in X.split(ROWS_PER_DIAGONAL_BLOCK)])

    def sample_frequencies(self, d: int, count: int, generator: Generator) -> Tensor:
        r"""Draw (count, d) frequencies with :math:`k(x, y) = k(0)\, \mathrm{E} \cos \omega^\top (x - y)`."""
        raise TypeError(f"{type(self).__name__} has no spectral density: only stationary kernels do")

    def coordinates(self, X: Tensor) -> Tensor:
        """Return (n, c) coordinates of the rows of X in which close points are strongly correlated ones."""
        spread = X.std(0, correction=0)
        return (X - X.mean(0)) / torch.where(spread > 0, spread, 1.0)

    def log_parameters(self) -> Tensor:
        """Return every hyperparameter, on a log scale, as one flat float64 vector."""
        own = [_flatten(value) for _, value in self._parts()]
        return torch.cat(own) if own else torch.zeros(0, dtype=torch.float64)

    def with_log_parameters(self, values: Tensor) -> Self:
        """Return a copy of this kernel that reads its hyperparameters from ``values``."""
        parts = self._parts()
        sizes = [len(_flatten(old)) for _, old in parts]
        if values.shape != (sum(sizes),):
            raise ValueError(f"{self!r} has {sum(sizes)} hyperparameters, not shape {tuple(values.shape)}")
        updated: dict[str, Any] = {
            name: old.with_log_parameters(own) if isinstance(old, Kernel) else own.exp().reshape(old.shape)
            for (name, old), own in zip(parts, values.split(sizes), strict=True)
        }
        return replace(self, **updated)  # type: ignore[type-var]  # __init_subclass__ makes it a dataclass

    def parameter_names(self) -> list[str]:
        """Return one readable name for each entry of `log_parameters`."""
        names: list[str] = []
        for name, value in self._parts():
            if isinstance(value, Kernel):
                names += [f"{name}.{inner}" for inner in value.parameter_names()]
            else:
                names += [name] if value.ndim == 0 else [f"{name}[{i}]" for i in range(len(value))]
        return names

    def _number_of_kernels(self) -> int:
        """Return how many kernels this one is made of, itself included."""
        return 1 + sum(part._number_of_kernels() for _, part in self._parts() if isinstance(part, Kernel))

    def __add__(self, other: Kernel) -> Sum:
        from kernelcg.kernels.composite import Sum

        return Sum(self, other)

    def __mul__(self, other: Kernel | float) -> Product:
        from kernelcg.kernels.composite import Constant, Product

        return Product(self, other if isinstance(other, Kernel) else Constant(positive(other, "Constant.variance")))

    __rmul__ = __mul__

    def __repr__(self) -> str:
        shown = (f"{field.name}={_readable(getattr(self, field.name))}" for field in fields(self))  # type: ignore[arg-type]
        return f"{type(self).__name__}({', '.join(shown)})"

    def _parts(self) -> list[tuple[str, Kernel | Tensor]]:
        """Return the fields that hold hyperparameters, in order."""
        values = ((field.name, getattr(self, field.name)) for field in fields(self))  # type: ignore[arg-type]
        return [(name, value) for name, value in values if isinstance(value, (Kernel, Tensor))]

    def _beside(self, X: Tensor) -> Self:
        """Return a copy whose hyperparameters have the dtype and device of X."""
        moved = copy.copy(self)
        for name, value in self._parts():
            object.__setattr__(moved, name, value._beside(X) if isinstance(value, Kernel) else value.to(X))
        return moved


def _flatten(value: Kernel | Tensor) -> Tensor:
    return value.log_parameters() if isinstance(value, Kernel) else value.log().reshape(-1)


def _readable(value: object) -> str:
    if not isinstance(value, Tensor):
        return repr(value)
    numbers = [f"{number:.6g}" for number in value.detach().reshape(-1).tolist()]
    return numbers[0] if value.ndim == 0 else f"[{', '.join(numbers)}]"
