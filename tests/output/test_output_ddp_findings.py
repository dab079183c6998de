"""What is told of DDP's arguments, from what DDP logs of itself."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from nccltune.output.ddp_findings import unused_parameters_finding

LEFT_ON = {"find_unused_parameters": 1, "unused_parameter_size": 0, "iteration": 7}


def test_left_on_for_nothing() -> None:
    found = unused_parameters_finding(LEFT_ON)
    assert found is not None
    assert (found.severity, found.about) == ("warning", "DDP")
    assert found.fact.startswith(
        "find_unused_parameters is on, and in step 7 every parameter was used: each step walks the "
        "graph once more"
    )
    assert found.next.startswith("leave it out if no step skips a part of the model")
    unnumbered = unused_parameters_finding({**LEFT_ON, "iteration": None})
    assert unnumbered is not None and "in the step that DDP logged last every" in unnumbered.fact


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"unused_parameter_size": 0, "iteration": 7},
        {**LEFT_ON, "find_unused_parameters": 0},
        {**LEFT_ON, "find_unused_parameters": False},
        {**LEFT_ON, "unused_parameter_size": 144},
        {"find_unused_parameters": 1, "iteration": 0},  # no step was counted yet
        {**LEFT_ON, "static_graph": 1},
    ],
)
def test_nothing_is_said(given: dict[str, Any]) -> None:
    assert unused_parameters_finding(given) is None


TRAINS = """
import json, sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.spare = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.skips = False

    def forward(self, rows):
        return self.used(rows) if self.skips else self.spare(self.used(rows))

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
told = {}
for name, skips, keywords in json.loads(sys.argv[1]):
    model = DistributedDataParallel(Model(), **keywords)
    model.module.skips = skips
    for _ in range(3):
        model(torch.ones(2, 4)).sum().backward()
    told[name] = model._get_ddp_logging_data()
print(json.dumps(told))
dist.destroy_process_group()
"""


@pytest.mark.ranks
def test_the_installed_torch_tells_what_is_looked_at() -> None:
    on = {"find_unused_parameters": True}
    jobs = [("needless", False, on), ("needed", True, on), ("off", False, {})]
    done = subprocess.run(
        [sys.executable, "-c", TRAINS, json.dumps(jobs)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found = {n: unused_parameters_finding(told) for n, told in json.loads(done.stdout).items()}
    assert found.keys() == {"needless", "needed", "off"}
    assert found["needless"] is not None and "in step 2 every" in found["needless"].fact
    assert found["needed"] is None and found["off"] is None
