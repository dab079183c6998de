"""One configuration: canonical form, rules, comparison, parts."""

from __future__ import annotations

from typing import Any

import pytest
from packaging.version import Version

from nccltune.errors import UsageError
from nccltune.nccl.site import SiteVariable
from nccltune.space.configuration import Split, canonical, changes, key, scope, split, violation
from nccltune.space.loading import load
from nccltune.space.model import Space
from nccltune.space.resolve import Facts, ResolvedSpace, Selection, resolve
from nccltune.space.scalars import Value


def over_sockets(space: Space | None = None, site: dict[str, str] | None = None,
                 workers: int = 4, **selection: Any) -> ResolvedSpace:  # fmt: skip
    facts = Facts(
        backend="nccl",
        world_size=2,
        probed=True,
        network="Socket",
        transports=("NET",),
        nccl=Version("2.28.9"),
        site={n: SiteVariable(n, v, "environment") for n, v in (site or {}).items()},
        cpus_per_rank=8,
        batch_size=64,
        num_workers=workers,
    )
    return resolve(space or load("default"), facts, Selection(**selection), "default")


def test_the_canonical_form_is_complete_and_in_order() -> None:
    resolved = over_sockets(fix={"NCCL_NTHREADS": 256})
    found = canonical({"bucket_cap_mb": 50, "NCCL_ALGO": "Ring"}, resolved)
    assert list(found) == [*(p.name for p in resolved.parameters), "NCCL_NTHREADS"]
    assert changes(found, resolved.baseline) == {"NCCL_ALGO": "Ring", "bucket_cap_mb": 50}
    assert canonical({}, resolved) == resolved.baseline
    assert canonical(found, resolved) == found


def test_fixed_values_hold_whatever_is_asked() -> None:
    resolved = over_sockets(fix={"bucket_cap_mb": 10})
    assert canonical({"bucket_cap_mb": 50}, resolved)["bucket_cap_mb"] == 10


def test_an_unknown_name_is_refused() -> None:
    resolved = over_sockets(only=("ddp",))
    message = (
        "unknown parameter 'NCCL_ALGO', searched or fixed are bucket_cap_mb, "
        "gradient_as_bucket_view"
    )
    with pytest.raises(UsageError, match=message):
        canonical({"NCCL_ALGO": "Ring"}, resolved)
    with pytest.raises(UsageError, match="unknown parameter 'NCCL_ALGO'"):
        split({"NCCL_ALGO": "Ring"}, resolved)


@pytest.mark.parametrize(
    ("asked", "name", "value"),
    [
        ({"num_workers": 0, "prefetch_factor": 8}, "prefetch_factor", None),
        ({"num_workers": 1, "prefetch_factor": 8}, "prefetch_factor", 8),
        ({"NCCL_NSOCKS_PERTHREAD": 8}, "NCCL_NSOCKS_PERTHREAD", None),
        ({"NCCL_NSOCKS_PERTHREAD": 8, "NCCL_SOCKET_NTHREADS": 1}, "NCCL_NSOCKS_PERTHREAD", 8),
    ],
)
def test_what_does_nothing_is_null(asked: dict[str, Value], name: str, value: Value) -> None:
    assert canonical(asked, over_sockets())[name] == value


def test_what_does_nothing_is_null_even_where_the_file_states_no_condition() -> None:
    plain: dict[str, Any] = {"target": "env", "choices": [None, 0, 4]}
    space = Space.model_validate(
        {
            "version": 1,
            "parameters": {"NCCL_NSOCKS_PERTHREAD": plain, "NCCL_SOCKET_NTHREADS": plain},
        }
    )
    resolved = over_sockets(space)
    sockets = {"NCCL_NSOCKS_PERTHREAD": 4}
    for threads, left in ((None, None), (0, None), (4, 4)):
        found = canonical({**sockets, "NCCL_SOCKET_NTHREADS": threads}, resolved)
        assert found["NCCL_NSOCKS_PERTHREAD"] == left


def test_a_variable_of_the_site_keeps_what_depends_on_it_alive() -> None:
    resolved = over_sockets(site={"NCCL_SOCKET_NTHREADS": "4"})
    assert canonical({"NCCL_NSOCKS_PERTHREAD": 8}, resolved)["NCCL_NSOCKS_PERTHREAD"] == 8
    assert violation({"NCCL_NSOCKS_PERTHREAD": 8}, resolved) is None
    crowded = over_sockets(site={"NCCL_SOCKET_NTHREADS": "16"})
    assert violation({"NCCL_NSOCKS_PERTHREAD": 8}, crowded) == (
        "NCCL_SOCKET_NTHREADS x NCCL_NSOCKS_PERTHREAD must not exceed 64, "
        "got NCCL_SOCKET_NTHREADS=16 NCCL_NSOCKS_PERTHREAD=8"
    )


def test_the_users_own_workers_count_where_they_are_not_searched() -> None:
    resolved = over_sockets(only=("prefetch_factor",))
    assert canonical({"prefetch_factor": 8}, resolved) == {"prefetch_factor": 8}
    assert violation({"prefetch_factor": 8}, resolved) is None
    assert resolved.given == {"num_workers": 4}


def test_a_fixed_prefetch_gives_way_only_to_trials_without_workers() -> None:
    resolved = over_sockets(workers=0, fix={"prefetch_factor": 4})
    assert resolved.baseline["prefetch_factor"] is None
    assert canonical({"num_workers": 2}, resolved)["prefetch_factor"] == 4
    assert resolved.fixed == {"prefetch_factor": 4}


