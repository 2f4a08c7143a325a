"""Suggestions for misspelt names."""

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str]) -> str:
    """Return " (did you mean …?)" with the closest known word, or an empty string."""
    matches = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" (did you mean {matches[0]!r}?)" if matches else ""
