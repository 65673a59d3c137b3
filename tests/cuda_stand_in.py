"""A CUDA device that is the CPU in disguise: what would fail, or wait for the device, on a GPU is found without one.

Within ``with CudaStandIn() as device`` torch has one CUDA device. Its tensors, `OnDevice`, hold tensors of the CPU and

- say ``device == cuda:0`` and ``is_cuda``, as does all that is computed from them, in autograd and in any thread;
- raise the error of CUDA where tensors of both sides meet in an operation that CUDA does not allow to mix them;
- refuse NumPy and what CUDA has no code for (products of whole numbers, generators of the CPU);
- refuse what CUDA adds up in another order each time: running sums, additions to the same row, sparse products;
- count each read by the host in ``device.reads``: truth values, numbers, copies, sizes that depend on data, and
  factorisations that look at a code, with the line of the library that asked.

What it cannot show: speed, other rounding, the order of sums, and kernels of Triton, which are interpreted below it.
"""

import contextlib
import sys
import threading
from types import SimpleNamespace
from typing import ClassVar

import torch

DEVICE = torch.device("cuda", 0)
CPU = torch.device("cpu")

BINARY = {
    *("add", "sub", "rsub", "mul", "div", "true_divide", "floor_divide", "remainder", "fmod", "pow", "maximum"),
    *("minimum", "fmax", "fmin", "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor"),
    *("bitwise_and", "bitwise_or", "bitwise_xor", "atan2", "hypot", "copysign", "xlogy", "logaddexp", "nextafter"),
    *("where", "fill", "masked_fill", "ldexp"),
}
"""Operations that take a number on the CPU, a tensor without dimensions, beside tensors of the device."""

LEARNED = BINARY | {f"{sign}{name}" for name in BINARY | {"truediv"} for sign in ("r", "i", "")}
"""The same as operators of Python are called."""

INDEXING = {"index", "index_put", "_index_put_impl", "_unsafe_index", "_unsafe_index_put"}
"""Operations whose indices may be on the CPU: CUDA copies them."""

COPYING = {"copy", "_to_copy"}

WAITING = {
    *("_local_scalar_dense", "nonzero", "masked_select", "equal", "_linalg_svd", "_linalg_eigh", "_linalg_eigvals"),
    *("_unique2", "unique_dim", "unique_consecutive", "_linalg_check_errors", "linalg_eig", "linalg_lstsq", "bincount"),
}
"""Operations that wait for the device."""

INTEGER_PRODUCTS = {"mm", "bmm", "addmm", "baddbmm", "dot", "mv", "addmv"}

UNORDERED = {"cumsum", "cumprod", "logcumsumexp", "histc", "scatter_add", "put", "kthvalue", "median"}
"""Operations on floats that CUDA does in another order each time, as torch says of `use_deterministic_algorithms`."""

RANDOM = {"normal_", "uniform_", "bernoulli_", "random_", "exponential_", "cauchy_", "log_normal_", "geometric_"}

FACTORIES = (
    *("zeros", "ones", "empty", "full", "arange", "linspace", "logspace", "eye", "tensor", "as_tensor", "asarray"),
    *("rand", "randn", "randint", "randperm", "tril_indices", "triu_indices", "zeros_like", "ones_like", "empty_like"),
    *("full_like", "rand_like", "randn_like", "randint_like", "empty_strided", "scalar_tensor"),
)
NEW = ("new_zeros", "new_ones", "new_empty", "new_full", "new_tensor", "new_empty_strided")

MIXED = "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"

ITS_OWN = ("cuda_stand_in.py", "reads.py")


