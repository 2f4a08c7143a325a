"""Did you mean …?"""

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str]) -> str:
    """A clause that offers the known word nearest to a misspelt one, or nothing."""
    matches = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" (did you mean {matches[0]!r}?)" if matches else ""
