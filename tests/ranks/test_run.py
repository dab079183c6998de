"""`nccltune run` with real torchrun ranks: what reaches DDP and the DataLoader."""

from __future__ import annotations

import sys

import pytest

from nccltune.output.best import Best
from running import Cli

pytestmark = pytest.mark.ranks

BEST = Best(
    env={"NCCL_BUFFSIZE": "1048576"},
    ddp={"bucket_cap_mb": 7, "gradient_as_bucket_view": True},
    loader={"num_workers": 2}, batch_size=8, workload={}, verdict=None, machine={}, provenance={},
)  # fmt: skip

# Its workers are spawned, so they look for classes of the script in what they take for __main__.
TRAIN = """
import os
import sys
early = "torch" in sys.modules
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Own(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        return Item(index)


class Item:
    def __init__(self, index):
        self.index = index
        self.workers = torch.utils.data.get_worker_info().num_workers


def collate(items):
    return items


if __name__ == "__main__":
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(4, 4), **eval(sys.argv[1]))
    model(torch.ones(2, 4)).sum().backward()
    logged = model._get_ddp_logging_data()
    loader = DataLoader(Own(), 4, sampler=DistributedSampler(Own()), num_workers=1,
                        collate_fn=collate, multiprocessing_context=sys.argv[2])
    items = [item for batch in loader for item in batch]
    if dist.get_rank() == 0:
        print(early, logged["bucket_cap_bytes"] >> 20, bool(logged["gradient_as_bucket_view"]))
        print(len(items), {item.workers for item in items}, {type(i) is Item for i in items})
    dist.barrier()
    dist.destroy_process_group()
"""
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@pytest.fixture(autouse=True)
def files(cli: Cli) -> None:
    (cli.folder / "best.yaml").write_text(BEST.to_yaml())
    (cli.folder / "train.py").write_text(TRAIN)


def test_arguments_reach_ddp_and_the_loader(cli: Cli) -> None:
    done = cli.run("run", "best.yaml", "--", *TORCHRUN, "train.py", "{}", "spawn")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "False 7 True\n16 {2} {True}\n"
    assert "note" not in done.stderr
    cli.assert_nothing_left()


@pytest.mark.slow
def test_what_the_script_sets_itself_stays_and_is_told(cli: Cli) -> None:
    command = [*TORCHRUN, "-m", "train", "{'bucket_cap_mb': 3}", "fork"]
    done = cli.run("run", "best.yaml", "--loader-match", "Other", "--", *command)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "False 3 True\n16 {1} {True}\n"
    notes = [line for line in done.stderr.splitlines() if line.startswith("nccltune: note: ")]
    assert len(notes) == 2  # by one rank
    assert (
        "DDP: bucket_cap_mb=3 is the script's own and stays; the file has bucket_cap_mb=7"
        in (notes[0])
    )
    assert (
        "loader arguments were not used (num_workers=2): --loader-match Other matches" in notes[1]
    )
    assert "Own (train.py:" in notes[1]  # what --loader-match may say
