"""From a name or a path to a validated search space."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from nccltune.errors import UsageError
from nccltune.space.messages import lines, suggestion
from nccltune.space.model import Fragment, Listing, Space
from nccltune.space.scalars import quoted
from nccltune.space.yaml_reader import read_mapping

SUFFIX = ".yaml"
_Read = TypeVar("_Read", bound=Listing)


def load(name_or_path: str) -> Space:
    """Read a search space: a built-in one by its name, or any file by its path.

    A text without a path separator and without a suffix is a name.

    Raises:
        UsageError: with one line for each thing that is wrong.
    """
    return _read(_path_of(name_or_path), Space)


def load_fragments(folder: Path | None = None) -> dict[str, Fragment]:
    """The fragments of a folder, by default the shipped ones, by name and in order of name.

    Raises:
        UsageError: with one line for each thing that is wrong in the first file that is not right.
    """
    folder = folder or builtin_folder() / "fragments"
    return {path.stem: _read(path, Fragment) for path in sorted(folder.glob(f"*{SUFFIX}"))}


def builtin_folder() -> Path:
    """Where the shipped spaces are: inside the installed package, else beside src/."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "search_spaces"
    # An editable install and PYTHONPATH=src have the checkout's folder only.
    return inside if inside.is_dir() else package.parents[1] / "search_spaces"


def builtin_names() -> tuple[str, ...]:
    """The names of the shipped spaces, sorted."""
    return tuple(sorted(path.stem for path in builtin_folder().glob(f"*{SUFFIX}")))


def _read(path: Path, model: type[_Read]) -> _Read:
    content = read_mapping(path)
    if "version" in content and not _known_version(content["version"]):
        # Another version may differ in everything else, so nothing else is said.
        raise UsageError(f"{path}: version: must be 1, got {quoted(content['version'])}")
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise UsageError("\n".join(lines(error, str(path), model))) from None


def _path_of(name_or_path: str) -> Path:
    if not name_or_path or "\0" in name_or_path:
        raise UsageError(f"search space: must be a name or a path, got {quoted(name_or_path)}")
    if "/" in name_or_path or Path(name_or_path).suffix:
        return Path(name_or_path)
    names = builtin_names()
    if name_or_path not in names:
        hint = suggestion(name_or_path, names)
        raise UsageError(
            f"search space: unknown name {quoted(name_or_path)}{hint or ','} "
            f"built in are {', '.join(names) or 'none'}; a file needs a / or a suffix in its path"
        )
    return builtin_folder() / f"{name_or_path}{SUFFIX}"


def _known_version(version: object) -> bool:
    return type(version) is int and version == 1
