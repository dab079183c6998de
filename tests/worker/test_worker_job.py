"""Parts of the timed job that need no ranks."""

from __future__ import annotations

import math
from collections import namedtuple
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nccltune.worker.feed import SyntheticFeed
from nccltune.worker.job import build_model, cross_entropy, open_feed
from nccltune.worker.spec import Request, Settings, Workload

WORKLOAD = Workload(
    model="mobilenet_v3_small",
    data="synthetic",
    folder=None,
    image_size=16,
    precision="fp32",
    channels_last=False,
    cudnn_benchmark=False,
    device="cpu",
    backend="gloo",
    seed=0,
)
CPU = torch.device("cpu")
RANKS = SimpleNamespace(rank=0, world_size=1)

LOGITS = torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 3.0]])
TARGETS = torch.tensor([0, 2])
# -log softmax by hand: log(e^2 + 2) - 2 and log(1 + e + e^3) - 3, averaged.
EXPECTED = ((math.log(math.exp(2) + 2) - 2) + (math.log(1 + math.e + math.exp(3)) - 3)) / 2

GoogLeNetOutputs = namedtuple("GoogLeNetOutputs", ["logits", "aux_logits2", "aux_logits1"])


@pytest.mark.parametrize(
    "output",
    [
        LOGITS,
        (LOGITS, torch.zeros(2, 3)),
        [LOGITS, torch.zeros(2, 3)],
        SimpleNamespace(logits=LOGITS, loss=None),
        GoogLeNetOutputs(LOGITS, torch.zeros(2, 3), torch.zeros(2, 3)),
    ],
    ids=["tensor", "tuple", "list", "logits", "GoogLeNet"],
)
def test_cross_entropy_of_the_main_head(output: object) -> None:
    assert cross_entropy(output, TARGETS).item() == pytest.approx(EXPECTED, rel=1e-6)


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
    few = build_model(WORKLOAD, SimpleNamespace(classes=["a", "b"]))
    many = build_model(WORKLOAD, SimpleNamespace(classes=[str(n) for n in range(1200)]))
    assert few.classifier[-1].out_features == 1000
    assert many.classifier[-1].out_features == 1200


def test_a_model_by_reference() -> None:
    model = build_model(replace(WORKLOAD, model="torch.nn:Identity"), None)
    assert isinstance(model, nn.Identity)


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
        "communicator_env": {"NCCL_ALGO": "Ring"}, "communicator_config": {"min_ctas": 4},
    }  # fmt: skip
    found = Request.from_message(message)
    assert found.workload == WORKLOAD
    assert found.settings == Settings(windows=2, cut_below=5.0)
    assert (found.id, found.ddp, found.loader, found.batch_size) == (
        "m0007", {"bucket_cap_mb": 50}, {"num_workers": 2}, 8,
    )  # fmt: skip
    assert found.communicator_env == {"NCCL_ALGO": "Ring"}
    assert found.communicator_config == {"min_ctas": 4}
