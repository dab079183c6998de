"""What is kept of a resolved space: its presets, its document, its digest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml
from space_jobs import (
    GLOO,
    NVLINK,
    SOCKETS,
    resolved,
    site,
    space_of,
    variable,
)

from nccltune.errors import UsageError
from nccltune.space.loading import load
from nccltune.space.model import Space
from nccltune.space.resolve import Facts, Note, ResolvedSpace
from nccltune.space.scalars import Value


def presets_of(space: Space, facts: Facts = SOCKETS, **selection: Any) -> dict[str, Any]:
    return {p.name: dict(p.values) for p in resolved(space, facts, **selection).presets}


def preset(name: str, **values: Value) -> dict[str, Any]:
    return {"name": name, "source": "a/b#1", "values": values}


def test_presets_that_do_not_apply_here_are_left_out() -> None:
    space = space_of(
        {
            "NCCL_ALGO": variable(None, "Ring", "NVLS"),
            "NCCL_MIN_CTAS": variable(None, 8, 16),
            "NCCL_MAX_CTAS": variable(None, 8, 16),
            "bucket_cap_mb": {"target": "ddp", "choices": [None, 5, 100]},
            "batch_size": {"target": "batch", "choices": [16, 128]},
        },
        presets=[
            preset("ring", NCCL_ALGO="Ring"),
            preset("ring-again", NCCL_ALGO="Ring", bucket_cap_mb=None),
            preset("nvls", NCCL_ALGO="NVLS"),
            preset("baseline", bucket_cap_mb=None),
            preset("mixed", NCCL_MIN_CTAS=16, bucket_cap_mb=5),
            preset("small-batch", batch_size=16),
            preset("large-batch", batch_size=128),
        ],
    )
    off = replace(NVLINK, site=site(NCCL_NVLS_ENABLE="0", NCCL_MAX_CTAS="8"))
    assert presets_of(space, NVLINK) == {
        "ring": {"NCCL_ALGO": "Ring"},
        "nvls": {"NCCL_ALGO": "NVLS"},
        "mixed": {"NCCL_MIN_CTAS": 16, "bucket_cap_mb": 5},
        "large-batch": {"batch_size": 128},
    }
    # Without multicast no NVLS; 16 CTAs exceed what the site allows.
    assert presets_of(space, off) == {
        "ring": {"NCCL_ALGO": "Ring"},
        "large-batch": {"batch_size": 128},
    }
    assert presets_of(space, NVLINK, only=("ddp",)) == {"mixed": {"bucket_cap_mb": 5}}
    assert presets_of(space, NVLINK, fix={"bucket_cap_mb": 5}) == {
        "ring": {"NCCL_ALGO": "Ring"},
        "nvls": {"NCCL_ALGO": "NVLS"},
        "mixed": {"NCCL_MIN_CTAS": 16},
        "large-batch": {"batch_size": 128},
    }


@pytest.mark.parametrize("name", ["default", "comm", "cpu"])
@pytest.mark.parametrize("facts", [SOCKETS, NVLINK, replace(GLOO, num_workers=1)])
def test_a_resolved_space_survives_yaml_exactly(name: str, facts: Facts) -> None:
    found = resolved(load(name), facts, fix={"bucket_cap_mb": 25.0, "prefetch_factor": 2})
    for sort_keys in (False, True):
        text = yaml.safe_dump(found.to_dict(), sort_keys=sort_keys)
        again = ResolvedSpace.from_dict(yaml.safe_load(text))
        assert again == found
        assert again.digest() == found.digest()
    assert repr(ResolvedSpace.from_dict(found.to_dict()).to_dict()) == repr(found.to_dict())


def test_types_survive_yaml() -> None:
    space = {
        "OMP_NUM_THREADS": variable(None, 1, "1", "true", "null", 1.0, "1e3"),
        "gradient_as_bucket_view": {"target": "ddp", "choices": [False, True], "default": False},
    }
    found = resolved(space)
    again = ResolvedSpace.from_dict(yaml.safe_load(yaml.safe_dump(found.to_dict())))
    assert repr(again.parameters[0].choices) == "(None, 1, '1', 'true', 'null', 1.0, '1e3')"
    assert again.parameters[1].default is False


def test_the_digest_is_of_what_is_searched_and_of_nothing_else() -> None:
    def digest(**change: Any) -> str:
        parameter = {"target": "ddp", "choices": [None, 5, 25], **change}
        return resolved({"bucket_cap_mb": parameter}).digest()

    base = digest()
    assert len(base) == 64
    assert digest() == base
    assert digest(about="a description") == base
    assert digest(choices=[None, 5]) != base
    assert digest(choices=[None, 5, 25.0]) != base
    assert digest(default=5) != base
    assert digest(risk="numerics") != base

    space = load("default")
    plain = resolved(space).digest()
    assert resolved(space, fix={"NCCL_NTHREADS": 256}).digest() != plain
    assert resolved(space, exclude=("loader",)).digest() != plain
    noted = replace(resolved(space), notes=(Note("a", "dropped", "b"),), presets=())
    assert noted.digest() == plain
    threads = replace(SOCKETS, site=site(NCCL_SOCKET_NTHREADS="4"))
    more = replace(SOCKETS, site=site(NCCL_SOCKET_NTHREADS="8"))
    assert resolved(space, threads).digest() != resolved(space, more).digest()


def test_a_damaged_document_is_told_with_its_place() -> None:
    document = resolved(load("cpu"), GLOO).to_dict()
    document["parameters"][0]["choices"] = [None, -5]
    del document["fixed"]
    with pytest.raises(UsageError) as caught:
        ResolvedSpace.from_dict(document, "study.yaml: space")
    assert str(caught.value).splitlines() == [
        "study.yaml: space: parameters[0].choices: must be null or a number above 0, got -5",
        "study.yaml: space: fixed: is missing",
    ]
