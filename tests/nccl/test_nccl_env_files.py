"""What files of each format set, on which line, and what is said of slips in writing them."""

from __future__ import annotations

import gc
import os
import random
import time
from pathlib import Path

import pytest
from packaging.version import Version

from nccltune.errors import UsageError
from nccltune.nccl import env_files
from nccltune.nccl.catalog import names
from nccltune.nccl.circumstances import Circumstances
from nccltune.nccl.env_files import (
    LARGEST,
    EnvFile,
    Format,
    environment_settings,
    guess_format,
    load,
    read_env_file,
)
from nccltune.nccl.launcher_options import slurm_pieces
from nccltune.nccl.lint import lint, lint_files
from nccltune.nccl.site import SiteVariable


def read(text: str, format: Format = "shell") -> EnvFile:
    return read_env_file("a", text.encode(), format)


def held(text: str, format: Format = "shell") -> list[tuple[int | None, str, str | None]]:
    """(line, name without NCCL_, value) of what holds to the end of the file."""
    settings = read(text, format).settings
    return [(s.line, s.name.removeprefix("NCCL_"), s.value) for s in settings if s.group == 0]


def alone(text: str) -> list[tuple[int | None, str, str | None]]:
    """The same of what holds for one command."""
    settings = read(text).settings
    return [(s.line, s.name.removeprefix("NCCL_"), s.value) for s in settings if s.group]


def faults(text: str, format: Format = "shell") -> list[tuple[str, str, int | None]]:
    return [(f.rule, f.name.removeprefix("NCCL_"), f.line) for f in read(text, format).findings]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("export NCCL_ALGO=Ring", [(1, "ALGO", "Ring")]),
        ("export NCCL_ALGO=Ring NCCL_NET=IB", [(1, "ALGO", "Ring"), (1, "NET", "IB")]),
        ("\n# a\n  export NCCL_ALGO=Ring  # b", [(3, "ALGO", "Ring")]),
        ("export NCCL_ALGO=Ring#b", [(1, "ALGO", "Ring#b")]),
        ("export NCCL_ALGO='ring,tree;allreduce:tree'", [(1, "ALGO", "ring,tree;allreduce:tree")]),
        ('export NCCL_ALGO="ring;allreduce:tree" # c', [(1, "ALGO", "ring;allreduce:tree")]),
        ("export NCCL_ALGO=ring\\;x", [(1, "ALGO", "ring;x")]),
        ("export NCCL_ALGO=Ri'n'\"g\"", [(1, "ALGO", "Ring")]),
        ("export NCCL_ALGO=$'Ring'", [(1, "ALGO", "Ring")]),
        ("export NCCL_ALGO=Ri\\\nng NCCL_NET=IB", [(1, "ALGO", "Ring"), (2, "NET", "IB")]),
        ("export \\\n NCCL_ALGO=Ring \\\n NCCL_NET=IB", [(2, "ALGO", "Ring"), (3, "NET", "IB")]),
        ("export NCCL_ALGO=Ring; export NCCL_NET=IB", [(1, "ALGO", "Ring"), (1, "NET", "IB")]),
        ("true && export NCCL_ALGO=Ring || exit 1", [(1, "ALGO", "Ring")]),
        ("declare -x NCCL_ALGO=Ring", [(1, "ALGO", "Ring")]),
        ("export NCCL_ALGO=Ring\nexport -n NCCL_ALGO\nexport NCCL_NET=IB", [(3, "NET", "IB")]),
        ("export NCCL_ALGO=Ring\ndeclare +x NCCL_ALGO", []),
        ("declare ALGO=Ring", []),
        ("setenv NCCL_ALGO Ring", [(1, "ALGO", "Ring")]),
        ("export NCCL_ALGO=", [(1, "ALGO", "")]),
        ("export NCCL_ALGO=''", [(1, "ALGO", "")]),
        ("export NCCL_SOCKET_IFNAME==eth0", [(1, "SOCKET_IFNAME", "=eth0")]),
        ("export NCCL_ALGO=Ring >log 2>&1", [(1, "ALGO", "Ring")]),
        ("export PATH=/bin OMP_NUM_THREADS=1", []),
        ("echo export NCCL_ALGO=Ring", []),
        ("echo 'export NCCL_ALGO=Ring'", []),
        ("# export NCCL_ALGO=Ring", []),
        ("export NCCL_ALGO", []),
        ("\ufeff# a\nexport NCCL_ALGO=Ring", [(2, "ALGO", "Ring")]),
        ("readonly NCCL_ALGO=Ring\nexport NCCL_ALGO", [(1, "ALGO", "Ring")]),
        ("declare NCCL_ALGO=Ring; typeset -x NCCL_ALGO", [(1, "ALGO", "Ring")]),
        ("f() { local -x NCCL_ALGO=Ring; a; }", [(1, "ALGO", "Ring")]),
        ("set -eo allexport\nNCCL_ALGO=Ring\n", [(2, "ALGO", "Ring")]),
        ('export NCCL_ALGO=$"Ring"', [(1, "ALGO", "Ring")]),
        ("((a = 1 << 3)); export NCCL_ALGO=Ring", [(1, "ALGO", "Ring")]),
        ("for ((i = (1 << 2); i; )); do a; done\nexport NCCL_ALGO=Ring", [(2, "ALGO", "Ring")]),
        ("((a); (b)) <<A\nA\nexport NCCL_ALGO=Ring", [(3, "ALGO", "Ring")]),
        ("export NCCL_{ALGO,NET}=Ring", []),
        ("set -a\nNCCL_ALGO=Ring\n", [(2, "ALGO", "Ring")]),
        ("NCCL_ALGO=Ring\nexport NCCL_ALGO", [(1, "ALGO", "Ring")]),
        ("export NCCL_ALGO=Ring\nunset NCCL_ALGO\nexport NCCL_NET=IB", [(3, "NET", "IB")]),
        ("if true; then\n export NCCL_ALGO=Ring\nfi", [(2, "ALGO", "Ring")]),
    ],
)
def test_what_a_script_exports(text: str, expected: list[object]) -> None:
    assert held(text) == expected
    assert faults(text) == []


