"""Search a gallery for many files, for `sosn gallery query`."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sosn.classify.gallery import SHORTLIST, Gallery, Match
from sosn.classify.support import IMAGES, encode_images


@dataclass(frozen=True)
class Found:
    """A file with its matches, best first, or with the error that prevented them. No matches and no error: none of these."""

    image: str
    matches: Sequence[Match] = ()
    error: str | None = None

    def to_json(self) -> dict[str, Any]:
        if self.error:
            return {"image": self.image, "error": self.error}
        return {"image": self.image, "matches": [asdict(match) for match in self.matches]}


def search_files(
    gallery: Gallery,
    files: Sequence[Path],
    top: int = 5,
    reject: float | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Found]:
    """Search a gallery for files. A file that cannot be read gets an error instead of matches."""
    gallery.check_query(top, SHORTLIST, reject)
    reader = gallery.new_reader()
    results: list[Found] = []
    for first in range(0, len(files), IMAGES):
        part = [str(file) for file in files[first : first + IMAGES]]
        read = reader.try_read(part)
        matches: dict[int, list[Match]] = {}
        if read.places:
            features = encode_images(gallery.method, read.images)
            matches = dict(zip(read.places, gallery.search_features(features, top, SHORTLIST, reject), strict=True))
        for place, file in enumerate(part):
            results.append(Found(file, error=str(read.errors[place])) if place in read.errors else Found(file, matches[place]))
        if progress:
            progress(len(results), len(files))
    reader.warn()
    return results
