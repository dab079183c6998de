"""A script that the attachment runs behaves as under plain Python: seen in processes of both."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from nccltune.launch.attached import attached_python

TELL = """
import sys
names = {k: v for k, v in globals().items() if k not in ("__loader__", "__spec__")}
print({k: repr(v) for k, v in sorted(names.items())})
print(type(__loader__), vars(__loader__), __spec__ and (__spec__.name, __spec__.origin))
print(sys.argv, sys.orig_argv[1:], sys.flags, sys.executable)
print(sys.modules["__main__"].__dict__ is globals())
print([p for p in sys.path if p != FOLDER])
"""


@dataclass(frozen=True)
class Both:
    """Runs the same arguments with plain Python and with the attachment."""

    program: Path
    folder: Path

    def write(self, name: str, text: str) -> Path:
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        placed = repr(str(self.program.parent))
        file.write_text(textwrap.dedent(text).replace("FOLDER", placed))
        return file

    def run(
        self, program: str, *arguments: str, stdin: str = "", **env: str
    ) -> tuple[int, str, str]:
        done = subprocess.run(
            [program, *arguments],
            cwd=self.folder,
            input=stdin,
            env={n: v for n, v in os.environ.items() if n != "PYTHONUNBUFFERED"} | env,
            capture_output=True,
            text=True,
            timeout=120,
        )
        return done.returncode, done.stdout, done.stderr

    def same(self, *arguments: str, stdin: str = "", **env: str) -> tuple[int, str, str]:
        """What plain Python gives, which is what we give."""
        plain = self.run(sys.executable, *arguments, stdin=stdin, **env)
        assert self.run(str(self.program), *arguments, stdin=stdin, **env) == plain
        return plain


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return attached_python(tmp_path_factory.mktemp("it's placed"), sys.executable)


@pytest.fixture
def both(program: Path, tmp_path: Path) -> Both:
    return Both(program, tmp_path)


@pytest.mark.parametrize("path", ["s.py", "./s.py", "d/../s.py", "./d/sub/t.py", "link.py"])
def test_a_script_finds_itself_as_ever(both: Both, path: str) -> None:
    both.write("s.py", TELL)
    both.write("d/sub/t.py", TELL)
    (both.folder / "link.py").symlink_to("d/sub/t.py")
    code, out, err = both.same(path, "-u", "--lr", "0.1", "a b")
    assert (code, err) == (0, "")
    assert "'--lr', '0.1', 'a b'" in out
    assert "True\n" in out


def test_by_its_absolute_path(both: Both) -> None:
    assert both.same(str(both.write("s.py", TELL)))[0] == 0


@pytest.mark.parametrize("module", ["s", "pack.inner", "pack"])
def test_a_module(both: Both, module: str) -> None:
    both.write("s.py", TELL)
    both.write("pack/__init__.py", "import sys; print('pack', sys.argv)")
    both.write("pack/inner.py", "from . import beside\n" + TELL)
    both.write("pack/__main__.py", "from .beside import x\n" + TELL)
    both.write("pack/beside.py", "x = 1")
    code, out, err = both.same("-u", "-m", module, "a", "-m", "b")
    assert (code, err) == (0, "")
    assert "'a', '-m', 'b'" in out


def test_a_folder_and_a_zip_file(both: Both) -> None:
    both.write("d/__main__.py", TELL)
    with zipfile.ZipFile(both.folder / "z.zip", "w") as archive:
        archive.write(both.folder / "d/__main__.py", "__main__.py")
    assert both.same("d", "x")[0] == 0
    assert both.same("z.zip", "x")[0] == 0


def test_compiled(both: Both) -> None:
    both.write("s.py", "import sys; print(__file__, sys.argv, __name__)")
    code = "import py_compile; py_compile.compile('s.py', 's.pyc')"
    both.run(sys.executable, "-c", code)
    assert both.same("s.pyc", "x")[0] == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["missing.py"], ["d/"], ["s.py/"], ["-m", "missing"], ["-m", "pack"], ["-m", "pack.x.y"],
        ["-m", "s.py"], ["-m"], ["bad.py"], ["-m", "bad"], ["-m", "broken"],
    ],
)  # fmt: skip
def test_what_cannot_be_run(both: Both, arguments: list[str]) -> None:
    both.write("d/s.py", "")
    both.write("s.py", "")
    both.write("bad.py", "x = 1\ndef f(:\n")
    both.write("pack/__init__.py", "")
    both.write("broken/__init__.py", "import not_there")
    both.write("broken/__main__.py", "")
    plain = both.run(sys.executable, *arguments)
    code, out, err = both.run(str(both.program), *arguments)
    # Where Python says how it is called, we need not.
    assert (code, out, err.splitlines()[:1]) == (plain[0], plain[1], plain[2].splitlines()[:1])
    if arguments != ["-m"]:
        assert err == plain[2]
    assert code != 0


@pytest.mark.parametrize(
    "text",
    [
        "1 / 0",
        "def f(n):\n    return f(n - 1) if n else {}[n]\nf(3)",
        "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise KeyError('k') from e",
        "try:\n    1 / 0\nexcept ZeroDivisionError:\n    {}['x']",
        "import beside",
        "import importlib; importlib.import_module('beside')",
        "import badly_written",
        "import not_there",
        "raise RuntimeError('a\\nb')",
        "import sys; sys.exit()",
        "import sys; sys.exit(3)",
        "import sys; sys.exit('a word')",
        "import os; os._exit(7)",
        "raise KeyboardInterrupt",
        "import os, signal; os.kill(os.getpid(), signal.SIGTERM); import time; time.sleep(60)",
        "import os, signal; os.kill(os.getpid(), signal.SIGINT); import time; time.sleep(60)",
        "import threading; threading.Thread(target=lambda: 1 / 0, name='t').start()",
        "import atexit; atexit.register(divmod, 1, 0); 1 + ''",
        "import sys; sys.excepthook = lambda *a: print('hook', a[0], a[1]); 1 / 0",
        "import sys, traceback\ndef show(k, e, t):\n    traceback.print_exception(k, e, t)\n"
        "    sys.stdout.write(f'{t is e.__traceback__} {sys.last_traceback is t}')\n"
        "sys.excepthook = show\n1 / 0",
    ],
)  # fmt: skip
def test_how_it_ends(both: Both, text: str) -> None:
    both.write("s.py", text)
    both.write("beside.py", "def f():\n    raise ValueError('in here')\n\nf()")
    both.write("badly_written.py", "def f(")
    both.same("s.py")
    both.same("-m", "s")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exception groups")
def test_a_group_of_exceptions(both: Both) -> None:
    both.write(
        "s.py", "raise ExceptionGroup('g', [ValueError('a'), ExceptionGroup('h', [OSError()])])"
    )
    assert "ExceptionGroup: g" in both.same("s.py")[2]


APPLY = '{"ddp": {}, "loader": {}, "training": null, "match": null}'


@pytest.mark.parametrize(
    "torch",
    [
        "1 / 0",
        "import not_there",
        "raise ImportError('libcudart.so: cannot open shared object file')",
        "def f(",
        "import other",
    ],
)
def test_a_torch_that_cannot_be_imported(both: Both, torch: str) -> None:
    """We look on while the script imports torch, unseen."""
    both.write("torch.py", torch)
    both.write("other.py", "raise ValueError")
    both.write("s.py", "import torch")
    plain = both.run(sys.executable, "s.py")
    assert both.run(str(both.program), "s.py", NCCLTUNE_APPLY=APPLY) == plain
    assert plain[0] == 1


def test_a_torch_that_can(both: Both) -> None:
    both.write("torch.py", "import sys; print('once')")
    both.write("s.py", """
        import os, sys
        assert "torch" not in sys.modules
        before = list(sys.meta_path)
        import torch
        print(vars(torch.__loader__), torch.__spec__.loader is torch.__loader__)
        print(len(sys.meta_path), [n for n in os.environ if n.startswith("NCCLTUNE")])
        import importlib
        importlib.reload(torch)
    """)  # fmt: skip
    plain = both.run(sys.executable, "s.py")
    assert plain[0] == 0
    assert both.run(str(both.program), "s.py", NCCLTUNE_APPLY=APPLY) == plain


def test_torch_imported_again_after_it_failed(both: Both) -> None:
    both.write("torch.py", "import os\nif 'READY' not in os.environ: raise ImportError('not yet')")
    both.write("s.py", """
        import os
        try:
            import torch
        except ImportError as error:
            print(error)
        os.environ["READY"] = "1"
        import torch
        print("done")
    """)  # fmt: skip
    # Arguments for DDP, which this torch does not have: that shows that they are passed.
    apply = APPLY.replace('"ddp": {}', '"ddp": {"bucket_cap_mb": 50}')
    code, out, err = both.run(str(both.program), "s.py", NCCLTUNE_APPLY=apply)
    assert (code, out) == (1, "not yet\n")
    assert "attach/ddp.py" in err


def test_an_error_of_our_own_is_not_hidden(both: Both) -> None:
    code, _, err = both.run(str(both.program), "s.py", NCCLTUNE_APPLY="{")
    assert code == 1
    assert "take_settings" in err


def test_annotations_are_the_scripts_own(both: Both) -> None:
    both.write("s.py", "def f(x: print('evaluated')): pass\nprint(f.__annotations__)")
    assert "{'x': None}" in both.same("s.py")[1]
    future = "from __future__ import annotations\n"
    both.write("s.py", future + "def f(x: int): pass\nprint(f.__annotations__)")
    assert "{'x': 'int'}" in both.same("s.py")[1]


def test_modules_beside_the_script_are_the_scripts_own(both: Both) -> None:
    """Whatever ours are called."""
    names = sorted(
        file.stem for file in (both.program.parent / "nccltune/worker/attach").glob("[a-z]*.py")
    )
    assert "main" in names
    assert sys.stdlib_module_names.isdisjoint(names)  # they are beside the entry
    for name in names:
        both.write(f"{name}.py", "print(__name__)")
    both.write("s.py", "\n".join(f"import {name}" for name in names))
    assert both.same("s.py")[1].split() == names
    both.write("d/s.py", "import traces")
    assert "No module named 'traces'" in both.same("d/s.py")[2]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="PYTHONSAFEPATH")
def test_safe_path(both: Both) -> None:
    both.write("beside.py", "")
    both.write("s.py", TELL + "import beside")
    assert "No module named 'beside'" in both.same("s.py", PYTHONSAFEPATH="1")[2]
    assert "No module named s" in both.same("-m", "s", PYTHONSAFEPATH="1")[2]


LATE = """
import atexit, pickle, sys, threading, time

