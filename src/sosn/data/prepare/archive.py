"""Unpack zip and tar archives safely."""

import tarfile
import zipfile
from pathlib import Path, PurePosixPath

from sosn.errors import DataError

ENDINGS = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")


def is_archive(path: Path) -> bool:
    return path.name.lower().endswith(ENDINGS) and path.is_file()


def unpack(archive: Path, folder: Path) -> None:
    """Unpack an archive into a folder. Refuses members and links that lead outside the folder, and devices."""
    try:
        if archive.name.lower().endswith(".zip"):
            with zipfile.ZipFile(archive) as opened:
                for name in opened.namelist():
                    parts = PurePosixPath(name.replace("\\", "/"))
                    if parts.is_absolute() or ".." in parts.parts or ":" in name:
                        raise DataError(
                            f"archive {str(archive)!r} contains {name!r}, which would be written outside its folder"
                        )
                opened.extractall(folder)
        else:
            with tarfile.open(archive) as opened:
                opened.extractall(folder, filter="data")
    except tarfile.FilterError as error:
        raise DataError(
            f"archive {str(archive)!r} contains a member that would be written outside its folder ({error})"
        ) from error
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError) as error:
        raise DataError(f"archive {str(archive)!r} cannot be unpacked ({error})") from error
