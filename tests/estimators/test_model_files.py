"""Model files: what is written comes back bit for bit, and whatever else a file may hold is refused in plain words."""

import json
import math
import os
import pickle
import socket
import stat
import struct
import tempfile
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import strategies
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from kernelcg.errors import ModelFileError
from kernelcg.estimators import model_files
from kernelcg.estimators.model_files import describe, read, rebuild, write
from kernelcg.inference.gaussian.model import GaussianProcess, Noise
from kernelcg.kernels import RBF, Constant, Kernel, Matern, Periodic, RationalQuadratic, Sum, squared_distances
from kernelcg.parameters import Parametric

HEADER = {"mean": "constant", "steps": [1, 2.5, None, True], "name": 'Matérn "5/2"', "nested": {"loss": 0.1 + 0.2}}


class Cauchy(Kernel):
    width: Tensor
    power: int = 1

    def covariance(self, X: Tensor, Y: Tensor) -> Tensor:
        return (1 + squared_distances(X / self.width, Y / self.width)) ** -self.power


class Mixed(Parametric):
    """A record with every kind of value that a file can hold."""

    scale: Tensor
    anything: Any = None


def tensors():
    return {"X": strategies.normal(7, 3), "alpha": strategies.normal(7, 1, seed=1)}


def assert_same_bits(a, b):
    assert a.dtype == b.dtype
    assert a.shape == b.shape
    assert a.detach().contiguous().numpy().tobytes() == b.detach().contiguous().numpy().tobytes()


def assert_same(a, b):
    """Compare two records field by field, restrictions included."""
    assert type(a) is type(b)
    assert a.restrictions() == b.restrictions()
    assert a.parameter_names() == b.parameter_names()
    for name in type(a).__dataclass_fields__:
        left, right = getattr(a, name), getattr(b, name)
        if isinstance(left, Parametric):
            assert_same(left, right)
        elif isinstance(left, Tensor):
            assert_same_bits(left, right)
        else:
            assert type(left) is type(right)
            assert repr(left) == repr(right)


def through_json(description):
    return json.loads(json.dumps(description, allow_nan=False))


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.kcg"
    write(path, "regression", HEADER, tensors())
    return path


def repack(path, metadata, content=None):
    """Write a file with the given metadata, as an adversary or another program would."""
    save_file(tensors() if content is None else content, path, metadata=metadata)


def forged(header="{}", **changes):
    """Return metadata whose checksum is right, whatever they say."""
    metadata = {"format": "kernelcg", "version": "1", "kind": "regression", "header": header, **changes}
    return {**metadata, "checksum": model_files._checksum(metadata, tensors())}


# round trips of files


def test_a_file_gives_back_what_was_written(model):
    found = read(model)
    assert found.kind == "regression"
    assert found.header == HEADER
    assert set(found.tensors) == {"X", "alpha"}
    for name, value in tensors().items():
        assert_same_bits(found.tensors[name], value)


special = [math.nan, math.inf, -math.inf, -0.0, 5e-324, 1.7976931348623157e308, np.nextafter(1.0, 2.0)]


@given(st.lists(st.floats(), max_size=20))
@example(special)
def test_floats_keep_every_bit(values):
    value = torch.tensor(values, dtype=torch.float64)
    with tempfile.TemporaryDirectory() as folder:
        write(f"{folder}/m", "k", {}, {"v": value})
        assert_same_bits(read(f"{folder}/m").tensors["v"], value)


@pytest.mark.parametrize("dtype", model_files.DTYPES.values(), ids=str)
def test_dtypes_and_odd_shapes_are_kept(tmp_path, dtype):
    base = torch.arange(24).reshape(4, 6).to(dtype)
    values = {"scalar": base[0, 1], "empty": base[:0], "none": base[:, :0], "turned": base.T, "part": base[1:, ::2]}
    values |= {"expanded": base[:1].expand(5, 6), "again": base}
    write(tmp_path / "m", "k", {}, values)
    found = read(tmp_path / "m").tensors
    assert set(found) == set(values)
    for name, value in values.items():
        assert_same_bits(found[name], value)


