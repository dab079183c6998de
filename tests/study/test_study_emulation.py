"""A study of emulated hosts: what it is compared by, and what never becomes its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from study_jobs import (
    ENV,
    FACTS,
    MACHINE,
    TASK,
    Asked,
    FormulaGroup,
    FormulaLauncher,
    definition,
    planner_of,
    search_in,
    space_of,
)

import nccltune
from nccltune.errors import StudyError, UsageError
from nccltune.launch.emulation import emulating, pinned_variables
from nccltune.launch.protocol import Outcome
from nccltune.launch.stopping import StopFlag
from nccltune.machine.gpus import Gpu
from nccltune.nccl.site import SiteVariable
from nccltune.space import ResolvedSpace
from nccltune.study.definition import Definition, differences, refuse_changes
from nccltune.study.folder import StudyPaths, locked, read_definition
from nccltune.study.options import SearchOptions
from nccltune.study.probing import probe_key, probe_machine
from nccltune.study.results import write_results
from nccltune.study.store import Store
from nccltune.study.summary import Summary
from nccltune.study.survey import Survey, resolve_space, survey

PARAMETERS = {
    "NCCL_BUFFSIZE": {**ENV, "choices": [None, 1048576, 8388608]},
    "NCCL_NET": {**ENV, "choices": [None, "Socket", "IB"]},
    "NCCL_HOSTID": {**ENV, "choices": [None, "a", "b"]},
    "NCCL_SOCKET_NTHREADS": {
        **ENV,
        "choices": [None, 1, 4],
        "when": {"network": "Socket", "nodes": ">=2"},
    },
}


def site_for(hosts: int | None) -> Mapping[str, SiteVariable]:
    return pinned_variables(emulating({"NCCL_NVLS_ENABLE": "0"}, hosts))


def space_for(hosts: int | None) -> ResolvedSpace:
    facts = replace(
        FACTS,
        nodes=hosts or 1,
        network="Socket" if hosts else None,
        transports=("NET",) if hosts else ("P2P",),
        site=site_for(hosts),
    )
    return space_of(PARAMETERS, facts, presets=[])


def wanted(hosts: int | None) -> Definition:
    site = {name: v.value for name, v in site_for(hosts).items()}
    task = replace(TASK, emulate_hosts=hosts)
    return definition(space_for(hosts), task=task, site=site)


def test_they_are_pinned_and_what_acts_between_hosts_is_searched() -> None:
    space = space_for(2)
    assert [p.name for p in space.parameters] == ["NCCL_BUFFSIZE", "NCCL_SOCKET_NTHREADS"]
    notes = {note.parameter: (note.action, note.reason) for note in space.notes}
    action, reason = notes["NCCL_HOSTID"]
    assert action == "pinned" and "--emulate-hosts 2" in reason
    assert notes["NCCL_NET"][0] == "pinned"


def test_a_definition_records_them_only_where_they_are() -> None:
    text = yaml.safe_load(yaml.safe_dump(wanted(2).to_dict()))
    assert text["workload"]["emulate_hosts"] == 2
    assert text["site"]["NCCL_NET"] == "Socket"
    assert text["site"]["NCCL_HOSTID"] == "nccltune-h*"
    assert "emulate_hosts" not in wanted(None).to_dict()["workload"]


@pytest.mark.parametrize(("first", "second"), [(2, 4), (4, 2), (2, None), (None, 2)])
def test_another_number_of_hosts_is_another_study(
    tmp_path: Path, first: int | None, second: int | None
) -> None:
    paths = StudyPaths(tmp_path)
    wanted(first).write(paths)
    refuse_changes(paths, wanted(first))
    with pytest.raises(UsageError) as caught:
        refuse_changes(paths, wanted(second))
    told = f"workload.emulate_hosts: {first} in the study, {second} now"
    assert told in str(caught.value)
    if first and second:
        assert list(differences(read_definition(paths), wanted(second))) == [told]


JOB = {
    "torch": "2.9.0",
    "cuda": True,
    "cuda_version": "12.8",
    "gpus": 2,
    "nccl": True,
    "gloo": True,
    "nccl_built": "2.28.9",
    "folder": None,
    "ddp_arguments": ["bucket_cap_mb"],
}
GPUS = tuple(Gpu(index, f"GPU-{index}", "NVIDIA H200", 141 << 30, 18) for index in range(2))


@dataclass(frozen=True)
class TwoGpus:
    """The job's Python on a machine with two GPUs."""

    base: Mapping[str, str]
    python: str = "/opt/python"

    def ask(self, _question: Any, _stop: StopFlag) -> dict[str, Any]:
        return JOB


def surveyed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, hosts: int | None, **options: Any
) -> Survey:
    monkeypatch.setattr("nccltune.study.survey.visible_gpus", lambda _environ: GPUS)
    monkeypatch.setattr(
        "nccltune.study.survey.this_machine", lambda _environ, use_gpus: (MACHINE, GPUS)
    )
    given = SearchOptions(data="synthetic", emulate_hosts=hosts, **options)
    python = cast("Any", TwoGpus(emulating({"NCCL_NVLS_ENABLE": "0"}, hosts)))
    return survey(given, python, tmp_path, StopFlag(), make=False)


