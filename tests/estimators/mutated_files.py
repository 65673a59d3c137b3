"""Model files with something changed and the checksum recomputed: load must refuse them or give a model that works.

A file with other numbers is another model, which may be as sound as the first; what must not happen is a model that
loads and then predicts NaN, fails with an error of its inside, or cannot be printed. ``python mutated_files.py`` tries
thousands of changes with a seed of the clock, which it prints; the tests try a few with fixed seeds.
"""

import argparse
import copy
import json
import random
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import torch

import kernelcg
from kernelcg import GPClassifier, GPGeneralizedRegressor, GPRegressor, KernelRidge
from kernelcg.errors import MemoryBudgetExceeded, ModelFileError, SolveFailed
from kernelcg.estimators import model_files
from kernelcg.kernels import RBF, Constant, Linear, Matern

NEW = np.random.default_rng(1).normal(size=(7, 2))

VALUES = [None, True, "x", "inf", "nan", -1, 0, 3, 2.5, -0.5, 1e-320, 1e300, 10**30, [], {}, [1], {"float": "nan"}]
NUMBERS = [float("nan"), float("inf"), -1.0, 0.0, 1e308, -1e-300, 1e200]


def saved_models(folder):
    """Return the paths of small saved models of every kind."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(12, 2))
    y, labels = np.sin(X[:, 0]) + 0.1 * rng.normal(size=12), (X[:, 0] > 0).astype(int)
    as_given = {"optimizer": None, "method": "iterative"}
    three = labels + (X[:, 1] > 0.3)
    models = {
        "regressor": GPRegressor(max_iter=3).fit(X, y),
        "regressor_iterative": GPRegressor(RBF(1.0), method="iterative", optimizer=None, mean="linear").fit(X, y),
        "regressor_outputs": GPRegressor(RBF([1.0, 2.0]) + Linear(1.0), optimizer=None).fit(X, np.c_[y, X], y**2),
        "ridge": KernelRidge(0.1, kernel="rbf").fit(X, np.c_[y, -y], sample_weight=1 + labels),
        "classifier": GPClassifier(Matern([1.0, 1.0]), optimizer=None).fit(X, np.where(labels, "yes", "no")),
        "classifier_softmax": GPClassifier(RBF(1.0), optimizer=None).fit(X, three),
        "classifier_split": GPClassifier(RBF(1.0), likelihood="logit", optimizer=None).fit(X, three),
        "counts": GPGeneralizedRegressor(RBF(1.0) * Constant(1.0), max_iter=2).fit(X, labels, exposure=2.0),
        "student": GPGeneralizedRegressor(RBF(1.0), likelihood="student_t", **as_given).fit(X, y),
    }
    for name, model in models.items():
        model.save(Path(folder) / f"{name}.kcg")
    return {name: Path(folder) / f"{name}.kcg" for name in models}


# changes


def leaves(value, place=()):
    """Yield the places of all values in a header that are no containers, and of the containers."""
    yield place
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, (*place, key))
    elif isinstance(value, list):
        for key, item in enumerate(value):
            yield from leaves(item, (*place, key))


def changed_header(header, rng):
    header = copy.deepcopy(header)
    *way, last = rng.choice([place for place in leaves(header) if place])
    at = header
    for key in way:
        at = at[key]
    kind = rng.choice(["value", "value", "value", "number", "delete", "double", "other"])
    old = at[last]
    if kind == "delete":
        del at[last]
    elif kind == "double" and isinstance(old, list | str):
        at[last] = old + old
    elif kind == "number" and isinstance(old, int | float):
        at[last] = rng.choice([-old, old + 1, old * 1000, old / 2])
    elif kind == "other" and isinstance(old, str):
        words = sorted({value for value in map(str, words_of(header)) if value != old})
        at[last] = rng.choice(words)
    else:
        at[last] = copy.deepcopy(rng.choice(VALUES))
    new = at.get(last, "nothing") if isinstance(at, dict) else at
    return header, f"{'/'.join(map(str, (*way, last)))}: {old!r:.40} -> {new!r:.60}"


def words_of(value):
    """Return all words in a header."""
    if isinstance(value, dict):
        return [word for item in value.values() for word in words_of(item)]
    if isinstance(value, list):
        return [word for item in value for word in words_of(item)]
    return [value] if isinstance(value, str) else []


def changed_tensors(tensors, rng):
    tensors = {name: value.clone() for name, value in tensors.items()}
    name = rng.choice(sorted(tensors))
    value = tensors[name]
    kind = rng.choice(["entry", "entry", "entry", "dtype", "shape", "delete", "swap", "empty", "all"])
    if kind == "entry" and value.numel() and value.dtype.is_floating_point:
        number = rng.choice(NUMBERS)
        value.view(-1)[rng.randrange(value.numel())] = number
        kind = f"an entry is {number}"
    elif kind == "all" and value.dtype.is_floating_point:
        number = rng.choice(NUMBERS)
        value.fill_(number)
        kind = f"every entry is {number}"
    elif kind == "dtype":
        dtypes = [torch.float32, torch.int64, torch.bool, torch.float16]
        tensors[name] = value.nan_to_num(0, 0, 0).to(rng.choice(dtypes))
        kind = str(tensors[name].dtype)
    elif kind == "shape":
        turned = value.T if value.ndim == 2 else value[None]
        shapes = [value[:-1], torch.cat([value, value]), value[None], value.reshape(-1), turned] if value.ndim else []
        tensors[name] = rng.choice(shapes or [value[None]]).contiguous()
        kind = f"shape {tuple(value.shape)} -> {tuple(tensors[name].shape)}"
    elif kind == "delete" and len(tensors) > 1:
        del tensors[name]
    elif kind == "swap":
        other = rng.choice(sorted(tensors))
        tensors[name], tensors[other] = tensors[other], value
        kind = f"swapped with {other}"
    elif kind == "empty":
        tensors[name] = value.reshape(-1)[:0]
    return tensors, f"{name}: {kind}"


def changed(model, rng):
    """Return header and tensors with one thing changed, and what that is."""
    if rng.random() < 0.5:
        header, what = changed_header(model.header, rng)
        return header, model.tensors, what
    tensors, what = changed_tensors(model.tensors, rng)
    return model.header, tensors, what


# judgement


def fault_of(path):
    """Return what is wrong with the model that a file gives, or None: it is refused in words, or it works."""
    try:
        model = kernelcg.load(path)
    except ModelFileError as error:
        return None if len(str(error)) > 20 else "refused without a reason"
    except Exception as error:
        return f"load: {error!r:.200}"
    try:
        answers = list(answers_of(model))
    except (MemoryBudgetExceeded, SolveFailed):
        return None  # in words that name the remedy
    except Exception as error:
        return f"{type(error).__name__} after loading: {str(error)[:200]}"
    for name, answer in answers:
        values = np.asarray(answer)
        if len(values) != len(NEW):
            return f"{name} has shape {values.shape}"
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            return f"{name} is not finite"
        if name in ("std", "probabilities") and not (values >= 0).all():
            return f"{name} is negative"
    return None


def answers_of(model):
    """Yield what users ask a model for, by name."""
    yield "mean", model.predict(NEW)
    if isinstance(model, GPRegressor):
        yield "std", model.predict(NEW, return_std=True)[1]
    elif isinstance(model, GPGeneralizedRegressor):
        latent, std = model.latent(NEW, return_std=True)
        yield "latent mean", latent
        yield "std", std
    elif isinstance(model, GPClassifier):
        yield "probabilities", model.predict_proba(NEW)
    plans = [model.plan_, model.certificate_, model.report_, model.learning_, model]
    assert all(str(one) for one in plans)
    assert model.plan_.explain()


def try_changes(originals, seed, count, folder):
    """Return (model, seed of the change, what was changed, what went wrong) of those that are at fault."""
    faults = []
    for number in range(seed, seed + count):
        rng = random.Random(number)
        name = rng.choice(sorted(originals))
        header, tensors, what = changed(originals[name], rng)
        path = Path(folder) / "changed.kcg"
        try:
            json.dumps(header)
            model_files.write(path, originals[name].kind, header, tensors)
        except (TypeError, ValueError):
            continue  # what cannot be written cannot be read
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fault = fault_of(path)
        if fault:
            faults.append((name, number, what, fault))
    return faults


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**9)
    parser.add_argument("--count", type=int, default=5000)
    options = parser.parse_args()
    print(f"seed {options.seed}, {options.count} changes")
    with tempfile.TemporaryDirectory() as folder:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            originals = {name: model_files.read(path) for name, path in saved_models(folder).items()}
        faults = try_changes(originals, options.seed, options.count, folder)
    for fault in faults:
        print(*fault, sep=" | ")
    print(f"{len(faults)} faults")
    raise SystemExit(bool(faults))


if __name__ == "__main__":
    main()
