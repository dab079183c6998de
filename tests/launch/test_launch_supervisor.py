"""Nothing of a launch outlives it: the supervisor, run for real with plain children."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nccltune.launch.leftovers import is_running
from nccltune.launch.supervised import Supervised
from nccltune.worker import supervisor

PATIENCE = 30.0  # seconds until a test gives up; what is waited for takes a fraction of one

# A grandchild as a rank is: in a session of its own, deaf to polite signals, with a child too.
STUBBORN = """
import os, signal, sys, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
os.setsid()
child = os.fork()
name = "child" if child == 0 else "rank"
with open(os.path.join(sys.argv[1], name + ".tmp"), "w") as file:
    file.write(str(os.getpid()))
os.rename(file.name, os.path.join(sys.argv[1], name + ".pid"))
time.sleep(600)
"""


def wait_for(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.01)


def pids(folder: Path) -> list[int]:
    files = [folder / "rank.pid", folder / "child.pid"]
    wait_for(lambda: all(file.exists() for file in files), "the stubborn processes to start")
    return [int(file.read_text()) for file in files]


def gone(several: list[int]) -> None:
    wait_for(lambda: not any(is_running(pid) for pid in several), f"the end of {several}")


@pytest.fixture(autouse=True)
def _nothing_is_left(tmp_path: Path) -> Iterator[None]:
    yield
    for file in tmp_path.glob("*.pid"):
        if is_running(int(file.read_text())):
            os.kill(int(file.read_text()), signal.SIGKILL)


def command(*argv: str) -> list[str]:
    return [sys.executable, "-I", supervisor.__file__, "--", *argv]


def stubborn(folder: Path, then: str) -> list[str]:
    """A launch whose own command does `then` in shell while its stubborn rank lives on."""
    script = folder / "stubborn.py"
    script.write_text(STUBBORN)
    wait = f"while [ ! -e {folder}/rank.pid ] || [ ! -e {folder}/child.pid ]; do sleep 0.02; done"
    return ["sh", "-c", f"{sys.executable} -I {script} {folder} & {wait}; {then}"]


def start(argv: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command(*argv), stdin=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )


def run(*argv: str) -> tuple[int, str]:
    """Exit code and stderr of a command that ends by itself."""
    with subprocess.Popen(
        command(*argv), stdin=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stderr is not None
        message = process.stderr.read().decode()
        return process.wait(PATIENCE), message


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["true"], 0),
        (["sh", "-c", "exit 3"], 3),
        (["sh", "-c", "kill -9 $$"], 128 + 9),
        (["sh", "-c", "kill -TERM $$"], 128 + 15),
        (["sh", "-c", "kill -INT $$"], 128 + 2),
    ],
)
def test_the_exit_code_is_that_of_the_command_as_a_shell_tells_it(
    argv: list[str], code: int
) -> None:
    assert run(*argv) == (code, "")


def test_a_command_that_does_not_exist(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    assert run(missing) == (127, f"cannot start {missing}: No such file or directory\n")
    (tmp_path / "data").write_text("x")
    code, message = run(str(tmp_path / "data"))
    assert (code, message) == (127, f"cannot start {tmp_path / 'data'}: Permission denied\n")


def test_the_command_gets_its_arguments_as_they_are() -> None:
    with subprocess.Popen(
        command("printf", "%s|", "a b", "--", "$x", ""),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.read() == b"a b|--|$x||"


def test_a_closed_stdin_ends_every_descendant(tmp_path: Path) -> None:
    with start(stubborn(tmp_path, "sleep 600")) as process:
        living = pids(tmp_path)
        assert all(is_running(pid) for pid in living)
        assert process.poll() is None
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(PATIENCE) == 137
        # When the supervisor has ended they are gone already, not some time later.
        assert not any(is_running(pid) for pid in living)


def test_when_the_command_ends_what_it_left_behind_ends_too(tmp_path: Path) -> None:
    with start(stubborn(tmp_path, "exit 5")) as process:
        living = pids(tmp_path)
        assert process.wait(PATIENCE) == 5
        assert not any(is_running(pid) for pid in living)


def test_sigterm_ends_everything(tmp_path: Path) -> None:
    with start(stubborn(tmp_path, "sleep 600")) as process:
        living = pids(tmp_path)
        process.terminate()
        assert process.wait(PATIENCE) == 137
        assert not any(is_running(pid) for pid in living)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_ctrl_c_is_for_the_tuner_alone(number: signal.Signals) -> None:
    with subprocess.Popen(
        command("sh", "-c", "echo up; sleep 0.3; echo down"),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        process.send_signal(number)
        assert process.stdout.read() == b"down\n"
        assert process.wait(PATIENCE) == 0


def test_the_command_can_be_interrupted_itself() -> None:
    # The supervisor ignores SIGINT; what it starts must not inherit that.
    code, _ = run("sh", "-c", "kill -INT $$; sleep 0.1; exit 0")
    assert code == 128 + 2


TUNER = """
import subprocess, sys, time
process = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, start_new_session=True)
print(process.pid, flush=True)
time.sleep(600)
"""


def test_when_the_tuner_is_killed_nothing_of_its_launch_remains(tmp_path: Path) -> None:
    argv = [sys.executable, "-I", "-c", TUNER, *command(*stubborn(tmp_path, "sleep 600"))]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as tuner:
        assert tuner.stdout is not None
        supervised = int(tuner.stdout.readline())
        living = [supervised, *pids(tmp_path)]
        assert all(is_running(pid) for pid in living)
        tuner.send_signal(signal.SIGKILL)
        tuner.wait(PATIENCE)
        gone(living)


FORKS = """
import os, sys, time
# A chain of forks: each link starts the next in a session of its own and ends.
for _ in range(2000):
    if os.fork() > 0:
        os._exit(0)
    os.setsid()
    time.sleep(0.004)
    with open(sys.argv[1], "a") as file:
        file.write("x")
