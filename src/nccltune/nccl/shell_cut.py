"""Values of which a shell takes the first part alone, since nobody put them in quotes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from nccltune.nccl.findings import shown
from nccltune.nccl.launcher_options import ASSIGNMENT, Fault
from nccltune.nccl.shell_parts import Command, Word

# What goes on with a value of NCCL_ALGO, NCCL_PROTO or NCCL_CTA_POLICY, and is no command.
_REST = re.compile(
    r"(?:broadcast|reduce|allgather|reducescatter|allreduce):\^?[\w,]+|EFFICIENCY|ZERO", re.I | re.A
)
_WITH_BLANKS = {
    "NCCL_NET": re.compile(r"libfabric", re.I),
    "NCCL_THREAD_THRESHOLDS": re.compile(r"-?\d+", re.A),
}


def cut_at_operator(commands: Sequence[Command], index: int) -> Iterator[Fault]:
    """NCCL_ALGO=ring,tree;allreduce:tree at the end of that command: a shell makes two of it."""
    words = commands[index].words
    match = ASSIGNMENT.fullmatch(words[-1].text) if words else None
    if match is None or not match[1].startswith("NCCL_"):
        return
    rest, at = "", index
    while at + 1 < len(commands) and commands[at].after in (";", "&", "|"):
        following = commands[at + 1].words
        if not following or not _REST.fullmatch(following[0].text):
            break
        rest += commands[at].after + following[0].text
        at += 1
        if len(following) > 1:
            break
    if rest:
        text = (
            "the value is cut off: a shell ends the command there and runs what follows; write "
            f"{match[1]}='{shown(match[3] + rest)}'"
        )
        yield Fault(words[-1].line, "cut-at-operator", match[1], text)


def cut_at_blank(words: Sequence[Word], index: int) -> Iterator[Fault]:
    """NCCL_NET=AWS Libfabric: the word at `index` is the setting."""
    name, _, value = words[index].text.partition("=")
    wanted = _WITH_BLANKS.get(name)
    if wanted is None or not value or words[index].quoted:
        return
    rest: list[str] = []
    for word in words[index + 1 :]:
        if not wanted.fullmatch(word.text):
            break
        rest.append(word.text)
    if rest:
        whole = shown(" ".join((value, *rest)))
        text = f"the value is cut off at the blank; write {name}='{whole}'"
        yield Fault(words[index].line, "spaces-around-equals", name, text)
