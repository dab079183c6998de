"""Exports in YAML: a ConfigMap of Kubernetes; accelerate reads its file in test_exports_jobs.py."""

from __future__ import annotations

import re
import shutil
from typing import Any

import pytest
import yaml
from export_readers import kubectl_document
from export_samples import (
    DDP,
    ENV,
    HOSTILE,
    HOSTILE_LINES,
    VARIABLES,
    comments_of,
    hostile_result,
    result_of,
    text_of,
)
from hypothesis import given, settings

from nccltune.errors import UsageError
from nccltune.output.exports.formats import export

MANY = {f"NCCL_HOSTILE_{n}": value for n, value in enumerate(HOSTILE)}
DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")


def data_of(document: Any) -> dict[str, str]:
    """The data of what has to be a ConfigMap by the reference of the Kubernetes API."""
    assert set(document) == {"apiVersion", "kind", "metadata", "data"}
    assert (document["apiVersion"], document["kind"]) == ("v1", "ConfigMap")
    assert set(document["metadata"]) - {"namespace"} == {"name", "annotations"}
    assert DNS_LABEL.fullmatch(document["metadata"]["name"])
    for texts in (document["data"], document["metadata"]["annotations"]):
        assert all(isinstance(text, str) for pair in texts.items() for text in pair)
    assert all(KEY.fullmatch(key) for key in document["data"])
    return dict(document["data"])


@settings(max_examples=60, deadline=None)
@given(VARIABLES)
def test_any_value_reaches_a_config_map(variables: dict[str, str]) -> None:
    text = text_of(result_of(variables), "k8s")
    assert data_of(yaml.safe_load(text)) == variables
    assert "{{" not in text  # Helm would work it out


@pytest.mark.parametrize("line", HOSTILE_LINES)
def test_nothing_but_the_variables_gets_into_it(line: str) -> None:
    text = text_of(hostile_result(line, env=MANY), "k8s")
    assert data_of(yaml.safe_load(text)) == MANY
    assert "{{" not in text


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl here")
def test_kubectl_reads_it() -> None:
    # 1e3, 0o7, on and the like are other things for some readers of YAML.
    odd = {"NCCL_A": "1e3", "NCCL_B": "0o7", "NCCL_C": "on", "NCCL_D": "1:30", "NCCL_E": "~"}
    for line in HOSTILE_LINES[-5:-3]:
        text = text_of(hostile_result(line, env=MANY | odd), "k8s")
        assert data_of(kubectl_document(text)) == MANY | odd


def test_a_config_map_tells_its_name_and_where_it_is_from() -> None:
    text = text_of(result_of(), "k8s")
    document = yaml.safe_load(text)
    assert document["metadata"]["name"] == "nccltune-h200x2-comm"
    annotation = document["metadata"]["annotations"]["nccltune/provenance"]
    assert "study: h200x2-comm, trial 22 of 24\n" in annotation
    assert "verdict: Faster than the defaults" in annotation
    assert "in a container: envFrom: [{configMapRef: {name: nccltune-h200x2-comm}}]" in (
        comments_of(text)
    )


@pytest.mark.parametrize(
    ("study", "name"),
    [
        ("Größer_v1.2+x", "nccltune-gr-er-v1-2-x"),
        ("x" * 100, "nccltune-" + "x" * 54),
        ("", "nccltune"),
        ("x" * 53 + ".y", "nccltune-" + "x" * 53),
    ],
)
def test_a_name_is_one_that_kubernetes_takes(study: str, name: str) -> None:
    text = text_of(result_of(provenance={"study": study}), "k8s")
    assert yaml.safe_load(text)["metadata"]["name"] == name


# accelerate.


@settings(max_examples=60, deadline=None)
@given(VARIABLES)
def test_variables_stand_in_accelerates_file_as_they_are_or_it_is_refused(
    variables: dict[str, str],
) -> None:
    plain = all(value.isprintable() for value in variables.values())
    try:
        text = text_of(result_of(variables, ddp={}, loader={}), "accelerate")
    except UsageError as error:
        assert not plain and "cannot say" in str(error)
    else:
        found = [line for line in comments_of(text) if line.startswith("export ")]
        assert found == [
            line.strip() for line in text_of(result_of(variables), "env").split("\n")
            if line.startswith("export ")
        ]  # fmt: skip


@pytest.mark.parametrize("line", HOSTILE_LINES)
def test_no_comment_gets_into_accelerates_file(line: str) -> None:
    assert yaml.safe_load(text_of(hostile_result(line, env=ENV), "accelerate")) == {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "MULTI_GPU",
        "num_machines": 1,
        "machine_rank": 0,
        "num_processes": 2,
        "use_cpu": False,
    }


def test_what_accelerate_does_not_pass_to_ddp_is_told() -> None:
    made = export(result_of(ddp={**DDP, "skip_all_reduce_unused_params": True}), "accelerate")
    note = "accelerate passes no skip_all_reduce_unused_params to DDP, so it is left out: true"
    assert note in made.notes
    assert note in comments_of(made.text)


def test_ranks_on_cpus_need_mpirun() -> None:
    workload = {"model": "m", "device": "cpu", "backend": "gloo", "nproc_per_node": 2}
    text = text_of(result_of(workload=workload, machine={"gpus": [], "cores": 4}), "accelerate")
    document = yaml.safe_load(text)
    assert (document["distributed_type"], document["use_cpu"]) == ("MULTI_CPU", True)
    assert any("mpirun" in line for line in comments_of(text))