@pytest.mark.parametrize(
    "value",
    ["$X", "${X:-Ring}", '"$X"', "$(cat a)", "`cat a`", '"a$(echo ")" b)c"', "~/a", "$((1 + 1))"],
)
def test_what_a_shell_computes_is_not_known(value: str) -> None:
    assert held(f"export NCCL_ALGO={value} NCCL_NET=IB") == [(1, "ALGO", None), (1, "NET", "IB")]


@pytest.mark.parametrize("value", ["'$X'", "\\$X", "'`cat a`'", '"\\$X"'])
def test_what_looks_so_and_is_not_computed(value: str) -> None:
    [(_, _, known)] = held(f"export NCCL_ALGO={value}")
    assert known in ("$X", "`cat a`")


def test_appending_is_not_known() -> None:
    assert held("export NCCL_IB_HCA+=,mlx5_1") == [(1, "IB_HCA", None)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NCCL_ALGO=Ring torchrun a.py", [(1, "ALGO", "Ring")]),
        ("NCCL_ALGO=Ring NCCL_NET=IB \\\n torchrun", [(1, "ALGO", "Ring"), (1, "NET", "IB")]),
        ("time NCCL_ALGO=Ring torchrun", [(1, "ALGO", "Ring")]),
        ("exec env -u A NCCL_ALGO=Ring torchrun NCCL_NET=IB", [(1, "ALGO", "Ring")]),
        ("env -i NCCL_ALGO=Ring torchrun NCCL_NET=IB", [(1, "ALGO", "Ring")]),
        ("srun env NCCL_ALGO=Ring torchrun", [(1, "ALGO", "Ring")]),
        ("mpirun -np 2 -x NCCL_ALGO=Ring \\\n -x NCCL_NET ./a", [(1, "ALGO", "Ring")]),
        ("/opt/bin/mpirun \\\n -x NCCL_ALGO=Ring a", [(2, "ALGO", "Ring")]),
        (
            "mpiexec -genv NCCL_ALGO Ring -genv NCCL_NET=IB a",
            [(1, "ALGO", "Ring"), (1, "NET", "IB")],
        ),
        ("ARGS=(\n -np 2\n -x NCCL_ALGO=Ring\n)\nmpirun ${ARGS[@]}", [(3, "ALGO", "Ring")]),
        ("A=(NCCL_ALGO=Ring -eNCCL_NET=IB)", [(1, "ALGO", "Ring"), (1, "NET", "IB")]),
        ("A=(--export=ALL,NCCL_ALGO=Ring)\nsrun ${A[@]} a", [(1, "ALGO", "Ring")]),
        ("python -x NCCL_ALGO=Ring", []),
        ("sudo -u a -E NCCL_ALGO=Ring torchrun NCCL_NET=IB", [(1, "ALGO", "Ring")]),
        ("env -S 'NCCL_ALGO=Ring torchrun a'", [(1, "ALGO", "Ring")]),
        ("nvidia-docker run -eNCCL_ALGO=Ring i", [(1, "ALGO", "Ring")]),
        (
            "docker run -e NCCL_ALGO=Ring --env=NCCL_NET=IB i",
            [(1, "ALGO", "Ring"), (1, "NET", "IB")],
        ),
        ("srun --export=ALL,NCCL_ALGO=Ring,NCCL_NET=IB a", [(1, "ALGO", "Ring"), (1, "NET", "IB")]),
        ("srun --export ALL,NCCL_ALGO=Ring a", [(1, "ALGO", "Ring")]),
        ("srun --export=ALL,NCCL_ALGO=$A a", [(1, "ALGO", None)]),
        ("srun --export=ALL,'\"NCCL_ALGO=ring,tree\"' a", [(1, "ALGO", "ring,tree")]),
        ("#!/bin/bash\n#SBATCH -N 2\n#SBATCH --export=ALL,NCCL_NET=IB # c\n", [(3, "NET", "IB")]),
        ("true\n#SBATCH --export=ALL,NCCL_NET=IB\n", []),
        ("bash -c 'export NCCL_ALGO=Ring; torchrun a'", [(1, "ALGO", "Ring")]),
        ("srun bash -lc '\n export NCCL_ALGO=Ring\n torchrun a'", [(2, "ALGO", "Ring")]),
        ('bash -c "a \\\n && export NCCL_ALGO=Ring"', [(2, "ALGO", "Ring")]),
        ('bash -c "export NCCL_ALGO=$A"', [(1, "ALGO", None)]),
        ("bash a.sh -c NCCL_ALGO=Ring", []),
    ],
)
def test_what_holds_for_one_command(text: str, expected: list[object]) -> None:
    assert alone(text) == expected
    assert held(text) == []
    assert faults(text) == []


