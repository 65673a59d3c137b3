"""States of learning as files: tensors with a JSON header, checked on reading, free of code."""

import math
import os
import time
import types
import warnings
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import StrEnum
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from kernelcg.errors import ModelFileError
from kernelcg.events import Event, EventKind, Listener
from kernelcg.inference.gaussian.likelihood_by_pcg import Probes, Trail
from kernelcg.inference.laplace.trail import LaplaceTrail
from kernelcg.inference.learning.lbfgs import Ascent, Curvature, Point
from kernelcg.inference.learning.origin import Origin
from kernelcg.inference.learning.state import StagedState, Step, StochasticState, TrainingState
from kernelcg.inference.outputs.objective import OutputsTrail
from kernelcg.planning import Kept
from kernelcg.planning.costs import KernelPrice, Pricing
from kernelcg.planning.growing_factor import Construction
from kernelcg.planning.plan import Outcome, Plan, Stage
from kernelcg.planning.profile import PairSeconds, Profile
from kernelcg.planning.ranks import Sizes
from kernelcg.planning.workers import Rates, Workers

KIND = "TrainingState"

VERSION = 1
"""The newest layout of states that is read, and the one that is written."""

RECORDS: Mapping[str, type] = {
    cls.__name__: cls
    for cls in (
        *(TrainingState, Origin, Step, StagedState, StochasticState, Ascent, Point, Curvature),
        *(Trail, OutputsTrail, LaplaceTrail, Probes, Kept, Construction),
        *(Plan, Stage, Outcome, Pricing, Sizes, KernelPrice, Profile, PairSeconds, Workers, Rates),
    )
}
"""The classes that a file may name."""


def save_state(state: TrainingState, path: str | os.PathLike[str]) -> None:
    """Write the state that came with a step of learning to a file that `load_state` reads.

    At every moment there is the old file or the new one, complete. The file has O(n) numbers for each probe and each
    column of y; it holds no code, and neither X nor y.

    Raises
    ------
    TypeError : if it is not a state that came with an event
    FileNotFoundError : if the directory does not exist
    """
    from kernelcg.estimators import model_files

    if not isinstance(state, TrainingState):
        raise TypeError(f"only a TrainingState can be saved here, not {type(state).__name__}")
    tensors: dict[str, Tensor] = {}
    header = {"version": VERSION, "state": _encoded(state, "state", tensors)}
    model_files.write(path, KIND, header, tensors)


