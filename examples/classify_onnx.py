"""Classify images with ONNX Runtime and NumPy alone (Pillow opens the files); neither sosn nor PyTorch is needed.

    sosn export glyphs exported
    python examples/classify_onnx.py exported SUPPORT IMAGE...

SUPPORT is a folder that holds a folder of images for each class.
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

if len(sys.argv) < 4:
    sys.exit(__doc__)
folder, support, *files = map(Path, sys.argv[1:])
about = json.loads((folder / "model.json").read_text("utf-8"))
describe = onnxruntime.InferenceSession(folder / "describe.onnx", providers=["CPUExecutionProvider"])
similarity = onnxruntime.InferenceSession(folder / "similarity.onnx", providers=["CPUExecutionProvider"])


def read(file: Path) -> np.ndarray:
    """An image as floats in 0…1, C×H×W: upright, transparency on white."""
    image = ImageOps.exif_transpose(Image.open(file)).convert("RGBA")
    image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    side = about["input_size"]
    image = image.convert("L" if about["channels"] == 1 else "RGB").resize((side, side), Image.Resampling.BILINEAR)
    return np.asarray(image, np.float32).reshape(side, side, -1).transpose(2, 0, 1) / 255


classes = sorted(path for path in support.iterdir() if path.is_dir())
described = []
for own in classes:  # classes may have different numbers of images: one after the other
    known = Image.registered_extensions()
    shots = np.stack([read(file) for file in sorted(own.iterdir()) if file.suffix.lower() in known])
    described.append(describe.run(None, {"images": shots[None]})[0])
queries = describe.run(None, {"images": np.stack([read(file) for file in files])[:, None]})[0]
logits = similarity.run(None, {"support": np.concatenate(described), "query": queries})[0]  # (images, classes)
for file, row in zip(files, logits, strict=True):
    print(f"{file}\t{classes[row.argmax()].name}\t{1 / (1 + np.exp(-row.max())):.4f}")
