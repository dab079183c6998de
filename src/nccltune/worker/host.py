"""The warm host: starts worker groups through torch's elastic agent from a process that has torch
and torchvision imported (multiprocessing's fork server), one group at a time.

`python -m nccltune.worker.host`, under the supervisor. The tuner sends `open`, `end` and `ask`; the
host answers `ended` and `asked`. It never touches CUDA.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import shutil
import sys
import threading
import time
import traceback
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from nccltune.worker.channel import TOKEN, Channel
from nccltune.worker.node import FOLDER, free_port
from nccltune.worker.status import NODE
from nccltune.worker.supervisor import adopt_orphans, descendants, end_descendants

_ALONE = {"nodes": 1, "endpoint": "localhost:0", "address": "localhost"}
_AGENT = "agent"  # where the elastic agent makes folders for every launch
_SWEEP_SECONDS = 10.0
_MONITOR_SECONDS = 0.1  # as torchrun is given: what looks on must not cost more here than there


def main() -> None:
    adopt_orphans()
    folder = Path(os.environ[FOLDER])
    _use_own_folder(folder)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["nccltune.worker.preload"])
    forkserver.ensure_running()  # it imports while we do
    from torch.distributed.launcher import api as _agent  # noqa: F401

    _log_plainly()
    first = context.Process(target=_nothing)
    first.start()
    first.join()
    if first.exitcode != 0:
        sys.exit(f"a forked process ended with exit code {first.exitcode}")
    # It makes LaunchConfig's look for GPUs ask NVML, where CUDA would be initialised here.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    host = Host(Channel.connect(), folder)
    node = int(os.environ.get(NODE, "0"))
    host.send("hello", token=os.environ[TOKEN], pid=os.getpid(), node=node)
    with contextlib.suppress(ConnectionError):
        host.serve()
    os._exit(0)  # the supervisor ends whatever is left


def _use_own_folder(folder: Path) -> None:
    """torch and multiprocessing leave files in the temporary folder: in this one they go with the
    host. Ranks get the user's own back.
    """
    if "TMPDIR" in os.environ:
        os.environ["NCCLTUNE_TMPDIR"] = os.environ["TMPDIR"]
    os.environ["TMPDIR"] = str(folder)


def _log_plainly() -> None:
    """torch's own formatter imports the compiler to print a traceback: 150 MB and a second, at the
    first rank that fails (torch/_logging/_internal.py, 2.14).
    """
    plain = logging.Formatter("%(levelname)s %(name)s: %(message)s")
    for name in list(logging.root.manager.loggerDict):
        if name.split(".")[0] == "torch":
            for handler in logging.getLogger(name).handlers:
                handler.setFormatter(plain)


def _nothing() -> None: ...


class Host:
    """Takes the tuner's orders. What it was started with (fork server, resource tracker) stays
    from group to group, everything else goes with its group.
    """

    def __init__(self, channel: Channel, folder: Path) -> None:
        self._channel, self._folder = channel, folder
        self._lock = threading.Lock()
        self._keep = frozenset(descendants(os.getpid()))
        self._group: Group | None = None

    def send(self, kind: str, **fields: Any) -> None:
        with self._lock:
            self._channel.send(kind, **fields)

    def serve(self) -> None:
        """Raises ConnectionError when the tuner is gone."""
        while True:
            message = self._channel.receive()
            if message["type"] == "open":
                self._open(message)
            elif message["type"] == "end" and self._group is not None:
                self._group.end()
            elif message["type"] == "ask":
                self._ask(message)
            elif message["type"] == "port":
                self.send("port", port=free_port())

    def _open(self, message: dict[str, Any]) -> None:
        if self._group is not None:
            self._group.thread.join()
        self.refuse_half()
        self._group = Group(self, message, self._keep, self._folder)

    def refuse_half(self) -> None:
        """End with the fork server: a new one would start with our variables as they are now. The
        tuner sees that it was no fault of the ranks, and starts another host.
        """
        if not self._keep <= set(descendants(os.getpid())):
            print("the fork server is gone", flush=True)
            os._exit(1)

    def _ask(self, message: dict[str, Any]) -> None:
        """In a process of its own: the user's module may do anything when it is imported."""
        context = multiprocessing.get_context("forkserver")
        process = context.Process(target=_answer, args=(message,))
        process.start()
        process.join()
        end_descendants(self._keep, _SWEEP_SECONDS)
        self.send("asked", code=process.exitcode)


