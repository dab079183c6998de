"""Does something when the script has imported a module, and not before.

A script may set variables that torch reads when it is imported; importing torch for it would make
them come too late.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def after_import(name: str, action: Callable[[], object]) -> None:
    """Call `action` once the module is imported whole, at once where it already is. In forked
    children nothing is called.
    """
    if name in sys.modules:
        action()
    else:
        sys.meta_path.insert(0, _Watch(name, action))


class _Watch(MetaPathFinder):
    """Finds nothing itself; takes note of what the other finders have for one module."""

    def __init__(self, name: str, action: Callable[[], object]) -> None:
        self._name, self._action = name, action
        self._pid = os.getpid()
        self._asking = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name or self._asking:
            return None
        self._asking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._asking = False
        if spec is not None and spec.loader is not None:
            self._follow(spec.loader)
        return spec

    def _follow(self, loader: object) -> None:
        """Act after the module's code has run. The loader itself stays the module's; one whose
        import fails comes again with another loader.
        """
        run = loader.exec_module  # type: ignore[attr-defined]

        def run_and_act(module: ModuleType) -> None:
            vars(loader).pop("exec_module", None)  # gone, where others follow it too
            run(module)
            sys.meta_path.remove(self)
            if os.getpid() == self._pid:
                self._action()

        loader.exec_module = run_and_act  # type: ignore[attr-defined]
