"""Parameters of constructors and records as JSON values and tensors, for model files."""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin

import numpy as np
import torch
from sklearn.gaussian_process.kernels import Kernel as SklearnKernel
from torch import Tensor

from kernelcg.estimators.base import Problem, ProcessEstimator
from kernelcg.estimators.file_soundness import require_plan
from kernelcg.estimators.settings import PRECISIONS, chosen_device, logger, seed_of
from kernelcg.estimators.sklearn_kernels import converted
from kernelcg.parameters import Parametric
from kernelcg.planning.plan import UNPLANNED, Method, Plan, Precision, Stage, Storage
from kernelcg.solvers import Approach, Status

R = TypeVar("R")


def usable_device(estimator: Any) -> torch.device:
    """Return the device of the estimator, or else the CPU, which the estimator then says."""
    try:
        return chosen_device(estimator.device)
    except ValueError as error:
        logger.warning("the model is loaded on the CPU: %s", error)
        estimator.device = "cpu"
        return torch.device("cpu")


# parameters of the constructor


def parameters(estimator: ProcessEstimator, describe: Callable[[Parametric], dict[str, Any]]) -> dict[str, Any]:
    """Return the parameters of the constructor as JSON, without those that a file cannot hold."""
    values = dict(estimator.get_params(deep=False))
    del values["cluster"]  # a file opens no connections
    if isinstance(values["kernel"], SklearnKernel):
        values["kernel"], white = converted(values["kernel"])
        values.update(_with_white(values, white))
    plain = {name: _plain(value, describe) for name, value in values.items()}
    defaults = inspect.signature(type(estimator)).parameters
    return {name: defaults[name].default if value is LOST else value for name, value in plain.items()}


def _with_white(values: Mapping[str, Any], white: Any) -> dict[str, Any]:
    """Return the parameter that takes the white part of a scikit-learn kernel."""
    if white is None:
        return {}
    if "alpha" in values:
        return {"alpha": np.asarray(values["alpha"], dtype=np.float64) + white.variance.item()}
    return {"noise": white}


LOST = object()
"""Stands for a value that a file cannot hold."""


def _plain(value: Any, describe: Callable[[Parametric], dict[str, Any]]) -> Any:
    if isinstance(value, Parametric):
        return describe(value)
    if isinstance(value, np.generic | np.ndarray | Tensor):
        value = value.item() if math.prod(value.shape) == 1 else LOST
    if isinstance(value, type | np.dtype):
        return np.dtype(value).name
    if isinstance(value, torch.device):
        return str(value)
    finite = not isinstance(value, float) or math.isfinite(value)
    return value if value is None or (isinstance(value, str | int | float) and finite) else LOST


# records


def packed(
    record: Any, tensors: dict[str, Tensor] | None = None, prefix: str = "", leave_out: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return the fields of a record as JSON; put those that are tensors into ``tensors``."""
    header = {}
    for field in fields(record):
        value = getattr(record, field.name)
        if not field.init or field.name in leave_out:
            continue
        if isinstance(value, Tensor) and tensors is not None:
            tensors[f"{prefix}.{field.name}"] = value
        elif value is not None:
            header[field.name] = _json(value)
    return header


def unpacked(
    cls: type[R],
    header: Mapping[str, Any],
    tensors: Mapping[str, Tensor] | None = None,
    prefix: str = "",
    **given: Any,
) -> R:
    """Return the record that `_packed` was given; ``given`` fills in what was left out."""
    known = dict(given)
    for field in fields(cls):  # type: ignore[arg-type]  # a dataclass
        stored = f"{prefix}.{field.name}"
        if tensors is not None and stored in tensors:
            known[field.name] = tensors[stored]
        elif field.name in header:
            known[field.name] = _parsed(field.type, header[field.name])
    return cls(**known)


def as_planned(problem: Problem, plan: Plan) -> Problem:
    """Return the data of a stored model with what their plan said of prices and of storing K."""
    return problem.at_price(plan.pricing).storing(plan.conditioning.storage)


def unpacked_plan(header: Mapping[str, Any], random_state: Any) -> Plan:
    """Return the plan of a fit; version 0.1 kept less of it, and its seed in the constructor's parameter alone."""
    if "stages" in header:
        plan = unpacked(Plan, header)
        require_plan(plan)
        return plan
    method, n = Method(header["method"]), int(header["rows"])
    done = Stage(
        n, method, Storage.RECOMPUTED, Precision.AUTO, 1.0, 0.0, int(header["expected_bytes"]), header["reason"]
    )
    return replace(
        UNPLANNED,
        rows=n,
        features=int(header["features"]),
        device=header["device"],
        backend="unknown",
        memory=int(header["budget_bytes"]),
        seed=seed_of(random_state),
        conditioning=done,
    )


def _json(value: Any) -> Any:
    if isinstance(value, Status | Approach):
        return value.name
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, tuple):
        return [_json(item) for item in value]
    if is_dataclass(value):
        return packed(value)
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _parsed(kind: Any, value: Any) -> Any:
    """Return the value of a field that is annotated as ``kind``."""
    if kind in (Status, Approach):
        return kind[value]
    if kind is torch.dtype:
        return _named_dtype(value)
    if isinstance(kind, UnionType):  # None was left out
        return _parsed(next(part for part in get_args(kind) if part is not NoneType), value)
    if get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise TypeError(f"{value!r:.60} should be a list")
        return tuple(_parsed(get_args(kind)[0], item) for item in value)
    if is_dataclass(kind):
        return unpacked(kind, value)  # type: ignore[arg-type]
    return _of_kind(kind, value)


def _named_dtype(value: Any) -> torch.dtype:
    found = PRECISIONS[value]
    if found is None:
        raise ValueError(f"{value!r} is no precision of a product")
    return found


def _of_kind(kind: Any, value: Any) -> Any:
    """Return a plain value, which must be what its field declares; infinite numbers are stored as words."""
    plain = {bool: bool, int: int, str: str, float: int | float}
    if kind is float and isinstance(value, str) and value in ("inf", "-inf", "nan"):
        return float(value)
    if kind in plain and (not isinstance(value, plain[kind]) or (kind is not bool and isinstance(value, bool))):
        raise TypeError(f"{value!r:.60} should be of type {kind.__name__}")
    return kind(value)
