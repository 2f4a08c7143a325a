"""Files of many images: pickles read without running them, HDF5, npz."""

import io
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sosn.data.prepare import arrays
from sosn.data.prepare.pickles import read_pickle
from sosn.data.prepare.store import Entry
from sosn.errors import DataError, SosnError

PIXELS = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3), dtype=np.uint8)


@pytest.fixture(autouse=True)
def _forget() -> None:
    arrays.forget()


class Bomb:
    """What a hostile pickle looks like: loading it runs a command."""

    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> Any:
        return self.call[0], self.call[1:]


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_arrays_and_containers_are_read_in_every_protocol(tmp_path: Path, protocol: int) -> None:
    content: dict[Any, Any] = {
        "data": PIXELS, "labels": [1, 2, np.int64(3)], b"bytes": b"\xff\x00", "nested": {"a": (1, None, True), "b": {4}},
        "wide": np.arange(6.0).reshape(2, 3).T, "text": np.array(["x", "yz"]), "objects": np.array([[1], "two"], object),
    }  # fmt: skip
    (tmp_path / "good.pkl").write_bytes(pickle.dumps(content, protocol))
    read = read_pickle(tmp_path / "good.pkl")
    assert np.array_equal(read["data"], PIXELS)
    assert read["data"].dtype == np.uint8
    assert (read["labels"], read["bytes"], read["nested"]) == ([1, 2, 3], b"\xff\x00", content["nested"])
    assert np.array_equal(read["wide"], content["wide"])
    assert read["text"].tolist() == ["x", "yz"]
    assert read["objects"].tolist() == [[1], "two"]


def test_what_python_2_wrote_is_read_with_its_strings_as_text(tmp_path: Path) -> None:
    """A Python 2 pickle of {'data': array([[7, 200]], uint8), 'labels': [3]}, in which all strings are byte strings."""
    written = (
        b"\x80\x02}q\x00(U\x04dataq\x01cnumpy.core.multiarray\n_reconstruct\nq\x02cnumpy\nndarray\nq\x03K\x00\x85q\x04U\x01bq\x05"
        b"\x87q\x06Rq\x07(K\x01K\x01K\x02\x86q\x08cnumpy\ndtype\nq\tU\x02u1q\nK\x00K\x01\x87q\x0bRq\x0c(K\x03U\x01|q\rNNNJ\xff\xff"
        b"\xff\xffJ\xff\xff\xff\xffK\x00tq\x0eb\x89U\x02\x07\xc8q\x0ftq\x10bU\x06labelsq\x11]q\x12K\x03au."
    )
    (tmp_path / "two.pkl").write_bytes(written)
    read = read_pickle(tmp_path / "two.pkl")
    assert read["data"].tolist() == [[7, 200]]
    assert read["labels"] == [3]


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
@pytest.mark.parametrize(
    ("bomb", "named"),
    [
        (Bomb(os.system, "touch harmed"), r"(posix|nt)\.system"),
        (Bomb(eval, "open('harmed', 'w')"), r"(builtins|__builtin__)\.eval"),
        (Bomb(getattr, "text", "join"), r"(builtins|__builtin__)\.getattr"),
        (Bomb(np.save, "harmed.npy", [1]), r"numpy(\.lib\._npyio_impl)?\.save"),
        (Bomb(np.load, "harmed"), r"numpy(\.lib\._npyio_impl)?\.load"),
    ],
    ids=["system", "eval", "getattr", "save", "load"],
)
def test_a_hostile_pickle_is_refused_by_the_name_of_what_it_asks_for_and_nothing_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bomb: Bomb, named: str, protocol: int
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.pkl").write_bytes(pickle.dumps({"data": PIXELS, "extra": bomb}, protocol))
    with pytest.raises(DataError, match=rf"bad\.pkl' cannot be read .* refers to {named}"):
        read_pickle(tmp_path / "bad.pkl")
    assert [path.name for path in tmp_path.iterdir()] == ["bad.pkl"]


def test_other_codecs_and_damaged_files_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "bad.pkl"
    file.write_bytes(b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x05\x00\x00\x00rot13\x86R.")
    with pytest.raises(DataError, match="codec 'rot13'"):
        read_pickle(file)
    whole = pickle.dumps({"data": PIXELS})
    for damaged in (b"", whole[:-50], b"no pickle at all", whole[:20] + b"\xff" + whole[21:]):
        file.write_bytes(damaged)
        with pytest.raises(DataError, match=r"bad\.pkl"):
            read_pickle(file)


def test_a_row_is_the_image_that_was_put_in(tmp_path: Path) -> None:
    encoded = []
    for pixels in PIXELS:
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, "PNG")
        encoded.append(np.frombuffer(stream.getvalue(), np.uint8))
    (tmp_path / "plain.pkl").write_bytes(pickle.dumps({"image_data": PIXELS}))
    (tmp_path / "encoded.pkl").write_bytes(pickle.dumps(encoded))
    np.savez(tmp_path / "arrays.npz", images=PIXELS)
    for name in ("plain.pkl", "encoded.pkl", "arrays.npz"):
        read = Entry("", "a", str(tmp_path / name), row=1).read(8, 3)
        assert np.array_equal(read.permute(1, 2, 0).numpy(), PIXELS[1])
    cropped = arrays.read_row(str(tmp_path / "plain.pkl"), 2, 4, 3, crop=0.5)
    assert np.array_equal(cropped.permute(1, 2, 0).numpy(), PIXELS[2, 2:6, 2:6])


def test_hdf5_rows_are_read_as_images(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "some.hd5", "w") as file:
        file["data"] = PIXELS
    read = arrays.read_row(str(tmp_path / "some.hd5"), 2, 8, 3)
    assert np.array_equal(read.permute(1, 2, 0).numpy(), PIXELS[2])


def test_without_h5py_an_hdf5_file_is_refused_with_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(SosnError, match=r"some.hd5.* needs h5py: pip install 'sosn\[hdf5\]'"):
        arrays.images(tmp_path / "some.hd5")


def test_pixels_that_are_not_bytes_and_missing_columns_are_refused(tmp_path: Path) -> None:
    (tmp_path / "floats.pkl").write_bytes(pickle.dumps({"data": PIXELS.astype(np.float32)}))
    with pytest.raises(DataError, match=r"float32 pixels; they must be uint8"):
        arrays.read_row(str(tmp_path / "floats.pkl"), 0, 8, 3)
    (tmp_path / "other.pkl").write_bytes(pickle.dumps({"pixels": PIXELS}))
    with pytest.raises(DataError, match="has the columns pixels; it needs image_data or data or images"):
        arrays.images(tmp_path / "other.pkl")
    (tmp_path / "noise.pkl").write_bytes(pickle.dumps([bytes(3072)]))  # as long as a row of CIFAR's, and no image
    with pytest.raises(DataError, match=r"row 0 of .*noise\.pkl' is not an image"):
        arrays.read_row(str(tmp_path / "noise.pkl"), 0, 8, 3)
