"""Image files made once: the same everywhere, complete or absent."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from PIL import Image

from nccltune.worker.images import CLASSES, image_folder, image_set

# In a process of its own, as nccltune does it: it forks.
MAKE = """
import resource, sys
from pathlib import Path
from nccltune.worker.images import image_set
if len(sys.argv) > 3:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]),) * 2)
try:
    print(image_set(Path(sys.argv[1]), int(sys.argv[2])))
except OSError as error:
    sys.exit(f"cannot: {error.strerror}")
"""


def make(cache: Path, images: int, *limit: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", MAKE, str(cache), str(images), *limit]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120)


def digests(folder: Path) -> dict[str, str]:
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*.jpg"))
    }


def test_two_sets_are_the_same_to_the_byte(tmp_path: Path) -> None:
    first, second = tmp_path / "a" / "deep", tmp_path / "b"
    for cache in (first, second):
        done = make(cache, 12)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.strip() == str(image_folder(cache, 12))
        assert os.listdir(cache) == ["imagenet-like-v1-12"]  # and no temporary folder
    made = digests(image_folder(first, 12))
    assert made == digests(image_folder(second, 12))
    assert len(set(made.values())) == 12

    folder = image_folder(first, 12)
    assert sorted(os.listdir(folder)) == [f"class{n:02d}" for n in range(CLASSES)]
    assert list(made)[:3] == ["class00/00000.jpg", "class00/00010.jpg", "class01/00001.jpg"]
    sizes = set()
    for name in made:
        with Image.open(folder / name) as image:
            image.load()
            assert image.mode == "RGB"
            sizes.add(image.size)
        # As heavy as photographs of that size are.
        assert 30_000 < (folder / name).stat().st_size < 300_000
    assert sizes == {(500, 375), (375, 500), (500, 333), (640, 480), (400, 300)}

    # A set that is there is not made again.
    (folder / "class00" / "00000.jpg").write_bytes(b"kept")
    assert image_set(first, 12) == folder
    assert (folder / "class00" / "00000.jpg").read_bytes() == b"kept"


def test_a_set_that_cannot_be_finished_does_not_appear(tmp_path: Path) -> None:
    done = make(tmp_path / "cache", 6, "20000")  # files end at 20 kB, as on a full disk
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1] == "cannot: File too large"
    assert os.listdir(tmp_path / "cache") == []


def test_a_cache_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = make(tmp_path / "file" / "cache", 6)
    assert done.returncode == 1
    assert done.stderr.strip() == "cannot: Not a directory"
