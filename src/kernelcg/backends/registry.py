"""Which backends there are, and which one suits best."""

from dataclasses import dataclass
from functools import cache

from kernelcg.arguments import matrix
from kernelcg.backends.base import Backend, KernelMatrix
from kernelcg.backends.native import Native
from kernelcg.errors import warn_user
from kernelcg.kernels import Kernel
from kernelcg.subclasses import concrete_subclasses


@dataclass(frozen=True)
class Availability:
    """Whether a backend can be used here, and why not or what it is.

    Attributes
    ----------
    usable : whether it can be used on this machine
    reason : why not, or what it is
    """

    usable: bool
    reason: str


def classes() -> dict[str, type[Backend]]:
    """Return every backend that has been imported, by name."""
    return concrete_subclasses(Backend)  # type: ignore[type-abstract]


def available() -> dict[str, Availability]:
    """Return every backend by name, with whether it can be used on this machine and the reason or a description.

    Examples
    --------
    >>> from kernelcg import backends
    >>> backends.available()["tiles"].usable
    True
    """
    return {
        name: Availability(reason is None, cls.description() if reason is None else reason)
        for name, cls in classes().items()
        for reason in [cls.why_not()]
    }


def named(name: str, memory: int | str | None = None, threads: int | None = None) -> Backend:
    """Return the backend of this name; `ValueError` for a name nobody has, `RuntimeError` if it cannot be used here.

    Parameters
    ----------
    name : as in `available`
    memory : bytes, or words such as "2GB", that an operation may allocate; None means half of what the machine has
    threads : None means as many as torch uses

    Examples
    --------
    >>> from kernelcg import backends
    >>> backends.named("tiles").name()
    'tiles'
    """
    found = classes()
    if name not in found:
        raise ValueError(f"there is no backend {name!r}; choose one of {', '.join(found)}")
    return found[name](memory, threads)


def default(memory: int | str | None = None, threads: int | None = None, device: str = "cpu") -> Backend:
    """Return the backend that suits data on this type of device best, of those that can be used here.

    Without the compiled module the first call for data on the CPU says so, once in a process.

    Parameters
    ----------
    memory : bytes, or words such as "2GB", that an operation may allocate; None means half of what the machine has
    threads : None means as many as torch uses
    device : "cpu" or "cuda"

    Examples
    --------
    >>> from kernelcg import backends
    >>> backends.default("1GB").budget()
    1000000000
    """
    ranked = [(cls.preference(device), cls) for cls in classes().values()]
    suitable = [(preference, cls) for preference, cls in ranked if preference is not None and cls.why_not() is None]
    reason = Native.why_not()
    if device == "cpu" and reason is not None:
        _warn_once(reason)
    return max(suitable, key=lambda pair: pair[0])[1](memory, threads)


@cache
def _warn_once(reason: str) -> None:
    """Warn of the missing compiled module: the filters of `warnings` forget what was shown whenever they change."""
    what = f"{reason}. Until then torch computes the products with kernel matrices, several times slower."
    warn_user(f"kernelcg: {what}", RuntimeWarning)


def passed_over(chosen: Backend, device: str) -> tuple[str, ...]:
    """Return the backends that suit data on this type of device better than the chosen one, and why not.

    Parameters
    ----------
    chosen : the backend that is used
    device : "cpu" or "cuda"

    Examples
    --------
    >>> from kernelcg import backends
    >>> backends.passed_over(backends.default(), "cpu")  # nothing suits these data better than the default
    ()
    """
    own = type(chosen).preference(device)
    better = {
        name: cls.why_not()
        for name, cls in classes().items()
        for preference in [cls.preference(device)]
        if preference is not None and (own is None or preference > own)
    }
    return tuple(f"{name} cannot be used: {reason}" for name, reason in better.items() if reason is not None)


def bind(kernel: Kernel, X: object, backend: Backend | None = None) -> KernelMatrix:
    """Return K(X, X) for data in any form, by default on the best backend for where they are.

    Parameters
    ----------
    kernel : the formula
    X : (n, d) tensor, array or nested lists
    backend : where products run; None means the best one for the device of X

    Examples
    --------
    >>> from kernelcg import backends
    >>> from kernelcg.kernels import RBF
    >>> K = backends.bind(RBF(1.0), [[0.0], [1.0], [2.0]])
    >>> K.block().shape
    torch.Size([3, 3])
    """
    data = matrix(X, "X")  # type: ignore[arg-type]  # whatever it is, it is converted or refused
    chosen = default(device=data.device.type) if backend is None else backend
    if not isinstance(chosen, Backend):
        raise TypeError(f"backend must be one of kernelcg.backends, not {backend!r}")
    return chosen.bind(kernel, data)
