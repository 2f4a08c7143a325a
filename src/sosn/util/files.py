"""Atomic writes, digests, JSON and files of the package."""

import hashlib
import json
import os
import tempfile
from importlib import resources
from pathlib import Path
from typing import Any

from sosn.errors import CheckpointError, SosnError


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file atomically: after a crash or on a full disk the old file is still complete."""
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
        raise SosnError(f"cannot write {str(path)!r} ({error.strerror}); the old file, if any, is unchanged") from error
    finally:
        if temporary:  # already renamed if the write succeeded
            Path(temporary).unlink(missing_ok=True)


def file_digest(path: Path) -> str:
    """Digest of a file's content, 32 hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def digest(folder: Path, pattern: str) -> str:
    """Digest of the relative names and contents of a folder's files, 16 hexadecimal digits."""
    content = hashlib.sha256()
    for path in sorted(folder.rglob(pattern)):
        content.update(f"{path.relative_to(folder).as_posix()} {path.stat().st_size}\n".encode())
        content.update(path.read_bytes())
    return content.hexdigest()[:16]


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a run folder. Raises CheckpointError if the file is damaged."""
    try:
        return dict(json.loads(path.read_text("utf-8")))
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{str(path)!r} is damaged ({error}): restore it, or start another run") from error


def resource(*parts: str) -> Path:
    """Path of a file or folder that comes with the package."""
    return Path(str(resources.files("sosn"))).joinpath(*parts)
