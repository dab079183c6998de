"""Files in, spaces or one clear message a broken rule out."""

from __future__ import annotations

from pathlib import Path

import pytest

from nccltune.errors import UsageError
from nccltune.space.loading import load

GOOD = """\
version: 1
parameters:
  bucket_cap_mb: {target: ddp, choices: [null, 5, 25], default: null}
  NCCL_ALGO: {target: env, choices: [null, Ring], default: null}
"""


def message_of(path: Path, content: str | bytes) -> str:
    """What loading `content` complains of, with the path cut to the file's name."""
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UsageError) as caught:
        load(str(path))
    return str(caught.value).replace(str(path), "a.yaml")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "a.yaml"


def parameter(text: str, name: str = "bucket_cap_mb") -> str:
    return f"version: 1\nparameters:\n  {name}: {text}\n"


def test_a_good_file_keeps_types_and_order(file: Path) -> None:
    file.write_text(
        "version: 1\nabout: mine\nparameters:\n"
        "  OMP_NUM_THREADS: {target: env, choices: [null, 1, '1', a, 2.5], default: null}\n"
        "  gradient_as_bucket_view: {target: ddp, choices: [no, on], default: no}\n"
    )
    space = load(str(file))
    assert list(space.parameters) == ["OMP_NUM_THREADS", "gradient_as_bucket_view"]
    choices = space.parameters["OMP_NUM_THREADS"].choices
    assert choices == (None, 1, "1", "a", 2.5)
    assert [type(value) for value in choices or ()] == [type(None), int, str, str, float]
    switch = space.parameters["gradient_as_bucket_view"]
    assert switch.choices is not None and switch.choices[0] is False and switch.choices[1] is True
    assert switch.default is False
    assert switch.name == "gradient_as_bucket_view"


