"""Questions that only the job's own Python can answer, asked in a process that then ends.

`python -m nccltune.worker.ask REQUEST.json ANSWER.json`. The answer has `facts` and `problems`; a
problem is one sentence for the user.
"""

from __future__ import annotations

import difflib
import inspect
import json
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_LONGEST = 2000  # characters of an error of the user's own code


def answer_into(question: Path, answer: Path) -> None:
    """Read the question, write the answer; in the same process that may then be thrown away."""
    request = json.loads(question.read_text())
    temporary = answer.with_suffix(".tmp")
    temporary.write_text(json.dumps(_answer(request)))
    temporary.rename(answer)


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    problems: list[str] = []
    try:
        facts = _torch_facts()
    except ImportError as error:
        return {"facts": {}, "problems": [f"{sys.executable} cannot import torch: {error}"]}
    if "script" in request:  # what it has is seen when it runs
        return {"facts": {**facts, "folder": None}, "problems": problems}
    _check_model(request["model"], problems)
    facts["folder"] = _check_data(request, problems)
    return {"facts": facts, "problems": problems}


def _torch_facts() -> dict[str, Any]:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    cuda = torch.cuda.is_available()
    nccl = dist.is_nccl_available()
    parameters = inspect.signature(DistributedDataParallel.__init__).parameters
    fields: list[str] = []
    if nccl:
        config = getattr(dist.ProcessGroupNCCL.Options(), "config", None)
        fields = [name for name in dir(config) if not name.startswith("_")]
    try:
        vision: str | None = version("torchvision")  # importing it takes seconds
    except PackageNotFoundError:
        vision = None
    return {
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "torchvision": vision,
        "cuda_version": torch.version.cuda,
        "cuda": cuda,
        "gpus": torch.cuda.device_count() if cuda else 0,
        "nccl": nccl,
        "nccl_built": ".".join(map(str, torch.cuda.nccl.version())) if cuda and nccl else None,
        "nccl_config_fields": fields,
        "gloo": dist.is_gloo_available(),
        "ddp_arguments": [name for name in parameters if name not in ("self", "module")],
    }


def _check_model(model: str, problems: list[str]) -> None:
    if ":" in model:
        _check_reference("--model", model, problems)
        return
    try:
        from torchvision import models
    except (ImportError, RuntimeError) as error:
        problems.append(
            f"--model {model}: {sys.executable} cannot import torchvision ({error}); "
            "install it there or give --model package.module:factory"
        )
        return
    known = models.list_models(module=models)
    if model not in known:
        near = difflib.get_close_matches(model, known, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        problems.append(
            f"--model {model}: torchvision has no classification model of this name; {hint}"
            "give one of torchvision.models or package.module:factory"
        )


def _check_reference(option: str, reference: str, problems: list[str]) -> None:
    from nccltune.worker.feed import load_object

    try:
        target = load_object(reference)
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # it can do anything
        problems.append(
            f"{option} {reference}: cannot be imported: {type(error).__name__}: "
            f"{str(error)[:_LONGEST]}"
        )
        return
    if not callable(target):
        problems.append(f"{option} {reference}: is not callable; a factory is wanted")


def _check_data(request: dict[str, Any], problems: list[str]) -> str | None:
    """The image folder to read, made here if it is ours and not there yet."""
    data = request["data"]
    if data == "synthetic":
        return None
    if data == "folder":
        return _check_folder(request["folder"], problems)
    if ":" in data:
        _check_reference("--data", data, problems)
        return None
    try:
        import PIL.Image  # noqa: F401
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError) as error:
        problems.append(
            f"--data images: {sys.executable} cannot import torchvision and Pillow ({error}); "
            "install them there or give --data synthetic"
        )
        return None
    from nccltune.worker.images import image_folder, image_set

    if not request["make"]:
        return str(image_folder(Path(request["cache"])))
    try:
        return str(image_set(Path(request["cache"])))
    except OSError as error:
        problems.append(
            f"--data images: cannot make the image files in {request['cache']}: {error}"
        )
        return None


def _check_folder(folder: str, problems: list[str]) -> str | None:
    try:
        from torchvision import datasets
    except (ImportError, RuntimeError) as error:
        problems.append(f"--data {folder}: {sys.executable} cannot import torchvision ({error})")
        return None
    try:
        data = datasets.ImageFolder(folder)
        data[0]  # decodes one file
    except Exception as error:  # no class folders, no images, not readable, not an image
        problems.append(
            f"--data {folder}: not an image folder that torchvision can read: "
            f"{' '.join(str(error).split())[:300]}; wanted: one folder for each class with image "
            "files in it"
        )
        return None
    return folder


if __name__ == "__main__":
    answer_into(Path(sys.argv[1]), Path(sys.argv[2]))
