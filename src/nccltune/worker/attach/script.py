"""Runs what `python ARGUMENTS` would, in this process: `SCRIPT ...` or `-m MODULE ...`.

`runpy.run_path` and `run_module` do not serve here: they take `__main__` away again when the script
has ended, while atexit functions, threads and loader workers still look for it.
"""

from __future__ import annotations

import builtins
import io
import os
import pkgutil
import runpy
import sys
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader, SourcelessFileLoader
from types import CodeType, ModuleType

from nccltune.worker.attach.traces import hide_own_frames


def run_as_main(arguments: Sequence[str]) -> None:
    """Run a script, or with -m a module, as `__main__`; `-u` before it is for the interpreter that
    was started, and skipped here.

    The caller has taken its own folder off sys.path, as the script's comes first there.

    Raises whatever the script raises, and SystemExit as the interpreter ends where there is nothing
    to run. If it ends the process, it is shown without our frames.
    """
    given = list(arguments)
    while given[:1] == ["-u"]:
        del given[0]
    if not given:
        raise SystemExit("nccltune: no script to run")
    try:
        if given[0] == "-m":
            _run_module(given[1:])
        elif pkgutil.get_importer(given[0]) is not None:
            _run_folder(given)
        else:
            _run_file(given)
    except SystemExit:  # shown to nobody
        raise
    except BaseException:
        hide_own_frames()
        raise


def script_name(arguments: Sequence[str]) -> str:
    """What is called by these arguments of Python: train.py, or the module."""
    words = [word for word in arguments if word != "-u"][:2]
    if words[:1] == ["-m"]:
        return words[-1]
    return os.path.basename(words[0]) if words else ""


def _new_main() -> ModuleType:
    """A fresh `__main__`, which stays until the process ends."""
    main = ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    main.__dict__["__cached__"] = None
    if sys.version_info < (3, 14):  # from then on annotations are made when they are asked for
        main.__dict__["__annotations__"] = {}
    sys.modules["__main__"] = main
    return main


def _run_module(given: list[str]) -> None:
    if not given:
        sys.stderr.write("Argument expected for the -m option\n")
        raise SystemExit(2)
    _new_main()
    sys.argv = ["-m", *given[1:]]
    if not _safe_path():
        sys.path.insert(0, os.getcwd())
    # What the interpreter itself calls, so that its messages and tracebacks are the usual ones.
    runpy._run_module_as_main(given[0])  # type: ignore[attr-defined]


def _run_folder(given: list[str]) -> None:
    """A folder or a zip file with a `__main__.py`."""
    _new_main()
    sys.argv = given
    sys.path.insert(0, os.path.join(os.getcwd(), given[0]))
    runpy._run_module_as_main("__main__", False)  # type: ignore[attr-defined]


def _run_file(given: list[str]) -> None:
    file = os.path.join(os.getcwd(), given[0])  # as the interpreter does, not made shorter
    main = _new_main()
    sys.argv = given
    if not _safe_path():
        sys.path.insert(0, os.path.dirname(os.path.realpath(file)))
    kind = SourcelessFileLoader if file.endswith(".pyc") else SourceFileLoader
    loader = kind("__main__", file)
    main.__dict__.update(__file__=file, __loader__=loader)
    exec(_code(file, loader), main.__dict__)


def _code(file: str, loader: SourceFileLoader | SourcelessFileLoader) -> CodeType:
    try:
        if isinstance(loader, SourcelessFileLoader):
            code = loader.get_code("__main__")
            assert code is not None
            return code
        with io.open_code(file) as source:
            # dont_inherit: the script has its own "from __future__" lines.
            return compile(source.read(), file, "exec", dont_inherit=True)
    except OSError as error:
        program = sys.orig_argv[0] or sys.executable
        reason = f"[Errno {error.errno}] {error.strerror}"
        sys.stderr.write(f"{program}: can't open file {file!r}: {reason}\n")
    raise SystemExit(2)


def _safe_path() -> bool:
    """Whether Python was told (-P, -I) not to look for modules beside the script."""
    return bool(getattr(sys.flags, "safe_path", False) or sys.flags.isolated)
