"""best.env, as shells read it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from nccltune.output.env_file import env_file

SHELLS = [shell for shell in ("sh", "bash", "dash", "zsh", "busybox") if shutil.which(shell)]

HOSTILE = {
    "PLAIN": "1048576",
    "GRAMMAR": "ring,tree;allreduce:tree",
    "WITHOUT": "^LL128",
    "EMPTY": "",
    "SPACES": "  two  spaces ",
    "SINGLE": "it's",
    "DOUBLE": 'say "hi"',
    "BOTH": "'\"'\"'",
    "COMMAND": "$(touch made-by-value)",
    "BACKTICKS": "`touch made-by-value`",
    "VARIABLE": "$HOME ${PATH} $$ $1",
    "ENDS": "a; touch made-by-value; b & c | d > made-by-value",
    "BACKSLASHES": "\\ \\\\ \\n \\' C:\\x\\",
    "NEWLINE": "one\ntwo\n\nthree",
    "TAB": "a\tb",
    "GLOB": "* ? [a-z] ~ ~root {a,b} !x !!",
    "HASH": "# no comment",
    "EQUALS": "a=b",
    "DASH": "-n",
    "PERCENT": "%s %d",
    "UNICODE": "größer 速い \U0001f680 \u00a0",
}


@pytest.mark.parametrize("shell", SHELLS)
def test_every_value_arrives_byte_for_byte_and_nothing_is_run(shell: str, tmp_path: Path) -> None:
    file = tmp_path / "best.env"
    file.write_text(env_file(HOSTILE, ["a header"]), encoding="utf-8")
    # env as a child sees what was exported; -0 keeps line breaks apart.
    command = [shell, *(["sh"] if shell == "busybox" else []), "-c", ". ./best.env && env -0"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=True, timeout=30)
    assert done.stderr == b""
    entries = (entry.partition(b"=") for entry in done.stdout.split(b"\0") if entry)
    seen = {name.decode(): value for name, _, value in entries}
    assert {name: seen.get(name) for name in HOSTILE} == {
        name: value.encode() for name, value in HOSTILE.items()
    }
    assert [f.name for f in tmp_path.iterdir()] == ["best.env"]


def test_there_is_a_posix_shell_and_bash_to_try() -> None:
    assert {"sh", "bash"} <= set(SHELLS)


@pytest.mark.parametrize("shell", SHELLS)
def test_a_header_can_hold_anything_and_stays_a_comment(shell: str, tmp_path: Path) -> None:
    header = [
        "command: nccltune search --study 'x' $(touch made)",
        "two\nlines `touch made`\r\ntouch made",
        "ends in a backslash \\",
        "",
    ]
    file = tmp_path / "best.env"
    file.write_text(env_file({"AFTER": "1"}, header))
    command = [shell, *(["sh"] if shell == "busybox" else []), "-c", '. ./best.env; echo "$AFTER"']
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")
    assert [f.name for f in tmp_path.iterdir()] == ["best.env"]


def test_the_text() -> None:
    assert env_file({"A": "1", "B": "x y"}, ["one", "", "two  words"]) == (
        "# one\n#\n# two words\nexport A=1\nexport B='x y'\n"
    )


def test_without_variables_it_is_its_header_alone() -> None:
    assert env_file({}, ["keep the defaults"]) == "# keep the defaults\n"