def load_state(path: str | os.PathLike[str]) -> TrainingState:
    """Read the state in a file that `save_state` has written. Nothing in the file is run.

    Raises
    ------
    ModelFileError : if the file is not one of kernelcg, holds no state, is damaged, or comes from a newer version
    """
    from kernelcg.estimators import model_files

    found, name = model_files.read(path), os.fspath(path)
    if found.kind != KIND:
        raise ModelFileError(f"{name} holds a {found.kind!r:.60}, not a state of learning; kernelcg.load reads models")
    if found.header.get("version") != VERSION:
        raise ModelFileError(f"{name} has a layout that this version of kernelcg does not know; upgrade kernelcg")
    try:
        state = _decoded(found.header.get("state"), found.tensors)
        if not isinstance(state, TrainingState):
            raise _malformed("it holds no state")
        _require_sound(state, found.tensors)
    except (ModelFileError, LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ModelFileError(f"{name} is malformed: no state of learning can be made of it ({error})") from error
    return state


def checkpoints(path: str | os.PathLike[str], every: float = 30.0) -> Listener:
    """Return a listener that keeps the newest state of learning in a file, written every so many seconds.

    The first step and the last one before learning ends are always written. A fit that goes on from the file, by
    ``fit(X, y, resume=path)``, ends with the same numbers as one that was never interrupted. A disk that is full ends
    the fit at the first step, and is warned of later: learning is not lost to it.
    """
    written, newest = -math.inf, None

    def listen(event: Event) -> None:
        nonlocal written, newest
        if event.kind is EventKind.STEP:
            newest = event.payload.state
        elif event.kind is not EventKind.LEARNED:
            return
        due = event.kind is EventKind.LEARNED or time.monotonic() - written >= every
        if due and newest is not None:
            try:
                save_state(newest, path)
            except OSError as error:
                if written == -math.inf:
                    raise
                words = f"{os.fspath(path)} keeps an earlier state of learning, since a newer one could not be written"
                warnings.warn(f"{words}: {error}", stacklevel=2)
            else:
                newest = None
            written = time.monotonic()

    return listen


def _encoded(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Return a value as JSON; what JSON lacks becomes an object with one telling key."""
    if isinstance(value, Tensor):
        tensors[name] = value
        return {"tensor": name}
    if isinstance(value, tuple):
        return {"tuple": [_encoded(item, f"{name}.{i}", tensors) for i, item in enumerate(value)]}
    if is_dataclass(value) and RECORDS.get(type(value).__name__) is type(value):
        own = {one.name: getattr(value, one.name) for one in fields(value)}
        return {
            "record": type(value).__name__,
            "fields": {key: _encoded(part, f"{name}.{key}", tensors) for key, part in own.items()},
        }
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{name} is a {type(value).__name__}, which a file cannot hold; save the state of an event")


def _decoded(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Return what `_encoded` was given, every field of the type that its record declares."""
    match value:
        case {"tensor": str(name)}:
            return tensors[name]
        case {"tuple": list(items)}:
            return tuple(_decoded(item, tensors) for item in items)
        case {"float": "inf" | "-inf" | "nan" as number}:
            return float(number)
        case {"record": str(name), "fields": dict(described)}:
            cls = RECORDS[name]
            hints = get_type_hints(cls)
            own = {key: _named(hints[key], _decoded(part, tensors)) for key, part in described.items()}
            for key, part in own.items():
                if not _fits(hints[key], part):
                    raise _malformed(f"{name}.{key} is {part!r:.60}")
            return cls(**own)
        case None | bool() | int() | float() | str():
            return value
    raise _malformed(f"{value!r:.60} is not a value")


def _named(hint: Any, value: Any) -> Any:
    """Return a value as a member of the enumeration that a field declares, if it declares one."""
    return hint(value) if isinstance(hint, type) and issubclass(hint, StrEnum) else value


def _fits(hint: Any, value: Any) -> bool:
    """Say whether a value is of the type that a field declares."""
    kind, parts = get_origin(hint), get_args(hint)
    if hint is Any or isinstance(hint, TypeVar):
        return value is None or isinstance(value, Trail | OutputsTrail | LaplaceTrail)
    if kind in (Union, types.UnionType):
        return any(_fits(part, value) for part in parts)
    if kind is tuple:
        own = parts[:1] * len(value) if isinstance(value, tuple) and parts[1:] == (...,) else parts
        return isinstance(value, tuple) and len(own) == len(value) and all(map(_fits, own, value))
    if kind is not None:
        return isinstance(value, kind)
    if hint is None or hint is type(None):
        return value is None
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return isinstance(value, hint)
    if hint in (int, bool, str):
        return type(value) is hint
    if hint is float:
        return type(value) in (int, float)
    return isinstance(hint, type) and (is_dataclass(hint) or hint is Tensor) and isinstance(value, hint)


# whether the parts of a state belong together


def _require_sound(state: TrainingState, tensors: Mapping[str, Tensor]) -> None:
    """Raise unless the tensors are finite and have the shapes that learning expects."""
    for name, value in tensors.items():  # an ended search may have found no usable point
        if not name.startswith("state.at.ended") and not bool(value.isfinite().all()):
            raise _malformed(f"{name} is not finite")
    at, matrices = state.at, list[Tensor | None]()
    if isinstance(at, StochasticState):
        vectors, trail = [at.theta, *at.moments], at.trail
    else:
        ascents = [*at.ended, *(() if at.ascent is None else (at.ascent,))]
        vectors = [*at.starts, *_pairs(at.curvature)]
        for one in ascents:
            vectors += [one.point.theta, one.point.gradient, *_pairs(one.curvature)]
            vectors += [] if one.noise is None else [one.noise]
        matrices = [one.point.information for one in ascents]
        trail = None if at.ascent is None else at.ascent.point.state
    p = len(vectors[0]) if vectors else 0
    if p == 0 or any(vector.shape != (p,) or vector.dtype != torch.float64 for vector in vectors):
        raise _malformed("its hyperparameters have different numbers")
    if any(one is not None and (one.shape != (p, p) or one.dtype != torch.float64) for one in matrices):
        raise _malformed("its curvature is of other hyperparameters")
    if any(len(step.log_parameters) != p for step in state.steps):
        raise _malformed("its steps have other hyperparameters")
    if isinstance(trail, OutputsTrail):  # a trail knows the kernel and the noise of its own output
        trails, p = [one for one in trail.each if one is not None], p - len(trail.each) + 1
    else:
        trails = [] if trail is None else [trail]
    for one in trails:
        _require_sound_trail(one, p)


def _require_sound_trail(trail: Trail | LaplaceTrail, p: int) -> None:
    probes = trail.frozen if isinstance(trail, Trail) else trail.drawn
    blocks = [] if probes is None else [probes.W, probes.Z]
    if isinstance(trail, Trail):
        blocks, places = [trail.solutions, *blocks], [trail.chosen_at, trail.kept_at]
    else:
        blocks = [trail.f, *blocks, *([] if trail.solutions is None else [trail.solutions])]
        places = []
    rows = len(blocks[0])
    if any(block.ndim != 2 or len(block) != rows or block.dtype != torch.float64 for block in blocks):
        raise _malformed("its solutions have different sizes")
    if any(place is not None and place.shape != (p,) for place in places):
        raise _malformed("its preconditioner has other hyperparameters")
    pivots = trail.pivots
    if pivots is not None and (pivots.dtype != torch.int64 or bool(((pivots < 0) | (pivots >= rows)).any())):
        raise _malformed("its pivots are no rows of the data")


def _pairs(curvature: Curvature) -> list[Tensor]:
    return [part for pair in curvature.pairs for part in pair]


def _malformed(what: str) -> ModelFileError:
    return ModelFileError(what)