@pytest.mark.parametrize(
    "command",
    ["bash", "bash -s a", "srun -N 2 bash -l", "ssh host bash", "sbatch -N 2", "sudo /bin/sh"],
)
def test_a_here_document_that_is_a_script(command: str) -> None:
    text = f"a\n{command} <<EOF\n#!/bin/bash\nexport NCCL_ALGO=Ring NCCL_NET=\\$A\nEOF\n"
    assert alone(text) == [(4, "ALGO", "Ring"), (4, "NET", None)]
    assert alone(text.replace("<<EOF", "<<'EOF'")) == [(4, "ALGO", "Ring"), (4, "NET", "$A")]
    assert held(text) == [] and faults(text) == []


@pytest.mark.parametrize("command", ["cat", "bash a.sh", "bash -c a", "cat >a.sh"])
def test_a_here_document_that_is_none(command: str) -> None:
    assert read(f"{command} <<EOF\nexport NCCL_ALGO=Ring\nEOF\n").settings == ()


def test_directives_in_a_here_document_count() -> None:
    text = "sbatch <<EOF\n#!/bin/bash\n#SBATCH --export=ALL,NCCL_NET=IB\nEOF\n"
    assert alone(text) == [(3, "NET", "IB")]


def test_here_documents_are_somebody_elses_text() -> None:
    text = (
        "cat >a <<EOF && cat <<-'X' >b\nexport NCCL_ALGO=Ring 'x\nEOF\n\texport NCCL_NET=IB\n\tX\n"
        "export NCCL_DEBUG=WARN\ncat <<<'export NCCL_PROTO=LL'\n"
    )
    assert held(text) == [(6, "DEBUG", "WARN")]
    assert faults(text) == []


def test_branches_loops_and_functions_are_not_certain() -> None:
    text = (
        "export NCCL_A=1\nif x; then export NCCL_B=1; fi\nexport NCCL_C=1\n"
        "for i in 1 2; do\n export NCCL_D=1\ndone\nf() {\n export NCCL_E=1\n}\n"
        "x && export NCCL_F=1\n(export NCCL_G=1)\ncase $1 in a) export NCCL_H=1 ;; esac\n"
        "function g {\n export NCCL_I=1\n}\nexport NCCL_J=1\nx ||\n\n export NCCL_K=1\n"
    )
    certain = {s.name[-1]: s.certain for s in read(text).settings}
    assert certain == {c: c in "ACJ" for c in "ABCDEFGHIJK"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NCCL_ALGO=Ring\ntorchrun a", [("not-exported", "ALGO", 1)]),
        ("set -a\nset +a\nNCCL_ALGO=Ring", [("not-exported", "ALGO", 3)]),
        ("set -o allexport\nNCCL_ALGO=Ring", []),
        ("HOST=a\nexport NCCL_ALGO=Ring", []),
        ("export NCCL_ALGO\nNCCL_ALGO=Ring", []),
        ("NCCL_ARGS='-x A'", []),
        ("NCCL_HOME=/a NCCL_VERSION=2.28; local NCCL_TESTS_DIR=/b", []),
        ("NCCL_NET=IB\nenv NCCL_NET=$NCCL_NET torchrun a", []),
        ("NCCL_NET=IB\nsrun --export=ALL,NCCL_NET=$NCCL_NET a", []),
        ("NCCL_NET=IB\nmpirun -x NCCL_NET a", [("not-exported", "NET", 1)]),
        ("export NCCL_ALGO = Ring", [("spaces-around-equals", "ALGO", 1)]),
        ("export NCCL_ALGO= Ring", [("spaces-around-equals", "ALGO", 1)]),
        ("export NCCL_ALGO =Ring", [("spaces-around-equals", "ALGO", 1)]),
        ("NCCL_DEBUG = INFO", [("spaces-around-equals", "DEBUG", 1)]),
        ("NCCL_DEBUG= INFO", [("spaces-around-equals", "DEBUG", 1)]),
        ("NCCL_DEBUG= torchrun", []),
        ('export NCCL_DEBUG="" NCCL_NET', []),
        ("HOST = a", []),
        ("export NCCL-ALGO=Ring", [("misspelt", "", 1)]),
        ("export NCCL_ALGO=Ring\r\n", [("carriage-return", "ALGO", 1)]),
        ("a\nexport NCCL_ALGO='Ring\nexport NCCL_NET=IB\n", [("unterminated-quote", "", 2)]),
        ("export NCCL_ALGO=$(cat", [("unterminated-quote", "", 1)]),
        ("a\ncat <<EOF\nexport NCCL_NET=IB\nEOF \n", [("unterminated-quote", "", 2)]),
        ("mpirun -x A=1 \\\r\n a", [("carriage-return", "", 1)]),
        ("export NCCL_ALGO\r\nb", [("carriage-return", "ALGO", 1)]),
        ("unset NCCL_ALGO\r\nb", [("carriage-return", "ALGO", 1)]),
        ("\ufeffexport NCCL_ALGO=Ring", [("byte-order-mark", "", 1)]),
        ("declare NCCL_ALGO=Ring", [("not-exported", "ALGO", 1)]),
        ("set -- -a\nNCCL_ALGO=Ring", [("not-exported", "ALGO", 2)]),
        ("export NCCL_IB_HCA=(mlx5_0 mlx5_1)", [("not-exported", "IB_HCA", 1)]),
        ("NCCL_ARGS=(-x A)", []),
        (
            "export NCCL_NET=IB\nsrun --export=NCCL_ALGO=Ring a",
            [("not-passed-on", "NET", 2)],
        ),
        ("export NCCL_NET=IB\nsrun --export=NONE a", [("not-passed-on", "NET", 2)]),
        ("export NCCL_NET=IB\nsrun --export=$V a", []),
        ("export NCCL_NET=IB\nsrun --export=ALL,A=1 a", []),
        ("srun --export=NCCL_ALGO=Ring a", []),
        ("export NCCL_NET=IB\nunset NCCL_NET\nsrun --export=NONE a", []),
        ("srun --export=ALL,NCCL_ALGO=ring,tree a", [("cut-at-comma", "ALGO", 1)]),
        ("srun --export=ALL,NCCL_IB_HCA='mlx5_0,mlx5_1' a", [("cut-at-comma", "IB_HCA", 1)]),
        ("srun --export=ALL,NCCL_DEBUG_SUBSYS=INIT,ENV a", [("cut-at-comma", "DEBUG_SUBSYS", 1)]),
        ("srun --export=ALL,NCCL_IB_HCA=mlx5_0,HOME a", []),
        ("srun --export=ALL,\"NCCL_ALGO='ring,tree'\" a", [("quotes-kept", "ALGO", 1)]),
    ],
)
def test_slips_in_scripts(text: str, expected: list[object]) -> None:
    assert faults(text) == expected


