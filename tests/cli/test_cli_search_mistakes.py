"""Mistakes in the options of `search`: told at once, in one message, and nothing is begun."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_command import Command

MISTAKES = {
    "a path for a name": (
        ["--study", "a/b"],
        "--study 'a/b': a study name is one folder name of letters, digits, '.', '_', '+' and '-', "
        "starting with a letter or digit; --studies-dir says where it lies",
    ),
    "an empty name": (["--study", ""], "--study '': a study name is one folder name"),
    "a name above": (["--study", ".."], "--study '..': a study name is one folder name"),
    "no time": (["--time-budget", "soon"], "not a time: 'soon'; write it like 90s, 10m or 1h30m"),
    "no time at all": (["--time-budget", "0s"], "a time must be above 0, got '0s'"),
    "half a fix": (["--fix", "num_workers"], "--fix num_workers: write it as NAME=VALUE"),
    "a fix of nothing": (["--fix", "a="], "--fix a=: needs a value; write a=null for unset"),
    "a fix given twice": (["--fix", "a=1", "--fix", "a=2"], "--fix a: given twice"),
    "a word too many": (["resnet50"], "resnet50: no such file; give the training script after --"),
    "no script after all": (["--", "-m"], "-m: give the module"),
    "a program": (["--", "env", "train.py"], "env: is a program, not a script in Python"),
    "nothing after the dashes": (["--"], "nothing after --; give the training script"),
    "an empty word after them": (["--", ""], "nothing after --; give the training script"),
    "no dashes, an option that is none of ours": (
        [__file__, "data", "--lr", "0.1"],
        f"put -- before {__file__}, as in: nccltune search ... -- {__file__} ...; options of",
    ),
    "no dashes, an option that is ours too": (
        ["--trials", "3", __file__, "data", "--batch-size", "16"],
        f"put -- before {__file__}",
    ),
    "no dashes, a place": (
        [__file__, "--batch-size", "{batch_size}"],
        f"put -- before {__file__}",
    ),
    "dashes too late": ([__file__, "data", "--", "--lr", "0.1"], f"put -- before {__file__}"),
    "a place with a dash": (
        ["--", __file__, "{batch-size}"],
        "{batch-size}: no parameter of that name, did you mean {batch_size}?",
    ),
    "a place with blanks": (
        ["--", __file__, "--bs={ batch_size }"],
        "{ batch_size }: no parameter of that name, did you mean {batch_size}?",
    ),
    "a place in capitals": (
        ["--", __file__, "{Num-Workers}"],
        "{Num-Workers}: no parameter of that name, did you mean {num_workers}?",
    ),
    "a misspelt place": (
        ["--", __file__, "{batchsize}"],
        "{batchsize}: no parameter of that name, did you mean {batch_size}?",
    ),
    "a place for a variable": (
        ["--", __file__, "{NCCL_ALGO}"],
        "{NCCL_ALGO}: variables are set in the script's environment",
    ),
    "two numbers of ranks": (
        ["--nproc-per-node", "2", "--", "torchrun", "--nproc-per-node=3", __file__],
        "--nproc-per-node 2: torchrun is given 3",
    ),
    "several nodes": (
        ["--", "torchrun", "--nnodes=2", __file__],
        "--nnodes 2: only one machine is searched",
    ),
    "parts of nothing": (
        ["--split", "2", "--storage", "x"],
        "--split 2 divides the nodes of a Slurm allocation: give --launcher slurm too",
    ),
    "parts that share nothing": (
        ["--split", "2", "--launcher", "slurm"],
        "--split 2: its tuners share one study: give --storage too, a journal file that all nodes",
    ),
    "no Python": (["--", "torchrun", "--no-python", "x"], "--no-python: the script has to be"),
    "a batch size of its own": (
        ["--batch-size", "8", "--", __file__],
        "{batch_size} has no place in the script's arguments, so --batch-size would do nothing; "
        "write e.g. test_cli_search_mistakes.py --batch-size {batch_size}, or leave the option out",
    ),
    "a number of workers without a place": (
        ["--num-workers", "2", "--", __file__, "--batch-size", "{batch_size}"],
        "{num_workers} has no place in the script's arguments, so --num-workers would do nothing",
    ),
    "options of Python": (
        ["--", "python", "-O", __file__],
        "-O: options of Python are not passed on",
    ),
    "no batch size": (
        ["--only", "batch_size", "--", __file__],
        "batch_size: test_cli_search_mistakes.py has no place for it ({batch_size}); write "
        "{batch_size} where the script takes it, as in `test_cli_search_mistakes.py --batch-size "
        "{batch_size}`, or --exclude batch_size",
    ),
}

REFUSED = {
    "no trial": (["--trials", "0"], "'--trials': must be 1 to 1000000000, got 0"),
    "fewer than none": (["--trials", "-3"], "'--trials': must be 1 to 1000000000, got -3"),
    "half a trial": (["--trials", "1.5"], "'--trials': '1.5' is not a valid integer"),
    "no rank": (["--nproc-per-node", "0"], "'--nproc-per-node': must be 1 to 1000000000, got 0"),
    "no sample": (["--batch-size", "0"], "'--batch-size': must be 1 to 1000000000, got 0"),
    "no pixel": (["--image-size", "0"], "'--image-size': must be 1 to 1000000000, got 0"),
    "fewer workers than none": (["--num-workers", "-1"], "'--num-workers'"),
    "another device": (["--device", "tpu"], "'tpu' is not one of 'auto', 'cuda', 'cpu'"),
    "another backend": (["--backend", "mpi"], "'mpi' is not one of 'auto', 'nccl', 'gloo'"),
    "another launcher": (
        ["--launcher", "mpirun"],
        "'mpirun' is not one of 'auto', 'warm'",
    ),
    "no host": (["--emulate-hosts", "0"], "'--emulate-hosts': 0 is not in the range x>=1"),
    "no measuring time": (["--measure-seconds", "nan"], "must be a number, got nan"),
    "another precision": (["--precision", "int8"], "'int8' is not one of"),
    "a seed in words": (["--seed", "x"], "'x' is not a valid integer"),
    "our job and a script": (
        ["--model", "resnet18", "--", __file__],
        "--model is for nccltune's own job; the script has its own",
    ),
    "an option that is none, before a script": (
        ["--lr", "0.1", __file__],
        "No such option '--lr'",
    ),
    "a script's option": (["--workdir", "scratch"], "--workdir: it is for a script, given after"),
    "a value missing": (["--model"], "Option '--model' requires an argument"),
}


def nothing_was_made(tmp_path: Path) -> bool:
    return not list((tmp_path / "home").iterdir()) and not (tmp_path / "cache").exists()


@pytest.mark.parametrize(("arguments", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_one_message(
    nccltune_command: Command, tmp_path: Path, arguments: list[str], message: str
) -> None:
    done = nccltune_command("search", *arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"nccltune: error: {message}")
    assert len(done.err.splitlines()) == 1
    assert nothing_was_made(tmp_path)


@pytest.mark.parametrize(("arguments", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_a_value_that_no_option_takes(
    nccltune_command: Command, tmp_path: Path, arguments: list[str], message: str
) -> None:
    done = nccltune_command("search", *arguments)
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert done.err.count("Error:") == 1
    assert "Traceback" not in done.err
    assert nothing_was_made(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--python", "/no/such/python"], "--python /no/such/python: no such program"),
        (["--data", "no/such/folder"], "--data no/such/folder: no such folder; give images"),
    ],
)
def test_what_does_not_exist_is_told_before_anything_is_asked(
    nccltune_command: Command, tmp_path: Path, arguments: list[str], message: str
) -> None:
    done = nccltune_command("search", "--device", "cpu", "--data", "synthetic", *arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"nccltune: error: {message}")
    assert nothing_was_made(tmp_path)


def test_a_file_is_no_image_folder(nccltune_command: Command, tmp_path: Path) -> None:
    file = tmp_path / "images.tar"
    file.write_text("")
    done = nccltune_command("search", "--device", "cpu", "--data", str(file))
    assert done.code == 2
    assert done.err == (
        f"nccltune: error: --data {file}: is a file; a folder of class folders is wanted\n"
    )


def test_a_site_that_contradicts_emulated_hosts_is_told_before_anything_is_asked(
    nccltune_command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_NET", "IB")
    done = nccltune_command("search", "--emulate-hosts", "2")
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        "nccltune: error: --emulate-hosts 2: NCCL_NET must be Socket, but the site (environment) "
        "has set it to 'IB'; unset it there, or leave the option out\n"
    )
    assert nothing_was_made(tmp_path)


@pytest.mark.parametrize("arguments", [["--device", "cpu"], ["--backend", "gloo"]])
def test_hosts_cannot_be_emulated_with_gloo(
    nccltune_command: Command, tmp_path: Path, arguments: list[str]
) -> None:
    given = ("--emulate-hosts", "2", "--data", "synthetic", "--launcher", "torchrun")
    done = nccltune_command("search", *given, *arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        "nccltune: error: --emulate-hosts 2: needs --backend nccl, which chooses its way from rank "
        "to rank by host; with gloo all ranks talk over sockets as it is\n"
    )
    assert nothing_was_made(tmp_path)
