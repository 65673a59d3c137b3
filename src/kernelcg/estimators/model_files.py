"""Model files: tensors as safetensors with a JSON header, versioned, checked on reading, free of code."""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.numpy import save
from torch import Tensor

from kernelcg import kernels, likelihoods
from kernelcg.errors import ModelFileError
from kernelcg.inference.gaussian.model import GaussianProcess, Noise
from kernelcg.inference.laplace.latent_model import LatentProcess
from kernelcg.inference.outputs.model import OutputProcesses
from kernelcg.parameters import FREE, Parametric, Restriction

FORMAT = "kernelcg"
VERSION = 1
"""The newest file version that is read, and the one that is written."""

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float64, torch.float32, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool)
}

BUILT_IN: Mapping[str, type[Parametric]] = {
    f"{FORMAT}.{cls.__name__}": cls
    for cls in (
        *(getattr(kernels, name) for name in kernels.__all__),
        *(getattr(likelihoods, name) for name in likelihoods.__all__),
        *(Noise, GaussianProcess, OutputProcesses, LatentProcess),
    )
    if isinstance(cls, type) and issubclass(cls, Parametric)
}
"""The classes of the library that a file may name; all others must be passed by the caller."""


@dataclass(frozen=True, eq=False)
class Model:
    """What a model file holds: the kind of model, a header of plain JSON values, and named tensors."""

    kind: str
    header: dict[str, Any]
    tensors: dict[str, Tensor]


# files


