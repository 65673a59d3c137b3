"""Count on the CPU what would make a program wait for a GPU: every copy of results to the host."""

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from kernelcg import dense

COPIES = {"numpy", "tolist", "cpu", "__array__"}
"""Methods of a tensor that copy it to the host."""

WAITING = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "_linalg_svd", "_linalg_eigh"}
"""Operations that do: numbers and truth values, sizes that depend on data, and factorisations that look at a code."""


def has_mask(arguments):
    indices = [index for argument in arguments if isinstance(argument, (list, tuple)) for index in argument]
    return any(isinstance(index, torch.Tensor) and index.dtype == torch.bool for index in indices)


class _Copies(TorchFunctionMode):
    def __init__(self, names):
        super().__init__()
        self.names = names

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if getattr(function, "__name__", "") in COPIES:
            self.names.append(function.__name__)
        return function(*args, **(kwargs or {}))


class _Operations(TorchDispatchMode):
    def __init__(self, names):
        super().__init__()
        self.names = names

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        checks = name == "_linalg_check_errors"
        if name in WAITING or checks or (name.startswith("index") and has_mask(args)):
            self.names.append(name)
        return function(*args, **(kwargs or {}))


class Reads:
    """``with Reads() as reads: ...`` lists the names of the operations that waited in ``reads.names``.

    Decompositions of NumPy arrays, which are on the host, wait for no device.
    """

    def __init__(self):
        self.names = []
        self.modes = (_Copies(self.names), _Operations(self.names))
        self.of_host = dense._of_host

    def _without_counting(self, decompose, A):
        before = len(self.names)
        parts = self.of_host(decompose, A)
        del self.names[before:]
        return parts

    def __enter__(self):
        dense._of_host = self._without_counting
        for mode in self.modes:
            mode.__enter__()
        return self

    def __exit__(self, *failure):
        for mode in reversed(self.modes):
            mode.__exit__(*failure)
        dense._of_host = self.of_host

    def __len__(self):
        return len(self.names)
