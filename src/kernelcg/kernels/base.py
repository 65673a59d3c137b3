"""The kernel interface."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

import torch
from torch import Generator, Tensor

from kernelcg.arguments import positive
from kernelcg.parameters import Parametric

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelcg.kernels.composite import Product, Sum
    from kernelcg.kernels.mapped import OnColumns

ROWS_PER_DIAGONAL_BLOCK = 32
"""Number of rows of the blocks from which the diagonal of K is taken where a kernel has no formula for it."""

MEASURED_ROWS = 64
"""Number of rows, besides the outermost two, between which the rounding of a formula is measured."""

LARGEST_MEASURED = 1e-2
"""Largest error of a correlation in float32 from which its error in float64 is inferred."""

ENTIRELY_WRONG = 2.0**52
"""The `Kernel.rounding_lengths` of an entry that may be off by twice its largest value."""


class Kernel(Parametric, ABC):
    """A covariance function.

    Only the formula has to be written; the rest comes from `Parametric`:

    >>> class Cauchy(Kernel):
    ...     width: Tensor
    ...     def covariance(self, X, Y):
    ...         return 1 / (1 + squared_distances(X / self.width, Y / self.width))

    When the formula is called, the hyperparameters have the dtype and the device of X.
    """

    _kernel_names: ClassVar[tuple[str, ...]] = ()
    """The fields that hold kernels."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        own = fields(cls)
        cls._kernel_names = tuple(field.name for field in own if str(field.type).endswith(("Kernel", "Kernel'>")))

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self._kernel_names:
            if not isinstance(value := getattr(self, name), Kernel):
                raise TypeError(f"{type(self).__name__}.{name} must be a kernel, not {value!r}")

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

        It is False for formulas that depend on the position of points, or on their phase after many periods. Entries
        of such kernels are computed in float64, whatever the precision of the product.
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
        """Return (n, c) coordinates of the rows of X in which points that are close are strongly correlated."""
        spread = X.std(0, correction=0)
        return (X - X.mean(0)) / torch.where(spread > 0, spread, 1.0)

    @torch.no_grad()
    def rounding_lengths(self, X: Tensor) -> Tensor:
        r"""Return (n,) numbers r that say how far rounding moves the entries of K, for inputs as the formula sees them.

        .. math:: |\delta k(x_i, x_j)| \le 2u\, (r_i + r_j) \sqrt{k(x_i, x_i)\, k(x_j, x_j)}

        beside some tens of u for the arithmetic, where u = 2⁻⁵³. The kernels of the library override this method with
        what is known of their formulas, and a kernel of your own may. The default measures r: it is twice the largest
        difference between the entries in float32 and in float64 at some of the rows, the outermost among them. If
        float32 cannot resolve the formula, every entry is taken to be wrong in all digits.
        """
        outermost = X.abs().amax(1).topk(min(2, len(X))).indices
        rows = torch.cat([torch.linspace(0, len(X) - 1, MEASURED_ROWS, device=X.device).long(), outermost])
        single = X[rows].float()
        exact, size = self(single.double(), single.double()), self.diagonal(single.double()).clamp_min(1e-300).sqrt()
        wrong = float(((self(single, single) - exact).abs() / size / size[:, None]).max())
        r = 2 * wrong / (4 * 2.0**-24) if wrong <= LARGEST_MEASURED else ENTIRELY_WRONG
        return torch.full((len(X),), r, dtype=torch.float64, device=X.device)

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

    def on(self, columns: int | str | Sequence[int | str]) -> OnColumns:
        """Return the kernel of some of the features alone, by number from 0 or, for data frames, by name."""
        from kernelcg.kernels.mapped import OnColumns

        return OnColumns(self, (columns,) if isinstance(columns, int | str) else tuple(columns))

    def _beside(self, X: Tensor) -> Self:
        """Return a copy whose hyperparameters have the dtype and device of X."""
        moved = copy.copy(self)
        for name, value in self._parts():
            own = value._beside(X) if isinstance(value, Kernel) else cast(Tensor, value).to(X)
            object.__setattr__(moved, name, own)
        return moved

    def _tensors(self) -> list[Tensor]:
        """Return the hyperparameters of this kernel and of its parts."""
        each = ([part] if isinstance(part, Tensor) else cast(Kernel, part)._tensors() for _, part in self._parts())
        return [one for some in each for one in some]
