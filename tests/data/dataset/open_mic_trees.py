"""Small made-up trees in the shapes that Open MIC is given out in. Every image has one colour, which tells what it is."""

from pathlib import Path

import numpy as np
from PIL import Image

EXHIBITIONS = ("shn", "hon", "clv", "clk", "gls", "scl", "sci", "nat", "shx", "rel")
DOMAINS = ("source", "target")


def colour(exhibition: int, label: int, photo: int, crop: int, domain: int = 0) -> tuple[int, int, int]:
    return 20 * exhibition + 10 * domain, 10 * label, 20 * photo + 4 * crop


def picture(file: Path, pixel: tuple[int, int, int], size: tuple[int, int] = (40, 32)) -> None:
    """A textured picture of about one colour: a bright frame around it that the centre crop takes away."""
    file.parent.mkdir(parents=True, exist_ok=True)
    image = Image.new("RGB", size, "white")
    frame = [round(side * 0.04) for side in size]
    image.paste(pixel, (frame[0], frame[1], size[0] - frame[0], size[1] - frame[1]))
    image.save(file)


def crops(root: Path, classes: int = 6, photos: int = 2, exhibitions: tuple[str, ...] = EXHIBITIONS) -> Path:
    """crops_EX/crops_{source,target}/PHOTO_crop{1,2,3}.png with a list file a domain; the last class has a single photo."""
    for place, exhibition in enumerate(exhibitions):
        for number, domain in enumerate(DOMAINS):
            lines = []
            for label in range(classes):
                for photo in range(photos if label < classes - 1 else 1):
                    for crop in (1, 2, 3):
                        name = f"crops_{exhibition}/crops_{domain}/{label:02}{photo:02}_crop{crop}.png"
                        picture(root / name, colour(place, label, photo, crop, number))
                        lines.append(f"{name} {label}")
            (root / f"crops_{exhibition}" / f"{domain}.txt").write_text("\n".join(lines) + "\n")
    return root


def hdf5(root: Path, classes: int = 3, images: int = 4, exhibitions: tuple[str, ...] = EXHIBITIONS) -> Path:
    """crops_EX.hd5 with data and label, labels from 0 in each file."""
    import h5py

    root.mkdir(parents=True, exist_ok=True)
    for place, exhibition in enumerate(exhibitions):
        pixels = [colour(place, label, image, 0) for label in range(classes) for image in range(images)]
        data = np.broadcast_to(np.array(pixels, np.uint8)[:, None, None], (len(pixels), 30, 30, 3))
        with h5py.File(root / f"crops_{exhibition}.hd5", "w") as file:
            file["data"] = data
            file["label"] = np.repeat(np.arange(classes), images)
    return root


def parts(root: Path, classes: int = 6, images: int = 4) -> Path:
    """openmic/part{1,2,3,4}/CLASS/*.png at 84×84, already cropped."""
    for part in range(4):
        for label in range(classes):
            for image in range(images):
                name = f"openmic/part{part + 1}/{label:03}/{image}.png"
                picture(root / name, colour(part, label, image, 0), (84, 84))
    return root


def museums(root: Path, classes: int = 3, images: int = 4) -> Path:
    """museum/EX/{train,test}/CLASS/*.png: train are source photos, test are target photos."""
    for place, exhibition in enumerate(EXHIBITIONS):
        for number, half in enumerate(("train", "test")):
            for label in range(classes):
                for image in range(images):
                    name = f"museum/{exhibition}/{half}/{label:03}/{image}.png"
                    picture(root / name, colour(place, label, image, 0, number))
    return root
