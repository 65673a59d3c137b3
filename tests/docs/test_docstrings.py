"""Docstrings of public names say what every parameter, field and answer is."""

import ast
import enum
import inspect
import re
import textwrap
from itertools import pairwise

import pytest
from public_names import EXPORTED

from kernelcg import GPClassifier, GPGeneralizedRegressor, GPRegressor, KernelRidge

HEADING = re.compile(r"^(\w+)\n-{3,}$", re.MULTILINE)
ENTRY = re.compile(r"^(\*{0,2}\w[\w, *]*?) : ", re.MULTILINE)
ANSWERS = ("Return", "Draw", "Say", "Give")
"""First words of docstrings that say in their first sentence what is returned."""

FUNCTIONS = {name: value for name, value in EXPORTED.items() if inspect.isfunction(value)}
CLASSES = {
    name: value
    for name, value in EXPORTED.items()
    if inspect.isclass(value)
    and not issubclass(value, (enum.Enum, BaseException))
    and not getattr(value, "_is_protocol", False)
}
METHODS = {
    f"{estimator.__name__}.{name}": value
    for estimator in (GPRegressor, GPClassifier, GPGeneralizedRegressor, KernelRidge)
    for name, value in inspect.getmembers(estimator, inspect.isfunction)
    if not name.startswith("_") and value.__module__.startswith("kernelcg")
}


def sections(docstring):
    """Return the sections of a docstring by name; what comes before the first one is under ""."""
    parts = HEADING.split(inspect.cleandoc(docstring or ""))
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def described(docstring):
    """Return the names that the sections about parameters and attributes describe."""
    found = sections(docstring)
    entries = ENTRY.findall(found.get("Parameters", "") + found.get("Attributes", ""))
    return {name.strip(" *") for entry in entries for name in entry.split(",")}


def fields_with_a_docstring(cls):
    """Return the fields of a class that have a docstring of their own below them."""
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0].body
    return {
        field.target.id
        for field, below in pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
    }


def parameters(function):
    return {name for name in inspect.signature(function).parameters if name not in ("self", "cls")}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_describes_its_parameters_and_its_answer(name):
    function = FUNCTIONS[name]
    assert parameters(function) - described(function.__doc__) == set()
    returns = inspect.signature(function).return_annotation
    if returns not in (None, "None"):
        assert "Returns" in sections(function.__doc__) or function.__doc__.startswith(ANSWERS)


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_describes_its_parameters(name):
    own = [base for base in CLASSES[name].__mro__ if base.__module__.startswith("kernelcg")]
    known = set().union(*(described(base.__doc__) | fields_with_a_docstring(base) for base in own))
    assert parameters(CLASSES[name]) - known == set()


@pytest.mark.parametrize("name", METHODS)
def test_a_method_of_an_estimator_describes_its_parameters(name):
    said = inspect.getdoc(METHODS[name])
    named = described(said) | set(re.findall(r"``(\w+)", said)) | {"X", "y"}
    assert parameters(METHODS[name]) - named == set()
