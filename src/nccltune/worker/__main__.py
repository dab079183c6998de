"""A rank of a worker group: `torchrun ... -m nccltune.worker`.

Rank 0 takes requests from the tuner and hands them to the others. A rank that fails leaves a record
beside its log and ends at once, without the interpreter's tear-down: the group is broken then, and
the tuner ends it.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from pathlib import Path
from typing import Any

from nccltune.worker.status import LOG_DIR, Status


def main() -> None:
    folder = Path(os.environ[LOG_DIR])
    rank = int(os.environ["RANK"])
    _redirect_output(folder / f"rank{rank}.log")
    status = Status(folder, rank)
    try:
        _serve(status)
    except BaseException as error:
        status.failed(error)
        _leave(1)
    _leave(0)


def _redirect_output(log: Path) -> None:
    """Everything this process and its children print goes to the rank's log, C code included."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # the tuner asks a stuck rank where


def _leave(code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _serve(status: Status) -> None:
    status.at("import")
    import torch

    from nccltune.worker.channel import TOKEN, Channel
    from nccltune.worker.measure import measure
    from nccltune.worker.probe import probe
    from nccltune.worker.ranks import Ranks
    from nccltune.worker.spec import Request

    status.at("rendezvous")
    ranks = Ranks()
    pids = [int(row[0]) for row in ranks.gather([float(os.getpid())])]
    channel = Channel.connect() if ranks.rank == 0 else None

    def announce(kind: str, **fields: Any) -> None:
        if channel is not None:
            channel.send(kind, **fields)

    announce("hello", token=os.environ[TOKEN], pids=pids, torch=torch.__version__)
    while True:
        status.at("idle")
        message = ranks.share(channel.receive() if channel is not None else None)
        if message["type"] == "close":
            return
        if message["type"] == "probe":
            announce("result", result=probe(message, ranks, status))
        else:
            announce(
                "result", result=measure(Request.from_message(message), ranks, status, announce)
            )


if __name__ == "__main__":
    main()
