"""What a study knows of where it was made."""

from __future__ import annotations

import re
from pathlib import Path

from nccltune.machine.gpus import Gpu
from nccltune.study.fingerprinting import host_digest


def test_a_host_has_a_digest_that_tells_no_name(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    here = host_digest((), tmp_path)
    (tmp_path / "etc/machine-id").write_text("0123abcd\n")
    other = host_digest((), tmp_path)
    assert len({here, other}) == 2 and host_digest((), tmp_path) == other
    assert re.fullmatch("[0-9a-f]{16}", other)
    gpus = [Gpu(index, f"GPU-{index}", "NVIDIA H200", 1 << 37, 18) for index in range(2)]
    assert host_digest(gpus, tmp_path) == host_digest(gpus[::-1]) != other
    assert host_digest(gpus[:1]) != host_digest(gpus)
