"""Which configurations fail, by those that did."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nccltune.study.sampling.memory import Code
from nccltune.study.sampling.model import Codes, Floats

TOLD = 80  # failures, and successes, that are looked at: the last ones


class ChanceToRun:
    """That a configuration does not fail: lower for those that share values with ones that did,
    values alone and in pairs. The default's values tell nothing: the default runs.
    """

    def __init__(self, good: Sequence[Code], bad: Sequence[Code], default: Code) -> None:
        self._default = np.array(default)
        good, bad = good[-TOLD:], bad[-TOLD:]
        self._seen = np.array([*bad, *good], dtype=np.intp) if bad else None
        if self._seen is not None:
            label = np.array([-1.0] * len(bad) + [0.0] * len(good))
            own = self._kernel(self._seen, self._seen) + 0.015 * np.eye(len(label))
            self._weights = np.linalg.solve(own, label)

    def of(self, codes: Codes) -> Floats:
        """Shape (len(codes),), 0 to 1."""
        if self._seen is None:
            return np.ones(len(codes))
        return np.clip(0.95 + self._kernel(codes, self._seen) @ self._weights, 0.002, 1.0)

    def _kernel(self, a: Codes, b: Codes) -> Floats:
        same = (a[:, None, :] == b[None, :, :]) & (a[:, None, :] != self._default)
        n = same.sum(axis=2).astype(float)
        return np.asarray(n + n * (n - 1) / 4) * 0.05