class OnDevice(torch.Tensor):
    """A tensor of the device that stands in for CUDA. ``held`` is the tensor of the CPU."""

    @staticmethod
    def __new__(cls, held):
        is_sparse = held.layout != torch.strided
        return torch.Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=None if is_sparse else held.stride(),
            storage_offset=None if is_sparse else held.storage_offset(),
            dtype=held.dtype,
            device=CPU,  # autograd has streams for true CUDA devices only
            requires_grad=False,
        )

    def __init__(self, held):
        self.held = held

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        """Send learned numbers to the device before autograd sees them: it takes their slopes back, as CUDA's does."""
        with torch._C.DisableTorchFunctionSubclass():
            if getattr(function, "__name__", "").strip("_") in LEARNED:
                args = tuple(on_device(value) if _is_learned(value) else value for value in args)
            return function(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return _computed(function, args, kwargs or {})

    device = property(lambda self: DEVICE)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)
    layout = property(lambda self: self.held.layout)

    def __repr__(self):
        return f"OnDevice({self.held!r})"

    def get_device(self):
        return 0

    def data_ptr(self):
        return self.held.data_ptr()

    def untyped_storage(self):
        return self.held.untyped_storage()

    def crow_indices(self):
        return OnDevice(self.held.crow_indices())

    def col_indices(self):
        return OnDevice(self.held.col_indices())

    def values(self):
        return OnDevice(self.held.values())

    def numpy(self, *, force=False):
        if not force:
            raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.")
        return self.detach().cpu().numpy()

    def __array__(self, *_, **__):
        return self.numpy()

    def tolist(self):
        return self.detach().cpu().tolist()

    def cpu(self, **_):
        return _Fetched.apply(self)

    def __reduce_ex__(self, protocol):
        raise TypeError("a tensor of the device is pickled as a tensor of the CPU is not: move it first")


def _is_learned(value):
    return type(value) is torch.Tensor and value.dim() == 0 and value.requires_grad


def _new(name):
    original = getattr(torch.Tensor, name)

    def made(self, *args, **kwargs):
        device = torch.device(kwargs.pop("device", None) or DEVICE)
        made = original(self.held, *_host(args), **_host(kwargs))
        return OnDevice(made) if device.type == "cuda" else made

    return made


for _name in NEW:
    setattr(OnDevice, _name, _new(_name))


class _Fetched(torch.autograd.Function):
    """A copy on the CPU, which the host waits for."""

    generate_vmap_rule = True

    @staticmethod
    def forward(tensor):
        _counted("copy to the host")
        return tensor.held.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return on_device(gradient)


class _Sent(torch.autograd.Function):
    """A copy on the device."""

    generate_vmap_rule = True

    @staticmethod
    def forward(tensor):
        return OnDevice(tensor.detach().clone())

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return gradient.cpu()


def _mapped(change, tree):
    """Return the same with changed tensors."""
    if isinstance(tree, torch.Tensor):
        return change(tree)
    if isinstance(tree, dict):
        return {name: _mapped(change, value) for name, value in tree.items()}
    return type(tree)([_mapped(change, value) for value in tree]) if type(tree) in (tuple, list) else tree


def _host(tree):
    """Return the same with tensors of the CPU."""
    return _mapped(lambda tensor: tensor.held if isinstance(tensor, OnDevice) else tensor, tree)


def _computed(function, args, kwargs):
    name, leaves = function.overloadpacket.__name__, []
    _mapped(leaves.append, args)
    _mapped(leaves.append, kwargs)
    _refuse(name, args, kwargs, leaves)
    if name in WAITING or (name.rstrip("_") in INDEXING and _has_mask(args[1])) or _repeats(name, args, kwargs):
        _counted(name)
    if kwargs.get("device") is not None:
        kwargs = {**kwargs, "device": CPU}
    outer = {id(leaf.held): leaf for leaf in leaves if isinstance(leaf, OnDevice)}
    if name.rstrip("_") in COPYING and not isinstance(args[0], OnDevice):  # host.copy_(device)
        _counted("copy to the host")
        return function(*_host(args), **_host(kwargs))
    results = function(*_host(args), **_host(kwargs))
    return _mapped(lambda found: outer[id(found)] if id(found) in outer else OnDevice(found), results)