def test_a_carriage_return_hides_nothing() -> None:
    assert held("export NCCL_ALGO=Ring\r\n") == [(1, "ALGO", "Ring")]
    assert alone("mpirun -x NCCL_NET=IB \\\r\n -x NCCL_ALGO=Ring \\\r\n a\r\n") == [
        (1, "NET", "IB"),
        (2, "ALGO", "Ring"),
    ]
    [setting] = read("if a; then\r\n b\r\nfi\r\nexport NCCL_ALGO=Ring\r\n").settings
    assert setting.certain
    assert held("cat <<A\r\nx\r\nA\r\nexport NCCL_ALGO=Ring\r\n") == [(4, "ALGO", "Ring")]


def test_a_name_that_is_taken_away_is_told() -> None:
    for way in ("unset", "export -n", "declare +x", "env -u"):
        [setting] = read(f"a\n{way} NCCL_NVLS_ENABLE PATH").settings
        assert (setting.name, setting.line, setting.unset) == ("NCCL_NVLS_ENABLE", 2, True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("a,b", ["a", "b"]),
        ("a,,b,", ["a", "b"]),
        ("'a,b',c", ["a,b", "c"]),
        ("A='a,b',c", ["A='a,b'", "c"]),
        ("'a,b", ["'a,b"]),
    ],
)
def test_how_slurm_cuts_its_list(text: str, expected: list[str]) -> None:
    assert slurm_pieces(text) == expected


@pytest.mark.parametrize(
    ("text", "setting", "fault"),
    [
        ("NCCL_NET=IB", [(1, "NET", "IB")], []),
        ("#NCCL_NET=IB\n\nNCCL_NET=IB\r\n", [(3, "NET", "IB")], []),
        ("NCCL_SOCKET_IFNAME==eth0", [(1, "SOCKET_IFNAME", "=eth0")], []),
        ('NCCL_NET="IB"', [(1, "NET", "IB")], [("quotes-kept", "NET", 1)]),
        ("NCCL_NET='IB'", [(1, "NET", "IB")], [("quotes-kept", "NET", 1)]),
        ("NCCL_NET=IB # b", [(1, "NET", "IB")], [("comment-in-value", "NET", 1)]),
        ("NCCL_NET=$N", [(1, "NET", None)], [("not-expanded", "NET", 1)]),
        ("NCCL_NET = IB", [], [("spaces-around-equals", "NET", 1)]),
        ("NCCL_NET= IB", [(1, "NET", "IB")], [("spaces-around-equals", "NET", 1)]),
        ("NCCL_NET=IB ", [(1, "NET", "IB")], [("spaces-around-equals", "NET", 1)]),
        ("NCCL_BUFFSIZE= 4194304", [(1, "BUFFSIZE", "4194304")], []),
        ("export NCCL_NET=IB", [], [("export-in-file", "NET", 1)]),
        ("PATH=/bin\nOTHER='x'", [], []),
    ],
)
@pytest.mark.parametrize("format", ["nccl.conf", "docker"])
def test_lines_that_no_shell_reads(
    format: Format, text: str, setting: list[object], fault: list[object]
) -> None:
    assert held(text, format) == setting
    found = [item for item in faults(text, format) if item[0] != "set-by-nccl"]
    assert found == fault


