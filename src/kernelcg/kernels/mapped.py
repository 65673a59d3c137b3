"""Kernels of mapped inputs: on some of the columns, and on a sphere."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, TypeVar

import torch
from torch import Generator, Tensor

from kernelcg.kernels.base import Kernel

AnyKernel = TypeVar("AnyKernel", bound=Kernel)

EARTH = 6371.0088
"""Mean radius of the Earth in km (International Union of Geodesy and Geophysics)."""


class Mapped(Kernel):
    """k(x, y) = part(g(x), g(y)) for a map g without hyperparameters; backends compute the part on the mapped data.

    Parameters
    ----------
    part : the kernel of the mapped points

    Examples
    --------
    >>> import torch
    >>> from kernelcg.kernels import Mapped, RBF
    >>> isinstance(RBF(1.0).on([0, 2]), Mapped)
    True
    """

    part: Kernel

    @abstractmethod
    def inputs(self, X: Tensor) -> Tensor:
        """Return g(x_i) for every row."""

    def covariance(self, X: Tensor, Y: Tensor) -> Tensor:
        return self.part.covariance(self.inputs(X), self.inputs(Y))

    def diagonal(self, X: Tensor) -> Tensor:
        return self.part.diagonal(self.inputs(X))

    def coordinates(self, X: Tensor) -> Tensor:
        return self.part.coordinates(self.inputs(X))


class OnColumns(Mapped):
    """A kernel of some of the features: ``RBF(1.0).on([0, 2])``.

    In an estimator that is fitted to a data frame, the names of its columns will do: ``RBF(1.0).on(["x", "y"])``.

    Parameters
    ----------
    part : the kernel of these features
    columns : numbers of the features, counted from 0, or names of columns

    Examples
    --------
    >>> import torch
    >>> from kernelcg.kernels import RBF
    >>> X = torch.tensor([[0.0, 5.0], [1.0, 9.0]])
    >>> RBF(1.0).on(0)(X, X)  # the second column does not count
    tensor([[1.0000, 0.6065],
            [0.6065, 1.0000]])
    """

    columns: tuple[int | str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        given = (self.columns,) if isinstance(self.columns, int | str) else tuple(self.columns)
        columns = tuple(one if isinstance(one, str) else int(one) for one in given)
        if not columns or len(set(columns)) < len(columns):
            raise ValueError(f"columns must be one or more different columns, not {self.columns!r}")
        if any(isinstance(one, int) and one < 0 for one in columns):
            raise ValueError(f"columns are counted from 0, not {self.columns!r}")
        object.__setattr__(self, "columns", columns)

    @property
    def is_stationary(self) -> bool:
        return self.part.is_stationary

    @property
    def rounds_well(self) -> bool:
        return self.part.rounds_well

    def inputs(self, X: Tensor) -> Tensor:
        numbers = self._numbers()
        if max(numbers) >= X.shape[1]:
            raise ValueError(f"the kernel needs column {max(numbers)}, but X has {X.shape[1]} features, counted from 0")
        return X[:, numbers]

    def _numbers(self) -> list[int]:
        names = [column for column in self.columns if isinstance(column, str)]
        if names:
            raise ValueError(f"column {names[0]!r} has no number here: names are those of a data frame in fit(X, y)")
        return [int(column) for column in self.columns]

    def rounding_lengths(self, X: Tensor) -> Tensor:
        return self.part.rounding_lengths(self.inputs(X))

    def sample_frequencies(self, d: int, count: int, generator: Generator) -> Tensor:
        """Draw the frequencies of these features from the part; the frequencies of the other features are 0."""
        result = torch.zeros(count, d, dtype=torch.float64)
        places = self._numbers()
        result[:, places] = self.part.sample_frequencies(len(places), count, generator)
        return result

    def __repr__(self) -> str:
        from kernelcg.kernels.composite import Product, Sum

        shown = f"({self.part!r})" if isinstance(self.part, Sum | Product) else repr(self.part)
        return f"{shown}.on({list(self.columns)})"


class OnSphere(Mapped):
    """A kernel of points on a sphere, given by latitude and longitude in degrees, as points in space.

    The part sees (x, y, z) in the unit of ``radius``. Distances are therefore chords through the sphere, and every
    kernel of Euclidean distances stays positive semi-definite: ``OnSphere(Matern(500.0))`` correlates over 500 km. The
    chord is shorter than the great circle by 1 % at 3,000 km. Where there are other features too, name the two:
    ``OnSphere(Matern(500.0)).on(["latitude", "longitude"])``.

    Parameters
    ----------
    part : the kernel of points in space, with lengthscales in the unit of ``radius``
    radius : of the sphere; that of the Earth in km unless given

    Examples
    --------
    >>> import torch
    >>> from kernelcg.kernels import Matern, OnSphere
    >>> places = torch.tensor([[52.5, 13.4], [48.9, 2.4]])  # degrees of latitude and longitude
    >>> k = OnSphere(Matern(1000.0, nu=1.5))(places, places)  # 1000 km
    >>> bool(0.3 < k[0, 1] < 0.7)
    True
    """

    radius: float = EARTH

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_radius(self.radius)

    def inputs(self, X: Tensor) -> Tensor:
        return self.radius * on_unit_sphere(X)

    def rounding_lengths(self, X: Tensor) -> Tensor:
        """Return eight times the length of the part at the radius: angles up to 2π are rounded before their sines."""
        axes = self.radius * torch.eye(3, dtype=torch.float64, device=X.device)
        return (8 * self.part.rounding_lengths(axes).norm()).to(X).expand(len(X))


class GreatCircle(Kernel):
    r"""σ² e^(−θ / l) for the great-circle distance θ between (latitude, longitude) in degrees.

    Of the Matérn family on great-circle distances only ν ≤ 1/2 is positive semi-definite on the sphere (Gneiting 2013,
    Strictly and non-strictly positive definite functions on spheres, example 2). For smoother kernels use `OnSphere`.

    Parameters
    ----------
    lengthscale : l, in the unit of ``radius``
    variance : k(x, x), in squared units of the function
    nu : 0.5; other values are refused with the reason
    radius : of the sphere; that of the Earth in km unless given

    Examples
    --------
    >>> import torch
    >>> from kernelcg.kernels import GreatCircle
    >>> places = torch.tensor([[0.0, 0.0], [0.0, 90.0]])  # a quarter of the equator apart
    >>> round(float(GreatCircle(10_000.0)(places, places)[0, 1]), 2)
    0.37
    """

    SCALARS = ("lengthscale", "variance")

    lengthscale: Tensor
    variance: Tensor = torch.tensor(1.0, dtype=torch.float64)
    nu: float = 0.5
    radius: float = EARTH

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_radius(self.radius)
        if self.nu != 0.5:
            raise ValueError(
                f"GreatCircle.nu must be 0.5, not {self.nu!r}: smoother ones are no covariances on the sphere; use "
                f"OnSphere(Matern(lengthscale, nu={self.nu!r}))"
            )

    def covariance(self, X: Tensor, Y: Tensor) -> Tensor:
        angle = _angles(on_unit_sphere(X), on_unit_sphere(Y))
        return self.variance * torch.exp(-self.radius * angle / self.lengthscale)

    def diagonal(self, X: Tensor) -> Tensor:
        _require_two(X)
        return self.variance.to(X).expand(len(X))

    def coordinates(self, X: Tensor) -> Tensor:
        return self.radius * on_unit_sphere(X) / self.lengthscale.detach().to(X)

    def rounding_lengths(self, X: Tensor) -> Tensor:
        """Return eight radii in lengthscales, since angles of up to 2π are rounded, and so are chords."""
        return (8 * self.radius / self.lengthscale.detach().to(X)).expand(len(X))


def on_unit_sphere(X: Tensor) -> Tensor:
    """Return (n, 3) points on the unit sphere for rows (latitude, longitude) in degrees."""
    _require_two(X)
    latitude, longitude = torch.deg2rad(X[:, 0]), torch.deg2rad(torch.remainder(X[:, 1], 360.0))
    across = torch.cos(latitude)
    return torch.stack([across * torch.cos(longitude), across * torch.sin(longitude), torch.sin(latitude)], dim=1)


def _angles(U: Tensor, V: Tensor) -> Tensor:
    """Return the angles between unit vectors, accurate for near ones and for opposite ones.

    2 atan2(|u − v|, |u + v|) keeps its digits where the arc cosine of uᵀv loses half of them.
    """
    from kernelcg.kernels.distances import distances, squared_distances

    return 2 * torch.atan2(distances(squared_distances(U, V)), distances(squared_distances(U, -V)))


def _require_two(X: Tensor) -> None:
    if X.shape[1] != 2:
        raise ValueError(
            f"a kernel on the sphere needs latitude and longitude, 2 features, not {X.shape[1]}; choose them by "
            ".on([0, 1])"
        )
    if len(X) and not bool((X[:, 0].detach().abs() <= 90).all()):
        raise ValueError("latitudes must lie between −90 and 90 degrees; latitude comes first, then longitude")


def _require_radius(radius: float) -> None:
    if not 0 < radius < math.inf:
        raise ValueError(f"radius must be positive, not {radius!r}")


def with_numbered_columns(kernel: AnyKernel, names: Sequence[str]) -> AnyKernel:
    """Return a kernel whose columns are numbers instead of names.

    Raises
    ------
    ValueError : if there is no column of that name
    """
    changes: dict[str, Any] = {}
    for field in fields(kernel):
        value = getattr(kernel, field.name)
        if isinstance(value, Kernel):
            changes[field.name] = with_numbered_columns(value, names)
    if isinstance(kernel, OnColumns):
        changes["columns"] = tuple(_numbered(column, names) for column in kernel.columns)
    return kernel._with(**changes) if changes else kernel


def _numbered(column: int | str, names: Sequence[str]) -> int:
    if not isinstance(column, str):
        return column
    if column not in names:
        known = ", ".join(map(repr, names)) or "none, since X has no names; use numbers"
        raise ValueError(f"the kernel names column {column!r}; the columns are {known}")
    return list(names).index(column)