def test_a_survey_knows_of_the_hosts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = surveyed(monkeypatch, tmp_path, 2)
    assert found.task.emulate_hosts == 2
    assert found.site == site_for(2)
    assert [note for note in found.notes if note.startswith("--emulate-hosts 2: a test")]
    plain = surveyed(monkeypatch, tmp_path, None)
    assert (plain.task.emulate_hosts, plain.notes) == (None, ())
    assert set(plain.site) == {"NCCL_NVLS_ENABLE"}
    assert probe_key(found) != probe_key(plain)


def test_more_hosts_than_ranks_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--emulate-hosts 3: must be 2 to 2, with 2 ranks"):
        surveyed(monkeypatch, tmp_path, 3)
    with pytest.raises(UsageError, match="--emulate-hosts 2: needs two ranks or more"):
        surveyed(monkeypatch, tmp_path, 2, nproc_per_node=1)


@pytest.mark.parametrize(("nodes", "told"), [(2, None), (None, None), (1, "counts 1 hosts, not 2")])
def test_nccl_has_to_count_as_many_hosts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, nodes: int | None, told: str | None
) -> None:
    found = surveyed(monkeypatch, tmp_path, 2)
    facts = {"version": "2.28.9", "transport": ["NET"], "network": "Socket", "nodes": nodes}
    monkeypatch.setattr("nccltune.study.probing.NcclLogs.facts", lambda _self: facts)
    launcher = FormulaLauncher(large_buffers)
    monkeypatch.setattr(
        FormulaGroup, "request", lambda *_arguments: Outcome({"ranks": 2}, None, {})
    )
    if told is None:
        assert probe_machine(found, launcher, tmp_path, tmp_path) == facts
    else:
        with pytest.raises(StudyError, match=told):
            probe_machine(found, launcher, tmp_path, tmp_path)
    assert launcher.all_closed


def large_buffers(asked: Asked) -> float:
    return 100.0 + 50 * (asked.env.get("NCCL_BUFFSIZE") == "8388608")


def test_they_are_no_part_of_a_result(tmp_path: Path) -> None:
    paths, space = StudyPaths(tmp_path / "s"), space_for(2)
    launcher = FormulaLauncher(large_buffers)
    with locked(paths):
        stored = wanted(2).write(paths).to_dict()
        planner = planner_of(paths, space, [])
        search_in(paths, launcher, space, 6, planner=planner, site=site_for(2)).run()
        write_results(Summary.of(Store(paths), stored))
    for asked in launcher.asked:
        assert set(asked.env) <= {"NCCL_BUFFSIZE", "NCCL_SOCKET_NTHREADS"}
    best = nccltune.load(paths.best_yaml)
    assert best.env["NCCL_BUFFSIZE"] == "8388608"
    assert set(best.env) <= {"NCCL_BUFFSIZE", "NCCL_SOCKET_NTHREADS"}
    assert best.workload["emulate_hosts"] == 2  # what it was measured on is told
    exported = [
        line for line in paths.best_env.read_text().splitlines() if not line.startswith("#")
    ]
    for name in (*site_for(2), "NCCLTUNE_HOSTS"):
        assert not [line for line in exported if name in line]


def test_a_survey_knows_of_nvlinks_and_the_space_takes_what_the_path_has(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    probe = {"version": "2.28.9", "transport": ["P2P"], "network": None}
    found = surveyed(monkeypatch, tmp_path, None)
    space = resolve_space(found, probe)
    reasons = {n.parameter: n.reason for n in space.notes if n.action == "added"}
    assert reasons["NCCL_CGA_CLUSTER_SIZE"] == "fragment nvlink (transport P2P over NVLink)"
    assert reasons["TORCH_NCCL_HIGH_PRIORITY"] == reasons["NCCL_CGA_CLUSTER_SIZE"]
    without = replace(found, machine=replace(MACHINE, nvlinks=(4, 0)))
    assert "NCCL_P2P_DISABLE" in {p.name for p in resolve_space(without, probe).parameters}
    unknown = replace(found, machine=replace(MACHINE, nvlinks=()))
    assert not [n for n in resolve_space(unknown, probe).notes if n.action == "added"]
    assert not [n for n in resolve_space(found, None).notes if n.action == "added"]


def test_sockets_and_their_threads_are_kept_on_emulated_hosts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    probe = {"version": "2.28.9", "transport": ["NET"], "network": "Socket"}
    space = resolve_space(surveyed(monkeypatch, tmp_path, 2), probe)
    searched = {p.name for p in space.parameters}
    assert {"NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD"} <= searched
    assert "NCCL_NVLS_ENABLE" not in searched
    assert space.presets[0].name == "sockets-4-threads-2"
