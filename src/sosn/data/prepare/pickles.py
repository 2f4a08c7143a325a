"""Pickles of arrays read without executing anything in them."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from sosn.errors import DataError


def _latin1(text: str, encoding: str = "latin1") -> bytes:
    """Bytes as Python 3 writes them for Python 2. Any other codec is refused."""
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"codec {encoding!r}")
    return text.encode("latin1")


_NUMPY: dict[tuple[str, str], Any] = {  # as numpy itself names them when it writes; their modules have moved
    ("multiarray", "_reconstruct"): np.zeros(1).__reduce__()[0],
    ("multiarray", "scalar"): np.float64(0).__reduce__()[0],
    ("numeric", "_frombuffer"): np.zeros(1).__reduce_ex__(5)[0],
}
_ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _latin1,
    **{(f"numpy.{core}.{module}", name): made for core in ("core", "_core") for (module, name), made in _NUMPY.items()},
    **{(home, kind.__name__): kind for home in ("builtins", "__builtin__") for kind in (bytes, bytearray, set, list, dict)},
}


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ADMITTED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, and only arrays and plain containers are read")
        return _ADMITTED[module, name]


def read_pickle(path: Path) -> Any:
    """What a pickle of arrays and plain containers holds; keys of its outer dictionary that are bytes become text.

    Nothing in the file is executed: a file that names any other function or class is refused, with the name.
    """
    try:
        with path.open("rb") as file:
            content = _ArrayUnpickler(file, encoding="latin1").load()
    except OSError:
        raise
    except Exception as error:  # a damaged pickle can fail in any way
        raise DataError(f"{str(path)!r} is not read as a pickle of images ({error})") from error
    return {_text(key): value for key, value in content.items()} if isinstance(content, dict) else content


def _text(key: Any) -> Any:
    return key.decode("latin1") if isinstance(key, bytes) else key