"""


def test_a_process_that_keeps_forking_away_is_caught(tmp_path: Path) -> None:
    trail = tmp_path / "trail"
    argv = [sys.executable, "-I", "-c", FORKS, str(trail)]
    with start(["sh", "-c", '"$@" & sleep 600', "sh", *argv]) as process:
        wait_for(lambda: trail.exists() and trail.stat().st_size > 10, "a chain of forks")
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(PATIENCE) == 137
    links = trail.stat().st_size
    time.sleep(0.2)  # many links long
    assert trail.stat().st_size == links


def test_descendants_are_all_below() -> None:
    with subprocess.Popen(
        ["sh", "-c", "sh -c 'sleep 600 & echo $$ $!; wait' & wait"], stdout=subprocess.PIPE
    ) as root:
        assert root.stdout is not None
        below = {int(pid) for pid in root.stdout.readline().split()}
        found = supervisor.descendants(root.pid)
        assert set(found) == below
        assert root.pid in supervisor.descendants(os.getpid())
        for pid in [root.pid, *found]:
            os.kill(pid, signal.SIGKILL)
    assert supervisor.descendants(root.pid) == []


def test_what_hangs_below_a_process_that_is_half_dead_is_found(tmp_path: Path) -> None:
    """A process whose first thread has ended is a zombie that keeps its children."""
    number = {"x86_64": 60, "aarch64": 93}[platform.machine()]
    code = (
        "import ctypes, os, subprocess, sys, threading, time\n"
        "threading.Thread(target=time.sleep, args=(600,)).start()\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        "print(child.pid, flush=True)\n"
        f"ctypes.CDLL(None).syscall({number}, 0)\n"  # exit, of this thread alone
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        try:
            wait_for(lambda: not is_running(process.pid), "its first thread to end")
            assert child in supervisor.descendants(os.getpid())
            assert process.pid not in supervisor.descendants(os.getpid())
        finally:
            os.kill(child, signal.SIGKILL)
            process.kill()


def test_a_command_reads_a_file_and_folders_go_when_it_is_ended(tmp_path: Path) -> None:
    given, log = tmp_path / "given", tmp_path / "log"
    given.write_text("what it reads\n")
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        (folder / "below").mkdir(parents=True)
    argv = ["sh", "-c", "cat; exec sleep 600"]
    running = Supervised(argv, os.environ, log, remove=folders, stdin=given)
    until = time.monotonic() + 60
    while log.read_text() != "what it reads\n":
        assert running.poll() is None and time.monotonic() < until
        time.sleep(0.01)
    running.end()
    assert not any(folder.exists() for folder in folders)
