"""Every public class and function has an example in its docstring, and all examples run."""

import doctest
import enum
import inspect
import warnings
from dataclasses import is_dataclass

import pytest
from public_names import EXPORTED

from kernelcg.backends import Backend
from kernelcg.kernels import Kernel
from kernelcg.likelihoods import Likelihood
from kernelcg.preconditioners import Preconditioner


def is_record(value):
    """Say whether a class is something that functions return or refuse with, or describes what others implement."""
    if not inspect.isclass(value) or issubclass(value, (Kernel, Likelihood, Backend, Preconditioner)):
        return inspect.isclass(value) and inspect.isabstract(value)
    described = is_dataclass(value) or inspect.isabstract(value) or getattr(value, "_is_protocol", False)
    return described or issubclass(value, (enum.Enum, BaseException))


def examples_of(value):
    """Return the examples in the docstring of a name itself, not of its methods."""
    own = inspect.getdoc(value) if inspect.isfunction(value) or "__doc__" in vars(value) else ""
    return doctest.DocTestParser().get_examples(own or "")


@pytest.mark.parametrize("name", EXPORTED)
def test_a_public_name_has_an_example(name):
    if is_record(EXPORTED[name]):
        pytest.skip("a record, shown where it is made")
    assert examples_of(EXPORTED[name])


@pytest.mark.parametrize("name", [name for name, value in EXPORTED.items() if examples_of(value)])
def test_the_examples_of_a_name_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = dict(vars(inspect.getmodule(EXPORTED[name])))
    test = doctest.DocTest(examples_of(EXPORTED[name]), names, name, None, 0, None)
    said = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", DeprecationWarning)  # of packages that examples import
        failed = doctest.DocTestRunner(verbose=False).run(test, out=said.append).failed
    assert failed == 0, "".join(said)