# One broken rule a file, and the whole message.
RULES = [
    (parameter("{target: ddp, range: {low: 50, high: 25}, default: 50}"),
     "a.yaml: parameters.bucket_cap_mb.range: low must not exceed high, got low=50 high=25"),
    (parameter("{target: ddp, range: {low: 5, high: 24, step: 10}, default: 5}"),
     "a.yaml: parameters.bucket_cap_mb.range: step must divide high - low, "
     "got low=5 high=24 step=10"),
    (parameter("{target: ddp, range: {low: 5, high: 25, step: 0}, default: 5}"),
     "a.yaml: parameters.bucket_cap_mb.range.step: must be above 0, got 0"),
    (parameter("{target: ddp, range: {low: 5, high: 25, step: 5, log: true}, default: 5}"),
     "a.yaml: parameters.bucket_cap_mb.range: step and log exclude each other, "
     "got step=5 log=true"),
    (parameter("{target: loader, range: {low: 0, high: 8, log: true}}", "num_workers"),
     "a.yaml: parameters.num_workers.range: log needs a low above 0, got low=0"),
    (parameter("{target: loader, range: {low: 0.5, high: 8}}", "num_workers"),
     "a.yaml: parameters.num_workers.range.low: must be a whole number with type int, got 0.5"),
    (parameter("{target: ddp, range: {low: 1.0, high: .inf, type: float}, default: 1.0}"),
     "a.yaml: parameters.bucket_cap_mb.range.high: must be a finite number, got inf"),
    (parameter("{target: ddp, range: {low: '5', high: 25}, default: 5}"),
     "a.yaml: parameters.bucket_cap_mb.range.low: must be a finite number, got '5'"),
    (parameter("{target: ddp, range: {low: 5, high: 25, log: 'yes'}, default: 5}"),
     "a.yaml: parameters.bucket_cap_mb.range.log: must be true or false, got 'yes'"),
    (parameter("{target: ddp, range: {low: 5, high: 25, type: integer}, default: 5}"),
     "a.yaml: parameters.bucket_cap_mb.range.type: must be one of int, float, got 'integer'"),
    (parameter("{target: ddp, range: {low: 5}, default: 5}"),
     "a.yaml: parameters.bucket_cap_mb.range.high: is missing"),
    (parameter("{target: ddp, choices: [], default: null}"),
     "a.yaml: parameters.bucket_cap_mb.choices: must not be empty"),
    (parameter("{target: ddp, choices: [null, 5, 5], default: null}"),
     "a.yaml: parameters.bucket_cap_mb.choices: must not repeat a value, got 5 twice"),
    (parameter("{target: ddp, choices: [null, 5], default: 6}"),
     "a.yaml: parameters.bucket_cap_mb.default: must be one of null, 5, got 6"),
    (parameter("{target: ddp, choices: [5, 6]}"),
     "a.yaml: parameters.bucket_cap_mb.default: must be one of 5, 6, got null"),
    (parameter("{target: ddp, range: {low: 5, high: 25, step: 5}, default: 7}"),
     "a.yaml: parameters.bucket_cap_mb.default: must be a whole number from 5 to 25 "
     "in steps of 5, got 7"),
    (parameter("{target: ddp, choices: [null, -5], default: null}"),
     "a.yaml: parameters.bucket_cap_mb.choices: must be null or a number above 0, got -5"),
    (parameter("{target: ddp, choices: [null, .nan], default: null}"),
     "a.yaml: parameters.bucket_cap_mb.choices[1]: must be null, true, false, a finite number "
     "or a printable text that is not empty, got nan"),
    (parameter("{target: ddp, choices: [null, [5]], default: null}"),
     "a.yaml: parameters.bucket_cap_mb.choices[1]: must be null, true, false, a finite number "
     "or a printable text that is not empty, got [5]"),
    (parameter("{target: ddp, choices: 5, default: null}"),
     "a.yaml: parameters.bucket_cap_mb.choices: must be a list, got 5"),
    (parameter("{target: ddp}"),
     "a.yaml: parameters.bucket_cap_mb: needs choices or range, got neither"),
    (parameter("{target: ddp, choices: [null, 5], range: {low: 1, high: 2}}"),
     "a.yaml: parameters.bucket_cap_mb: choices and range exclude each other, got both"),
    (parameter("{target: ddp, choices_from: interfaces}"),
     "a.yaml: parameters.bucket_cap_mb.choices_from: interfaces are for NCCL_SOCKET_IFNAME alone"),
    ("version: 1\nparameters:\n"
     "  NCCL_SOCKET_IFNAME: {target: env, choices_from: interfaces, default: =eth0}\n",
     "a.yaml: parameters.NCCL_SOCKET_IFNAME.default: must be null, got '=eth0'"),
    ("version: 1\nparameters:\n"
     "  NCCL_SOCKET_IFNAME: {target: env, choices_from: interfaces}\n"
     "presets: [{name: a, source: a/b#1, values: {NCCL_SOCKET_IFNAME: eth0}}]\n",
     "a.yaml: presets[0].values.NCCL_SOCKET_IFNAME: must be null or one of this machine's "
     "interfaces, as =name, got 'eth0'"),
    ("version: 1\nparameters:\n"
     "  NCCL_SOCKET_IFNAME: {target: env, choices_from: gpus}\n",
     "a.yaml: parameters.NCCL_SOCKET_IFNAME.choices_from: must be interfaces, got 'gpus'"),
    (parameter("{target: dpp, choices: [null, 5]}"),
     "a.yaml: parameters.bucket_cap_mb.target: must be one of env, ddp, loader, batch, "
     "got 'dpp'"),
    (parameter("{choices: [null, 5]}"), "a.yaml: parameters.bucket_cap_mb.target: is missing"),
    (parameter("{target: loader, choices: [null, 5]}"),
     "a.yaml: parameters.bucket_cap_mb.target: bucket_cap_mb belongs to target ddp, got loader"),
    (parameter("{target: loader, choices: [1]}", "num_worker"),
     "a.yaml: parameters.num_worker.target: target loader knows num_workers, prefetch_factor, "
     "got num_worker\n"
     "a.yaml: parameters.num_worker.default: must be one of 1, got null"),
    (parameter("{target: loader, choices: [true, false], default: true}", "pin_memory"),
     "a.yaml: parameters.pin_memory.target: pin_memory is set by rule and cannot be searched"),
    (parameter("{target: env, choices: [null, x]}", "LD_PRELOAD"),
     "a.yaml: parameters.LD_PRELOAD.target: LD_PRELOAD belongs to the launch and cannot be "
     "searched or held"),
    (parameter("{target: ddp, choices: [null, 1]}", "process_group"),
     "a.yaml: parameters.process_group.target: DDP's process_group belongs to the job and "
     "cannot be searched"),
    (parameter("{target: ddp, chioces: [null, 5], choices: [null, 5]}"),
     "a.yaml: parameters.bucket_cap_mb.chioces: unknown key, did you mean choices? known are "
     "target, choices, range, choices_from, default, when, risk, caution, about"),
    (parameter("{target: ddp, choices: [null, 5], risk: harmless}"),
     "a.yaml: parameters.bucket_cap_mb.risk: must be one of safe, numerics, guarded, unsafe, "
     "got 'harmless'"),
    (parameter("{target: ddp, choices: [null, 5], about: 'two\n\n  lines'}"),
     "a.yaml: parameters.bucket_cap_mb.about: must be one line"),
    (parameter("{target: ddp, choices: [null, 5], name: other}"),
     "a.yaml: parameters.bucket_cap_mb: the name is the key 'bucket_cap_mb', got name 'other'"),
    (parameter("3"), "a.yaml: parameters.bucket_cap_mb: must be a mapping, got 3"),
    (parameter("{target: env, choices: [null, 1]}", "nccl_algo"),
     "a.yaml: parameters.nccl_algo: name must look like an environment variable such as "
     "NCCL_ALGO, got 'nccl_algo'"),
    (parameter("{target: ddp, choices: [null, 1]}", "bucket-cap"),
     "a.yaml: parameters.bucket-cap: name must look like an argument such as bucket_cap_mb, "
     "got 'bucket-cap'"),
    (parameter("{target: env, choices: [null, true]}", "NCCL_P2P_DISABLE"),
     "a.yaml: parameters.NCCL_P2P_DISABLE.choices: must be written as 1 or 0 (or in quotes), "
     "a variable has no true and false, got true"),
    (parameter("{target: env, choices: [null, '']}", "NCCL_ALGO"),
     "a.yaml: parameters.NCCL_ALGO.choices[1]: must be null, true, false, a finite number "
     "or a printable text that is not empty, got ''"),
    (parameter("{target: ddp, choices: [true, 1], default: true}", "gradient_as_bucket_view"),
     "a.yaml: parameters.gradient_as_bucket_view.choices: must be true or false, got 1"),
    (parameter("{target: batch, choices: [0, 8]}", "batch_size"),
     "a.yaml: parameters.batch_size.choices: must be a whole number of at least 1, got 0"),
    (parameter("{target: loader, range: {low: -1, high: 8}}", "num_workers"),
     "a.yaml: parameters.num_workers.range.low: must be a whole number of at least 0, got -1"),
    (parameter("{target: env, choices: [null, 1], when: {netwerk: Socket}}", "NCCL_X"),
     "a.yaml: parameters.NCCL_X.when.netwerk: unknown key, did you mean network? known are "
     "backend, network, transport, nvlinks, nccl, nodes, world_size, param"),
    (parameter("{target: env, choices: [null, 1], when: {backend: mpi}}", "NCCL_X"),
     "a.yaml: parameters.NCCL_X.when.backend: must be one of nccl, gloo, got 'mpi'"),
    (parameter("{target: env, choices: [null, 1], when: {network: []}}", "NCCL_X"),
     "a.yaml: parameters.NCCL_X.when.network: must not be an empty list"),
    (parameter("{target: env, choices: [null, 1], when: {network: 3}}", "NCCL_X"),
     "a.yaml: parameters.NCCL_X.when.network: must be a text or a list of texts, got 3"),
    (parameter("{target: env, choices: [null, 1], when: {nccl: 2.24}}", "NCCL_X"),
     "a.yaml: parameters.NCCL_X.when.nccl: must be a text or a list of texts, got 2.24"),
    (parameter("{target: env, choices: [null, 1], when: {nccl: 'from 2.24'}}", "NCCL_X"),
     "a.yaml: parameters.NCCL_X.when.nccl: must be a version specifier such as \">=2.24\", "
     "got 'from 2.24'"),
    (parameter("{target: env, choices: [null, 1], when: {nodes: two}}", "NCCL_X"),
     "a.yaml: parameters.NCCL_X.when.nodes: must be a whole number of at least 1 or a text "
     "such as \">=2\", got 'two'"),
    (parameter("{target: env, choices: [null, 1], when: {world_size: [2, true]}}", "NCCL_X"),
     "a.yaml: parameters.NCCL_X.when.world_size: must be a whole number of at least 1 or a "
     "text such as \">=2\", got true"),
    (parameter("{target: env, choices: [null, 1], when: {param: {NCCL_Y: 1}}}", "NCCL_X"),
     "a.yaml: parameters.NCCL_X.when.param: unknown parameter 'NCCL_Y', the space has NCCL_X"),
    (parameter("{target: env, choices: [null, 1], when: {param: {NCCL_X: 1}}}", "NCCL_X"),
     "a.yaml: parameters.NCCL_X.when.param: NCCL_X must not depend on itself"),
    (parameter("{target: env, choices: [null, 1], when: {param: NCCL_Y}}", "NCCL_X"),
     "a.yaml: parameters.NCCL_X.when.param: must be a mapping of parameters, got 'NCCL_Y'"),
    (GOOD + "  NCCL_X: {target: env, choices: [null, 1], when: {param: {NCCL_ALGO: Tree}}}\n",
     "a.yaml: parameters.NCCL_X.when.param.NCCL_ALGO: must be one of null, Ring, got 'Tree'"),
    ("version: 1\nparameters: {}\n", "a.yaml: parameters: must not be empty"),
    ("version: 1\n", "a.yaml: parameters: is missing"),
    ("version: 1\nparameters: {1: {target: ddp}}\n",
     "a.yaml: parameters: parameter names must be texts, got 1"),
    (GOOD.replace("version: 1", "version: 2"), "a.yaml: version: must be 1, got 2"),
    (GOOD.replace("version: 1", "version: true"), "a.yaml: version: must be 1, got true"),
    (GOOD.replace("version: 1", "version: '1'"), "a.yaml: version: must be 1, got '1'"),
    (GOOD.replace("version: 1\n", ""), "a.yaml: version: is missing"),
    (GOOD + "constraint: []\n",
     "a.yaml: constraint: unknown key, did you mean constraints? known are version, about, "
     "parameters, constraints, presets, fragments"),
    (GOOD + "constraints: {requires: [{parameter: bucket_cap_mb, needs: num_workers}]}\n",
     "a.yaml: constraints.requires[0]: unknown parameter 'num_workers', the space has "
     "bucket_cap_mb, NCCL_ALGO"),
    (GOOD + "constraints: {requires: [{parameter: bucket_cap_mb, need: NCCL_ALGO}]}\n",
     "a.yaml: constraints.requires[0].needs: is missing\n"
     "a.yaml: constraints.requires[0].need: unknown key, did you mean needs? known are "
     "parameter, needs"),
    (GOOD + "constraints: {product_at_most: [{parameters: [bucket_cap_mb], limit: 3}]}\n",
     "a.yaml: constraints.product_at_most[0].parameters: needs at least 2 entries"),
    (GOOD + "constraints:\n  product_at_most:\n"
     "  - {parameters: [bucket_cap_mb, NCCL_ALGO], limit: 0}\n",
     "a.yaml: constraints.product_at_most[0].limit: must be above 0, got 0"),
    (GOOD + "constraints: {forbids: [{bucket_cap_mb: 7, NCCL_ALGO: Ring}]}\n",
     "a.yaml: constraints.forbids[0].bucket_cap_mb: must be one of null, 5, 25, got 7"),
    (GOOD + "constraints: {forbids: [{bucket_cap_mb: null, NCCL_ALGO: null}]}\n",
     "a.yaml: constraints: the defaults break a rule: the space forbids bucket_cap_mb=null "
     "NCCL_ALGO=null together"),
    (GOOD + "presets: [{name: a, source: somebody, values: {bucket_cap_mb: 5}}]\n",
     "a.yaml: presets[0].source: must be a public URL or owner/repository#number, "
     "got 'somebody'"),
    (GOOD + "presets: [{name: a, source: a/b#1, values: {bucket_cap_mb: 6}}]\n",
     "a.yaml: presets[0].values.bucket_cap_mb: must be one of null, 5, 25, got 6"),
    (GOOD + "presets: [{name: a, source: a/b#1, values: {bucket: 5}}]\n",
     "a.yaml: presets[0].values: unknown parameter 'bucket', the space has bucket_cap_mb, "
     "NCCL_ALGO"),
    (GOOD + "presets: [{name: a, source: a/b#1, values: {}}]\n",
     "a.yaml: presets[0].values: must not be empty"),
    (GOOD + "constraints: {forbids: [{bucket_cap_mb: 5, NCCL_ALGO: Ring}]}\n"
     "presets: [{name: a, source: a/b#1, values: {bucket_cap_mb: 5, NCCL_ALGO: Ring}}]\n",
     "a.yaml: presets[0].values: the space forbids bucket_cap_mb=5 NCCL_ALGO=Ring together"),
    (GOOD + "presets:\n- {name: a, source: a/b#1, values: {bucket_cap_mb: 5}}\n"
     "- {name: a, source: a/b#1, values: {bucket_cap_mb: 25}}\n",
     "a.yaml: presets: names must not repeat, got 'a' twice"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "message"), RULES)
