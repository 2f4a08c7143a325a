"""Watches what Triton kernels do with memory, in Triton's interpreter."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

Addresses = np.ndarray[Any, np.dtype[np.int64]]
Key = tuple[int, tuple[int, ...], tuple[int, ...]]
GAP = 2**14  # bytes between two tensors, and before the first
NOBODY, MANY = -1, -2  # programs that are none


class StrayError(AssertionError):
    """A kernel touched memory that it was not given, or that another of its programs uses."""


def unwatchable() -> str:
    """Why kernels cannot be watched here; "" where they can be."""
    import triton
    from triton.runtime import interpreter

    if not triton.knobs.runtime.interpret:
        return "kernels are compiled here: TRITON_INTERPRET is not set"
    expected = {
        ("GridExecutor", "_init_args_hst"): ["self", "args_dev", "kwargs"],
        ("GridExecutor", "_restore_args_dev"): ["self", "args_dev", "args_hst", "kwargs", "kwargs_hst"],
        ("InterpreterBuilder", "create_masked_load"): ["self", "ptrs", "mask"],
        ("InterpreterBuilder", "create_masked_store"): ["self", "ptrs", "value", "mask"],
        ("InterpreterBuilder", "set_grid_idx"): ["self", "x", "y", "z"],
    }
    for (owner, name), arguments in expected.items():
        method = getattr(getattr(interpreter, owner, None), name, None)
        if method is None or list(inspect.signature(method).parameters)[: len(arguments)] != arguments:
            return f"the interpreter of Triton {triton.__version__} has no {owner}.{name}({', '.join(arguments)}, …)"
    return ""


@contextmanager
def watched() -> Iterator[set[str]]:
    """Inside, kernels raise a StrayError (within Triton's InterpreterError); the set has those that ran, as module.name.

    Every tensor of a launch is moved to a place of its own, with nothing around it. A kernel may touch elements of its tensors
    alone; and, as programs run in any order, none that another program of the launch writes. Atomic operations go unseen.
    """
    from triton.runtime.interpreter import GridExecutor, InterpreterBuilder

    originals = {
        (owner, name): getattr(owner, name)
        for owner, name in (
            (GridExecutor, "_init_args_hst"), (GridExecutor, "_restore_args_dev"),
            (InterpreterBuilder, "create_masked_load"), (InterpreterBuilder, "create_masked_store"),
        )
    }  # fmt: skip
    load, store = (originals[InterpreterBuilder, f"create_masked_{name}"] for name in ("load", "store"))
    seen: set[str] = set()
    launch: list[_Launch] = []

    def arguments(self: Any, args: Any, kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        seen.add(f"{self.fn.__module__}.{self.fn.__name__}")
        launch[:] = [_Launch(self.fn.__name__, dict(zip(self.arg_names, args, strict=False)) | kwargs)]
        given = [launch[0].moved(arg) for arg in args]
        return given, {name: launch[0].moved(arg) for name, arg in kwargs.items()}

    def restore(self: Any, args: Any, moved: Any, kwargs: dict[str, Any], moved_kwargs: dict[str, Any]) -> None:
        for one, other in [*zip(args, moved, strict=True), *((kwargs[name], moved_kwargs[name]) for name in kwargs)]:
            if isinstance(one, Tensor):
                one.data.copy_(other)  # as Triton does, without telling autograd

    def watched_load(self: Any, ptrs: Any, mask: Any, *others: Any) -> Any:
        launch[0].read(*_touched(ptrs, mask), self.grid_idx)
        return load(self, ptrs, mask, *others)

    def watched_store(self: Any, ptrs: Any, value: Any, mask: Any, *others: Any) -> Any:
        launch[0].write(*_touched(ptrs, mask), self.grid_idx)
        return store(self, ptrs, value, mask, *others)

    for place, replacement in zip(originals, (arguments, restore, watched_load, watched_store), strict=True):
        setattr(*place, replacement)
    try:
        yield seen
    finally:
        for place, original in originals.items():
            setattr(*place, original)


def _touched(pointers: Any, mask: Any) -> tuple[Addresses, int]:
    """Addresses where the mask is true, and how many bytes are touched at each."""
    where = np.broadcast_to(mask.data.astype(bool), pointers.data.shape)
    return pointers.data[where].astype(np.int64), max(8, pointers.get_element_ty().primitive_bitwidth) // 8


class _Launch:
    """The tensors of one launch in memory of their own, and which program wrote and read each byte."""

    def __init__(self, kernel: str, arguments: dict[str, Any]) -> None:
        self._kernel = kernel
        self._places: dict[Key, int] = {}
        tensors: dict[Key, tuple[str, Tensor]] = {}
        for name, argument in arguments.items():
            if isinstance(argument, Tensor):
                tensors.setdefault(_key(argument), (name, argument))  # one that is given twice stays one
        size = GAP
        for key, (_, tensor) in tensors.items():
            self._places[key] = size
            size += -(-_extent(tensor) * tensor.element_size() // GAP) * GAP + GAP
        self._memory = torch.empty(size, dtype=torch.uint8)
        self._names = [name for name, _ in tensors.values()]
        self._owner = np.full(size, NOBODY, np.int16)  # number of the tensor that has the byte
        self._writer, self._reader = np.full(size, NOBODY, np.int64), np.full(size, NOBODY, np.int64)
        for number, (_, tensor) in enumerate(tensors.values()):
            self.moved(tensor).copy_(tensor.detach())
            elements = torch.arange(_extent(tensor)).as_strided(tensor.shape, tensor.stride()).reshape(-1, 1)
            each = elements * tensor.element_size() + torch.arange(tensor.element_size())
            self._owner[self._places[_key(tensor)] + each.numpy()] = number

    def moved(self, argument: Any) -> Any:
        """The same tensor in the memory that is watched; anything else as it is."""
        if not isinstance(argument, Tensor):
            return argument
        start = self._places[_key(argument)]
        flat = self._memory[start : start + _extent(argument) * argument.element_size()].view(argument.dtype)
        return flat.as_strided(argument.shape, argument.stride())

    def read(self, addresses: Addresses, size: int, program: tuple[int, int, int]) -> None:
        number, at = _number(program), self._at("reads", addresses, size)
        if np.isin(self._writer[at], (NOBODY, number), invert=True).any():
            raise StrayError(f"{self._kernel} reads what another program writes, in {self._name(at)}")
        self._reader[at] = np.where(np.isin(self._reader[at], (NOBODY, number)), number, MANY)

    def write(self, addresses: Addresses, size: int, program: tuple[int, int, int]) -> None:
        number, at = _number(program), self._at("writes", addresses, size)
        for users, verb in ((self._writer[at], "writes"), (self._reader[at], "reads")):
            if np.isin(users, (NOBODY, number), invert=True).any():
                raise StrayError(f"{self._kernel} writes what another program {verb}, in {self._name(at)}")
        self._writer[at] = number

    def _at(self, verb: str, addresses: Addresses, size: int) -> Addresses:
        """Where in the memory the addresses lie; a StrayError if any lies in no tensor."""
        at = addresses - self._memory.data_ptr()
        stray = (at < 0) | (at + size > len(self._owner))
        known = np.where(stray, 0, at)
        stray |= (self._owner[known] == NOBODY) | (self._owner[known] != self._owner[known + size - 1])
        if stray.any():
            first = at[stray][0]
            starts = zip(self._names, self._places.values(), strict=True)
            near = [f"{first - start} bytes from the start of {name}" for name, start in starts if start - GAP <= first]
            where = f", {near[-1]}" if near else ""
            raise StrayError(f"{self._kernel} {verb} {stray.sum()} of {at.size} numbers outside of its tensors{where}")
        return at

    def _name(self, at: Addresses) -> str:
        return ", ".join(sorted({self._names[number] for number in self._owner[at]}))


def _key(tensor: Tensor) -> Key:
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride()


def _extent(tensor: Tensor) -> int:
    """Elements from the first to the last in memory."""
    return 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True)) if tensor.numel() else 0


def _number(program: tuple[int, int, int]) -> int:
    x, y, z = program
    return (x * 2**20 + y) * 2**20 + z