def _refuse(name, args, kwargs, leaves):
    """Raise what CUDA raises."""
    plain, kind = [leaf for leaf in leaves if not isinstance(leaf, OnDevice)], name.rstrip("_")
    if kind in INDEXING:
        if not isinstance(args[0], OnDevice):
            raise RuntimeError("indices should be either on cpu or on the same device as the indexed tensor (cpu)")
        plain = [leaf for leaf in args[2:] if isinstance(leaf, torch.Tensor) and not isinstance(leaf, OnDevice)]
        plain = [leaf for leaf in plain if leaf.dim()]
    elif kind in BINARY:
        changed = name.endswith("_") and not isinstance(args[0], OnDevice)
        plain = plain if changed else [leaf for leaf in plain if leaf.dim()]
    elif kind in COPYING:
        plain = []
    if plain:
        raise RuntimeError(f"{MIXED} ({name} of tensors {[tuple(leaf.shape) for leaf in plain]} on the CPU)")
    if kind in INTEGER_PRODUCTS and not leaves[0].is_floating_point():
        raise RuntimeError(f'"{name}_cuda" not implemented for {leaves[0].dtype}')
    if _has_no_order(kind, args, kwargs):
        raise RuntimeError(f"{name} on CUDA does not add up in the same order each time")
    generator = kwargs.get("generator")
    if generator is not None and generator.device.type == "cpu":
        raise RuntimeError(f"Expected a 'cuda' device type for generator but found 'cpu' ({name})")


def _has_no_order(kind, args, kwargs):
    """Say whether CUDA does an operation in another order each time, so that the last digits are others."""
    if kind in UNORDERED:
        has_one_result = kind == "median" and len(args) == 1
        return args[0].is_floating_point() and not has_one_result
    if kind == "bincount":
        return any(isinstance(one, torch.Tensor) for one in (*args[1:], kwargs.get("weights")))
    if kind in ("index_add", "index_copy", "scatter_reduce"):
        index, counts = args[2].held.reshape(-1), kind != "scatter_reduce" or args[4] not in ("amax", "amin")
        return counts and len(index.unique()) < len(index)
    is_product = kind in ("mm", "addmm", "mv", "addmv", "bmm", "baddbmm", "_sparse_mm", "matmul")
    return is_product and any(isinstance(one, OnDevice) and one.layout != torch.strided for one in args)


def _has_mask(indices):
    return any(isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8) for index in indices)


def _repeats(name, args, kwargs):
    return name == "repeat_interleave" and kwargs.get("output_size") is None


class _Reads:
    """The counts of all stand-ins that are in use, shared by all threads."""

    lock = threading.Lock()
    listening: ClassVar[list[list[tuple[str, str]]]] = []


def _counted(name):
    """Note a read and the innermost line of the library, or else of a test, that asked for it."""
    if not _Reads.listening:
        return
    frame, asked = sys._getframe(1), "torch"
    while frame is not None:
        file = frame.f_code.co_filename
        if ("kernelcg" in file or "tests" in file) and not file.endswith(ITS_OWN) and "site-packages/torch" not in file:
            asked = f"{file.rpartition('kernelcg/')[2]}:{frame.f_lineno} {frame.f_code.co_name}"
            break
        frame = frame.f_back
    with _Reads.lock:
        for reads in _Reads.listening:
            reads.append((asked, name))


class counting:
    """``with counting() as reads: ...`` lists the reads by the host in between, each with the line that asked."""

    def __enter__(self):
        self.reads = []
        _Reads.listening.append(self.reads)
        return self.reads

    def __exit__(self, *failure):
        _Reads.listening[:] = [reads for reads in _Reads.listening if reads is not self.reads]


# torch as it is with a GPU


def on_device(tensor):
    """Return a copy of a tensor of the CPU on the device."""
    return tensor if isinstance(tensor, OnDevice) else _Sent.apply(tensor)


def _is_cuda(device):
    return device is not None and torch.device(device).type == "cuda"


def _to(original):
    """Return ``Tensor.to`` for both kinds of tensors."""

    def to(self, *args, **kwargs):
        found, rest = kwargs.pop("device", None), []
        for argument in args:
            if isinstance(argument, torch.Tensor):
                found, kwargs["dtype"] = argument.device, argument.dtype
            elif isinstance(argument, (str, torch.device)) or (type(argument) is int and not rest):
                found = argument
            elif isinstance(argument, torch.dtype):
                kwargs["dtype"] = argument
            elif argument is not None:
                rest.append(argument)
        result = self
        if found is not None and _is_cuda(found) != isinstance(self, OnDevice):
            result = on_device(self) if _is_cuda(found) else self.cpu()
        return original(result, *rest, **kwargs) if kwargs.get("dtype") or rest or kwargs.get("copy") else result

    return to