def test_a_broken_rule_is_told_with_field_rule_and_value(
    file: Path, content: str, message: str
) -> None:
    assert message_of(file, content) == message


def test_every_broken_rule_gets_a_line(file: Path) -> None:
    content = """\
version: 1
parameters:
  bucket_cap_mb: {target: ddp, range: {low: 50, high: 25}, default: 50}
  num_workers: {target: loader, choices: [0, 0, -1], default: 3}
  NCCL_ALGO: {target: env, choices: [null, Ring], risk: none}
"""
    assert message_of(file, content).splitlines() == [
        "a.yaml: parameters.bucket_cap_mb.range: low must not exceed high, got low=50 high=25",
        "a.yaml: parameters.num_workers.choices: must not repeat a value, got 0 twice",
        "a.yaml: parameters.num_workers.choices: must be a whole number of at least 0, got -1",
        "a.yaml: parameters.num_workers.default: must be one of 0, 0, -1, got 3",
        "a.yaml: parameters.NCCL_ALGO.risk: must be one of safe, numerics, guarded, unsafe, "
        "got 'none'",
    ]


def test_a_file_of_another_kind_is_told_in_few_lines(file: Path) -> None:
    content = "version: 1\nparameters:\n" + "".join(f"  k{i}: 1\n" for i in range(500))
    lines = message_of(file, content).splitlines()
    assert len(lines) == 21
    assert lines[-1] == "a.yaml: and 480 more"
