"""Reading a YAML file that nobody vouches for: quickly, and with a line for every complaint.

Only mappings, lists, null, true, false, decimal numbers and texts are read. PyYAML's own safe
loader is the basis; the limits are ours, since it knows none.
"""

from __future__ import annotations

import re
import stat
from pathlib import Path
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from nccltune.errors import UsageError

MAX_BYTES = 1024 * 1024
MAX_NODES = 20_000  # search spaces and results have a few hundred
MAX_DEPTH = 20
_TAG = "tag:yaml.org,2002:"
_KNOWN_TAGS = {_TAG + n for n in ("null", "bool", "int", "float", "str", "seq", "map", "merge")}
_DECIMAL = re.compile(r"[-+]?(0|[1-9][0-9_]{0,25})")


def read_document(path: Path) -> object:
    """What `path` holds; None where it holds nothing.

    Raises:
        UsageError: no such file, not a regular one, above 1 MiB, not UTF-8, not one YAML
            document, or one with repeated keys, foreign tags or more content than a file of
            settings can need.
    """
    try:
        return _construct(_read_text(path), path)
    except yaml.MarkedYAMLError as error:
        raise UsageError(_syntax(path, error)) from None
    except yaml.YAMLError as error:
        raise UsageError(f"{path}: not valid YAML: {_one_line(str(error))}") from None
    except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError) as error:
        # PyYAML's constructors trip over explicit tags: !!bool maybe.
        raise UsageError(f"{path}: a value cannot be read: {_one_line(str(error))}") from None


def _construct(text: str, path: Path) -> object:
    loader = _Loader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return None
        _check(root, path)
        content: object = loader.construct_document(root)
        return content
    finally:
        loader.dispose()


def _read_text(path: Path) -> str:
    try:
        # A pipe would block on opening, a device may never end.
        if not stat.S_ISREG(path.stat().st_mode):
            raise UsageError(f"{path}: must be a file, got something else")
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"{path}: cannot be read: {reason}") from None
    if len(raw) > MAX_BYTES:
        raise UsageError(f"{path}: must not exceed 1 MiB")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: must be UTF-8 text, byte {error.start} is not") from None


class _Loader(yaml.SafeLoader):
    """Gives up early: on deep nesting, where Python's stack ends, and on too many nodes."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.depth = 0
        self.nodes = 0

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        self.depth += 1
        self.nodes += 1
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        if self.depth > MAX_DEPTH:
            raise yaml.MarkedYAMLError(problem=f"nested deeper than {MAX_DEPTH}", problem_mark=mark)
        if self.nodes > MAX_NODES:
            raise yaml.MarkedYAMLError(problem=f"more than {MAX_NODES} values", problem_mark=mark)
        node: Node | None = super().compose_node(parent, index)
        self.depth -= 1
        return node


def _check(root: Node, path: Path) -> None:
    """Everything that must hold before values are built from the nodes."""
    sizes: dict[int, int] = {}
    open_nodes: set[int] = set()

    def size(node: Node) -> int:
        """Values that this node stands for once every alias is written out."""
        if id(node) in open_nodes:
            raise UsageError(f"{path}: {_line(node)}: an alias must not contain itself")
        if id(node) not in sizes:
            open_nodes.add(id(node))
            _check_node(node, path)
            sizes[id(node)] = 1 + sum(size(child) for child in _children(node))
            open_nodes.discard(id(node))
        return sizes[id(node)]

    total = size(root)
    if total > MAX_NODES:
        raise UsageError(f"{path}: aliases stand for {total} values, at most {MAX_NODES} are read")


def _children(node: Node) -> list[Node]:
    if isinstance(node, MappingNode):
        return [part for pair in node.value for part in pair]
    return list(node.value) if isinstance(node, SequenceNode) else []


def _check_node(node: Node, path: Path) -> None:
    where = f"{path}: {_line(node)}"
    if node.tag == f"{_TAG}timestamp":
        raise UsageError(f"{where}: a date is no value here, put {_short(node.value)} in quotes")
    if node.tag not in _KNOWN_TAGS:
        tag = node.tag.replace(_TAG, "!!")
        raise UsageError(f"{where}: unknown tag {_short(tag)}, plain values need none")
    if node.tag == f"{_TAG}int" and not _DECIMAL.fullmatch(node.value):
        # YAML 1.1 reads 010 as 8 and 1:30 as 90.
        rule = "write a plain decimal number, or put a text in quotes"
        raise UsageError(f"{where}: {rule}, got {_short(node.value)}")
    if isinstance(node, MappingNode):
        _check_keys(node, path)


def _check_keys(node: MappingNode, path: Path) -> None:
    lines: dict[tuple[str, str], int] = {}
    for key, _ in node.value:
        if not isinstance(key, ScalarNode):
            raise UsageError(f"{path}: {_line(key)}: a key must be a text")
        here = (key.tag, key.value)
        if here in lines:
            text = f"duplicate key {_short(key.value)}, first on line {lines[here]}"
            raise UsageError(f"{path}: {_line(key)}: {text}")
        lines[here] = key.start_mark.line + 1


def _syntax(path: Path, error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    context = f"{error.context}: " if error.context else ""
    return f"{path}: {where}not valid YAML: {_one_line(f'{context}{error.problem}')}"


def _line(node: Node) -> str:
    return f"line {node.start_mark.line + 1}"


def _one_line(text: str) -> str:
    return _short(" ".join(text.split()), 200)


def _short(text: str, limit: int = 60) -> str:
    shown = text if text.isprintable() else repr(text[:limit])
    return shown if len(shown) <= limit else f"{shown[: limit - 3]}..."
