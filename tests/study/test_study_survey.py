"""What is refused before anything starts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from study_jobs import MACHINE, TASK

from nccltune.errors import UsageError
from nccltune.space import Facts, Selection, load, resolve
from nccltune.study import survey
from nccltune.study.options import SearchOptions
from nccltune.study.survey import Survey, refuse_empty, resolve_space

GLOO = Facts(backend="gloo", world_size=2, probed=True)


def test_a_space_with_nothing_left_is_refused_with_the_reasons() -> None:
    space = resolve(load("default"), GLOO, Selection(only=("env",)), "default")
    with pytest.raises(UsageError) as caught:
        refuse_empty(space)
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("nothing to search here; keep the defaults")
    assert [line for line in lines if "NCCL_ALGO" in line and "gloo" in line]


def test_one_parameter_is_enough() -> None:
    refuse_empty(resolve(load("default"), GLOO, Selection(only=("bucket_cap_mb",)), "default"))


def test_the_space_is_made_with_this_machines_interfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def interfaces(*, loopback: bool) -> tuple[str, ...]:
        asked.append(loopback)
        return ("eth0", "eth1")

    monkeypatch.setattr(survey, "socket_interfaces", interfaces)
    options = SearchOptions(space="comm", allow_guarded=True)
    job = {"ddp_arguments": ["bucket_cap_mb"]}
    probe = {"network": "Socket", "transport": ["NET"], "version": "2.27.5"}
    for hosts in (None, 2):
        task = replace(TASK, emulate_hosts=hosts)
        space = resolve_space(Survey(options, task, MACHINE, (), {}, job, "python", ()), probe)
        searched = {parameter.name: parameter.choices for parameter in space.parameters}
        # one host has nobody to reach through an interface
        made = (None, "=eth0", "=eth1") if hosts else None
        assert searched.get("NCCL_SOCKET_IFNAME") == made
    assert asked == [False, True]


SOCKET_KNOBS = ("NCCL_NSOCKS_PERTHREAD", "NCCL_SOCKET_NTHREADS")
SOCKETS = {"network": "Socket", "transport": ["NET"], "version": "2.27.5"}
NVLINK = {"network": None, "transport": ["P2P"], "version": "2.27.5"}


def early(**options: Any) -> Survey:
    """A job between two hosts, before its probe launch."""
    task = replace(TASK, emulate_hosts=2)
    job = {"ddp_arguments": ["bucket_cap_mb"], "nccl_built": "2.27.5"}
    return Survey(SearchOptions(**options), task, MACHINE, (), {}, job, "python", ())


def test_what_only_the_probe_can_add_is_no_empty_space() -> None:
    found = early(space="comm", only=SOCKET_KNOBS)
    before = resolve_space(found, None)
    assert before.parameters == () and before.may_gain
    refuse_empty(before)
    after = resolve_space(found, SOCKETS)
    assert {parameter.name for parameter in after.parameters} == {*SOCKET_KNOBS}
    refuse_empty(after)
    empty = resolve_space(found, NVLINK)
    assert not empty.may_gain
    with pytest.raises(UsageError, match="(?s)nothing to search here.*fragment ethernet: no rank"):
        refuse_empty(empty)


@pytest.mark.parametrize(
    "only",
    [
        ("NCCL_NSOCKS_PERTHREAD",),  # does nothing without the other
        ("loader",),  # no fragment has such
        ("NCCL_P2P_LEVEL",),  # over NVLink, on this machine
        ("NCCL_SOCKET_IFNAME",),  # it would be offered only
    ],
)
def test_what_no_probe_can_add_is_refused_before_it(only: tuple[str, ...]) -> None:
    found = early(space="comm", only=only)
    found = replace(
        found, task=replace(found.task, workload=replace(TASK.workload, data="synthetic"))
    )
    with pytest.raises(UsageError, match="nothing to search here"):
        refuse_empty(resolve_space(found, None))


def test_without_fragments_or_nccl_an_empty_space_is_refused_early(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(
        "version: 1\nparameters:\n  NCCL_SOCKET_NTHREADS: {target: env, choices: [null, 2]}\n"
        "  bucket_cap_mb: {target: ddp, choices: [null, 50]}\n"
    )
    found = early(space=str(own), exclude=("NCCL_SOCKET_NTHREADS", "ddp"))
    with pytest.raises(UsageError, match="nothing to search here"):
        refuse_empty(resolve_space(found, None))
    gloo = replace(TASK, workload=replace(TASK.workload, backend="gloo", device="cpu"))
    found = replace(early(space="comm", only=SOCKET_KNOBS), task=gloo)
    with pytest.raises(UsageError, match="nothing to search here"):
        refuse_empty(resolve_space(found, None))