def test_learnable_tensors_come_back_without_history(tmp_path):
    write(tmp_path / "m", "k", {}, {"v": torch.ones(3, requires_grad=True) * 2})
    assert not read(tmp_path / "m").tensors["v"].requires_grad


def test_paths_may_be_strings_and_relative(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write("plain", "k", {}, tensors())
    assert read(Path("plain")).kind == read("plain").kind == "k"


def test_tensors_do_not_depend_on_the_file(model):
    found = read(model)
    with open(model, "r+b") as file:
        file.seek(-80, os.SEEK_END)
        file.write(b"\xff" * 80)
    assert_same_bits(found.tensors["alpha"], tensors()["alpha"])
    assert_same_bits(found.tensors["X"], tensors()["X"])


def test_the_file_is_as_large_as_its_tensors(tmp_path):
    n, d = 5000, 20
    header = {"gp": describe(GaussianProcess(RBF(torch.ones(d)), Noise(0.1)))}
    write(tmp_path / "m", "k", header, {"X": strategies.normal(n, d), "alpha": strategies.normal(n, 1)})
    assert 0 <= (tmp_path / "m").stat().st_size - 8 * n * (d + 1) < 4096


def test_another_program_can_read_the_tensors(model):
    from safetensors.numpy import load_file

    np.testing.assert_array_equal(load_file(model)["X"], tensors()["X"].numpy())


# what cannot be written


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_header_with_nan_names_the_place(tmp_path, value):
    with pytest.raises(ValueError, match=r"header\['fit'\]\['loss'\]\[1\] is -?(nan|inf).*JSON"):
        write(tmp_path / "m", "k", {"fit": {"loss": [1.0, value]}}, tensors())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("value", [{1: 2}, {"a": {2.0: 1}}, {"a": torch.ones(2)}, {"a": np.int64(1)}, {"a": {1, 2}}])
def test_a_header_that_json_would_change_is_refused(tmp_path, value):
    with pytest.raises(TypeError, match="header"):
        write(tmp_path / "m", "k", value, tensors())


@pytest.mark.parametrize("value", [torch.ones(2).to_sparse(), torch.ones(2, dtype=torch.complex64)], ids=str)
def test_sparse_and_complex_tensors_are_refused(tmp_path, value):
    with pytest.raises(TypeError, match="tensor 'v' must be dense"):
        write(tmp_path / "m", "k", {}, {"v": value})


def test_the_name_that_safetensors_reserves_is_refused(tmp_path):
    with pytest.raises(ValueError, match="__metadata__"):
        write(tmp_path / "m", "k", {}, {"__metadata__": torch.ones(1)})


def test_a_missing_directory_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no directory .*absent; create it"):
        write(tmp_path / "absent" / "m", "k", {}, {})


def test_a_directory_is_not_overwritten(tmp_path):
    with pytest.raises(IsADirectoryError, match="it is a directory"):
        write(tmp_path, "k", {}, {})


@pytest.mark.parametrize("kind", ["pipe", "socket", "device", "link to a device"])
def test_what_is_no_file_is_not_replaced(tmp_path, kind):
    path = tmp_path / "model.kcg"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(str(path))
    elif kind == "device":
        try:
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))  # as /dev/null
        except PermissionError:
            pytest.skip("only root may make devices")
    else:
        path.symlink_to(os.devnull)
    before = os.stat(path)
    with pytest.raises(ValueError, match=r"a device, a pipe or a socket.*give the name of a file"):
        write(path, "model", HEADER, tensors())
    assert (os.stat(path).st_ino, os.stat(path).st_mode) == (before.st_ino, before.st_mode)
    assert os.listdir(tmp_path) == ["model.kcg"]


