"""Packages that some samplers and pruners need and that are not always there."""

from __future__ import annotations

from importlib.util import find_spec

from nccltune.errors import UsageError

NEEDS = {"--sampler cmaes": "cmaes", "--sampler gp": "scipy", "--pruner wilcoxon": "scipy"}
"""By option; the extra `samplers` has them all."""


def require(option: str) -> None:
    """Raises UsageError where the package that an option such as `--sampler cmaes` needs is
    missing. Imports nothing heavy.
    """
    package = NEEDS.get(option)
    if package is not None and find_spec(package) is None:
        raise UsageError(f"{option} needs the package {package}: pip install 'nccltune[samplers]'")
