"""JPEG files of ImageNet's size, made once and deterministically, so that loader work is real.

The pictures are smooth colour with structure and grain on it: they decode and compress like
photographs (about 100 kB each), which plain noise or plain colour would not.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import tempfile
from pathlib import Path

from nccltune.worker.owners import OWNER, mark_as_ours

CLASSES = 10
IMAGES = 1000
_SIZES = ((500, 375), (375, 500), (500, 333), (640, 480), (400, 300))
_QUALITY = 90


def image_folder(cache: Path, images: int = IMAGES) -> Path:
    """Where the image set lies, made or not."""
    return cache / f"imagenet-like-v1-{images}"


def image_set(cache: Path, images: int = IMAGES) -> Path:
    """The folder of the image set below `cache`, made if it is not there (class folders, as
    torchvision's ImageFolder wants them). Complete or absent: it appears in one rename.

    Raises: OSError when the cache cannot be written.
    """
    folder = image_folder(cache, images)
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=".images-", dir=cache))
    try:
        mark_as_ours(temporary)
        for number in range(CLASSES):
            (temporary / f"class{number:02d}").mkdir()
        tasks = [(temporary, index) for index in range(images)]
        with multiprocessing.get_context("fork").Pool(_processes()) as pool:
            pool.starmap(_write_image, tasks, chunksize=16)
        temporary.chmod(0o755)
        (temporary / OWNER).unlink(missing_ok=True)
        try:
            temporary.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process was faster: its set is the same
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _processes() -> int:
    return max(1, min(16, len(os.sched_getaffinity(0))))


def _write_image(folder: Path, index: int) -> None:
    import torch
    import torch.nn.functional as F
    from PIL import Image

    torch.set_num_threads(1)
    width, height = _SIZES[index % len(_SIZES)]
    generator = torch.Generator().manual_seed(index)
    picture = torch.zeros(1, 3, height, width)
    for cells, strength in ((6, 0.28), (40, 0.12), (160, 0.06)):
        coarse = torch.randn(1, 3, cells * height // width, cells, generator=generator)
        smooth = F.interpolate(coarse, size=(height, width), mode="bilinear", align_corners=False)
        picture += strength * smooth
    picture += 0.035 * torch.randn(1, 1, height, width, generator=generator)
    pixels = ((picture[0] + 0.5).clamp(0, 1) * 255).to(torch.uint8).permute(1, 2, 0).contiguous()
    image = Image.frombytes("RGB", (width, height), pixels.numpy().tobytes())
    image.save(folder / f"class{index % CLASSES:02d}" / f"{index:05d}.jpg", quality=_QUALITY)
