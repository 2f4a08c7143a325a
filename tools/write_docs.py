"""Write measured figures to README.md and docs/: python tools/write_docs.py

Every figure is between <!-- name --> and <!-- /name -->. It comes from results/ or from the card of a shipped model.
"""

from collections.abc import Callable

from pages import (
    ablations,
    claims,
    data,
    methods,
    mini_imagenet,
    omniglot,
    photos,
    readme,
    reproduction,
    speed,
    test_classes,
    what_was_tried,
)
from pages.text import ROOT, fill

PAGES: dict[str, Callable[[], dict[str, str]]] = {
    "README.md": readme.figures,
    "docs/data.md": data.figures,
    "docs/methods.md": methods.figures,
    "docs/photos.md": photos.figures,
    "docs/speed.md": speed.figures,
    "docs/reproduction.md": reproduction.figures,
    "docs/reproduction/ablations.md": ablations.figures,
    "docs/reproduction/claims.md": claims.figures,
    "docs/reproduction/mini-imagenet.md": mini_imagenet.figures,
    "docs/reproduction/omniglot.md": omniglot.figures,
    "docs/reproduction/test-classes.md": test_classes.figures,
    "docs/reproduction/what-was-tried.md": what_was_tried.figures,
}


def written(page: str) -> str:
    """Return a page with the current figures."""
    return fill((ROOT / page).read_text("utf-8"), PAGES[page]())


if __name__ == "__main__":
    for page in PAGES:
        (ROOT / page).write_text(written(page), "utf-8")