def chain() -> ResolvedSpace:
    """A waits for B, B for C, in the order of a file that names the last one first."""

    def waiting(**param: Value) -> dict[str, Any]:
        return {"target": "env", "choices": [None, 1, 2], "when": {"param": param}}

    parameters = {
        "OMP_A": waiting(OMP_B="not_null"),
        "OMP_IDLE": waiting(OMP_B=None),
        "OMP_B": waiting(OMP_C=2),
        "OMP_C": {"target": "env", "choices": [None, 1, 2]},
        "gradient_as_bucket_view": {
            "target": "ddp",
            "choices": [False, True],
            "default": False,
            "when": {"param": {"OMP_C": 2}},
        },
    }
    return over_sockets(Space.model_validate({"version": 1, "parameters": parameters}))


def test_conditions_are_followed_through_chains_in_any_order() -> None:
    asked: dict[str, Value] = {
        "OMP_A": 1, "OMP_IDLE": 1, "OMP_B": 1, "gradient_as_bucket_view": True,
    }  # fmt: skip
    assert canonical({**asked, "OMP_C": 2}, chain()) == {
        "OMP_A": 1, "OMP_IDLE": None, "OMP_B": 1, "OMP_C": 2,
        "gradient_as_bucket_view": True,
    }  # fmt: skip
    # B goes, so A goes, and what waits for B to be null keeps what was asked.
    assert canonical({**asked, "OMP_C": 1}, chain()) == {
        "OMP_A": None, "OMP_IDLE": 1, "OMP_B": None, "OMP_C": 1,
        "gradient_as_bucket_view": False,
    }  # fmt: skip


def test_violations_are_told_with_values() -> None:
    resolved = over_sockets()
    assert violation({"NCCL_MIN_CTAS": 16, "NCCL_MAX_CTAS": 8}, resolved) == (
        "NCCL_MIN_CTAS must not exceed NCCL_MAX_CTAS, got NCCL_MIN_CTAS=16 NCCL_MAX_CTAS=8"
    )
    assert violation({"num_workers": 0, "prefetch_factor": 2}, resolved) == (
        "prefetch_factor needs num_workers to be on (not null, false or 0), "
        "got prefetch_factor=2 num_workers=0"
    )
    assert violation({"prefetch_factor": 2}, resolved) is None
    assert (
        violation(canonical({"num_workers": 0, "prefetch_factor": 2}, resolved), resolved) is None
    )
    assert violation({}, resolved) is None


def test_the_spaces_own_rules_count_too() -> None:
    space = load("cpu").model_copy(
        update={
            "constraints": load("cpu").constraints.model_validate(
                {"forbids": [{"bucket_cap_mb": [5, 10], "gradient_as_bucket_view": True}]}
            )
        }
    )
    resolved = over_sockets(space)
    both: dict[str, Value] = {"bucket_cap_mb": 10, "gradient_as_bucket_view": True}
    assert violation(both, resolved) == (
        "the space forbids bucket_cap_mb=10 gradient_as_bucket_view=true together"
    )
    assert violation({**both, "bucket_cap_mb": 25}, resolved) is None


def test_keys_tell_types_apart_and_not_order() -> None:
    assert key({"a": 1, "b": None}) == key({"b": None, "a": 1}) == '{"a":1,"b":null}'
    values: tuple[Value, ...] = (1, True, "1", 1.0, "true", None, "null", 0, False)
    assert len({key({"a": value}) for value in values}) == len(values)


def test_changes_compare_types() -> None:
    baseline: dict[str, Value] = {"a": 1, "b": False, "c": None}
    assert changes({"a": True, "b": 0, "c": None}, baseline) == {"a": True, "b": 0}
    assert changes({"a": 1, "b": False, "d": 5}, baseline) == {"d": 5}
    assert changes(baseline, baseline) == {}


def test_a_configuration_splits_by_target() -> None:
    resolved = over_sockets(fix={"NCCL_NTHREADS": 256})
    asked: dict[str, Value] = {
        "NCCL_ALGO": "Tree",
        "NCCL_SOCKET_NTHREADS": 2,
        "gradient_as_bucket_view": True,
        "batch_size": 128,
        "num_workers": 0,
    }
    assert split(canonical(asked, resolved), resolved) == Split(
        env={"NCCL_ALGO": "Tree", "NCCL_SOCKET_NTHREADS": "2", "NCCL_NTHREADS": "256"},
        ddp={"gradient_as_bucket_view": True},
        loader={"num_workers": 0, "prefetch_factor": None},
        batch_size=128,
    )


def test_a_batch_size_that_is_not_ours_is_none() -> None:
    resolved = over_sockets(exclude=("batch", "env"))
    assert split(resolved.baseline, resolved) == Split(
        env={},
        ddp={"gradient_as_bucket_view": False},
        loader={"num_workers": 4, "prefetch_factor": None},
        batch_size=None,
    )


def test_the_scope_of_a_change() -> None:
    assert scope("NCCL_ALGO", "env") == "communicator"
    assert scope("NCCL_SOCKET_NTHREADS", "env") == "process"
    assert scope("OMP_NUM_THREADS", "env") == "process"
    assert scope("bucket_cap_mb", "ddp") == "model"
    assert scope("num_workers", "loader") == scope("batch_size", "batch") == "loader"
