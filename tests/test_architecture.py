"""The house as docs/design.md draws it: who may import what, who prints, what a start costs."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import nccltune

ROOT = Path(nccltune.__file__).resolve().parent
FILES = sorted(ROOT.rglob("*.py"))
LONGEST = 350  # lines

# What each part may import of ours. A new one has to be entered here, and so thought about.
ARROWS: dict[str, set[str]] = {
    "__init__": {"applying", "output", "worker"},
    "__main__": {"cli"},
    "applying": {"errors", "nccl", "output", "worker"},
    "errors": set(),
    "worker": set(),
    "nccl": {"errors"},
    "machine": {"errors"},
    "safe_yaml": {"errors"},
    "space": {"errors", "nccl", "safe_yaml"},
    "stats": set(),
    "output": {"errors", "machine", "nccl", "safe_yaml", "stats"},
    "launch": {"__init__", "errors", "machine", "nccl", "worker"},
    "study": {
        "__init__", "errors", "launch", "machine", "nccl", "output", "safe_yaml", "space", "stats",
        "worker",
    },
    "cli": {
        "__init__", "errors", "launch", "machine", "nccl", "output", "space", "stats", "study",
        "worker",
    },
}  # fmt: skip

# The only parts that may import a package of others, at whatever depth of the code.
OWNERS: dict[str, set[str]] = {
    "torch": {"worker"},
    "torchvision": {"worker"},
    "PIL": {"worker"},
    "optuna": {"study"},
    "click": {"cli"},
    "rich": {"cli"},
    "pydantic": {"space"},
    "pynvml": {"machine"},
    "psutil": {"machine"},
    "numpy": {"study"},
    "scipy": {"stats"},
}

# Programs of their own, run by path or with -m in processes beside the tuner.
PROGRAMS = {
    "worker/__main__.py", "worker/arrive.py", "worker/ask.py", "worker/attach/main.py",
    "worker/host.py", "worker/look.py", "worker/node.py", "worker/supervisor.py",
    "study/sampling/gp_child.py",
}  # fmt: skip

# A rank that fails ends its process without tear-down; a script ends as under plain Python.
ENDS = {"worker/attach/script.py", "worker/attach/trial.py", "worker/rank.py"}


def part_of(file: Path) -> str:
    """cli, study, ...; for a module directly in the package its own name."""
    inside = file.relative_to(ROOT)
    return inside.parts[0] if len(inside.parts) > 1 else inside.stem


def imports(file: Path) -> Iterator[tuple[str, int]]:
    """(dotted module, line) of every import, those inside functions and if-blocks too."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: relative imports hide where they lead"
            if node.module == "nccltune":
                for alias in node.names:
                    yield f"nccltune.{alias.name}", node.lineno
            else:
                yield str(node.module), node.lineno


def test_every_part_imports_only_what_the_arrows_allow() -> None:
    wrong = []
    for file in FILES:
        part = part_of(file)
        allowed = ARROWS[part] | {part}
        for module, line in imports(file):
            if module.partition(".")[0] != "nccltune":
                continue
            target = module.split(".")[1] if "." in module else "__init__"
            if target.startswith("__version"):
                target = "__init__"
            if target not in allowed:
                wrong.append(f"{file.relative_to(ROOT)}:{line} imports {module}")
    assert wrong == []


def test_the_arrows_have_no_cycle() -> None:
    # The package itself only re-exports, so it does not count.
    left = {part: targets - {"__init__"} for part, targets in ARROWS.items() if part != "__init__"}
    while left:
        free = {part for part, targets in left.items() if not targets}
        assert free, f"these import each other: {sorted(left)}"
        left = {part: targets - free for part, targets in left.items() if part not in free}


def test_every_part_of_the_package_is_known() -> None:
    assert {part_of(file) for file in FILES} == set(ARROWS)


def test_packages_of_others_are_used_where_they_belong() -> None:
    wrong = []
    for file in FILES:
        for module, line in imports(file):
            top = module.partition(".")[0]
            if top in OWNERS and part_of(file) not in OWNERS[top]:
                wrong.append(f"{file.relative_to(ROOT)}:{line} imports {module}")
    assert wrong == []


def test_optuna_comes_from_the_module_that_keeps_it_quiet() -> None:
    quiet = ROOT / "study" / "quiet.py"
    wrong = [
        f"{file.relative_to(ROOT)}:{line}"
        for file in FILES
        for module, line in imports(file)
        if module == "optuna" and file != quiet
    ]
    assert wrong == [], "from nccltune.study.quiet import optuna"


