"""The variables of the site: what the environment and NCCL's configuration files already set."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from nccltune.nccl.integers import strtoll

SITE_PREFIXES = (
    "NCCL_",
    "TORCH_NCCL_",
    "TORCH_SYMM_MEM_",
    "NVSHMEM_",
    "GLOO_",
    "FI_",
    "OFI_NCCL_",
    "UCX_",
)
"""A variable whose name begins so belongs to the site, and LD_LIBRARY_PATH does."""

MULTICAST_OFF: Mapping[str, str] = MappingProxyType(
    {
        "NCCL_NVLS_ENABLE": "0",
        "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
        "NVSHMEM_DISABLE_NVLS": "1",
    }
)
"""The variables that switch NVLink multicast off, and the value that does it."""

SYSTEM_CONF = Path("/etc/nccl.conf")
"""The site's own configuration file of NCCL."""

_MOST_BYTES = 1 << 20  # of a file: nobody writes more settings
_LINE_BYTES = 4095
_PART_BYTES = 1023
_NEGATIVE_WORDS = ("0", "n", "no", "f", "false", "off")


@dataclass(frozen=True)
class SiteVariable:
    """A variable that was set before us; `source` is "environment" or the path of the file."""

    name: str
    value: str
    source: str


def site_variables(
    environ: Mapping[str, str],
    *,
    system_conf: Path = SYSTEM_CONF,
    home: Path | None = None,
) -> dict[str, SiteVariable]:
    """What the site sets, by name, as NCCL would find it at its first call.

    The environment wins, then the user's file ($NCCL_CONF_FILE if set and not empty, else
    .nccl.conf in `home`), then `system_conf`. `home` is by default the directory in the password
    database, as for NCCL, which does not look at $HOME. Files that cannot be read are skipped.
    """
    found: dict[str, SiteVariable] = {}
    for name, value in environ.items():
        if _is_site_name(name):
            found[name] = SiteVariable(name, value, "environment")
    for path in conf_files(environ, system_conf=system_conf, home=home):
        for name, value in _read_conf(path):
            # Even an empty value in the environment stays: NCCL never overwrites.
            if _is_site_name(name) and name not in environ:
                found.setdefault(name, SiteVariable(name, value, str(path)))
    return found


def protects_multicast(name: str, value: str) -> bool:
    """Whether this setting switches NVLink multicast off (so nothing of ours may touch it)."""
    if name not in MULTICAST_OFF or value == "":
        return False
    if name == "NCCL_NVLS_ENABLE":
        return strtoll(value) == 0  # any word counts as 0 for NCCL
    return value.strip().lower() not in _NEGATIVE_WORDS


def multicast_is_off(site: Mapping[str, SiteVariable]) -> bool:
    """Whether any of the site's variables switches multicast off.

    One is enough: it tells that the site does not want multicast, whichever library asks for it.
    """
    return any(protects_multicast(variable.name, variable.value) for variable in site.values())


def asks_for_multicast(name: str, value: str) -> bool:
    """Whether this setting wakes NVLink multicast, or sets how it works."""
    if name in MULTICAST_OFF:
        return not protects_multicast(name, value)
    return _names_nvls(value) if name == "NCCL_ALGO" else name.startswith("NCCL_NVLS_")


def _names_nvls(algorithms: str) -> bool:
    """Whether a list in NCCL's grammar asks for NVLS by name; `^` lists only take away."""
    lists = (entry.rpartition(":")[2] for entry in algorithms.lower().split(";"))
    asked = (token for entry in lists if not entry.startswith("^") for token in entry.split(","))
    return any(token.strip() in ("nvls", "nvlstree") for token in asked)


def multicast_protection(site: Mapping[str, SiteVariable]) -> dict[str, str]:
    """The site's variables that keep NVLink multicast off."""
    return {n: v.value for n, v in site.items() if protects_multicast(n, v.value)}


def _is_site_name(name: str) -> bool:
    return name.startswith(SITE_PREFIXES) or name == "LD_LIBRARY_PATH"


def conf_files(
    environ: Mapping[str, str],
    *,
    system_conf: Path = SYSTEM_CONF,
    home: Path | None = None,
) -> tuple[Path, ...]:
    """NCCL's configuration files, whether they exist or not; of two that set the same name the
    first wins.
    """
    named = environ.get("NCCL_CONF_FILE", "")
    if named:
        return (Path(named), system_conf)  # NCCL does not expand ~ here, and neither do we
    directory = _password_home() if home is None else home
    return (system_conf,) if directory is None else (directory / ".nccl.conf", system_conf)


def _password_home() -> Path | None:
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:  # a container may run as a user that is in no password database
        return None


def _read_conf(path: Path) -> list[tuple[str, str]]:
    """The settings of one file in its order; none if it cannot be read, or is no file: reading
    from a pipe or a device might never end.
    """
    try:
        if not path.is_file():
            return []
        with path.open("rb") as stream:
            content = stream.read(_MOST_BYTES)
    except (OSError, ValueError):  # ValueError: a NUL in the path
        return []
    settings = [conf_setting(line) for _, line in conf_lines(content)]
    return [setting for setting in settings if setting is not None]


def conf_lines(content: bytes) -> Iterator[tuple[int, bytes]]:
    """What NCCL takes for the lines of a configuration file, with the number of the real line."""
    for number, line in enumerate(content.split(b"\n"), start=1):
        # NCCL reads into a fixed buffer, so what exceeds it is taken for the next line.
        for start in range(0, len(line), _LINE_BYTES):
            yield number, line[start : start + _LINE_BYTES]


def conf_setting(line: bytes) -> tuple[str, str] | None:
    """Name and value of a line, None where it sets nothing.

    NCCL's own rules (src/misc/param.cc): NAME=VALUE, split at the first "=", nothing trimmed or
    unquoted; "#" is a comment only as the first character of the line.
    """
    line = line.split(b"\0", 1)[0].removesuffix(b"\r")
    name, equals, value = line.partition(b"=")
    if line.startswith(b"#") or not equals or not name:
        return None
    return os.fsdecode(name[:_PART_BYTES]), os.fsdecode(value[:_PART_BYTES])
