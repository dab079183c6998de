"""What is refused before anything starts."""

from __future__ import annotations

import pytest

from nccltune.errors import UsageError
from nccltune.space import Facts, Selection, load, resolve
from nccltune.study.survey import refuse_empty

GLOO = Facts(backend="gloo", world_size=2, probed=True)


def test_a_space_with_nothing_left_is_refused_with_the_reasons() -> None:
    space = resolve(load("default"), GLOO, Selection(only=("env",)), "default")
    with pytest.raises(UsageError) as caught:
        refuse_empty(space)
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("nothing to search here; keep the defaults")
    assert [line for line in lines if "NCCL_ALGO" in line and "gloo" in line]


def test_one_parameter_is_enough() -> None:
    refuse_empty(resolve(load("default"), GLOO, Selection(only=("bucket_cap_mb",)), "default"))