def _factory(original):
    def made(*args, **kwargs):
        device = kwargs.get("device")
        given = args[0] if args and isinstance(args[0], torch.Tensor) else None
        there = _is_cuda(device) if device is not None else isinstance(given, OnDevice)
        if not there and not isinstance(given, OnDevice):
            return original(*args, **kwargs)
        kwargs.pop("device", None)
        if there and kwargs.get("generator") is not None:
            raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")
        if original.__name__ in ("as_tensor", "asarray", "tensor"):
            if given is None:  # numbers
                return on_device(original(*args, **kwargs))
            return given.to(DEVICE if there else CPU, **kwargs)
        asks_grad = kwargs.pop("requires_grad", False)
        if "out" in kwargs:
            original(*_host(args), **_host(kwargs))
            return kwargs["out"]
        made = original(*_host(args), **_host(kwargs))
        return (OnDevice(made) if there else made).requires_grad_(asks_grad)

    made.__name__ = getattr(original, "__name__", "factory")
    return made


def _csr(original):
    def made(*args, **kwargs):
        on_it = [isinstance(leaf, OnDevice) for leaf in args[:3]]
        if any(on_it) and not all(on_it):
            raise RuntimeError(MIXED)
        made = original(*_host(args), **kwargs)
        return OnDevice(made) if all(on_it) else made

    return made


CUDA = {
    "is_available": lambda: True,
    "is_initialized": lambda: True,
    "device_count": lambda: 1,
    "current_device": lambda: 0,
    "get_device_name": lambda device=None: "CPU standing in for CUDA",
    "get_device_capability": lambda device=None: (9, 0),
    "get_device_properties": lambda device=None: SimpleNamespace(
        name="CPU standing in for CUDA", total_memory=2**34, major=9, minor=0, multi_processor_count=2
    ),
    "mem_get_info": lambda device=None: (2**33, 2**34),
    "synchronize": lambda device=None: None,
    "empty_cache": lambda: None,
    "memory_allocated": lambda device=None: 0,
    "max_memory_allocated": lambda device=None: 0,
    "reset_peak_memory_stats": lambda device=None: None,
    "device_of": lambda tensor: contextlib.nullcontext(),
    "device": lambda device: contextlib.nullcontext(),
}


def _launched(original):
    """Return what runs a kernel of Triton in its interpreter, on the tensors that those of the device hold."""

    def run(executor, *args, **kwargs):
        return original(executor, *_host(args), **_host(kwargs))

    return run


class CudaStandIn:
    """``with CudaStandIn() as device: ...`` gives torch a CUDA device; ``device.reads`` are its reads, (line, what)."""

    def __enter__(self):
        self._undo = [(torch.cuda, name, getattr(torch.cuda, name)) for name in CUDA]
        self._undo += [(torch, name, getattr(torch, name)) for name in (*FACTORIES, "sparse_csr_tensor")]
        self._undo += [(torch.Tensor, name, getattr(torch.Tensor, name)) for name in ("to", "cuda")]
        with contextlib.suppress(ImportError):  # without Triton no kernel is launched
            from triton.runtime.interpreter import GridExecutor

            self._undo.append((GridExecutor, "__call__", GridExecutor.__call__))
            GridExecutor.__call__ = _launched(GridExecutor.__call__)
        for name, value in CUDA.items():
            setattr(torch.cuda, name, value)
        for name in FACTORIES:
            setattr(torch, name, _factory(getattr(torch, name)))
        torch.sparse_csr_tensor = _csr(torch.sparse_csr_tensor)
        torch.Tensor.to = _to(torch.Tensor.to)
        torch.Tensor.cuda = lambda self, *_, **__: on_device(self)
        self._counting = counting()
        self.reads = self._counting.__enter__()
        return self

    def __exit__(self, *failure):
        self._counting.__exit__()
        for owner, name, value in reversed(self._undo):
            setattr(owner, name, value)
