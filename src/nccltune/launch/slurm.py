"""The allocation that the tuner runs in, and how a job step over its nodes is written."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nccltune.errors import StudyError, UsageError

_SECONDS = 60.0
_STEP_NAME = "nccltune"

# srun takes them from the allocation, or from the step that the tuner runs in, and would give the
# one task of a node less than the node, or order nodes and write output in another way.
_NARROWING = (
    *("SLURM_CPUS_PER_TASK", "SRUN_CPUS_PER_TASK", "SLURM_TRES_PER_TASK", "SLURM_NTASKS_PER_GPU"),
    *("SLURM_NTASKS_PER_TRES", "SLURM_CPUS_PER_GPU", "SLURM_THREADS_PER_CORE"),
    *("SLURM_GPUS", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_SOCKET", "SLURM_GPUS_PER_TASK"),
    *("SLURM_MEM_PER_CPU", "SLURM_MEM_PER_GPU", "SLURM_MEM_PER_NODE", "SLURM_MEM_BIND"),
    *("SLURM_GPU_BIND", "SLURM_TRES_BIND", "SLURM_EXACT"),
    *("SLURM_EXCLUSIVE", "SLURM_WHOLE", "SLURM_HINT", "SLURM_EXPORT_ENV", "SRUN_EXPORT_ENV"),
    *("SLURM_DISTRIBUTION", "SLURM_HOSTFILE", "SLURM_ARBITRARY_NODELIST"),
    *("SLURM_LABELIO", "SLURM_STDOUTMODE", "SLURM_STDERRMODE"),
)


@dataclass(frozen=True)
class Node:
    """A node as Slurm knows it; `address` is how Slurm's own daemons reach it."""

    name: str
    address: str
    host: str


@dataclass(frozen=True)
class Allocation:
    """The nodes of a job, in Slurm's order; the first is the head. `here` is the one that the tuner
    runs on, by its place among them.
    """

    job: str
    nodes: tuple[Node, ...]
    here: int
    gpus: int | None
    """On each node, as Slurm gives them; None where it gives none."""

    @property
    def head(self) -> Node:
        return self.nodes[0]

    @property
    def own_address(self) -> str:
        """By which the nodes reach the tuner."""
        return self.nodes[self.here].address

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(node.name for node in self.nodes)


def find_allocation(environ: Mapping[str, str]) -> Allocation:
    """The job that this process belongs to.

    Raises: UsageError outside an allocation, or on a machine that is none of its nodes.
    """
    job, listed = environ.get("SLURM_JOB_ID"), environ.get("SLURM_JOB_NODELIST")
    if not job or not listed:
        raise UsageError(
            "--launcher slurm: this is no Slurm allocation; get one with `salloc --nodes=2 "
            "--exclusive`, or submit a script with sbatch (examples/search.sbatch), and run the "
            "same command in it"
        )
    if shutil.which("srun", path=environ.get("PATH")) is None:
        raise UsageError("--launcher slurm: srun is not in PATH; load the module that has it")
    nodes = tuple(_look_up(listed, environ))
    here = _place_of(environ.get("SLURMD_NODENAME"), nodes)
    if here is None:
        raise UsageError(
            f"--launcher slurm: this machine is not one of the job's nodes ({listed}), so it shows "
            "nothing of their GPUs; run the same command on the first of them, in a shell that "
            "`srun --overlap --nodes=1 --ntasks=1 --cpu-bind=none --pty bash` opens, or submit it "
            "with sbatch"
        )
    return Allocation(job, nodes, here, _count(environ.get("SLURM_GPUS_ON_NODE")))


def _look_up(listed: str, environ: Mapping[str, str]) -> list[Node]:
    """The nodes of a list as in `n[0-1]`, in its order."""
    names = ask_slurm(("scontrol", "show", "hostnames", listed), environ).split()
    known, told = dict[str, Node](), ""
    with contextlib.suppress(StudyError):  # some sites hide nodes (PrivateData): names serve then
        told = ask_slurm(("scontrol", "--oneliner", "show", "node", listed), environ)
    for line in told.splitlines():
        fields = dict(word.split("=", 1) for word in line.split() if "=" in word)
        if name := fields.get("NodeName"):
            address, host = fields.get("NodeAddr", name), fields.get("NodeHostName", name)
            known[name] = Node(name, address, host)
    return [known.get(name) or Node(name, name, name) for name in names]


def _place_of(name: str | None, nodes: Sequence[Node]) -> int | None:
    """Where among them this machine is: by the name that Slurm gave it in a step or batch script,
    else by that of the host.
    """
    if name is not None:
        return next((at for at, node in enumerate(nodes) if node.name == name), None)
    own = socket.gethostname().partition(".")[0]
    return next((at for at, node in enumerate(nodes) if node.host.partition(".")[0] == own), None)


def _count(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() and int(text) > 0 else None


def ask_slurm(command: Sequence[str], environ: Mapping[str, str]) -> str:
    """What one of Slurm's commands prints. Raises StudyError where it fails, with its words."""
    try:
        done = subprocess.run(
            command,
            env=dict(environ),
            stdin=subprocess.DEVNULL,  # SCANCEL_INTERACTIVE asks
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StudyError(f"{command[0]} does not answer: {error}") from error
    if done.returncode:
        words = " ".join(done.stderr.decode(errors="replace").split())[:300]
        raise StudyError(f"{command[0]} failed (exit code {done.returncode}): {words}")
    return done.stdout.decode(errors="replace")


def step_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """For srun: without what would narrow a step to a part of its nodes."""
    return {name: value for name, value in environ.items() if name not in _NARROWING}


def step_name(tag: str) -> str:
    """By which a step can be found again."""
    return f"{_STEP_NAME}-{tag.rpartition('.')[2].replace('/', '-')}"


def srun_argv(allocation: Allocation, name: str, command: Sequence[str]) -> tuple[str, ...]:
    """One task on each node of the allocation, with all that the job has there. Steps may run
    beside each other: worker groups take turns, and a batch script is a step too.
    """
    count = len(allocation.nodes)
    return (
        "srun",
        f"--jobid={allocation.job}",
        f"--job-name={name}",
        f"--nodes={count}",
        f"--ntasks={count}",
        "--ntasks-per-node=1",
        f"--nodelist={','.join(allocation.names)}",
        "--overlap",
        "--mem=0",  # all that the job has
        "--export=ALL",
        "--input=none",
        "--unbuffered",
        "--cpu-bind=none",
        "--mpi=none",
        "--kill-on-bad-exit=0",
        "--wait=0",
        *command,
    )


def cancel_steps(allocation: Allocation, name: str, environ: Mapping[str, str]) -> None:
    """End the job's steps of that name, where Slurm still has any. Raises StudyError."""
    steps = ("squeue", "--noheader", "--steps", f"--jobs={allocation.job}", "--format=%i %j")
    for line in ask_slurm(steps, environ).splitlines():
        found, _, named = line.strip().partition(" ")
        if named == name:
            ask_slurm(("scancel", "--signal=KILL", found), environ)


def count_nodes(environ: Mapping[str, str]) -> int:
    """How many nodes the surrounding allocation has; 0 outside of any."""
    return _count(environ.get("SLURM_JOB_NUM_NODES")) or 0