def test_what_only_nccl_does_with_its_file() -> None:
    assert faults(" NCCL_NET=IB", "nccl.conf")[0] == ("spaces-around-equals", "NET", 1)
    assert faults("NCCL_DEBUG", "nccl.conf") == [("not-a-setting", "", 1)]
    assert ("cut-short", "NET", 1) in faults(f"NCCL_NET={'a' * 1024}", "nccl.conf")
    assert ("cut-short", "NET", 1) not in faults(f"NCCL_NET={'a' * 1023}", "nccl.conf")
    for name in ("TORCH_NCCL_BLOCKING_WAIT", "LD_LIBRARY_PATH", "NCCL_CONF_FILE"):
        found = read(f"{name}=1", "nccl.conf").findings
        assert ("read-too-late", name) in [(item.rule, item.name) for item in found]
    # It is told once a file, at its first setting.
    assert faults("\nNCCL_NET=IB\nNCCL_ALGO=Ring", "nccl.conf") == [("set-by-nccl", "NET", 2)]


EARLY = "TORCH_SYMM_MEM_DISABLE_MULTICAST"


def told(text: str, exported: dict[str, str], *, alone: bool) -> list[tuple[str, str, str]]:
    """Severity, rule and name of what lint says of an nccl.conf, read alone or as a part of the
    environment in which these are exported.
    """
    files = [read_env_file("nccl.conf", text.encode(), "nccl.conf")]
    if not alone:
        settings = environment_settings(exported)
        files.insert(0, EnvFile("environment", "environment", False, settings, ()))
    site = {n: SiteVariable(n, v, "environment") for n, v in exported.items()}
    found = lint_files(files, Circumstances(Version("2.28.9"), site=site))
    return [(f.severity, f.rule, f.name) for f in found if f.file == "nccl.conf"]


@pytest.mark.parametrize("alone", [True, False])
def test_what_the_environment_says_too_does_no_harm_in_nccl_conf(alone: bool) -> None:
    text = f"{EARLY}=1\n"
    late = ("error", "read-too-late", EARLY)
    assert late in told(text, {}, alone=alone)
    assert late in told(text, {EARLY: "0"}, alone=alone)
    assert told(text, {EARLY: "1"}, alone=alone) == [("note", "repeated", EARLY)]
    others = {EARLY: "1", "NCCL_NET": "IB"}
    rules = [
        rule for _, rule, _ in told(f"{text}NCCL_NET=IB\nNCCL_PROTO=LL\n", others, alone=alone)
    ]
    assert "set-by-nccl" in rules and late not in rules
    rules = [rule for _, rule, _ in told(f"{text}NCCL_NET=IB\n", others, alone=alone)]
    assert "set-by-nccl" not in rules


def test_what_only_docker_does() -> None:
    assert held("\ufeff  NCCL_NET=IB\nNCCL_ALGO\n", "docker") == [(1, "NET", "IB")]
    assert faults("  NCCL_NET=IB\nNCCL_ALGO\n  # NCCL_A B\n", "docker") == []
    assert faults("NCCL_ALGO Ring", "docker") == [("not-a-setting", "", 1)]


@pytest.mark.parametrize("line", [b"A = 1", b"export A=1", b"A B", b"=1", b"# caf\xe9"])
def test_a_line_for_which_docker_refuses_the_file(line: bytes) -> None:
    found = read_env_file("docker.env", b"NCCL_NET=IB\n" + line + b"\n").findings
    assert [(f.rule, f.severity, f.line) for f in found] == [("file-refused", "error", 2)]
    assert read_env_file("docker.env", line).findings == ()  # none of it concerns NCCL


def test_a_byte_order_mark_before_a_name_of_nccls() -> None:
    found = read("\ufeffNCCL_NET=IB\nNCCL_ALGO=Ring", "nccl.conf")
    assert ("byte-order-mark", "NCCL_NET", 1) in [(f.rule, f.name, f.line) for f in found.findings]
    assert held("\ufeffNCCL_NET=IB\nNCCL_ALGO=Ring", "nccl.conf") == [(2, "ALGO", "Ring")]


def test_where_only_the_lines_speak_for_docker_the_readers_differ() -> None:
    found = read_env_file("job.env", b'NCCL_NET="IB"\nNCCL_ALGO=Ring # x\nNCCL_DEBUG=WARN\n')
    assert (found.format, found.guessed) == ("docker", True)
    assert [(f.rule, f.line) for f in found.findings] == [
        ("depends-on-reader", 1),
        ("depends-on-reader", 2),
        ("assumed-format", None),
    ]
    assert [s.value for s in found.settings] == ["IB", "Ring", "WARN"]


@pytest.mark.parametrize(
    "line",
    [
        "NCCL_NET=IB\r",
        "NCCL_ALGO=ring,tree;allreduce:tree",
        "NCCL_CTA_POLICY=ZERO|DEFAULT",
        "NCCL_TOPO_FILE=~/a",
        "NCCL_TOPO_FILE=a\\b",
    ],
)
def test_what_a_shell_and_docker_read_differently(line: str) -> None:
    found = read_env_file("job.env", f"{line}\nNCCL_DEBUG=WARN\n".encode())
    told = [(f.rule, f.line) for f in found.findings if f.rule != "assumed-format"]
    assert told == [("depends-on-reader", 1)]
    assert read_env_file("docker.env", f"{line}\n".encode()).findings == ()