def _answer(message: dict[str, Any]) -> None:
    from nccltune.worker.ask import answer_into
    from nccltune.worker.rank import leave_host, redirect_output

    os.setsid()
    leave_host()
    redirect_output(Path(message["log"]))
    answer_into(Path(message["question"]), Path(message["answer"]))


class Group:
    """One worker group, under an elastic agent in a thread of its own."""

    def __init__(
        self, host: Host, message: dict[str, Any], keep: frozenset[int], folder: Path
    ) -> None:
        self._host, self._message, self._keep, self._folder = host, message, keep, folder
        self._logs = Path(message["log_dir"])
        self._logs.mkdir(
            parents=True, exist_ok=True
        )  # it is not here yet where no files are shared
        self._nproc = int(message["nproc_per_node"])
        self._meeting: dict[str, Any] = message.get("meeting") or _ALONE
        self._processes: list[BaseProcess] = []
        self._ending = threading.Event()
        self._ordered = False
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        watcher = threading.Thread(target=self._note_processes, daemon=True)
        watcher.start()
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

        try:
            self._launch()
        except ChildFailedError as failed:
            with contextlib.suppress(OSError):
                with (self._logs / "launcher.log").open("a") as log:  # of all nodes
                    log.write(f"{failed}\n")  # who failed, and how
        except BaseException:
            if not self._ordered:
                traceback.print_exc()
                os._exit(1)  # the host cannot start ranks (any more): no fault of what they run
        self._ending.set()
        watcher.join()
        left = end_descendants(self._keep, _SWEEP_SECONDS)
        shutil.rmtree(self._folder / _AGENT, ignore_errors=True)
        self._host.refuse_half()
        with contextlib.suppress(OSError):  # the tuner may be gone
            self._host.send("ended", codes=self._exit_codes(), left=left)

    def _launch(self) -> None:
        from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
        from torch.distributed.launcher.api import LaunchConfig, elastic_launch

        from nccltune.worker.rank import run_in_host, run_script_in_host

        meeting = self._meeting
        config = LaunchConfig(
            min_nodes=meeting["nodes"],
            max_nodes=meeting["nodes"],
            nproc_per_node=self._nproc,
            run_id=meeting.get("name") or self._logs.name,
            role="default",  # torchrun's
            rdzv_backend="c10d",
            rdzv_endpoint=meeting["endpoint"],
            rdzv_configs={n: v for n, v in meeting.items() if n == "is_host"},
            local_addr=meeting["address"],
            max_restarts=0,
            monitor_interval=_MONITOR_SECONDS,
            start_method="forkserver",
            logs_specs=DefaultLogsSpecs(log_dir=str(self._folder / _AGENT)),
        )
        environment, script = self._message["environment"], self._message.get("script")
        if script is None:
            elastic_launch(config, run_in_host)(environment)
        else:
            elastic_launch(config, run_script_in_host)(environment, script)

    def _note_processes(self) -> None:
        """Hold on to the rank processes while they live: the agent tells how the first of them
        ended, and the others' exit codes would be lost.
        """
        while not self._ending.is_set() and len(self._processes) < self._nproc:
            self._processes = multiprocessing.active_children()
            time.sleep(0.005)

    def _exit_codes(self) -> dict[int, int]:
        """By rank; a rank that never wrote its process id down is left out."""
        codes = {process.pid: process.exitcode for process in self._processes}
        found = {}
        for file in sorted(self._logs.glob("rank*.pid")):
            with contextlib.suppress(OSError, ValueError, IndexError):
                pid, *node = file.read_text().split()
                code = codes.get(int(pid)) if node in ([], [os.environ.get(NODE)]) else None
                if code is not None:
                    found[int(file.stem.removeprefix("rank"))] = code
        return found

    def end(self) -> None:
        """Kill the ranks; the agent sees it and ends. Everything else is swept after that."""
        self._ordered = True
        while self.thread.is_alive():  # also ranks that are only about to be started
            for process in multiprocessing.active_children():
                process.kill()
            time.sleep(0.01)


if __name__ == "__main__":
    main()