def test_a_file_without_tensors_is_refused(tmp_path):
    with pytest.raises(ValueError, match="at least one tensor"):
        write(tmp_path / "m", "k", {}, {})


# writing in one step


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("failure", [OSError("disk full"), KeyboardInterrupt()], ids=["error", "interrupt"])
def test_an_interrupted_write_leaves_the_old_file_alone(model, monkeypatch, step, failure):
    def fail(*_):
        raise failure

    with monkeypatch.context() as patch:
        patch.setattr(os, step, fail)
        with pytest.raises(type(failure)):
            write(model, "other", {}, {"X": torch.zeros(2)})
    assert [entry.name for entry in model.parent.iterdir()] == [model.name]
    assert read(model).header == HEADER


def test_the_new_file_is_complete_before_it_takes_the_place(model, monkeypatch):
    seen, replace = [], os.replace

    def watch(source, target):
        seen.append((read(source).kind, read(target).kind, Path(source).parent))
        replace(source, target)

    monkeypatch.setattr(os, "replace", watch)
    write(model, "new", {}, tensors())
    assert seen == [("new", "regression", model.parent)]
    assert read(model).kind == "new"


@pytest.mark.skipif(os.name != "posix", reason="permissions and links of POSIX")
def test_permissions_and_links_are_respected(tmp_path):
    fresh, link = tmp_path / "fresh", tmp_path / "link"
    (tmp_path / "usual").touch()
    write(fresh, "old", {}, tensors())
    assert stat.S_IMODE(fresh.stat().st_mode) == stat.S_IMODE((tmp_path / "usual").stat().st_mode)
    fresh.chmod(0o600)
    link.symlink_to(fresh)
    write(link, "new", {}, tensors())
    assert link.is_symlink()
    assert read(fresh).kind == "new"
    assert stat.S_IMODE(fresh.stat().st_mode) == 0o600


# damage


def test_every_flipped_byte_is_noticed(model):
    content = bytearray(model.read_bytes())
    for place in range(len(content)):
        for mask in (1, 128) if place % 8 else (2, 4, 8, 16, 32, 64, 255):
            content[place] ^= mask
            model.write_bytes(content)
            with pytest.raises(ModelFileError):
                read(model)
            content[place] ^= mask
    model.write_bytes(content)
    assert read(model).header == HEADER


def test_every_truncation_is_noticed(model):
    content = model.read_bytes()
    for length in range(len(content)):
        model.write_bytes(content[:length])
        with pytest.raises(ModelFileError, match="damaged"):
            read(model)


def test_trailing_bytes_are_noticed(model):
    model.write_bytes(model.read_bytes() + b"\0")
    with pytest.raises(ModelFileError, match="damaged"):
        read(model)


def test_swapped_tensors_are_noticed(tmp_path):
    X, Y = strategies.normal(3, 2), strategies.normal(3, 2, seed=1)
    write(tmp_path / "m", "k", {}, {"A": X, "B": Y})
    content = (
        (tmp_path / "m").read_bytes().replace(b'"A":', b'"?":').replace(b'"B":', b'"A":').replace(b'"?":', b'"B":')
    )
    (tmp_path / "m").write_bytes(content)
    with pytest.raises(ModelFileError, match="differ from what was written"):
        read(tmp_path / "m")


@pytest.mark.parametrize(("old", "new"), [("[7,3]", "[3,7]"), ("F64", "I64")], ids=["shape", "dtype"])
def test_another_reading_of_the_same_bytes_is_noticed(model, old, new):
    content = model.read_bytes()
    assert old.encode() in content
    model.write_bytes(content.replace(old.encode(), new.encode()))
    with pytest.raises(ModelFileError, match="differ from what was written"):
        read(model)


class Bomb:
    def __reduce__(self):
        return os.abort, ()