@pytest.mark.parametrize(
    ("file", "content", "expected"),
    [
        ("nccl.conf", "export A=1", "nccl.conf"),
        ("/home/a/.nccl.conf", "A=1", "nccl.conf"),
        ("a.sh", "A=1", "shell"),
        ("job.sbatch", "A=1", "shell"),
        ("a", "#!/bin/sh\nA=1", "shell"),
        ("a", "#SBATCH -N 2\nA=1", "shell"),
        ("-", "#PBS -l select=2\nA=1", "shell"),
        ("-", "NCCL_DEBUG=INFO torchrun a.py\n", "shell"),
        ("-", "A=1 NCCL_DEBUG=INFO B=2 torchrun a.py\n", "shell"),
        ("-", "NCCL_DEBUG=INFO; A=1\n", "shell"),
        ("-", "NCCL_DEBUG=INFO # a\n", "docker"),
        ("-", "NCCL_THREAD_THRESHOLDS=1 2\n", "docker"),
        ("a", "A=1\n#SBATCH -N 2\n", "shell"),
        ("best.env", "# a\nexport A=1\n", "shell"),
        ("a.env", "A=1\n  export B=1\n", "shell"),
        ("a.env", "A=1 torchrun\n", "docker"),
        ("a.env", "torchrun a\n", "shell"),
        ("a.env", "# a\n\nA=1\nB\nC = 2\n", "docker"),
        ("a.env", "# nothing\n", "shell"),
        ("-", "A=1\n", "docker"),
    ],
)
def test_the_format_is_told_by_name_and_lines(file: str, content: str, expected: str) -> None:
    assert guess_format(file, content.encode())[0] == expected


def test_a_file_for_docker_by_name_is_not_guessed() -> None:
    assert guess_format("docker.env", b"A=1") == ("docker", False)
    assert guess_format("docker.env", b"export A=1") == ("docker", False)
    assert guess_format("docker", b"A=1") == ("docker", False)
    assert guess_format("docker", b"export A=1") == ("shell", False)


def test_the_environment() -> None:
    found = environment_settings({"NCCL_NET": "IB", "PATH": "/bin", "CUDA_LAUNCH_BLOCKING": "1"})
    assert [(s.name, s.value, s.line, s.place) for s in found] == [
        ("CUDA_LAUNCH_BLOCKING", "1", None, "environment"),
        ("NCCL_NET", "IB", None, "environment"),
    ]


