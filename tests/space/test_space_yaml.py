"""Files that are no plain YAML, are hostile, or are no files at all."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from nccltune.errors import UsageError
from nccltune.space.loading import builtin_folder, builtin_names, load
from nccltune.space.model import Space

GOOD = """\
version: 1
parameters:
  bucket_cap_mb: {target: ddp, choices: [null, 5, 25], default: null}
  NCCL_ALGO: {target: env, choices: [null, Ring], default: null}
"""


def message_of(path: Path, content: str | bytes) -> str:
    """What loading `content` complains of, with the path cut to the file's name."""
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UsageError) as caught:
        load(str(path))
    return str(caught.value).replace(str(path), "a.yaml")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "a.yaml"


def parameter(text: str, name: str = "bucket_cap_mb") -> str:
    return f"version: 1\nparameters:\n  {name}: {text}\n"


# What YAML itself gets wrong, with the line.
SYNTAX = [
    ("version: 1\nparameters: {a: [}\n",
     "a.yaml: line 2, column 18: not valid YAML: while parsing a flow node: expected the node "
     "content, but found '}'"),
    ("version: 1\nversion: 1\n", "a.yaml: line 2: duplicate key version, first on line 1"),
    (GOOD + "  NCCL_ALGO: {target: env, choices: [null]}\n",
     "a.yaml: line 5: duplicate key NCCL_ALGO, first on line 4"),
    (parameter("{target: ddp, target: ddp, choices: [5]}"),
     "a.yaml: line 3: duplicate key target, first on line 3"),
    (GOOD + "about: !!python/object/apply:os.system ['true']\n",
     "a.yaml: line 5: unknown tag !!python/object/apply:os.system, plain values need none"),
    (GOOD + "about: !mine x\n", "a.yaml: line 5: unknown tag !mine, plain values need none"),
    (GOOD + "about: 2024-01-02\n",
     "a.yaml: line 5: a date is no value here, put 2024-01-02 in quotes"),
    (parameter("{target: env, choices: [null, 010]}", "NCCL_X"),
     "a.yaml: line 3: write a plain decimal number, or put a text in quotes, got 010"),
    (parameter("{target: env, choices: [null, 1:30]}", "NCCL_X"),
     "a.yaml: line 3: write a plain decimal number, or put a text in quotes, got 1:30"),
    (parameter("{target: env, choices: [null, !!int x]}", "NCCL_X"),
     "a.yaml: line 3: write a plain decimal number, or put a text in quotes, got x"),
    ("version: !!bool maybe\n", "a.yaml: a value cannot be read: 'maybe'"),
    ("? [a, b]\n: 1\n", "a.yaml: line 1: a key must be a text"),
    ("a: 1\n---\nb: 2\n",
     "a.yaml: line 2, column 1: not valid YAML: expected a single document in the stream: but "
     "found another document"),
    ("- 1\n- 2\n", "a.yaml: must be a mapping with version and parameters, got a list"),
    ("just words\n", "a.yaml: must be a mapping with version and parameters, got a single value"),
    ("# nothing\n", "a.yaml: is empty, a search space needs version and parameters"),
    (b"\xff\xfe\x00v", "a.yaml: must be UTF-8 text, byte 0 is not"),
    (b"version: 1\nabout: \x89PNG\n", "a.yaml: must be UTF-8 text, byte 18 is not"),
    (b"version: \x00\n",
     'a.yaml: not valid YAML: unacceptable character #x0000: special characters are not allowed '
     'in "<unicode string>", position 9'),
    ("a: &a [*a]\n", "a.yaml: line 1: an alias must not contain itself"),
    ("a: *b\n", "a.yaml: line 1, column 4: not valid YAML: found undefined alias 'b'"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "message"), SYNTAX)
def test_what_is_no_plain_yaml_is_told_with_its_line(
    file: Path, content: str | bytes, message: str
) -> None:
    assert message_of(file, content) == message


def _bomb(opening: str, closing: str) -> str:
    names = "abcdefghij"
    lines = [f"a: &a {opening}x: 1{closing}\n" if opening == "{" else "a: &a [x, x, x]\n"]
    for before, name in zip(names, names[1:], strict=False):
        aliases = ",".join([f"*{before}"] * 9)
        lines.append(
            f"{name}: &{name} {{<<: [{aliases}]}}\n"
            if opening == "{"
            else f"{name}: &{name} [{aliases}]\n"
        )
    return "".join(lines)