FOREIGN = {
    "empty": b"",
    "png": b"\x89PNG\r\n\x1a\n" + bytes(range(256)),
    "text": b"kernelcg model\n" * 20,
    "zeros": bytes(1000),
    "pickle": pickle.dumps(Bomb()),
    "huge header": struct.pack("<Q", 2**63) + b"{}",
    "not utf-8": struct.pack("<Q", 4) + b"{\xff\xfe}",
    "array": struct.pack("<Q", 2) + b"[]",
}


@pytest.mark.parametrize("content", FOREIGN.values(), ids=FOREIGN)
def test_foreign_files_are_refused(tmp_path, content):
    (tmp_path / "m").write_bytes(content)
    with pytest.raises(ModelFileError, match="m is not a model file of kernelcg, or it is damaged"):
        read(tmp_path / "m")


@pytest.mark.parametrize("metadata", [None, {}, {"format": "pt"}, {"version": "1", "kind": "k", "header": "{}"}])
def test_safetensors_of_other_programs_are_refused(tmp_path, metadata):
    repack(tmp_path / "m", metadata)
    with pytest.raises(ModelFileError, match="is a safetensors file, but not a model file of kernelcg"):
        read(tmp_path / "m")


def test_a_newer_version_asks_for_an_upgrade(tmp_path):
    repack(tmp_path / "m", {"format": "kernelcg", "version": "2"})
    remedy = r"written by a newer kernelcg \(file version 2, this one reads up to 1\); upgrade"
    with pytest.raises(ModelFileError, match=remedy):
        read(tmp_path / "m")


@pytest.mark.parametrize("version", ["", "one", "1.0", "9" * 5000])
def test_a_strange_version_is_refused(tmp_path, version):
    repack(tmp_path / "m", forged(version=version))
    with pytest.raises(ModelFileError, match="damaged"):
        read(tmp_path / "m")


@pytest.mark.parametrize("key", ["version", "kind", "header", "checksum"])
def test_missing_metadata_are_noticed(tmp_path, key):
    metadata = forged()
    del metadata[key]
    repack(tmp_path / "m", metadata)
    with pytest.raises(ModelFileError, match=f"damaged.*{key}"):
        read(tmp_path / "m")


@pytest.mark.parametrize("header", ["", "{", "{'a': 1}", '{"a": NaN}', '{"a": -Infinity}', "[" * 100_000, "[]", "1"])
def test_an_invalid_header_is_refused_even_with_the_right_checksum(tmp_path, header):
    repack(tmp_path / "m", forged(header))
    with pytest.raises(ModelFileError, match=r"damaged: its header is not (valid JSON|a JSON object)"):
        read(tmp_path / "m")


def test_forged_metadata_are_read_where_they_are_sound(tmp_path):
    repack(tmp_path / "m", forged('{"a": 1}'))
    assert read(tmp_path / "m").header == {"a": 1}


