"""A dry run beside a study that is of another machine."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from study_jobs import MACHINE, TASK, WORKLOAD, measurement

from nccltune.cli.searching import _dry_run
from nccltune.cli.starting import Start, launch_settings
from nccltune.cli.studying import definition_of
from nccltune.errors import UsageError
from nccltune.launch.stopping import StopFlag
from nccltune.launch.torchrun import TorchrunLauncher
from nccltune.study.folder import StudyPaths, locked
from nccltune.study.options import SearchOptions
from nccltune.study.store import Store
from nccltune.study.survey import Survey, resolve_space

GLOO = replace(TASK, workload=replace(WORKLOAD, device="cpu", backend="gloo"))


def survey(cores: int, *, accept: bool = False) -> Survey:
    here = replace(MACHINE, cores=cores, gpus=(), gpu_memory_bytes=(), nvlinks=())
    job = {"nccl_config_fields": [], "ddp_arguments": ["bucket_cap_mb"]}
    options = SearchOptions(accept_machine=accept)
    return Survey(options, GLOO, here, (), {}, job, "python", ())


def dry(paths: StudyPaths, found: Survey) -> None:
    stop = StopFlag()
    launcher = TorchrunLauncher(launch_settings(found, paths.worker, os.environ), stop)
    start = Start(found, launcher, paths.worker, stop)
    assert _dry_run(start, paths, paths.folder, as_json=True) == 0


def test_to_accept_the_machine_begins_anew_where_it_is_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths, before = StudyPaths(tmp_path / "s"), survey(16)
    space = resolve_space(before, None)
    with locked(paths):
        definition_of(before, space, None).write(paths)
        Store(paths).add(measurement(0, 100.0, configuration=space.baseline))
    for cores, done in ((16, 1), (8, 0)):
        dry(paths, survey(cores, accept=True))
        assert json.loads(capsys.readouterr().out)["done"] == done
    with pytest.raises(UsageError, match="the machine is not the one"):
        dry(paths, survey(8))
    assert not list(tmp_path.glob("s.*")) and paths.definition.exists()
