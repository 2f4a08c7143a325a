"""Decoding by processes gives what threads give, errors and interruptions included."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from PIL import Image

from sosn.data.prepare import decode, store
from sosn.errors import DataError, SosnError

SCRIPT = """
import multiprocessing, sys
from pathlib import Path
from sosn.data.prepare import decode, store

if __name__ == "__main__":
    decode.CORES = decode.IMAGES = 1
    decode.cores = lambda: 2
    store.BATCH = 2
    entries = [store.Entry("train", "one", str(file)) for file in Path(sys.argv[1]).iterdir()]

    def progress(done, total):
        if done == 4:
            print(*(child.pid for child in multiprocessing.active_children()), flush=True)
            input()

    store.prepare("photos", entries, 8, 3, progress)
"""


@pytest.fixture(autouse=True)
def _temporary_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOSN_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(store, "BATCH", 2)


@pytest.fixture
def photos(tmp_path: Path) -> list[store.Entry]:
    """Eleven images, each of one colour that gives its number."""
    (tmp_path / "photos").mkdir()
    for number in range(11):
        Image.new("RGB", (9, 9), (number, 2 * number, 100)).save(tmp_path / "photos" / f"{number:02}.png")
    return [store.Entry("train", "one", str(file)) for file in sorted((tmp_path / "photos").iterdir())]


@pytest.fixture
def _processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes decode, however few the images."""
    monkeypatch.setattr(decode, "cores", lambda: 2)
    monkeypatch.setattr(decode, "CORES", 1)
    monkeypatch.setattr(decode, "IMAGES", 1)


def prepare(photos: list[store.Entry], progress: Callable[[int, int], None] | None = None) -> list[int]:
    """The red of each image of the bank, once it is prepared."""
    images = np.load(store.prepare("photos", photos, 8, 3, progress) / "images.npy")
    assert (images[:, 1] == 2 * images[:, 0]).all()
    assert (images == images[:, :, :1, :1]).all()
    return cast(list[int], images[:, 0, 0, 0].tolist())


@pytest.mark.usefixtures("_processes")
def test_processes_apply_the_crop_and_the_pixel_limit(tmp_path: Path) -> None:
    framed = Image.new("RGB", (16, 16), (0, 0, 0))
    framed.paste((200, 100, 50), (4, 4, 12, 12))
    framed.save(tmp_path / "framed.png")
    entries = [store.Entry("train", "one", str(tmp_path / "framed.png"), crop=crop) for crop in (0.5, 1.0)]
    whole, middle = sorted(np.load(store.prepare("photos", entries, 8, 3) / "images.npy"), key=lambda image: image.min())
    assert whole.min() == 0
    assert (middle.reshape(3, -1) == np.array([[200], [100], [50]])).all()
    with pytest.raises(DataError, match="16×16 pixels; 255 is the limit") as error:
        store.prepare("others", entries, 8, 3, max_pixels=255)
    assert "framed.png" in str(error.value)


@pytest.mark.usefixtures("_processes")
def test_processes_write_what_threads_write(photos: list[store.Entry]) -> None:
    progress: list[int] = []
    assert prepare(photos, lambda done, _: progress.append(done)) == list(range(11))
    assert progress == [2, 4, 6, 8, 10, 11]


@pytest.mark.usefixtures("_processes")
def test_a_damaged_image_is_named_and_preparing_goes_on_before_it(photos: list[store.Entry]) -> None:
    good = {number: Path(photos[number].file).read_bytes() for number in (5, 8)}
    for number in good:
        Path(photos[number].file).write_bytes(b"damaged")
    with pytest.raises(DataError, match=r"05.png"):
        prepare(photos)
    for number, content in good.items():
        Path(photos[number].file).write_bytes(content)
    progress: list[int] = []
    assert prepare(photos, lambda done, _: progress.append(done)) == list(range(11))
    assert progress == [6, 8, 10, 11]


@pytest.mark.usefixtures("_processes")
def test_an_interrupt_ends_preparing_which_goes_on_later(photos: list[store.Entry]) -> None:
    def interrupt(done: int, _: int) -> None:
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(photos, interrupt)
    progress: list[int] = []
    assert prepare(photos, lambda done, _: progress.append(done)) == list(range(11))
    assert progress == [6, 8, 10, 11]


@pytest.mark.usefixtures("_processes")
def test_a_process_that_is_killed_is_an_error_and_loses_nothing(photos: list[store.Entry]) -> None:
    import multiprocessing

    def kill(done: int, _: int) -> None:
        for child in multiprocessing.active_children() if done == 2 else ():
            os.kill(child.pid or 0, signal.SIGKILL)

    many = photos * 40  # enough that they are not all decoded by then
    with pytest.raises(SosnError, match="a process that decoded images has ended"):
        prepare(many, kill)
    assert sorted(set(prepare(many))) == list(range(11))


def test_processes_decode_many_image_files_on_several_cores(photos: list[store.Entry], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "IMAGES", 11)
    monkeypatch.setattr(decode, "cores", lambda: decode.CORES)
    assert decode.processes_are_faster(photos)
    assert not decode.processes_are_faster(photos[1:])
    assert not decode.processes_are_faster([*photos, store.Entry("train", "one", "many.npz", row=0)])
    monkeypatch.setattr(decode, "cores", lambda: decode.CORES - 1)
    assert not decode.processes_are_faster(photos)


def test_a_process_that_decodes_does_without_pytorch() -> None:
    loaded = "import sys, sosn.data.prepare.decoder; sys.exit('torch' in sys.modules)"
    assert not subprocess.run([sys.executable, "-c", loaded], check=False).returncode


@pytest.mark.slow
@pytest.mark.usefixtures("photos")
@pytest.mark.skipif(not Path("/proc").exists(), reason="processes are looked for in /proc")
def test_processes_end_with_a_script_that_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(tmp_path / "photos")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as running:
        assert running.stdout is not None
        children = [Path("/proc", number) for number in running.stdout.readline().split()]
        assert len(children) == 2
        running.kill()
    end = time.monotonic() + 30
    while any(map(alive, children)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(map(alive, children))


def alive(process: Path) -> bool:
    try:
        return process.joinpath("stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