def unreadable(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        read_env_file(str(path), load(path))
    return str(caught.value).removeprefix(str(path))


def test_what_cannot_be_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "zeros").write_bytes(b"NCCL_NET=IB\0")
    (tmp_path / "large").write_bytes(b"#" * (LARGEST + 1))
    (tmp_path / "a.yaml").write_text("env: {}")
    assert unreadable(tmp_path / "missing") == ": cannot be read: No such file or directory"
    (tmp_path / "a.py").write_text("import os")
    (tmp_path / "Dockerfile").write_text("ENV NCCL_NET=IB")
    assert unreadable(tmp_path) == ": is a folder"
    assert unreadable(tmp_path / "fifo") == ": is no file; give - to read what is piped in"
    assert unreadable(Path("/dev/zero")) == ": is no file; give - to read what is piped in"
    assert unreadable(tmp_path / "zeros") == ": holds NUL bytes: no text file"
    assert unreadable(tmp_path / "large") == f": larger than {LARGEST} bytes: no file of settings"
    assert unreadable(tmp_path / "a.yaml").startswith(": is YAML; lint reads shell files")
    assert unreadable(tmp_path / "a.py").startswith(": is Python; lint reads shell files")
    assert unreadable(tmp_path / "Dockerfile").startswith(": is a Dockerfile; lint reads")
    assert "cannot be read" in unreadable(Path("a\0b"))
    assert "cannot be read: File name too long" in unreadable(tmp_path / ("a" * 300))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_is_not_ours_to_read(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("NCCL_NET=IB")
    path.chmod(0)
    assert unreadable(path) == ": cannot be read: Permission denied"


def test_bytes_that_are_no_utf8_are_read_all_the_same() -> None:
    content = b"# caf\xe9\nexport NCCL_NET=\xff NCCL_ALGO=Ring\n"
    assert [s.name for s in read_env_file("a", content).settings] == ["NCCL_NET", "NCCL_ALGO"]


PIECES = [
    *("export ", "set -a", "set", "export", "unset ", "\n", " ", ";", "&&", "||", "|", "(", ")"),
    *("{", "}", "if ", "fi", "case x in", "esac", "'", '"', "\\", "\\\n", "`", "$(", "${", "#"),
    *("#SBATCH --export=", "srun --export=ALL,", "mpirun -x ", "env ", "bash -c ", "<<EOF\n"),
    *("EOF\n", "<", ">", "2>", "A=(", "\r\n", "\t", "=", "+=", " = ", "\x1b[31m", "\xff", "-e "),
    *(
        "1",
        "0",
        "-1",
        "8M",
        "true",
        "INFO",
        "Ring",
        "ring;allreduce:tree",
        "^LL",
        "=eth0",
        "9" * 30,
    ),
]


@pytest.mark.parametrize("seed", range(8))
def test_any_text_is_read_and_every_line_number_exists(seed: int) -> None:
    chance = random.Random(seed)
    known = [*names(), "TORCH_NCCL_BLOCKING_WAIT", "CUDA_DEVICE_MAX_CONNECTIONS", "NNCL_ALGO"]
    for _ in range(60):
        parts = [chance.choice([*PIECES, f"{chance.choice(known)}="]) for _ in range(20)]
        content = "".join(parts).encode("latin-1")
        for format in (None, "shell", "nccl.conf", "docker"):
            found = read_env_file("a", content, format)  # type: ignore[arg-type]
            findings = [*found.findings, *lint(found.settings, Circumstances())]
            lines = {s.line for s in found.settings} | {f.line for f in findings}
            assert lines - {None} <= set(range(1, content.count(b"\n") + 2)), content


@pytest.mark.parametrize("seed", range(4))
def test_any_bytes_end_with_settings_or_a_message(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(100):
        content = chance.randbytes(chance.randint(0, 80)).replace(b"\0", b"$")
        for format in ("shell", "nccl.conf", "docker"):
            read_env_file("a", content, format)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "unit",
    [
        *("'", "$(", "`\\", "(", "<<A ", "if ", "A=(", "'\\''", "${", "\\", "((a(b)", "((a))"),
        *("bash <<A\n", "x && ", "NCCL_NET=IB;\n", "NCCL_ALGO=a;allreduce:b;"),
    ],
)
def test_no_text_takes_more_than_its_length(unit: str) -> None:
    # Eight times the text takes about eight times as long, and 64 times if it is read anew for each
    # of its parts: that would be hours for a megabyte. Processor time, the least of three.
    def seconds(count: int) -> float:
        content, taken = (unit * count).encode(), []
        for _ in range(3):
            begin = time.process_time()
            read_env_file("a", content, None if unit.startswith("NCCL") else "shell")
            taken.append(time.process_time() - begin)
        return min(taken)

    gc.disable()
    try:
        assert seconds(16_000) < 32 * max(seconds(2_000), 0.001)
    finally:
        gc.enable()


@pytest.mark.parametrize("line", ["source /etc/site.sh", ". ./site.sh", "builtin . site.sh"])
def test_a_file_that_is_sourced_is_named_as_not_looked_at(line: str) -> None:
    found = read_env_file("a.sh", f"export NCCL_ALGO=Ring\n{line}\n".encode())
    told = [f for f in found.findings if f.rule == "not-followed"]
    assert [(f.line, f.severity) for f in told] == [(2, "note")]
    assert "site.sh" in told[0].message
    assert [s.name for s in found.settings] == ["NCCL_ALGO"]


def test_a_guessed_format_is_told_once_and_no_given_one() -> None:
    text = b"NCCL_IB_TIMEOUT=22\nNCCL_DEBUG=WARN\n"
    [told] = read_env_file("cluster.env", text).findings
    assert (told.rule, told.severity, told.line) == ("assumed-format", "note", None)
    assert told.message == (
        "read as docker --env-file (NAME=VALUE lines): sourced by a shell, nothing of it is "
        "exported (set -a; . FILE; set +a)"
    )
    assert read_env_file("docker.env", text).findings == ()
    assert read_env_file("cluster.env", text, "docker").findings == ()
    assert read_env_file("cluster.env", b"PATH=/bin\n").findings == ()


ALGO = "NCCL_ALGO=ring,tree"


@pytest.mark.parametrize(
    ("line", "whole"),
    [
        (f"export {ALGO};allreduce:tree", "ring,tree;allreduce:tree"),
        (f"export {ALGO}; allreduce:tree", "ring,tree;allreduce:tree"),
        (f"export {ALGO}&allreduce:tree", "ring,tree&allreduce:tree"),
        (f"{ALGO};allreduce:tree torchrun a", "ring,tree;allreduce:tree"),
        (f"mpirun -x {ALGO};allreduce:^nvls;broadcast:ring", None),
        ("export NCCL_PROTO=LL;AllReduce:Simple", "LL;AllReduce:Simple"),
        ("export NCCL_CTA_POLICY=EFFICIENCY|ZERO", "EFFICIENCY|ZERO"),
    ],
)
def test_values_that_a_shell_cuts_at_an_operator(line: str, whole: str | None) -> None:
    [told] = [f for f in read(f"{line}\n").findings if f.rule == "cut-at-operator"]
    assert (told.severity, told.line) == ("error", 1)
    whole = "ring,tree;allreduce:^nvls;broadcast:ring" if whole is None else whole
    assert told.message.endswith(f"write {told.name}='{whole}'")


@pytest.mark.parametrize(
    "line",
    [
        f"export '{ALGO};allreduce:tree'",
        f"export {ALGO}; torchrun a",
        f"export {ALGO} && allreduce:tree",
        f"export {ALGO}\nallreduce:tree",
        "PATH=/bin;allreduce:tree",
        f"export {ALGO} ; reduce",
    ],
)
def test_operators_that_end_a_command(line: str) -> None:
    assert "cut-at-operator" not in [f.rule for f in read(line).findings]


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("export NCCL_NET=AWS Libfabric", "NCCL_NET='AWS Libfabric'"),
        ("NCCL_NET=AWS Libfabric torchrun a", "NCCL_NET='AWS Libfabric'"),
        ("export NCCL_THREAD_THRESHOLDS=8 8 32 NCCL_NET=IB", "NCCL_THREAD_THRESHOLDS='8 8 32'"),
        ("export NCCL_NET='AWS Libfabric'", None),
        ("export NCCL_NET=IB PATH", None),
        ("NCCL_NET=IB torchrun a", None),
    ],
)
def test_values_that_a_shell_cuts_at_a_blank(line: str, meant: str | None) -> None:
    told = [f.message for f in read(line).findings if f.rule == "spaces-around-equals"]
    expected = [] if meant is None else [f"the value is cut off at the blank; write {meant}"]
    assert told == expected


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("export NCCL_NET=IB; torchrun a; export NCCL_NET=Socket; torchrun b", []),
        ("export NCCL_NET=IB\npython a.py\nexport NCCL_NET=IB", []),
        ("export NCCL_NET=IB; echo a; cd /; export NCCL_NET=Socket; torchrun b", ["duplicate"]),
        ("torchrun a; export NCCL_NET=IB; export NCCL_NET=Socket", ["duplicate"]),
        ("export NCCL_NET=IB\nexport NCCL_NET=IB", ["repeated"]),
    ],
)
def test_a_command_between_two_settings_of_a_name_uses_the_first(
    text: str, rules: list[str]
) -> None:
    found = lint_files([read(text)], Circumstances())
    assert [f.rule for f in found if f.rule in ("duplicate", "repeated")] == rules