def write(path: str | os.PathLike[str], kind: str, header: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Write a model file in one step: at every moment there is the old file or the new one, complete.

    The file is a safetensors file, with all else in its metadata: ``format``, ``version``, ``kind``, ``header``
    (JSON) and ``checksum``, a BLAKE2b digest of the others and of the tensors. It has the size of the tensors and
    a few kilobytes; about as much memory is needed to write it. A link is followed, the permissions of an old
    file are kept.

    Raises
    ------
    ValueError, TypeError : if the header is more than finite JSON values, or the tensors none, or not dense and real
    ValueError : also if the path is that of a device, a pipe or a socket
    FileNotFoundError : if the directory does not exist
    """
    target = _writable(path)
    if not tensors:
        raise ValueError("a model file needs at least one tensor: not every safetensors can read a file without")
    _require_json(header, "header")
    stored = {name: _storable(name, value) for name, value in tensors.items()}
    metadata = {"format": FORMAT, "version": str(VERSION), "kind": kind, "header": json.dumps(header)}
    metadata["checksum"] = _checksum(metadata, stored)
    _replace(target, save({name: value.numpy() for name, value in stored.items()}, metadata=metadata))


def read(path: str | os.PathLike[str]) -> Model:
    """Read a model file; nothing in it is run, and every tensor is a copy, independent of the file.

    Raises
    ------
    ModelFileError : if the file is not one of kernelcg, is damaged, or comes from a newer version
    FileNotFoundError, PermissionError : as for any file
    """
    name = os.fspath(path)
    if os.path.exists(name) and not os.path.isfile(name):
        raise ModelFileError(f"{name} is not a file; give the path of a model file")
    with open(name, "rb"):
        pass  # the usual OSError, rather than that of the parser
    try:
        metadata, tensors = _unpack(name)
    except (OSError, MemoryError, ModelFileError):
        raise
    except Exception as error:
        raise ModelFileError(f"{name} is not a model file of kernelcg, or it is damaged ({error})") from error
    if _checksum(metadata, tensors) != metadata["checksum"]:
        raise ModelFileError(f"{name} is damaged: its contents differ from what was written; restore or save it again")
    return Model(metadata["kind"], _parse(metadata["header"], name), tensors)


def replace_file(path: str | os.PathLike[str], content: bytes) -> None:
    """Write any file in one step, as `write` does: at every moment there is the old file or the new one, complete."""
    _replace(_writable(path), content)


def _writable(path: str | os.PathLike[str]) -> Path:
    """Return where a file is to be written, or raise if none can be."""
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise FileNotFoundError(f"cannot write {os.fspath(path)}: there is no directory {target.parent}; create it")
    if target.is_dir():
        raise IsADirectoryError(f"cannot write {os.fspath(path)}: it is a directory; give the name of a file")
    if os.path.lexists(target) and not target.is_file():
        raise ValueError(
            f"cannot write {os.fspath(path)}: it is a device, a pipe or a socket, which a file would replace; give "
            "the name of a file"
        )
    return target


def _replace(target: Path, content: bytes) -> None:
    """Write a file beside ``target``, push it to the disk, and put it in the place of ``target``."""
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            shutil.copymode(target, temporary)
        os.replace(temporary, target)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename in (None, os.fspath(temporary)):
            error.filename = os.fspath(target)  # a full disk names no file
        raise


def _unpack(name: str) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Return the metadata and the tensors of a file."""
    with safe_open(name, framework="pt") as file:
        metadata = file.metadata() or {}
        _require_readable(metadata, name)
        return metadata, {key: file.get_tensor(key).clone() for key in file.keys()}  # noqa: SIM118  # not a dict


def _require_readable(metadata: Mapping[str, str], name: str) -> None:
    """Raise unless the metadata are those of a model file of this version or an older one."""
    if metadata.get("format") != FORMAT:
        raise ModelFileError(f"{name} is a safetensors file, but not a model file of kernelcg")
    version = int(metadata["version"])
    if version > VERSION:
        raise ModelFileError(
            f"{name} was written by a newer kernelcg (file version {version}, this one reads up to {VERSION}); "
            "upgrade kernelcg"
        )
    missing = {"kind", "header", "checksum"} - metadata.keys()
    if missing:
        raise ModelFileError(f"{name} is damaged: its metadata lack {', '.join(sorted(missing))}")


def _storable(name: str, value: Tensor) -> Tensor:
    if not _is_plain(value):
        raise TypeError(f"tensor {name!r} must be dense with dtype {', '.join(DTYPES)}, not {value.dtype}")
    if name == "__metadata__":
        raise ValueError(f"a tensor cannot be called {name!r}: safetensors keeps that name for itself")
    return value.detach().cpu().clone(memory_format=torch.contiguous_format)


def _is_plain(value: Tensor) -> bool:
    return value.layout == torch.strided and value.dtype in DTYPES.values()


def _checksum(metadata: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    """Return a digest of the metadata and of the names, dtypes, shapes and bytes of the tensors."""
    text = {key: value for key, value in metadata.items() if key != "checksum"}
    layout = [(name, str(tensors[name].dtype), list(tensors[name].shape)) for name in sorted(tensors)]
    digest = hashlib.blake2b(json.dumps([text, layout], sort_keys=True).encode(), digest_size=32)
    for name in sorted(tensors):
        digest.update(tensors[name].reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _require_json(value: object, where: str) -> None:
    """Raise unless ``value`` comes back the same from JSON, tuples as lists apart."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"the keys of {where} must be strings, not {key!r}")
            _require_json(item, f"{where}[{key!r}]")
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            _require_json(item, f"{where}[{i}]")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{where} is {value}, which JSON cannot hold; leave it out or store it as a tensor")
    elif not (value is None or isinstance(value, str | int | float)):
        raise TypeError(f"{where} must be a JSON value, not {value!r}; convert it, or store it as a tensor")


def _parse(text: str, name: str) -> dict[str, Any]:
    try:
        header = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{name} is damaged: its header is not valid JSON ({error})") from error
    if not isinstance(header, dict):
        raise ModelFileError(f"{name} is damaged: its header is not a JSON object")
    return header


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a number")


# descriptions


def describe(record: Parametric) -> dict[str, Any]:
    """Return a kernel, or any other record with hyperparameters, as JSON values from which `rebuild` makes it again.

    Numbers keep all their bits, tensors also dtype and shape, hyperparameters their restrictions. Classes of the
    library are called ``kernelcg.RBF``, others by their bare name, so that neither can be taken for the other.

    Raises
    ------
    TypeError : if a field holds something else than numbers, strings, booleans, None, tensors, records, or tuples
        and lists of them
    """
    name = type(record).__name__
    if BUILT_IN.get(f"{FORMAT}.{name}") is type(record):
        name = f"{FORMAT}.{name}"
    own = {field.name: getattr(record, field.name) for field in fields(record) if field.init}  # type: ignore[arg-type]
    restrictions = {own_name: record._restriction(own_name) for own_name in record._own_names()}
    return {
        "class": name,
        "fields": {key: _encode(value, f"{type(record).__name__}.{key}") for key, value in own.items()},
        "restrictions": {key: _encode_restriction(value) for key, value in restrictions.items() if value != FREE},
    }


def rebuild(description: object, classes: Iterable[type[Parametric]] = ()) -> Parametric:
    """Return the record that `describe` described.

    Only constructors of known classes are called: names that begin with ``kernelcg.`` are those of `BUILT_IN`, bare
    ones are looked up in ``classes`` alone. A class of the caller that is called RBF hence neither replaces the RBF of
    the library nor is replaced by it. Fields that the description lacks take their defaults; what values a
    field may have is for the class to judge, as for every other caller of its constructor.

    Raises
    ------
    ModelFileError : if a class is unknown or the description malformed
    """
    try:
        return _record(description, {**BUILT_IN, **by_name(classes)})
    except RecursionError as error:
        raise ModelFileError("the model is malformed: its description is nested too deeply") from error


def _encode(value: object, where: str) -> Any:
    """Return ``value`` as JSON; what JSON lacks becomes an object with one telling key."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Parametric):
        return describe(value)
    if isinstance(value, Tensor) and _is_plain(value):
        numbers = [_encode(number, where) for number in value.detach().reshape(-1).tolist()]
        return {"tensor": numbers, "shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}
    if type(value) in (list, tuple):
        items = [_encode(item, where) for item in value]  # type: ignore[attr-defined]  # a list or a tuple
        return items if type(value) is list else {"tuple": items}
    if type(value) is float and not math.isfinite(value):
        return {"float": repr(value)}
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise TypeError(
        f"{where} is {value!r}, which a model file cannot hold; only numbers, strings, booleans, None, tensors, "
        "kernels, and tuples or lists of them can be saved"
    )


def _encode_restriction(restriction: Restriction) -> dict[str, Any]:
    bounds = [_encode(float(bound), "a bound") for bound in (restriction.lower, restriction.upper)]
    prior = None if restriction.median is None else [float(restriction.median), float(restriction.spread)]
    return {"fixed": bool(restriction.fixed), "bounds": bounds, "prior": prior}


def by_name(classes: Iterable[type[Parametric]]) -> dict[str, type[Parametric]]:
    """Return the classes of the caller by name."""
    found: dict[str, type[Parametric]] = {}
    for cls in classes:
        if not (isinstance(cls, type) and issubclass(cls, Parametric)):
            raise TypeError(f"kernels must be a list of classes of kernels, such as [Cauchy], but holds {cls!r}")
        if found.setdefault(cls.__name__, cls) is not cls:
            raise ValueError(f"two classes are called {cls.__name__}: {found[cls.__name__]!r} and {cls!r}; rename one")
    return found


def _record(description: object, known: Mapping[str, type[Parametric]]) -> Parametric:
    match description:
        case {"class": str(name), "fields": dict(described), "restrictions": dict(restrictions)}:
            cls = _class(name, known)
        case _:
            raise _malformed(f"{description!r:.60} is not the description of a kernel")
    values = {key: _decode(value, known) for key, value in described.items()}
    try:
        return _restricted(cls(**values), restrictions)
    except ModelFileError:
        raise
    except Exception as error:
        raise _malformed(f"{name} cannot be made from its description ({error})") from error


def _class(name: str, known: Mapping[str, type[Parametric]]) -> type[Parametric]:
    if name in known:
        return known[name]
    if name.startswith(f"{FORMAT}."):
        raise ModelFileError(f"the model uses {name}, which this version of kernelcg does not have; upgrade kernelcg")
    if not name.isidentifier():
        raise _malformed(f"{name!r:.60} is not the name of a class")
    raise ModelFileError(
        f"the model uses the kernel {name}, which is not part of kernelcg; pass its class: load(path, kernels=[{name}])"
    )


def _decode(value: object, known: Mapping[str, type[Parametric]]) -> Any:
    """Return what `_encode` was given."""
    match value:
        case {"class": _}:
            return _record(value, known)
        case {"tensor": list(numbers), "shape": list(shape), "dtype": str(dtype)} if dtype in DTYPES:
            return _tensor([_decode(number, known) for number in numbers], shape, DTYPES[dtype])
        case {"tuple": list(items)}:
            return tuple(_decode(item, known) for item in items)
        case list():
            return [_decode(item, known) for item in value]
        case {"float": "inf" | "-inf" | "nan" as number}:
            return float(number)
        case None | bool() | int() | float() | str():
            return value
    raise _malformed(f"{value!r:.60} is not a value")


def _tensor(numbers: list[Any], shape: list[Any], dtype: torch.dtype) -> Tensor:
    sound = all(type(size) is int and size >= 0 for size in shape) and math.prod(shape) == len(numbers)
    try:
        if sound and all(type(number) in (bool, int, float) for number in numbers):
            return torch.tensor(numbers, dtype=dtype).reshape(shape)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        pass
    raise _malformed(f"a tensor of shape {shape!r:.60} and {dtype} cannot hold {numbers!r:.60}")


def _restricted(record: Parametric, restrictions: Mapping[str, Any]) -> Parametric:
    """Return the record with its restrictions, checked like those that a user gives."""
    for name, described in restrictions.items():
        match described:
            case {"fixed": bool(fixed), "bounds": [lower, upper], "prior": None | [_, _] as prior}:
                pass
            case _:
                raise _malformed(f"{described!r:.60} does not restrict {name}")
        record = record.bounded(**{name: (_number(lower), _number(upper))})
        if prior is not None:
            record = record.with_prior(**{name: (_number(prior[0]), _number(prior[1]))})
        if fixed:
            record = record.fixed(name)
    return record


def _number(described: object) -> float:
    number = _decode(described, {})
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise _malformed(f"{described!r:.60} is not a number")
    return float(number)


def _malformed(what: str) -> ModelFileError:
    return ModelFileError(f"the model is malformed: {what}")