MEBIBYTE = 1024 * 1024
HOSTILE = {
    "aliases of aliases": (_bomb("[", "]"), "aliases stand for"),
    "merges of merges": (_bomb("{", "}"), "aliases stand for"),
    "too big": ("#" * (MEBIBYTE + 1), "must not exceed 1 MiB"),
    "deep list": ("[" * 100_000, "nested deeper than 20"),
    "deep mapping": ("{" * 100_000, "nested deeper than 20"),
    "deep block": ("".join(" " * i + "a:\n" for i in range(900)), "nested deeper than 20"),
    "many values": ("a: [" + "1," * 300_000 + "]", "more than 20000 values"),
    "long number": ("version: " + "9" * 500_000, "write a plain decimal number"),
    "long text": (parameter("{target: env, choices: [null, " + "x" * 500_000 + "]}", "NCCL_X"),
                  "printable text"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_quickly_and_shortly(file: Path, name: str) -> None:
    content, message = HOSTILE[name]
    start = time.monotonic()
    found = message_of(file, content)
    assert message in found
    assert len(found) < 500
    assert time.monotonic() - start < 20  # hours or all memory without the limits


def test_anchors_of_a_sane_size_are_read(file: Path) -> None:
    file.write_text(
        "version: 1\nparameters:\n"
        "  NCCL_MIN_CTAS: &ctas {target: env, choices: [null, 8], default: null}\n"
        "  NCCL_MAX_CTAS: {<<: *ctas, risk: numerics}\n"
    )
    space = load(str(file))
    assert space.parameters["NCCL_MAX_CTAS"].choices == (None, 8)
    assert space.parameters["NCCL_MAX_CTAS"].name == "NCCL_MAX_CTAS"
    assert space.parameters["NCCL_MAX_CTAS"].risk == "numerics"


def test_a_byte_order_mark_is_no_obstacle(file: Path) -> None:
    file.write_bytes(b"\xef\xbb\xbf" + GOOD.encode())
    assert "NCCL_ALGO" in load(str(file)).parameters


def test_what_is_no_regular_file_is_not_opened(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.yaml"
    os.mkfifo(pipe)  # opening it would wait for a writer
    for path in (pipe, tmp_path):
        with pytest.raises(UsageError, match="must be a file, got something else"):
            load(f"{path}/" if path.is_dir() else str(path))
    with pytest.raises(UsageError, match=r"gone\.yaml: no such file"):
        load(str(tmp_path / "gone.yaml"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("defualt", "search space: unknown name 'defualt', did you mean default? built in are "
         "comm, cpu, default; a file needs a / or a suffix in its path"),
        ("zzz", "search space: unknown name 'zzz', built in are comm, cpu, default; a file needs "
         "a / or a suffix in its path"),
        ("", "search space: must be a name or a path, got ''"),
        ("a\0/b", "search space: must be a name or a path, got 'a\\x00/b'"),
    ],
)  # fmt: skip
def test_an_unknown_name_lists_the_known_ones(name: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        load(name)
    assert str(caught.value) == message


def test_a_name_is_builtin_even_beside_a_file_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "default").write_text("not yaml: [")
    (tmp_path / "mine.yaml").write_text(GOOD)
    assert "NCCL_PROTO" in load("default").parameters
    assert "NCCL_PROTO" not in load("mine.yaml").parameters


def test_builtin_folder_holds_the_three_spaces() -> None:
    assert builtin_names() == ("comm", "cpu", "default")
    assert (builtin_folder() / "default.yaml").is_file()
    assert all(isinstance(load(name), Space) for name in builtin_names())


def test_the_installed_package_is_looked_into_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nccltune.space import loading

    package = tmp_path / "src" / "nccltune"
    (package / "space").mkdir(parents=True)
    monkeypatch.setattr(loading, "__file__", str(package / "space" / "loading.py"))
    assert builtin_folder() == tmp_path / "search_spaces"
    (package / "search_spaces").mkdir()
    assert builtin_folder() == package / "search_spaces"
