"""NCCL's version, however it is written."""

from __future__ import annotations

from packaging.version import InvalidVersion, Version


def parse_version(text_or_code: str | int) -> Version:
    """The release named by a text such as "2.28.9+cuda13.0" or by NCCL's version code.

    Codes are those of ncclGetVersion: major*10000 + minor*100 + patch (22809), before 2.9
    major*1000 + minor*100 + patch (2708); a text of digits alone is read as a code too. What
    follows the release (CUDA version, package number, "pre") is dropped, so that the result
    compares as its release does.

    Raises ValueError, with what was given, for anything else.
    """
    if isinstance(text_or_code, bool):
        raise ValueError(f"not an NCCL version: {text_or_code!r}")
    if isinstance(text_or_code, int):
        return _from_code(text_or_code)
    text = text_or_code.strip()
    # isdigit alone also holds for digits that int() refuses, such as superscripts.
    if text.isascii() and text.isdigit():
        return _from_code(int(text))
    try:
        version = Version(text)
    except InvalidVersion:
        raise ValueError(f"not an NCCL version: {text_or_code!r}") from None
    if version.epoch:
        raise ValueError(f"not an NCCL version: {text_or_code!r}")
    return Version(".".join(str(part) for part in version.release))


def known_version(text: str | None) -> Version | None:
    """NCCL's release, as `parse_version` reads it; None where it is not known or not to be read."""
    try:
        return None if text is None else parse_version(text)
    except ValueError:
        return None


def torch_release(text: str | None) -> Version | None:
    """torch's release from a text such as "2.9.0a0+git1234"; None where it is none."""
    try:
        return None if text is None else Version(Version(text).base_version)
    except InvalidVersion:
        return None


def _from_code(code: int) -> Version:
    if 1000 <= code < 10000:
        major, rest = divmod(code, 1000)
    elif 20000 <= code < 1000000:
        major, rest = divmod(code, 10000)
    else:
        raise ValueError(f"not an NCCL version code: {code} (2.28.9 is 22809, 2.7.8 is 2708)")
    minor, patch = divmod(rest, 100)
    return Version(f"{major}.{minor}.{patch}")