class Own:
    pass

def check(where):
    again = pickle.loads(pickle.dumps(Own()))
    print(where, type(again) is Own, sys.modules["__main__"].Own is Own, flush=True)

def late():
    time.sleep(0.3)
    check("thread")

atexit.register(check, "atexit")
threading.Thread(target=late).start()
check("script")
"""


def test_main_stays_until_the_process_ends(both: Both) -> None:
    both.write("s.py", LATE)
    for arguments in (["s.py"], ["-m", "s"]):
        code, out, err = both.same(*arguments)
        assert (code, err) == (0, "")
        assert out.split("\n") == [f"{w} True True" for w in ("script", "thread", "atexit")] + [""]


CHILDREN = """
import multiprocessing, sys

class Own:
    def __init__(self, x):
        self.x = x

def double(own):
    return Own((own.x * 2, own.__class__.__module__))

if __name__ == "__main__":
    with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool:
        print(sorted(own.x for own in pool.map(double, [Own(1), Own(2)])))
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_processes_of_its_own(both: Both, method: str) -> None:
    both.write("pack/s.py", CHILDREN)
    for arguments in (["pack/s.py"], ["-m", "pack.s"]):
        code, out, err = both.same(*arguments, method)
        assert (code, err) == (0, "")
        assert out == "[(2, '__main__'), (4, '__main__')]\n" or method != "fork"


