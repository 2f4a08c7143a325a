"""Files that are whole or not there, and what tells them apart."""

import hashlib
import json
import os
import tempfile
from importlib import resources
from pathlib import Path
from typing import Any

from sosn.errors import CheckpointError, SosnError


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that a crash or a full disk leaves the old one whole."""
    temporary = ""
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except OSError as error:
        raise SosnError(f"cannot write {str(path)!r} ({error.strerror}); what stood there before is untouched") from error
    finally:
        if temporary:  # gone already where all went well
            Path(temporary).unlink(missing_ok=True)


def file_digest(path: Path) -> str:
    """Thirty-two hexadecimal digits that tell what a file holds."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def digest(folder: Path, pattern: str) -> str:
    """Sixteen hexadecimal digits that tell what the files of a folder hold, by their names from there on."""
    told = hashlib.sha256()
    for path in sorted(folder.rglob(pattern)):
        told.update(f"{path.relative_to(folder).as_posix()} {path.stat().st_size}\n".encode())
        told.update(path.read_bytes())
    return told.hexdigest()[:16]


def read_json(path: Path) -> dict[str, Any]:
    """What a file of a run folder says."""
    try:
        return dict(json.loads(path.read_text("utf-8")))
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{str(path)!r} is damaged ({error}): put it back, or start another run") from error


def resource(*parts: str) -> Path:
    """A file or folder that comes with the package."""
    return Path(str(resources.files("sosn"))).joinpath(*parts)
