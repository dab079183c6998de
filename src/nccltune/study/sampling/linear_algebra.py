"""numpy's linear algebra, for matrices of a few hundred rows."""

from __future__ import annotations

import os
import sys

_THREADS = "OPENBLAS_NUM_THREADS"


def on_one_thread() -> None:
    """Load numpy so that its linear algebra keeps to one thread, unless it is loaded, or the user
    says otherwise. Matrices here are small: threads gain nothing, and where cores are busy, with
    ranks say, they wait for each other for seconds. The environment is left as it was, since other
    processes inherit it.
    """
    if "numpy" in sys.modules or _THREADS in os.environ:
        return
    os.environ[_THREADS] = "1"
    try:
        import numpy  # noqa: F401  # reads it while it is loaded
    finally:
        del os.environ[_THREADS]
