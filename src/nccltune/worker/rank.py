"""The life of a rank: rank 0 takes requests from the tuner and hands them to the others.

A rank that fails leaves a record beside its log and ends at once, without the interpreter's
tear-down: the group is broken then, and the tuner ends it.
"""

from __future__ import annotations

import faulthandler
import gc
import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from nccltune.worker.hosts import take_host
from nccltune.worker.status import KEPT, LOG_DIR, Status

_SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"  # torch/distributed/elastic/multiprocessing/api.py


def run() -> None:
    """Serve requests until the tuner says "close". Ends the process when something fails."""
    take_host(os.environ)
    folder = Path(os.environ[LOG_DIR])
    rank = int(os.environ["RANK"])
    redirect_output(folder / f"rank{rank}.log")
    status = Status(folder, rank)
    try:
        _serve(status)
    except BaseException as error:
        status.failed(error)
        leave(1)


def run_in_host(environment: Mapping[str, str]) -> None:
    """As `run`, in a process forked by a warm host: `environment` is what torchrun would have
    started it with beside the host's own.
    """
    os.setsid()
    take_over(environment)
    leave_host()
    run()


def take_over(environment: Mapping[str, str]) -> None:
    """Set these variables, but for what keeps multicast off on this node."""
    kept = os.environ.get(KEPT, "").split(",")
    os.environ.update({name: value for name, value in environment.items() if name not in kept})


def run_script_in_host(environment: Mapping[str, str], script: Mapping[str, Any]) -> None:
    """The user's own script in a process forked by a warm host. `script` has the `arguments` that
    Python would be given, the user's own `python_path`, and a folder to run in, or None.
    """
    os.setsid()
    take_over(environment)
    leave_host()
    gc.unfreeze()  # or collecting garbage would cost less than in the script's own processes
    _leave_our_paths(script["python_path"])
    _be_the_main_process(script["arguments"])
    if script["cwd"] is not None:
        os.chdir(script["cwd"])
    if "numpy" in sys.modules:  # its numbers would be the same in all ranks
        sys.modules["numpy"].random.seed()
    from nccltune.worker.attach.trial import run_trial

    run_trial(script["arguments"])


def _be_the_main_process(arguments: Sequence[str]) -> None:
    """Scripts ask whether they are a child of multiprocessing, and how Python was started."""
    process: Any = multiprocessing.process
    process._parent_process = None
    current = process.current_process()
    current._name, current._identity, current._parent_pid = "MainProcess", (), None
    sys.orig_argv = [sys.executable, "-u", *arguments]
    os.environ.setdefault("TORCHELASTIC_SIGNALS_TO_HANDLE", _SIGNALS)  # as torchrun sets it


def _leave_our_paths(python_path: str | None) -> None:
    """The script shall find modules as without us: our own folder comes last."""
    ours = str(Path(__file__).parents[2])
    for added in (ours, os.getcwd(), ""):  # once each: the user's own may be the same
        if added in sys.path:
            sys.path.remove(added)
    sys.path.append(ours)
    if python_path is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = python_path


def leave_host() -> None:
    """Undo what is the warm host's alone: its temporary folder, and how its processes start."""
    if "NCCLTUNE_TMPDIR" in os.environ:
        os.environ["TMPDIR"] = os.environ.pop("NCCLTUNE_TMPDIR")
    else:
        os.environ.pop("TMPDIR", None)
    tempfile.tempdir = None
    multiprocessing.set_start_method(None, force=True)  # loader workers start as in a fresh process


def redirect_output(log: Path) -> None:
    """Everything this process and its children print goes to the rank's log, C code included."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # the tuner asks a stuck rank where


class Closed(Exception):
    """The tuner wants nothing more of a job that is under way. The rank returns as at any other
    end: a warm host waits for that, and is lost with a rank that just ends.
    """


def leave(code: int) -> NoReturn:
    """End without tear-down."""
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
    ranks.agree()  # from here on every rank is up
    channel = Channel.connect() if ranks.rank == 0 else None

    def announce(kind: str, **fields: Any) -> None:
        if channel is not None:
            channel.send(kind, **fields)

    def receive() -> dict[str, Any]:
        return ranks.share(channel.receive() if channel is not None else None)

    def await_turn() -> None:
        if receive()["type"] == "close":
            raise Closed

    closing = False

    def is_hopeless(rates: list[float]) -> bool:
        nonlocal closing
        announce("ask", rates=rates)
        told = receive()["type"]
        closing = told == "close"  # an end that the job is torn down for, as at any other
        return bool(told != "turn")

    announce("hello", token=os.environ[TOKEN], torch=torch.__version__)
    while True:
        status.at("idle")
        message = receive()
        if message["type"] == "close":
            return
        if message["type"] == "probe":
            announce("result", result=probe(message, ranks, status))
        elif message["type"] == "diagnose":
            from nccltune.worker.diagnose import diagnose  # few groups are asked for it

            request = Request.from_message(message)
            announce("result", result=diagnose(request, ranks, status, announce))
        else:
            request = Request.from_message(message)
            try:
                found = measure(request, ranks, status, announce, await_turn, is_hopeless)
            except Closed:
                return
            if closing:
                return
            announce("result", result=found)
