"""Answers for the rows of a Dask array: Dask arrays, whose chunks workers compute when somebody asks for them."""

import inspect
import warnings
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from kernelcg.backends.dask_rows import dask_array

P = ParamSpec("P")
Model = TypeVar("Model")

OF_ALL_ROWS = ("return_cov", "return_bound", "exposure", "callback")
"""Arguments that concern all rows at once, or that stay in this process."""


def by_chunks(answer: Callable[Concatenate[Model, Any, P], Any]) -> Callable[..., Any]:
    """Let a method that answers for every row of X on its own take a Dask array, and answer by Dask arrays.

    The model goes to the workers with its training data; what they compute is written chunk by chunk by Dask's own
    functions, such as ``to_zarr`` and ``to_npy_stack``.
    """

    @wraps(answer)
    def asked(model: Model, X: Any, *args: P.args, **options: P.kwargs) -> Any:
        array = dask_array(X)
        if array is None:
            return answer(model, X, *args, **options)
        given = inspect.signature(answer).bind(model, X, *args, **options).arguments
        for name in OF_ALL_ROWS:
            if given.get(name) is not None and given.get(name) is not False:
                raise ValueError(f"{name} cannot be had for a Dask array; leave it out, or hand in X.compute()")
        return _chunked(model, answer.__name__, array, args, options)

    return asked


def _chunked(model: Any, name: str, X: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Return what a method answers, with the shapes and types that it has for one row of zeros."""
    from dask.delayed import delayed

    if X.ndim != 2:
        raise ValueError(f"X must have rows and columns, but this Dask array has {X.ndim} dimensions; reshape it")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        example = _asked(model, name, np.zeros((1, X.shape[1])), args, options)
    sent = delayed(model, name=f"model-{uuid4().hex}")
    chunks = X.rechunk({1: -1}).to_delayed()[:, 0]
    answers = [delayed(_asked_of_chunk)(sent, name, chunk, args, options, example) for chunk in chunks]
    if not isinstance(example, tuple):
        return _joined(iter(answers), X.chunks[0], example)
    return tuple(_joined((one[place] for one in answers), X.chunks[0], its) for place, its in enumerate(example))


def _joined(answers: Iterator[Any], rows: tuple[int, ...], example: NDArray[Any]) -> Any:
    from dask.array import concatenate, from_delayed

    return concatenate(
        [
            from_delayed(one, (count, *example.shape[1:]), dtype=example.dtype)
            for one, count in zip(answers, rows, strict=True)
        ]
    )


def _asked_of_chunk(
    model: Any, name: str, X: NDArray[Any], args: tuple[Any, ...], options: dict[str, Any], example: Any
) -> Any:
    """Return the answer for the rows of a chunk, also if it has none, as after a selection of rows."""
    if len(X):
        return _asked(model, name, X, args, options)
    return tuple(one[:0] for one in example) if isinstance(example, tuple) else example[:0]


def _asked(model: Any, name: str, X: NDArray[Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    return getattr(model, name)(X, *args, **options)