@pytest.mark.parametrize(
    ("line", "bad"),
    [
        (': "${NCCL_BUFFSIZE:=8M}"\nexport NCCL_BUFFSIZE', True),
        (": ${NCCL_BUFFSIZE=8M}\nexport NCCL_BUFFSIZE", True),
        (': "${NCCL_BUFFSIZE:=8388608}"\nexport NCCL_BUFFSIZE', False),
        ("export NCCL_BUFFSIZE=${NCCL_BUFFSIZE:-8M}", True),
        ('export NCCL_BUFFSIZE="${SIZE:-8M}"', True),
        ("export NCCL_BUFFSIZE=${NCCL_BUFFSIZE:-8388608}", False),
        ("export NCCL_BUFFSIZE=${NCCL_BUFFSIZE:-$SIZE}", False),
        ("export NCCL_BUFFSIZE=${NCCL_BUFFSIZE:+8M}", False),
    ],
)
def test_a_default_is_judged(line: str, bad: bool) -> None:
    found = lint_files([read(line)], Circumstances())
    assert ("unreadable-number" in [f.rule for f in found]) == bad
    assert "not-exported" not in [f.rule for f in found]


def test_a_default_does_not_win_over_another_setting() -> None:
    text = "export NCCL_SOCKET_NTHREADS=${N:-16}\nexport NCCL_NSOCKS_PERTHREAD=8\n"
    found = lint_files([read(text)], Circumstances())
    assert [f.rule for f in found if f.severity != "note"] == []


def test_a_pipe_of_this_process_is_read_by_its_number(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    try:
        os.write(writing, b"export NCCL_BUFFSIZE=8M\n")
        os.close(writing)
        assert load(Path(f"/dev/fd/{reading}")) == b"export NCCL_BUFFSIZE=8M\n"
    finally:
        os.close(reading)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(UsageError, match="is no file"):
        load(tmp_path / "fifo")


def test_a_pipe_has_limits_of_time_and_size(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    try:
        monkeypatch.setattr(env_files, "LONGEST_WAIT", 0.05)
        os.write(writing, b"export NCCL_DEBUG=WARN\n")
        with pytest.raises(UsageError, match="nothing more came within 0.05 s"):
            load(Path(f"/proc/self/fd/{reading}"))
        monkeypatch.setattr(env_files, "LARGEST", 10)
        monkeypatch.setattr(env_files, "LONGEST_WAIT", 60.0)
        os.write(writing, b"export NCCL_DEBUG=WARN\n")
        assert load(Path(f"/dev/fd/{reading}")) == b"export NCCL"
    finally:
        os.close(reading)
        os.close(writing)


HEADER = "# nccltune 0.1.0: study a, trial 3 of 20\n# date: now\n# machine: 2x NVIDIA H200; NCCL\n"


def test_a_file_of_ours_is_told_to_be_measured() -> None:
    lines = "export NCCL_PROTO=LL\nexport NCCL_IB_HCA=mlx5\n"
    [told] = lint_files([read(HEADER + lines)], Circumstances())
    assert (told.rule, told.severity, told.line) == ("measured", "note", None)
    assert "(2x NVIDIA H200; NCCL)" in told.message and "nccltune verify" in told.message
    rules = [f.rule for f in lint_files([read(lines)], Circumstances())]
    assert rules == ["version-bound", "fabric-specific"]
    found = lint_files([read(f"{HEADER}export NCCL_BUFFSIZE=8M\n")], Circumstances())
    assert [f.rule for f in found] == ["measured", "unreadable-number"]


@pytest.mark.parametrize(
    ("command", "rule"),
    [
        ("torchrun train.py", "slow"),
        ("# megatron\ntorchrun train.py", "slow"),
        ("torchrun train.py --tensor-model-parallel-size 4", "one-queue"),
        ("torchrun train.py \\\n  --sequence-parallel", "one-queue"),
        ("torchrun /opt/Megatron-LM/pretrain_gpt.py", "one-queue"),
    ],
)
def test_one_queue_is_right_where_the_script_trains_with_megatron(command: str, rule: str) -> None:
    text = f"export CUDA_DEVICE_MAX_CONNECTIONS=1\n{command}\n"
    [found] = lint_files([read(text)], Circumstances())
    assert (found.rule, found.severity) == (rule, "note" if rule == "one-queue" else "warning")
    assert "no longer" not in found.message.replace("may no longer", "")
