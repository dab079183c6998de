"""What is refused before anything starts."""

from __future__ import annotations

from dataclasses import replace

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