def test_the_worker_needs_torch_and_the_standard_library_alone() -> None:
    # torchvision and Pillow only inside functions: jobs with a model and data of their own lack it.
    at_start, later = {"torch"}, {"torch", "torchvision", "PIL"}
    for file in sorted((ROOT / "worker").rglob("*.py")):
        top_level = {
            name.partition(".")[0]
            for node in ast.parse(file.read_text()).body
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [str(node.module)]
            )
        }
        foreign = top_level - sys.stdlib_module_names - {"nccltune"}
        assert foreign <= at_start, f"{file.name} imports {foreign} at its top"
        everywhere = {module.partition(".")[0] for module, _ in imports(file)}
        foreign = everywhere - sys.stdlib_module_names - {"nccltune"}
        assert foreign <= later, f"{file.name} imports {foreign}"


def test_what_starts_the_worker_does_not_need_torch_to_answer() -> None:
    # A Python without torch must get a sentence, not a traceback.
    for name in ("ask", "spec", "status", "channel", "windows", "host", "rank", "supervisor"):
        tree = ast.parse((ROOT / "worker" / f"{name}.py").read_text())
        top_level = [n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)]
        assert not any("torch" in ast.unparse(node) for node in top_level), name


def _speaks_or_exits(node: ast.AST) -> bool:
    if isinstance(node, ast.Raise) and node.exc is not None:
        return "SystemExit" in ast.unparse(node.exc)
    if not isinstance(node, ast.Call):
        return False
    called = ast.unparse(node.func)
    return called in ("print", "exit", "quit", "sys.exit", "os._exit", "os.abort") or (
        called.startswith(("sys.stdout.write", "sys.stderr.write"))
    )


def test_only_the_command_line_prints_and_exits() -> None:
    wrong = [
        f"{file.relative_to(ROOT)}:{getattr(node, 'lineno', '?')}"
        for file in FILES
        if part_of(file) != "cli" and file.relative_to(ROOT).as_posix() not in PROGRAMS | ENDS
        for node in ast.walk(ast.parse(file.read_text()))
        if _speaks_or_exits(node)
    ]
    assert wrong == []


def test_what_is_printed_is_harmless_to_a_terminal() -> None:
    """All but JSON, which escapes by itself, goes through `speaking`, or a console of `tables`."""
    wrong = [
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for file in FILES
        if part_of(file) == "cli" and file.stem != "speaking"
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) == "print"
        and not ast.unparse(node.args[0]).startswith("json.dumps(")
    ]
    assert wrong == []


def test_the_exempt_programs_are_programs() -> None:
    for name in PROGRAMS:
        assert 'if __name__ == "__main__":' in (ROOT / name).read_text()


def test_the_supervisor_runs_without_our_packages() -> None:
    # It is started with -I, by its path.
    modules = {module.partition(".")[0] for module, _ in imports(ROOT / "worker/supervisor.py")}
    assert modules <= sys.stdlib_module_names


def test_no_module_is_called_util_and_none_is_long() -> None:
    names = {part for file in FILES for part in file.relative_to(ROOT).with_suffix("").parts}
    assert names.isdisjoint({"util", "utils", "helper", "helpers", "misc", "common"})
    lengths = {str(f.relative_to(ROOT)): len(f.read_text().splitlines()) for f in FILES}
    assert {name: n for name, n in lengths.items() if n > LONGEST} == {}


def test_every_module_says_what_it_is() -> None:
    silent = [f.name for f in FILES if not ast.get_docstring(ast.parse(f.read_text()))]
    assert silent == []


def _modules_after(code: str) -> set[str]:
    """The top-level modules in a fresh interpreter after `code`."""
    tail = "\nimport json, sys\nprint('\\n' + json.dumps(sorted(sys.modules)), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", code + tail], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return {name.partition(".")[0] for name in json.loads(done.stderr.splitlines()[-1])}


HEAVY = {"torch", "torchvision", "optuna", "scipy", "numpy", "pydantic", "rich", "pynvml"}


def test_importing_the_command_line_is_cheap() -> None:
    loaded = _modules_after("import nccltune.cli")
    assert {"nccltune", "click"} <= loaded
    assert loaded.isdisjoint(HEAVY | {"yaml", "psutil"})


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["search", "--help"], ["doctor", "--help"], ["run", "--help"], ["--version"]],
)
def test_help_is_cheap(arguments: list[str]) -> None:
    loaded = _modules_after(
        "import sys\n"
        f"sys.argv = ['nccltune', *{arguments!r}]\n"
        "from nccltune.cli import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert end.code == 0, end.code\n"
    )
    assert "click" in loaded
    assert loaded.isdisjoint(HEAVY | {"yaml", "psutil"})


def test_importing_the_package_alone_loads_nothing_of_others() -> None:
    loaded = _modules_after("import nccltune\nassert nccltune.__version__")
    assert "nccltune" in loaded
    assert loaded.isdisjoint(HEAVY | {"click", "yaml", "psutil", "packaging"})


def test_reading_a_result_needs_no_more_than_yaml() -> None:
    # nccltune.load is called in training jobs, by every rank.
    loaded = _modules_after("from nccltune.output.best import read_best")
    assert "yaml" in loaded
    assert loaded.isdisjoint(HEAVY | {"click", "psutil", "packaging"})
