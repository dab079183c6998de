"""What a study is compared by when it is resumed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from study_jobs import (
    DDP,
    FACTS,
    MACHINE,
    PARAMETERS,
    PRESETS,
    TASK,
    WORKLOAD,
    definition,
    space_of,
)

from nccltune.errors import UsageError
from nccltune.nccl.site import SiteVariable
from nccltune.space import ResolvedSpace, builtin_names, load, resolve
from nccltune.space.resolve import Selection
from nccltune.study.definition import (
    Definition,
    default_name,
    differences,
    going_on,
    is_another_machine,
    refuse_changes,
)
from nccltune.study.folder import StudyPaths, read_definition

SPACE = space_of(presets=PRESETS)


@pytest.fixture
def paths(tmp_path: Path) -> StudyPaths:
    paths = StudyPaths(tmp_path / "s")
    paths.folder.mkdir()
    definition(SPACE).write(paths)
    return paths


def found(paths: StudyPaths, wanted: Definition) -> list[str]:
    return list(differences(read_definition(paths), wanted))


def test_the_same_command_means_the_same_study(paths: StudyPaths) -> None:
    assert found(paths, definition(space_of(presets=PRESETS))) == []
    assert refuse_changes(paths, definition(SPACE)) == read_definition(paths)


@pytest.mark.parametrize(
    ("changed", "other"),
    [
        ({"machine": replace(MACHINE, cores=1)}, True),
        ({"machine": replace(MACHINE, cores=1), "seed": 1}, False),
        ({"task": replace(TASK, nodes=3, num_workers=1)}, True),
        ({"task": replace(TASK, nodes=3, batch_size=1)}, False),
        ({"task": replace(TASK, num_workers=1)}, False),
        ({}, False),
    ],
)
def test_another_machine_differs_by_nothing_but_itself(
    paths: StudyPaths, changed: dict[str, Any], other: bool
) -> None:
    """What follows from it may differ with it: workers go by the cores that there are."""
    assert is_another_machine(read_definition(paths), definition(SPACE, **changed)) is other


def test_on_other_nodes_it_is_told_how_to_accept_them(paths: StudyPaths) -> None:
    with pytest.raises(UsageError, match="--accept-machine begins anew on these"):
        refuse_changes(
            paths, definition(SPACE, task=replace(TASK, nodes=2), nodes=({"digest": "a"},) * 2)
        )


@pytest.mark.parametrize("name", builtin_names())
def test_every_built_in_space_survives_being_written(tmp_path: Path, name: str) -> None:
    space = resolve(load(name), FACTS, Selection(), name)
    paths = StudyPaths(tmp_path)
    definition(space).write(paths)
    assert ResolvedSpace.from_dict(read_definition(paths)["space"]) == space
    assert found(paths, definition(space)) == []


@pytest.mark.parametrize(
    "free",
    [
        {"command": ("nccltune", "search", "--trials", "80", "--json")},
        {"created": "another day"},
        {"machine": replace(MACHINE, memory_bytes=1, gpu_memory_bytes=(1, 1))},
        {"task": replace(TASK, workload=replace(WORKLOAD, folder="/another/cache"))},
        {"space": space_of()},
    ],
    ids=["command", "date", "memory", "cache", "presets"],
)
def test_what_may_change_between_runs(paths: StudyPaths, free: dict[str, Any]) -> None:
    assert found(paths, definition(**{"space": SPACE, **free})) == []


def with_workload(**changes: Any) -> dict[str, Any]:
    return {"task": replace(TASK, workload=replace(WORKLOAD, **changes))}


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        (with_workload(model="vit_b_16"), "workload.model: resnet50 in the study, vit_b_16 now"),
        (with_workload(precision="bf16"), "workload.precision: tf32 in the study, bf16 now"),
        (with_workload(image_size=64), "workload.image_size: 224 in the study, 64 now"),
        (with_workload(backend="gloo"), "workload.backend: nccl in the study, gloo now"),
        (
            with_workload(channels_last=True),
            "workload.channels_last: False in the study, True now",
        ),
        (
            {"task": replace(TASK, nproc_per_node=1)},
            "workload.nproc_per_node: 2 in the study, 1 now",
        ),
        ({"task": replace(TASK, batch_size=32)}, "workload.batch_size: 64 in the study, 32 now"),
        ({"task": replace(TASK, num_workers=0)}, "workload.num_workers: 2 in the study, 0 now"),
        (
            {"task": replace(TASK, python="/opt/py")},
            "workload.python: None in the study, /opt/py now",
        ),
        (
            {"site": {"NCCL_SOCKET_IFNAME": "eth1"}},
            "site.NCCL_SOCKET_IFNAME: eth0 in the study, eth1 now",
        ),
        (
            {"site": {"NCCL_SOCKET_IFNAME": "eth0", "NCCL_IB_DISABLE": "1"}},
            "site.NCCL_IB_DISABLE: None in the study, 1 now",
        ),
        ({"unpinned": ("NCCL_X",)}, "--unpin: nothing in the study, ['NCCL_X'] now"),
        ({"sampler": "random"}, "sampler: tpe in the study, random asked for"),
        ({"seed": 7}, "seed: 0 in the study, 7 asked for"),
        (
            {"machine": replace(MACHINE, driver="580.2")},
            "machine.driver: 570.1 in the study, 580.2 now",
        ),
        (
            {"machine": replace(MACHINE, gpus=("NVIDIA H200",), nvlinks=(18, 18))},
            "machine.gpus: ['NVIDIA H200', 'NVIDIA H200'] in the study, ['NVIDIA H200'] now",
        ),
        (
            {"machine": replace(MACHINE, nccl="2.28.9")},
            "machine.nccl: 2.27.5 in the study, 2.28.9 now",
        ),
        (
            {"space": space_of({**PARAMETERS, "bucket_cap_mb": {**DDP, "choices": [None, 25]}})},
            "space.bucket_cap_mb: one of null, 10, 50, 100 in the study, one of null, 25 now",
        ),
        (
            {"space": space_of(exclude=("num_workers",))},
            "space.num_workers: a whole number from 0 to 8 in the study, not searched now",
        ),
        (
            {"space": space_of(fix={"NCCL_ALGO": "Ring"})},
            "space.NCCL_ALGO: one of null, Ring, Tree in the study, fixed to Ring now",
        ),
        (
            {"space": space_of(constraints={"forbids": [{"NCCL_ALGO": "Tree"}]})},
            "space: constraints, presets or baseline values differ",
        ),
    ],
)  # fmt: skip
def test_every_difference_is_named(paths: StudyPaths, changed: dict[str, Any], line: str) -> None:
    assert found(paths, definition(**{"space": SPACE, **changed})) == [line]


def test_a_variable_that_the_site_sets_now_is_no_longer_searched(paths: StudyPaths) -> None:
    pinned = {"NCCL_BUFFSIZE": SiteVariable("NCCL_BUFFSIZE", "4194304", "environment")}
    space = space_of(facts=replace(FACTS, site=pinned))
    assert found(paths, definition(space)) == [
        "space.NCCL_BUFFSIZE: one of null, 1048576, 8388608 in the study, not searched now"
    ]


def test_the_refusal_lists_all_and_says_what_to_do(paths: StudyPaths) -> None:
    wanted = definition(SPACE, seed=3, task=replace(TASK, batch_size=32))
    with pytest.raises(UsageError) as caught:
        refuse_changes(paths, wanted)
    assert str(caught.value).splitlines() == [
        f"{paths.folder}: this is another study:",
        "  workload.batch_size: 64 in the study, 32 now",
        "  seed: 0 in the study, 3 asked for",
        "repeat the first command to resume, give --new to start anew (the old folder is renamed "
        "and kept), or another --study name",
    ]


def test_a_changed_machine_is_told_as_such(paths: StudyPaths) -> None:
    with pytest.raises(UsageError, match="the machine is not the one that was measured"):
        refuse_changes(paths, definition(SPACE, machine=replace(MACHINE, driver="580.2")))


def test_a_written_definition_is_plain_yaml(paths: StudyPaths) -> None:
    stored = yaml.safe_load(paths.definition.read_text())
    assert stored["command"] == "nccltune search --trials 12"
    assert stored["workload"]["folder"] is None  # in a cache, wherever that is
    assert stored["probe"] == {"version": "2.28.9", "transport": ["P2P"], "network": None}
    assert stored["machine"]["gpus"] == ["NVIDIA H200", "NVIDIA H200"]


def test_the_folder_of_the_users_own_images_counts() -> None:
    task = replace(TASK, workload=replace(WORKLOAD, data="folder", folder="/data/a"))
    assert task.to_dict()["folder"] == "/data/a"


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("resnet50", "resnet50-nccl-x2"),
        ("my.models:make", "my.models-make-nccl-x2"),
        ("a/b c", "a-b-c-nccl-x2"),
        (":", "model-nccl-x2"),
        ("__main__:f", "main__-f-nccl-x2"),
    ],
)
def test_default_names_can_be_folders(tmp_path: Path, model: str, name: str) -> None:
    assert default_name(model, "nccl", 2) == name
    assert StudyPaths.of(tmp_path, default_name(model, "nccl", 2)).name == name


def test_a_command_is_told_on_one_line_as_it_would_be_typed() -> None:
    command = ("nccltune", "search", "--data", "/my data", "--fix", "NCCL_ALGO=a;b")
    assert going_on(command) == "nccltune search --data '/my data' --fix 'NCCL_ALGO=a;b'"


def test_the_command_that_goes_on_begins_no_other_study() -> None:
    command = ("nccltune", "search", "--new", "--study", "a b", "--", "train.py", "--new")
    assert going_on(command) == "nccltune search --study 'a b' -- train.py --new"
