"""Looking at a few lines as `nccltune lint` does, on any machine."""

from __future__ import annotations

from collections.abc import Mapping

from packaging.version import Version

from nccltune.nccl.circumstances import Circumstances, MachineFacts
from nccltune.nccl.env_files import Format, read_env_file
from nccltune.nccl.findings import Finding
from nccltune.nccl.lint import lint_files
from nccltune.nccl.site import SiteVariable

H200 = MachineFacts(
    capabilities=((9, 0),) * 8,
    nvlinks=(18,) * 8,
    rdma=("mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"),
    verbs=True,
    interfaces=("eth0", "ib0", "lo"),
    architecture="x86_64",
    shm_bytes=512 << 30,
)
PCIE = MachineFacts(
    capabilities=((8, 9),) * 2,
    nvlinks=(0, 0),
    rdma=(),
    interfaces=("docker0", "eno1", "lo"),
    architecture="x86_64",
    shm_bytes=64 << 20,
)


def look(
    text: str | bytes,
    version: str = "2.30.7",
    *,
    machine: MachineFacts | None = None,
    torch: str | None = None,
    format: Format | None = "shell",
    site: Mapping[str, str] | None = None,
    file: str = "a.sh",
) -> tuple[Finding, ...]:
    """All findings for the lines of a file. `site` is what the environment sets already."""
    content = text if isinstance(text, bytes) else text.encode()
    read = read_env_file(file, content, format)
    around = Circumstances(
        version=Version(version),
        torch=None if torch is None else Version(torch),
        machine=machine,
        site={n: SiteVariable(n, v, "environment") for n, v in (site or {}).items()},
    )
    return lint_files([read], around)


def rules(text: str, version: str = "2.30.7", **options: object) -> list[str]:
    """`RULE NAME` for each finding, in alphabetical order; exports are written for the lines."""
    lines = "\n".join(f"export {line}" for line in text.splitlines())
    found = look(lines, version, **options)  # type: ignore[arg-type]
    return sorted(f"{item.rule} {item.name}" for item in found)


def only(text: str, rule: str, version: str = "2.30.7", **options: object) -> Finding:
    """The one finding of that rule; fails where there is none or more."""
    lines = "\n".join(f"export {line}" for line in text.splitlines())
    found = look(lines, version, **options)  # type: ignore[arg-type]
    [item] = [f for f in found if f.rule == rule]
    return item
