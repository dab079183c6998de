"""best.yaml: written, read back, and refused with a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import nccltune
from nccltune.errors import UsageError
from nccltune.output.best import Best, read_best

BEST = Best(
    env={"NCCL_ALGO": "ring,tree;allreduce:tree", "NCCL_BUFFSIZE": "8388608", "ODD": "on: 'x'\n#"},
    ddp={"bucket_cap_mb": 50, "gradient_as_bucket_view": True},
    loader={"num_workers": 4, "prefetch_factor": None, "pin_memory": True},
    batch_size=128,
    workload={"model": "resnet50", "precision": "tf32"},
    verdict=None,
    machine={"gpus": ["NVIDIA H200"], "driver": "570.1"},
    provenance={"study": "größer", "trial": 3, "search_value": 1234.5},
)


def written(folder: Path, text: str) -> Path:
    file = folder / "best.yaml"
    file.write_text(text)
    return file


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    file = written(tmp_path, BEST.to_yaml())
    best = nccltune.load(file)
    assert best == BEST
    assert nccltune.load(str(file)) == BEST
    assert best.ddp_kwargs == {"bucket_cap_mb": 50, "gradient_as_bucket_view": True}
    assert best.loader_kwargs == {"num_workers": 4, "prefetch_factor": None, "pin_memory": True}


def test_a_verdict_is_kept(tmp_path: Path) -> None:
    document = {**yaml.safe_load(BEST.to_yaml()), "verdict": {"name": "FASTER", "ratio": 1.04}}
    file = written(tmp_path, yaml.safe_dump(document))
    assert read_best(file).verdict == {"name": "FASTER", "ratio": 1.04}


def test_arguments_are_the_callers_own(tmp_path: Path) -> None:
    best = read_best(written(tmp_path, BEST.to_yaml()))
    best.ddp_kwargs["bucket_cap_mb"] = 1
    best.loader_kwargs.clear()
    assert best.ddp_kwargs["bucket_cap_mb"] == 50
    assert best.loader_kwargs["num_workers"] == 4


def test_variables_are_texts_for_every_reader_of_yaml() -> None:
    document = yaml.safe_load(BEST.to_yaml())
    assert document["version"] == 1
    assert document["env"]["NCCL_BUFFSIZE"] == "8388608"  # not a number
    assert list(document) == [
        "version", "ddp", "loader", "batch_size", "env", "workload", "verdict", "machine",
        "provenance",
    ]  # fmt: skip


def changed(**changes: Any) -> str:
    document = {**yaml.safe_load(BEST.to_yaml()), **changes}
    return yaml.safe_dump({k: v for k, v in document.items() if v != "missing"})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not a best.yaml of version 1"),
        ("[]", "not a best.yaml of version 1"),
        ("just text", "not a best.yaml of version 1"),
        (changed(version=2), "not a best.yaml of version 1"),
        (changed(version="missing"), "not a best.yaml of version 1"),
        (changed(ddp="missing"), "ddp: must be a mapping, got NoneType"),
        (changed(env=["A=1"]), "env: must be a mapping, got list"),
        (changed(loader=3), "loader: must be a mapping, got int"),
        (changed(provenance=None), "provenance: must be a mapping, got NoneType"),
        (changed(batch_size="missing"), "batch_size: must be a whole number >= 1, got None"),
        (changed(batch_size=0), "batch_size: must be a whole number >= 1, got 0"),
        (changed(batch_size=True), "batch_size: must be a whole number >= 1, got True"),
        (changed(batch_size="64"), "batch_size: must be a whole number >= 1, got '64'"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, reason: str) -> None:
    file = written(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        nccltune.load(file)
    assert str(caught.value) == f"{file}: {reason}"


def test_text_that_is_not_yaml(tmp_path: Path) -> None:
    file = written(tmp_path, "ddp: {a: 1\n  b: [")
    with pytest.raises(UsageError) as caught:
        nccltune.load(file)
    assert str(caught.value).startswith(f"{file}: not YAML: ")
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    for file in (tmp_path / "missing.yaml", tmp_path, binary):
        with pytest.raises(UsageError) as caught:
            nccltune.load(file)
        assert str(caught.value).startswith(f"{file}: cannot be read: ")


def test_yaml_is_data_and_runs_nothing(tmp_path: Path) -> None:
    made = tmp_path / "made"
    text = f"!!python/object/apply:os.system ['touch {made}']\n"
    with pytest.raises(UsageError, match="not YAML"):
        nccltune.load(written(tmp_path, text))
    assert not made.exists()
