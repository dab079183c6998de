"""What is known of a script's command, and what was seen of the script, before it is measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from study_jobs import TASK

from nccltune.errors import UsageError
from nccltune.launch.script import ScriptCommand
from nccltune.study.options import SearchOptions
from nccltune.study.script_survey import check_facts, check_script
from nccltune.study.script_task import ScriptTask

SEEN: dict[str, Any] = {
    "world_size": TASK.nproc_per_node,
    "optimizers": [12],
    "optimizer": 0,
    "told": 0,
    "samples_per_step": [8.0, 8.0],
    "training": ["1:Toy"],
    "loaders": [{"key": "1:Toy", "place": "train.py:33"}, {"key": "2:Toy", "place": "train.py:34"}],
}


def script(**given: Any) -> ScriptTask:
    return ScriptTask(ScriptCommand(("train.py",)), **given)


def test_a_loader_match_that_matches_nothing_names_what_there_was() -> None:
    with pytest.raises(UsageError) as caught:
        check_facts(script(loader_match="trian.py:33"), 2, {**SEEN, "training": []})
    assert str(caught.value) == (
        "--loader-match trian.py:33 matches no DataLoader; made were: 1:Toy (train.py:33), "
        "2:Toy (train.py:34)"
    )


def test_a_loader_match_where_no_loader_was_made() -> None:
    with pytest.raises(UsageError, match="--loader-match 1 matches no DataLoader; made were: none"):
        check_facts(script(loader_match="1"), 2, {**SEEN, "training": [], "loaders": []})


@pytest.mark.parametrize("match", [None, "train.py:33"])
def test_a_loader_that_is_found_or_not_asked_for(match: str | None) -> None:
    check_facts(script(loader_match=match), 2, SEEN)
    if match is None:
        check_facts(script(), 2, {**SEEN, "training": []})


OTHERS = ('{"a": 1}', "{x:1}", "${batch_size}", "{}", "{epoch:03d}", "{lr}", "a={b,c}", "{a b}")


@pytest.mark.parametrize("word", OTHERS)
def test_braces_of_others_stay(tmp_path: Path, word: str) -> None:
    file = tmp_path / "train.py"
    file.write_text("")
    check_script(SearchOptions(script=(str(file), word)), {})
    values = {"batch_size": "64", "num_workers": "2"}
    assert ScriptCommand((str(file), word)).filled(values) == (str(file), word)


def test_a_place_is_filled() -> None:
    command = ScriptCommand(("train.py", "--bs={batch_size}", "${batch_size}", "{other}"))
    assert command.filled({"batch_size": "64"}) == (
        "train.py", "--bs=64", "${batch_size}", "{other}",
    )  # fmt: skip


def test_a_misspelt_place_is_told() -> None:
    for wrong in ("{batch-size}", "{ batch_size }", "{BATCH_SIZE}", "{batchsize}", "{bacth_size}"):
        with pytest.raises(UsageError) as caught:
            check_script(SearchOptions(script=(__file__, wrong)), {})
        told = f"{wrong}: no parameter of that name, did you mean {{batch_size}}?"
        assert str(caught.value) == told
