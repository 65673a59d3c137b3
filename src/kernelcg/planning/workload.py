"""What a plan is made from: the work in numbers, what the user asks for, and where the work is done."""

from dataclasses import dataclass, replace
from typing import Self

import torch

from kernelcg.backends import Backend, passed_over
from kernelcg.backends.base import COPIES
from kernelcg.backends.memory import total_memory
from kernelcg.planning.costs import Pricing
from kernelcg.planning.plan import Family, Method, Precision, budget_where_data_are
from kernelcg.planning.workers import Workers


@dataclass(frozen=True)
class Workload:
    """What is to be fitted, in numbers.

    Attributes
    ----------
    columns : right-hand sides: outputs and drift functions
    values : latent values a row
    parameters : hyperparameters that are learned; 0 if none is
    in_stages : whether learning begins with a part of the rows
    exact_only : whether the criterion can only be computed by factorisation, on as many rows as that allows
    needs_inverse : whether exact evaluations need A⁻¹, and cannot take their traces from random columns
    systems : matrices A that are worked with one after the other and kept: outputs with noise of their own
    noise : variance of the noise relative to that of the process, where a part of the rows has shown it
    """

    rows: int
    features: int
    columns: int = 1
    values: int = 1
    family: Family = Family.GAUSSIAN
    parameters: int = 10
    in_stages: bool = True
    exact_only: bool = False
    needs_inverse: bool = False
    systems: int = 1
    noise: float | None = None


@dataclass(frozen=True)
class Resources:
    """Where the work is done: a backend by name, its threads, budgets in bytes, what things cost, what is missing."""

    backend: str
    device: str
    threads: int | None
    memory: int
    device_memory: int | None
    pricing: Pricing = Pricing()
    workers: Workers | None = None
    """The workers that compute the products; None where this process does."""
    copies: int = COPIES
    """Copies of X in the memory of this process."""
    passed_over: tuple[str, ...] = ()
    """Backends that would suit the device better, and why they cannot be used."""

    @classmethod
    def of(cls, backend: Backend, device: torch.device, pricing: Pricing) -> Self:
        """Return what a backend may use for data on this device: no more than the machine or container has."""
        on_device = None if device.type == "cpu" else backend.room(device)
        return cls(
            backend.name(),
            device.type,
            backend.threads,
            min(backend.budget(), total_memory()),
            on_device,
            pricing,
            Workers.of(backend),
            backend.copies,
            passed_over(backend, device.type),
        )

    def within(self, memory: int) -> Self:
        """Return the same resources with so many bytes where the data are."""
        return replace(self, memory=memory) if self.device_memory is None else replace(self, device_memory=memory)

    @property
    def budget(self) -> int:
        """Return the bytes that may be allocated where the data are."""
        return budget_where_data_are(self.memory, self.device_memory)


@dataclass(frozen=True)
class Options:
    """What a user may ask for."""

    method: Method = Method.AUTO
    precision: Precision = Precision.AUTO
    preconditioner: str = "auto"
    probes: int = 8
    seed: int = 0
