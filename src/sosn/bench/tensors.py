"""Measure the memory of tensors on the CPU, where PyTorch has no allocator statistics."""

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class Tensors(TorchDispatchMode):
    """Counts the bytes of new tensors that are alive at once. Temporary memory inside operators is not counted."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.most = 0
        self.known: set[int] = set()  # storages that are alive

    def __torch_dispatch__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        for one in tree_iter(result):
            if isinstance(one, Tensor):
                self._count(one)
        return result

    def _count(self, tensor: Tensor) -> None:
        memory = tensor.untyped_storage()
        place, size = memory._cdata, memory.nbytes()
        if place not in self.known:  # views share it
            self.known.add(place)
            self.now += size
            self.most = max(self.most, self.now)
            weakref.finalize(memory, self._forget, place, size)

    def _forget(self, place: int, size: int) -> None:
        self.known.discard(place)
        self.now -= size