def test_an_absent_file_is_an_absent_file(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        read(tmp_path / "absent")
    assert not isinstance(caught.value, ModelFileError)


def test_a_directory_is_not_a_model(tmp_path):
    with pytest.raises(ModelFileError, match="is not a file"):
        read(tmp_path)


# descriptions


@given(st.integers(1, 4).flatmap(strategies.kernels))
def test_kernels_come_back(kernel):
    rebuilt = rebuild(through_json(describe(kernel)))
    assert_same(rebuilt, kernel)
    assert repr(rebuilt) == repr(kernel)


@given(st.integers(1, 3).flatmap(strategies.kernels), strategies.positive, st.data())
def test_restrictions_come_back(kernel, noise, data):
    gp = GaussianProcess(data.draw(restricted(kernel)), data.draw(restricted(Noise(noise))))
    assert_same(rebuild(through_json(describe(gp))), gp)


def restricted(record):
    """Draw the record with restrictions on some of its hyperparameters, and on those of its parts."""

    @st.composite
    def draw_one(draw):
        changed = record
        for name, value in record._parts():
            if isinstance(value, Parametric):
                changed = changed._with(**{name: draw(restricted(value))})
                continue
            if draw(st.booleans()):
                changed = changed.bounded(**{name: draw(st.sampled_from([(0.1, 10), (0, 2.5), (0.3, math.inf)]))})
            if draw(st.booleans()):
                changed = changed.with_prior(**{name: (draw(strategies.positive), draw(strategies.positive))})
            if draw(st.booleans()):
                changed = changed.fixed(name)
        return changed

    return draw_one()


def test_restrictions_survive_a_file(tmp_path):
    kernel = RBF([1.0, 2.0]).bounded(lengthscale=(0.1, math.inf)).fixed("variance") + 2.0 * Periodic(1.0, 3.0).fixed()
    write(tmp_path / "m", "k", {"kernel": describe(kernel)}, tensors())
    assert_same(rebuild(read(tmp_path / "m").header["kernel"]), kernel)


def test_one_number_and_a_vector_of_one_differ():
    assert rebuild(through_json(describe(RBF(0.1)))).lengthscale.ndim == 0
    assert rebuild(through_json(describe(RBF([0.1])))).lengthscale.shape == (1,)


@given(st.floats(min_value=5e-324, allow_infinity=False))
def test_hyperparameters_keep_every_bit(value):
    assert_same_bits(
        rebuild(through_json(describe(Constant(value)))).variance, torch.tensor(value, dtype=torch.float64)
    )


VALUES = [
    *(None, True, 3, 2**80, -0.5, math.inf, -math.inf, math.nan, "é", "", (), (1, (2.5, None)), [1, "a", [2]]),
    *(RBF(1.0).fixed(), torch.ones(2, 3), torch.zeros(0, 2, dtype=torch.int64), torch.tensor([math.nan, -math.inf])),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_fixed_fields_of_every_kind_come_back(value):
    record = Mixed(2.0, value)
    assert_same(rebuild(through_json(describe(record)), [Mixed]), record)


@pytest.mark.parametrize(("value", "plain"), [(np.float64(1.5), 1.5), (np.int32(2), 2), (np.bool_(True), True)])
def test_numpy_numbers_become_plain_ones(value, plain):
    found = rebuild(through_json(describe(Mixed(1.0, value))), [Mixed]).anything
    assert found == plain
    assert type(found) is type(plain)


@pytest.mark.parametrize(
    "value", [{"a": 1}, {1, 2}, print, Bomb(), np.ones(2), torch.float64, RBF, torch.ones(2).to_sparse()], ids=type
)
def test_what_cannot_be_described_is_named(value):
    with pytest.raises(TypeError, match=r"(?s)Mixed\.anything is .* which a model file cannot hold"):
        describe(Mixed(1.0, value))


def test_fields_that_a_class_computes_are_computed_again():
    class Computed(Parametric):
        scale: Tensor
        double: float = field(init=False, default=0.0)

        def __post_init__(self) -> None:
            super().__post_init__()
            object.__setattr__(self, "double", 2 * float(self.scale))

    assert_same(rebuild(describe(Computed(3.0)), [Computed]), Computed(3.0))


def test_a_kernel_that_is_being_learned_can_be_described():
    kernel = RBF(1.0).with_log_parameters(torch.zeros(2, dtype=torch.float64, requires_grad=True))
    assert not rebuild(describe(kernel)).lengthscale.requires_grad


# classes of the caller


def test_a_kernel_of_the_caller_comes_back_if_its_class_is_passed():
    kernel = RBF(1.0) + 2.0 * Cauchy([1.0, 2.0], power=2).bounded(width=(0.5, 8))
    assert_same(rebuild(through_json(describe(kernel)), [Cauchy]), kernel)


def test_a_kernel_of_the_caller_is_asked_for():
    remedy = r"uses the kernel Cauchy, which is not part of kernelcg; pass its class: load\(path, kernels=\[Cauchy\]\)"
    with pytest.raises(ModelFileError, match=remedy):
        rebuild(describe(RBF(1.0) + Cauchy(1.0)))


def test_neither_of_two_kernels_of_one_name_is_taken_for_the_other():
    own = type("RBF", (Cauchy,), {"__module__": "elsewhere"})
    kernel = RBF(1.0) + own(2.0)
    rebuilt = rebuild(through_json(describe(kernel)), [own])
    assert type(rebuilt.left) is RBF
    assert type(rebuilt.right) is own
    with pytest.raises(ModelFileError, match="uses the kernel RBF, which is not part of kernelcg"):
        rebuild(describe(own(2.0)))


def test_two_passed_classes_of_one_name_are_refused():
    with pytest.raises(ValueError, match="two classes are called Cauchy"):
        rebuild(describe(RBF(1.0)), [Cauchy, type("Cauchy", (Cauchy,), {})])
    assert_same(rebuild(describe(Cauchy(1.0)), [Cauchy, Cauchy, RBF]), Cauchy(1.0))


@pytest.mark.parametrize("wrong", [int, Cauchy(1.0), "Cauchy"], ids=repr)
def test_what_is_passed_must_be_classes_of_kernels(wrong):
    with pytest.raises(TypeError, match="must be a list of classes"):
        rebuild(describe(RBF(1.0)), [wrong])


# malformed descriptions


@pytest.mark.parametrize("name", ["os.system", "builtins.eval", "kernels.RBF", "", "RBF()", "__import__('os')", "a b"])
def test_code_is_not_a_class(name):
    with pytest.raises(ModelFileError, match="is not the name of a class"):
        rebuild({"class": name, "fields": {"command": "exit 1"}, "restrictions": {}})


@pytest.mark.parametrize("name", ["eval", "Tensor", "Parametric", "print", "Model", "__class__"])
def test_names_in_scope_are_not_classes(name):
    with pytest.raises(ModelFileError, match="not part of kernelcg"):
        rebuild({"class": name, "fields": {}, "restrictions": {}})


@pytest.mark.parametrize("name", ["kernelcg.distances", "kernelcg.Parametric", "kernelcg.errors.ModelFileError"])
def test_the_library_is_no_loophole(name):
    with pytest.raises(ModelFileError, match="does not have; upgrade"):
        rebuild({"class": name, "fields": {}, "restrictions": {}})


ONE = {"tensor": [1.0], "shape": [], "dtype": "float64"}


def rbf(**changes):
    return {"class": "kernelcg.RBF", "fields": {"lengthscale": ONE}, "restrictions": {}, **changes}


def matern(**changed):
    return rbf(**{"class": "kernelcg.Matern", "fields": {"lengthscale": ONE, **changed}})


def limited(name="lengthscale", **changes):
    return rbf(restrictions={name: {"fixed": False, "bounds": [0.0, {"float": "inf"}], "prior": None, **changes}})


def deep(depth):
    nested = rbf()
    for _ in range(depth):
        nested = {"class": "kernelcg.Sum", "fields": {"left": nested, "right": rbf()}, "restrictions": {}}
    return nested


MALFORMED = {
    "none": None,
    "list": [],
    "number": 1.0,
    "empty": {},
    "no fields": {"class": "kernelcg.RBF", "restrictions": {}},
    "fields of a list": rbf(fields=[1.0]),
    "class of a number": rbf(**{"class": 1}),
    "abstract class": rbf(**{"class": "kernelcg.Stationary"}),
    "missing field": rbf(fields={}),
    "unknown field": rbf(fields={"lengthscale": ONE, "colour": "red"}),
    "self": rbf(fields={"lengthscale": ONE, "self": 1}),
    "text for a number": rbf(fields={"lengthscale": "long"}),
    "kernel for a number": rbf(fields={"lengthscale": rbf()}),
    "number for a kernel": {"class": "kernelcg.Sum", "fields": {"left": rbf(), "right": 1.0}, "restrictions": {}},
    "negative": rbf(fields={"lengthscale": {**ONE, "tensor": [-1.0]}}),
    "infinite": rbf(fields={"lengthscale": {**ONE, "tensor": [{"float": "inf"}]}}),
    "overflow": rbf(fields={"lengthscale": {**ONE, "tensor": [10**400]}}),
    "too few": rbf(fields={"lengthscale": {**ONE, "shape": [3]}}),
    "too many": rbf(fields={"lengthscale": {**ONE, "shape": [10**15]}}),
    "negative shape": rbf(fields={"lengthscale": {**ONE, "shape": [-1]}}),
    "text in a shape": rbf(fields={"lengthscale": {**ONE, "shape": ["1"]}}),
    "text in a tensor": rbf(fields={"lengthscale": {**ONE, "tensor": ["1"]}}),
    "kernel in a tensor": rbf(fields={"lengthscale": {**ONE, "tensor": [rbf()]}}),
    "unknown dtype": rbf(fields={"lengthscale": {**ONE, "dtype": "quint8"}}),
    "unknown tag": rbf(fields={"lengthscale": {"eval": "1"}}),
    "text for a float": rbf(fields={"lengthscale": {"float": "one"}}),
    "wrong smoothness": matern(nu=7.0),
    "text for the smoothness": matern(nu="1.5"),
    "restriction of nothing": limited("colour"),
    "restriction of a fixed field": {**matern(), "restrictions": limited("nu")["restrictions"]},
    "restriction by a number": rbf(restrictions={"lengthscale": 1}),
    "restriction by nothing": rbf(restrictions={"lengthscale": {}}),
    "one bound": limited(bounds=[1.0]),
    "decreasing bounds": limited(bounds=[2.0, 1.0]),
    "bounds of text": limited(bounds=["0", "1"]),
    "bounds of truth": limited(bounds=[False, True]),
    "nan bound": limited(bounds=[0.0, {"float": "nan"}]),
    "negative prior": limited(prior=[-1.0, 1.0]),
    "prior of nothing": limited(prior=[None, 1.0]),
    "half a prior": limited(prior=[1.0]),
    "fixed by a number": limited(fixed=1),
    "inside a sum": {"class": "kernelcg.Sum", "fields": {"left": rbf(), "right": matern(nu=2)}, "restrictions": {}},
    "too deep": deep(5000),
}


@pytest.mark.parametrize("description", MALFORMED.values(), ids=MALFORMED)
def test_malformed_descriptions_are_refused_in_words(description):
    with pytest.raises(ModelFileError, match="the model is malformed"):
        rebuild(description)


def test_the_malformed_descriptions_would_be_sound_otherwise():
    for sound in (rbf(), matern(), matern(nu=2.5), limited(), limited(prior=[1.0, 2.0], fixed=True), deep(20)):
        assert isinstance(rebuild(sound), Kernel)


def test_a_class_of_the_caller_that_fails_is_reported():
    class Fragile(Kernel):
        width: Tensor
        degree: Any = 1

        def __post_init__(self) -> None:
            super().__post_init__()
            self.degree.bit_length()

        def covariance(self, X: Tensor, Y: Tensor) -> Tensor:
            return X @ Y.T

    description = describe(Fragile(1.0))
    assert_same(rebuild(description, [Fragile]), Fragile(1.0))
    description["fields"]["degree"] = None
    with pytest.raises(ModelFileError, match="Fragile cannot be made from its description"):
        rebuild(description, [Fragile])


def test_fields_that_are_younger_than_the_file_take_their_defaults():
    assert rebuild(rbf(fields={"lengthscale": ONE})).variance == 1.0


def test_every_kernel_of_the_library_can_be_named():
    for kernel in (RBF(1.0), Matern(1.0), RationalQuadratic(1.0), Periodic(1.0, 1.0), Sum(RBF(1.0), Constant(1.0))):
        assert describe(kernel)["class"] == f"kernelcg.{type(kernel).__name__}"
