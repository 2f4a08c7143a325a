"""Write figures into README.md and the pages on data, rivals, speed, photos and beyond, from files that commands wrote."""

from pages import beyond, data, front, photos, rivals, speed
from pages.common import ROOT

PAGES = {
    "README.md": front.fill,
    "docs/beyond.md": beyond.fill,
    "docs/data.md": data.fill,
    "docs/photos.md": photos.fill,
    "docs/rivals.md": rivals.fill,
    "docs/speed.md": speed.fill,
}

if __name__ == "__main__":
    for page, fill in PAGES.items():
        (ROOT / page).write_text(fill((ROOT / page).read_text("utf-8")), "utf-8")
