"""Decoding by processes gives what threads give, errors and interruptions included."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from PIL import Image

from sosn.data.prepare import decoding
from sosn.data.prepare import store as prepared
from sosn.errors import DataError, SosnError

SCRIPT = """
import sys
from pathlib import Path
from sosn.data.prepare import decoding, store as prepared

print("begun")
decoding.CORES = decoding.IMAGES = 1
decoding.cores = lambda: 2
prepared.BATCH = 2
entries = [prepared.Entry("train", "one", str(file)) for file in Path(sys.argv[1]).iterdir()]
wait = len(sys.argv) > 2
prepared.prepare("photos", entries, 8, 3, lambda done, _: print(done, flush=True) or (wait and done == 4 and input()))
"""


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOSN_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(prepared, "BATCH", 2)


@pytest.fixture
def photos(tmp_path: Path) -> list[prepared.Entry]:
    """Eleven images, each of one colour that tells its number."""
    (tmp_path / "photos").mkdir()
    for number in range(11):
        Image.new("RGB", (9, 9), (number, 2 * number, 100)).save(tmp_path / "photos" / f"{number:02}.png")
    return [prepared.Entry("train", "one", str(file)) for file in sorted((tmp_path / "photos").iterdir())]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> "list[subprocess.Popen[bytes]]":
    """Two processes decode, however few the images; those that were started."""
    processes: list[subprocess.Popen[bytes]] = []
    start = decoding._start

    def noted() -> "subprocess.Popen[bytes]":
        processes.append(start())
        return processes[-1]

    monkeypatch.setattr(decoding, "_start", noted)
    monkeypatch.setattr(decoding, "cores", lambda: 2)
    monkeypatch.setattr(decoding, "CORES", 1)
    monkeypatch.setattr(decoding, "IMAGES", 1)
    return processes


def prepare(photos: list[prepared.Entry], progress: Callable[[int, int], None] | None = None) -> list[int]:
    """The red of each image of the bank, once it is prepared."""
    images = np.load(prepared.prepare("photos", photos, 8, 3, progress) / "images.npy")
    assert (images[:, 1] == 2 * images[:, 0]).all()
    assert (images == images[:, :, :1, :1]).all()
    return cast(list[int], images[:, 0, 0, 0].tolist())


@pytest.mark.usefixtures("started")
def test_processes_keep_the_central_share_that_is_asked_for_and_the_limit_on_pixels(tmp_path: Path) -> None:
    framed = Image.new("RGB", (16, 16), (0, 0, 0))
    framed.paste((200, 100, 50), (4, 4, 12, 12))
    framed.save(tmp_path / "framed.png")
    entries = [prepared.Entry("train", "one", str(tmp_path / "framed.png"), crop=crop) for crop in (0.5, 1.0)]
    whole, middle = sorted(np.load(prepared.prepare("photos", entries, 8, 3) / "images.npy"), key=lambda image: image.min())
    assert whole.min() == 0
    assert (middle.reshape(3, -1) == np.array([[200], [100], [50]])).all()
    with pytest.raises(DataError, match="16×16 pixels; 255 is the limit") as told:
        prepared.prepare("others", entries, 8, 3, max_pixels=255)
    assert "framed.png" in str(told.value)


def test_processes_write_what_threads_write(photos: list[prepared.Entry], started: "list[subprocess.Popen[bytes]]") -> None:
    seen: list[int] = []
    assert prepare(photos, lambda done, _: seen.append(done)) == list(range(11))
    assert seen == [2, 4, 6, 8, 10, 11]
    assert len(started) == 2
    assert all(process.poll() is not None for process in started)


def test_a_damaged_image_is_named_by_processes_too(
    photos: list[prepared.Entry], started: "list[subprocess.Popen[bytes]]"
) -> None:
    good = {number: Path(photos[number].file).read_bytes() for number in (5, 8)}
    for number in good:
        Path(photos[number].file).write_bytes(b"damaged")
    with pytest.raises(DataError, match=r"image '.*05.png' cannot be read \(.*\): replace or remove it"):
        prepare(photos)
    for number, content in good.items():
        Path(photos[number].file).write_bytes(content)
    seen: list[int] = []
    assert prepare(photos, lambda done, _: seen.append(done)) == list(range(11))
    assert seen == [6, 8, 10, 11]
    assert all(process.poll() is not None for process in started)


def test_an_interrupt_ends_the_processes_and_preparing_goes_on_later(
    photos: list[prepared.Entry], started: "list[subprocess.Popen[bytes]]"
) -> None:
    def interrupt(done: int, _: int) -> None:
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(photos, interrupt)
    assert [process.poll() is not None for process in started] == [True, True]
    seen: list[int] = []
    assert prepare(photos, lambda done, _: seen.append(done)) == list(range(11))
    assert seen == [6, 8, 10, 11]


def test_a_process_that_is_killed_is_told(
    photos: list[prepared.Entry], started: "list[subprocess.Popen[bytes]]", monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = decoding._Processes.ready

    def killed(self: decoding._Processes) -> bool:
        answer = ready(self)
        started[0].kill()
        started[0].wait()
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(decoding._Processes, "ready", killed)
        with pytest.raises(SosnError, match="which decoded images, has ended"):
            prepare(photos)
    assert prepare(photos) == list(range(11))


def test_threads_decode_where_processes_cannot_start(
    photos: list[prepared.Entry], started: "list[subprocess.Popen[bytes]]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding, "START", "raise SystemExit(1)")
    assert prepare(photos) == list(range(11))
    assert len(started) == 2

    def full() -> "subprocess.Popen[bytes]":
        raise OSError("no room for another process")

    monkeypatch.setattr(decoding, "_start", full)
    assert prepare(photos) == list(range(11))


def test_processes_are_for_many_images_in_files_of_their_own_and_several_cores(
    photos: list[prepared.Entry], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding, "IMAGES", 11)
    monkeypatch.setattr(decoding, "cores", lambda: decoding.CORES)
    assert decoding.pays(photos)
    assert not decoding.pays(photos[1:])
    assert not decoding.pays([*photos, prepared.Entry("train", "one", "many.npz", row=0)])
    monkeypatch.setattr(decoding, "cores", lambda: decoding.CORES - 1)
    assert not decoding.pays(photos)


def test_a_process_that_decodes_does_without_pytorch() -> None:
    loaded = "import sys, sosn.data.prepare.decoder; sys.exit('torch' in sys.modules)"
    assert not subprocess.run([sys.executable, "-c", loaded], env=surroundings(), check=False).returncode


def surroundings() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def run_script(folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    script = folder / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(folder / "photos"), *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=surroundings())


@pytest.mark.usefixtures("photos")
def test_a_script_needs_no_guard_for_processes(tmp_path: Path) -> None:
    output, errors = run_script(tmp_path).communicate(timeout=120)
    assert output.split() == ["begun", "2", "4", "6", "8", "10", "11"]
    assert not errors


@pytest.mark.usefixtures("photos")
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="processes are looked for in /proc")
def test_processes_end_with_a_script_that_is_killed(tmp_path: Path) -> None:
    script = run_script(tmp_path, "wait")
    assert script.stdout is not None
    while script.stdout.readline() != "4\n":
        assert script.poll() is None
    assert len(workers(tmp_path)) == 2
    script.kill()
    script.communicate()
    end = time.monotonic() + 30
    while workers(tmp_path) and time.monotonic() < end:
        time.sleep(0.05)
    assert not workers(tmp_path)


def workers(folder: Path) -> list[int]:
    """Processes that decode for a test with this folder as its home."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            ours = decoding.START.encode() in (place / "cmdline").read_bytes()
            if ours and str(folder / "home").encode() in (place / "environ").read_bytes():
                found.append(int(place.name))
        except OSError:  # ended meanwhile, or somebody else's
            continue
    return found
