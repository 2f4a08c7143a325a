"""Read pickles of arrays without executing code in them."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from sosn.errors import DataError


def _latin1(text: str, encoding: str = "latin1") -> bytes:
    """Encode bytes that Python 3 wrote for Python 2. Refuses other codecs."""
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"codec {encoding!r}")
    return text.encode("latin1")


_NUMPY: dict[tuple[str, str], Any] = {  # the names that numpy writes; their modules differ between versions
    ("multiarray", "_reconstruct"): np.zeros(1).__reduce__()[0],
    ("multiarray", "scalar"): np.float64(0).__reduce__()[0],
    ("numeric", "_frombuffer"): np.zeros(1).__reduce_ex__(5)[0],
}
_ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _latin1,
    **{(f"numpy.{core}.{module}", name): made for core in ("core", "_core") for (module, name), made in _NUMPY.items()},
    **{(home, made.__name__): made for home in ("builtins", "__builtin__") for made in (bytes, bytearray, set, list, dict)},
}


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ADMITTED:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}, and only arrays and plain containers are allowed")
        return _ADMITTED[module, name]


def read_pickle(path: Path) -> Any:
    """Read a pickle of arrays and plain containers. Keys of the outer dictionary become text if they are bytes.

    Nothing in the file is executed. Refuses a file that refers to any other function or class.
    """
    try:
        with path.open("rb") as file:
            content = _ArrayUnpickler(file, encoding="latin1").load()
    except OSError:
        raise
    except Exception as error:  # a damaged pickle can fail in any way
        raise DataError(f"{str(path)!r} cannot be read as a pickle of images ({error})") from error
    return {_text(key): value for key, value in content.items()} if isinstance(content, dict) else content


def _text(key: Any) -> Any:
    return key.decode("latin1") if isinstance(key, bytes) else key