def test_unbuffered_where_it_is_asked_for(both: Both) -> None:
    both.write("s.py", "import os, sys; print('x', end=''); os._exit(0)")
    assert both.same("-u", "s.py")[1] == "x"
    assert both.same("s.py")[1] == ""


def test_standard_input(both: Both) -> None:
    both.write("s.py", "import sys; print(input(), sys.stdin.read())")
    assert both.same("s.py", stdin="one\ntwo")[1] == "one two\n"


def test_signals_reach_the_script(both: Both) -> None:
    both.write("s.py", """
        import signal, sys, time
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, lambda n, _: seen.append(n))
        seen = []
        print("up", flush=True)
        for count in range(3):
            while len(seen) == count:
                time.sleep(0.01)
            print(signal.Signals(seen[-1]).name, flush=True)
        sys.exit(5)
    """)  # fmt: skip
    with subprocess.Popen(
        [str(both.program), "s.py"], cwd=both.folder, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            process.send_signal(number)
            assert process.stdout.readline() == f"{number.name}\n"
        assert process.wait(30) == 5


def test_the_placed_package_is_what_scripts_import(both: Both) -> None:
    both.write("s.py", "import nccltune; print(nccltune.__file__); nccltune.step(samples=2)")
    code, out, err = both.run(str(both.program), "s.py")
    assert (code, err) == (0, "")
    assert out == f"{both.program.parent}/nccltune/__init__.py\n"
