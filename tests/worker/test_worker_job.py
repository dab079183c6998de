"""Parts of the timed job that need no ranks."""

from __future__ import annotations

import gc
import math
import sys
import weakref
from collections import namedtuple
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import workloads
from nccltune.worker.feed import SyntheticFeed
from nccltune.worker.job import Job, build_model, cross_entropy, open_feed, seeded_model
from nccltune.worker.spec import Request, Settings, Workload

WORKLOAD = replace(workloads.WORKLOAD, model="mobilenet_v3_small", cudnn_benchmark=False)
CPU = torch.device("cpu")
RANKS = SimpleNamespace(rank=0, world_size=1)

LOGITS = torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 3.0]])
TARGETS = torch.tensor([0, 2])
# -log softmax by hand: log(e^2 + 2) - 2 and log(1 + e + e^3) - 3, averaged.
EXPECTED = ((math.log(math.exp(2) + 2) - 2) + (math.log(1 + math.e + math.exp(3)) - 3)) / 2

GoogLeNetOutputs = namedtuple("GoogLeNetOutputs", ["logits", "aux_logits2", "aux_logits1"])


EVEN = torch.zeros(2, 3)  # three classes, each as likely: log 3


@pytest.mark.parametrize(
    ("output", "auxiliary"),
    [
        (LOGITS, 0),
        ((LOGITS,), 0),
        ((LOGITS, EVEN), 1),
        ([LOGITS, EVEN], 1),
        (SimpleNamespace(logits=LOGITS, loss=None), 0),
        (GoogLeNetOutputs(LOGITS, EVEN, EVEN), 2),
        (GoogLeNetOutputs(LOGITS, None, None), 0),
    ],
    ids=["tensor", "one", "tuple", "list", "logits", "GoogLeNet", "GoogLeNet without"],
)
def test_cross_entropy_of_all_heads(output: object, auxiliary: int) -> None:
    expected = EXPECTED + 0.3 * auxiliary * math.log(3)
    assert cross_entropy(output, TARGETS).item() == pytest.approx(expected, rel=1e-6)


def test_every_head_gets_a_gradient() -> None:
    heads = [torch.zeros(2, 3, requires_grad=True) for _ in range(3)]
    cross_entropy(GoogLeNetOutputs(*heads), TARGETS).backward()
    main, *others = (head.grad for head in heads)
    assert main is not None
    for other in others:
        assert other is not None
        torch.testing.assert_close(other, 0.3 * main)


def test_cross_entropy_of_tokens_is_over_all_positions() -> None:
    logits = torch.randn(4, 7, 11, generator=torch.Generator().manual_seed(0))
    targets = torch.randint(0, 11, (4, 7), generator=torch.Generator().manual_seed(1))
    by_hand = -F.log_softmax(logits, -1).gather(-1, targets[..., None]).mean()
    assert cross_entropy(logits, targets).item() == pytest.approx(by_hand.item(), rel=1e-6)
    assert cross_entropy(SimpleNamespace(logits=logits), targets).item() == pytest.approx(
        by_hand.item(), rel=1e-6
    )


def request(workload: Workload, batch_size: int = 3) -> Request:
    return Request("m0000", workload, Settings(), {}, {}, batch_size)


def test_a_model_by_name_has_a_class_for_each_of_the_data_sets() -> None:
    few = seeded_model(WORKLOAD, SimpleNamespace(classes=["a", "b"]), CPU)
    many = seeded_model(WORKLOAD, SimpleNamespace(classes=[str(n) for n in range(1200)]), CPU)
    assert few.classifier[-1].out_features == 1000
    assert many.classifier[-1].out_features == 1200


def test_a_model_by_reference() -> None:
    model = seeded_model(replace(WORKLOAD, model="torch.nn:Identity"), None, CPU)
    assert isinstance(model, nn.Identity)


def test_a_measurement_begins_with_the_same_weights_and_random_numbers() -> None:
    def start() -> tuple[torch.Tensor, torch.Tensor]:
        model = seeded_model(WORKLOAD, None, CPU)
        weight = next(model.parameters())
        began = weight.detach().clone()
        with torch.no_grad():
            weight.add_(1.0)  # as training would
        return began, torch.rand(5)

    fresh, later = start(), start()
    assert torch.equal(fresh[0], later[0]) and torch.equal(fresh[1], later[1])
    torch.manual_seed(WORKLOAD.seed)
    plain = build_model(WORKLOAD.model, 1000)
    assert torch.equal(next(plain.parameters()), fresh[0])
    assert torch.equal(torch.rand(5), fresh[1])  # as if it had just been built
    other = seeded_model(replace(WORKLOAD, seed=1), None, CPU)
    assert not torch.equal(next(other.parameters()), fresh[0])


def test_synthetic_images_have_the_jobs_shape() -> None:
    model = nn.Identity()
    feed = open_feed(model, None, request(WORKLOAD), RANKS, CPU)
    assert isinstance(feed, SyntheticFeed)
    inputs, targets = feed.next()
    assert inputs.shape == (3, 3, 16, 16)
    assert targets.shape == (3,)
    assert 0 <= int(targets.min()) and int(targets.max()) < 1000


def test_a_model_may_make_its_own_batches() -> None:
    class Own(nn.Module):
        def make_batch(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.full((size, 5), 7.0), torch.arange(size)

    inputs, targets = open_feed(Own(), None, request(WORKLOAD, 4), RANKS, CPU).next()
    assert torch.equal(inputs, torch.full((4, 5), 7.0))
    assert targets.tolist() == [0, 1, 2, 3]


def test_a_request_survives_its_message() -> None:
    message = {
        "v": 1, "type": "measure", "id": "m0007",
        "workload": WORKLOAD.__dict__, "settings": {"windows": 2, "cut_below": 5.0},
        "ddp": {"bucket_cap_mb": 50}, "loader": {"num_workers": 2}, "batch_size": 8,
        "data_seed": 3, "communicator_env": {"NCCL_ALGO": "Ring"},
        "communicator_config": {"min_ctas": 4}, "turns": True, "asks": True,
    }  # fmt: skip
    found = Request.from_message(message)
    assert found.workload == WORKLOAD
    assert found.settings == Settings(windows=2, cut_below=5.0)
    assert (found.id, found.ddp, found.loader, found.batch_size, found.data_seed) == (
        "m0007", {"bucket_cap_mb": 50}, {"num_workers": 2}, 8, 3,
    )  # fmt: skip
    assert found.communicator_env == {"NCCL_ALGO": "Ring"}
    assert found.communicator_config == {"min_ctas": 4}
    assert found.turns is True and found.asks is True


class Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layer(inputs)  # type: ignore[no-any-return]

    def loss(self, output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(output, targets)

    def make_batch(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.ones(size, 5), torch.zeros(size, dtype=torch.int64)


def test_a_closed_job_lets_go_of_what_it_held(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("tiny_job")
    monkeypatch.setattr(module, "Tiny", Tiny, raising=False)
    monkeypatch.setitem(sys.modules, "tiny_job", module)
    ranks: Any = SimpleNamespace(rank=0, world_size=1, local_rank=0)
    status: Any = SimpleNamespace(at=lambda *_: None)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        own = request(replace(WORKLOAD, model="tiny_job:Tiny"))
        job = Job(own, ranks, None, status, lambda *_, **__: None)
        job.step("first_step")
        assert job.loss is not None
        batch = job.feed.next()[0]
        held = [weakref.ref(one) for one in (job.model.module, job.optimizer, job.loss, batch)]
        del batch
        job.close()
        gc.collect()
        assert [one() for one in held] == [None] * 4
    finally:
        dist.destroy_process_group()
