"""Which branches, loops and functions of a script are around a command."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from nccltune.nccl.findings import Arm
from nccltune.nccl.shell_parts import Word

_OPENS = frozenset({"if", "for", "while", "until", "case", "select", "{"})
_CLOSES = frozenset({"fi", "done", "esac", "}", "endif", "endsw"})
_OTHERWISE = frozenset({"elif", "else"})
_INSIDE = frozenset({"then", "do", "!", "time"})
_MOST = 20  # within each other


class Branches:
    """Is told of every command in turn, and keeps count."""

    def __init__(
        self, numbers: Iterator[int] | None = None, around: frozenset[Arm] = frozenset()
    ) -> None:
        self._numbers = itertools.count() if numbers is None else numbers
        self._around = around
        self._open: list[Arm] = []
        self._parentheses: list[Arm] = []
        self._chain: Arm | None = None  # behind && or ||

    @property
    def within(self) -> frozenset[Arm]:
        """What is around the command that was begun last."""
        chain = [] if self._chain is None else [self._chain]
        return self._around.union(self._open[:_MOST], self._parentheses[:_MOST], chain)

    def of_another_script(self) -> Branches:
        """For a script that the command gives to another shell."""
        return Branches(self._numbers, self.within | {self._first_arm()})

    def begin(self, before: str) -> None:
        """A command begins behind this operator."""
        if before not in ("&&", "||"):
            self._chain = None
        elif self._chain is None or before == "||":
            self._chain = self._first_arm()
        if before in (";;", ";;&", ";&"):
            self._next_arm()

    def end(self, after: str) -> None:
        """A command ends before this operator."""
        if after == "(":
            self._parentheses.append(self._first_arm())
        elif after == ")":
            del self._parentheses[-1:]

    def without_keywords(self, words: Sequence[Word]) -> Sequence[Word]:
        """The command behind words such as `if` and `then`, which are counted."""
        for index, word in enumerate(words):
            if word.text in _OPENS and not word.quoted:
                self._open.append(self._first_arm())
            elif word.text in _CLOSES and not word.quoted:
                del self._open[-1:]
            elif word.text in _OTHERWISE and not word.quoted:
                self._next_arm()
            elif word.text not in _INSIDE or word.quoted:
                if word.text == "function" and index + 1 < len(words) and words[-1].text == "{":
                    self._open.append(self._first_arm())
                return words[index:]
        return ()

    def _first_arm(self) -> Arm:
        return next(self._numbers), 0

    def _next_arm(self) -> None:
        if self._open:
            branch, arm = self._open[-1]
            self._open[-1] = branch, arm + 1
