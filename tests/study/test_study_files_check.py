"""Settings that go through best.env and best.yaml come out as they went in."""

from __future__ import annotations

from pathlib import Path

import pytest

from nccltune.errors import StudyError
from nccltune.output.env_file import env_file
from nccltune.study.effective import Effective
from nccltune.study.files_check import sourced, through_files

AWKWARD = {
    "NCCL_ALGO": "ring,tree;allreduce:tree",
    "NCCL_PROTO": "^LL128",
    "EMPTY": "",
    "QUOTED": """it's "so" $HOME `id` \\ *""",
    "TWO_LINES": "one\ntwo",
}


def test_what_a_shell_sources_is_what_was_meant(tmp_path: Path) -> None:
    file = tmp_path / "best.env"
    file.write_text(env_file(AWKWARD, ["a header; rm -rf /"]))
    assert sourced(file) == AWKWARD


def test_settings_come_out_as_a_job_gets_them() -> None:
    given = Effective(
        process_env={"NCCL_ALGO": "Ring"},
        communicator_env={"NCCL_PROTO": "Simple"},
        communicator_config={"max_ctas": 8},
        ddp={"bucket_cap_mb": 50},
        loader={"num_workers": 0, "pin_memory": True},
        batch_size=64,
        env={"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple", "NCCL_MAX_CTAS": "8"},
    )
    found = through_files(given)
    assert found.process_env == found.env == given.env
    assert (found.communicator_env, found.communicator_config) == ({}, {})
    assert (found.ddp, found.loader, found.batch_size) == (given.ddp, given.loader, 64)


def test_a_file_that_cannot_be_sourced_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "best.env").write_text("export A='open\n")
    with pytest.raises(StudyError, match="best.env cannot be sourced"):
        sourced(tmp_path / "best.env")
