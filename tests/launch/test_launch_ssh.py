"""How a node's Python is given what it is to run: any login shell, nothing on a command line."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from marked import processes_with
from nccltune.errors import UsageError
from nccltune.launch import ssh
from nccltune.launch.cluster import Command, Node
from nccltune.launch.leftovers import TAG, new_tag
from nccltune.launch.ssh import _ARRIVE, SshHosts, _advice, _given, held_there, travelling
from nccltune.launch.supervised import Supervised
from nccltune.nccl.site import MULTICAST_OFF
from nccltune.worker import arrive
from nccltune.worker.node import ADDRESS
from nccltune.worker.owners import OWNER, TUNER
from nccltune.worker.status import KEPT

NODES = (Node("here", "10.0.0.1", "here"), Node("there", "10.0.0.2", "there"))
HOSTS = SshHosts(NODES, 0, ("ssh", "-F", "x y"))
SHELLS = [
    found for name in ("sh", "bash", "dash", "zsh", "tcsh", "fish") if (found := shutil.which(name))
]
SHOW = "import json, os, sys; print(json.dumps([sys.argv, os.getcwd(), dict(os.environ)]))"


def test_what_ssh_is_told() -> None:
    words = HOSTS.argv(1, "/opt/py thon/bin/python")
    assert words[:3] == ("ssh", "-F", "x y") and words[-2] == "there"
    options = set(words[4:-2:2])
    assert {"BatchMode=yes", "ServerAliveInterval=10", "ControlMaster=no"} <= options
    assert not any("HostKey" in option for option in options)
    assert words[-1].startswith("exec '/opt/py thon/bin/python' -I -S -c 'import sys;")
    assert HOSTS.argv(0, "/opt/python")[0] == "/opt/python", "our own node needs no ssh"


@pytest.mark.skipif(shutil.which("ssh") is None, reason="no ssh here")
def test_options_of_the_users_that_would_keep_a_node_from_its_orders_do_not_count(
    tmp_path: Path,
) -> None:
    config = tmp_path / "config"
    config.write_text(
        "Host *\n IgnoreUnknown UseKeychain\n UseKeychain yes\n StdinNull yes\n SessionType none\n"
        " ForkAfterAuthentication yes\n ControlMaster auto\n ControlPath /tmp/%C\n User me\n"
    )
    words = SshHosts(NODES, 0, ("ssh", "-F", str(config))).argv(1, "/opt/python")
    asked = [*words[:-2], "-o", "OfANewerSsh=yes", "-G", words[-2]]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    told = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
    assert (told["user"], told["controlmaster"]) == ("me", "false")
    assert told.get("controlpath", "none") == "none"
    for name, value in {
        "stdinnull": "no",
        "sessiontype": "default",
        "forkafterauthentication": "no",
    }.items():
        assert told.get(name, value) == value


@pytest.mark.parametrize("python", ["/a'b/python", "/a\\b/python", "/a!b/python", "/a\nb/python"])
def test_a_path_that_shells_do_not_agree_on_is_refused(python: str) -> None:
    with pytest.raises(UsageError, match="characters that shells do not agree on"):
        HOSTS.argv(1, python)


@pytest.fixture
def told(tmp_path: Path) -> dict[str, Any]:
    return {
        "folder": f"/tmp/nccltune-{uuid.uuid4().hex}-1",
        "files": {_ARRIVE: Path(arrive.__file__).read_text(), "worker/a/b.py": "text of ä\n"},
        "environment": {"ODD": "a 'b' \"c\" $d \\ \n e", "NCCLTUNE_STEP_TOKEN": "secret"},
        "held": [],
        "kept": [],
        "kept_as": KEPT,
        "network": "NETWORK",
        "owner": "me.1/2",
        "address": "10.0.0.1:5",
        "cwd": str(tmp_path),
        "argv": [sys.executable, "-c", SHOW, 'it\'s "odd" $HOME'],
    }


def run(argv: list[str], given: bytes) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(argv, input=given, capture_output=True, timeout=60)


@pytest.mark.parametrize("shell", SHELLS)
def test_a_node_runs_what_it_is_told_whatever_the_login_shell(
    shell: str, told: dict[str, Any]
) -> None:
    folder = Path(told["folder"])
    try:
        done = run([shell, "-c", HOSTS.argv(1, sys.executable)[-1]], _given(told))
        assert done.returncode == 0, done.stderr
        argv, cwd, environment = json.loads(done.stdout)
        assert argv[1:] == told["argv"][3:] and cwd == told["cwd"]
        assert environment.items() >= told["environment"].items()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert (folder / "worker/a/b.py").read_text() == "text of ä\n"
        assert (folder / OWNER).read_text() == "me.1/2"
        network = os.readlink("/proc/self/ns/net")
        assert (folder / TUNER).read_text() == f"10.0.0.1:5 {network}"
        assert environment["NETWORK"] == network
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def there(
    told: dict[str, Any],
    tuners: dict[str, str],
    nodes: dict[str, str],
    show: str = SHOW,
    own: dict[str, str] | None = None,
) -> dict[str, str]:
    """The environment of a node whose login has `nodes`; `own`: without what is a trial's."""
    told |= {"environment": tuners, **held_there(tuners, tuners if own is None else own)}
    told["argv"] = [sys.executable, "-c", show]
    ours = {name: value for name, value in os.environ.items() if name not in {*tuners, *nodes}}
    try:
        done = subprocess.run(
            HOSTS.argv(0, sys.executable),
            input=_given(told),
            env={**ours, **nodes},
            stdout=subprocess.PIPE,
            check=True,
        )
    finally:
        shutil.rmtree(told["folder"], ignore_errors=True)
    found: dict[str, str] = json.loads(done.stdout)[2]
    return found


OTHER = {
    "NCCL_NVLS_ENABLE": "2",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "0",
    "NVSHMEM_DISABLE_NVLS": "no",
}


@pytest.mark.parametrize(
    ("tuners", "nodes"),
    [(MULTICAST_OFF, OTHER), (OTHER, MULTICAST_OFF), (MULTICAST_OFF, {}), ({}, MULTICAST_OFF)],
)
def test_multicast_is_off_where_either_side_has_it_off(
    told: dict[str, Any], tuners: dict[str, str], nodes: dict[str, str]
) -> None:
    found = there(told, dict(tuners), dict(nodes))
    assert {name: found[name] for name in MULTICAST_OFF} == MULTICAST_OFF


def test_a_trial_does_not_change_what_keeps_multicast_off_on_a_node(told: dict[str, Any]) -> None:
    """Ranks of a warm host get the trial's variables later than the host its own."""
    trial = f"from nccltune.worker.rank import take_over; take_over({OTHER})\n"
    found = there(told, {}, dict(MULTICAST_OFF), trial + SHOW)
    assert {name: found[name] for name in MULTICAST_OFF} == MULTICAST_OFF
    found = there(told, {}, {}, trial + SHOW)
    assert {name: found[name] for name in MULTICAST_OFF} == OTHER


def test_where_our_folder_is_not_there_a_node_works_in_its_own(
    told: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    for place in ("nowhere", "file"):
        told["cwd"] = str(tmp_path / place)
        assert there(told, {}, {}, SHOW.replace("dict(os.environ)", "{'at': os.getcwd()}")) == {
            "at": told["folder"]
        }


def test_names_of_a_nodes_own_stay_and_the_tuners_go_where_there_are_none(
    told: dict[str, Any],
) -> None:
    tuners = {"NCCL_SOCKET_IFNAME": "eth0", "NCCL_IB_HCA": "mlx5_0", "NCCL_ALGO": "Ring"}
    found = there(told, tuners, {"NCCL_SOCKET_IFNAME": "ens3", "NCCL_ALGO": "Tree"})
    assert found.items() >= {**tuners, "NCCL_SOCKET_IFNAME": "ens3"}.items()
    found = there(told, tuners, {"NCCL_SOCKET_IFNAME": "ens3"}, own={"NCCL_IB_HCA": "mlx5_0"})
    assert found.items() >= tuners.items(), "what a trial has set is measured"


@pytest.fixture
def command(tmp_path: Path) -> Command:
    (tmp_path / "nccltune/worker").mkdir(parents=True)
    shutil.copy(arrive.__file__, tmp_path / "nccltune/worker")
    env = {**os.environ, TAG: new_tag(), ADDRESS: "127.0.0.1:1", "MY_MARK": uuid.uuid4().hex}
    return Command("name", sys.executable, ("-c", "import time; time.sleep(600)"), env, tmp_path)


def made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_what_was_started_ends_where_the_next_cannot_be_started(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, log = tmp_path / "own", tmp_path / "log"
    started: list[Supervised] = []
    monkeypatch.setattr(ssh, "own_folder", lambda: made(folder))

    class Second(Supervised):
        def __init__(self, *given: Any, **named: Any) -> None:
            if started:
                raise OSError(11, "Resource temporarily unavailable")
            super().__init__(*given, **named)
            started.append(self)

    monkeypatch.setattr(ssh, "Supervised", Second)
    with pytest.raises(OSError, match="temporarily unavailable"):
        HOSTS.start(command, log)
    assert len(started) == 1 and started[0].poll() is not None
    assert processes_with(command.env["MY_MARK"]) == [] and not folder.exists()


def test_nothing_is_started_where_one_would_be_refused(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "own"
    monkeypatch.setattr(ssh, "own_folder", lambda: made(folder))
    with pytest.raises(UsageError, match="shells do not agree on"):
        HOSTS.start(replace(command, python="/opt/it's/python"), tmp_path / "log")
    assert not folder.exists() and (tmp_path / "log").read_text() == ""


def test_where_it_cannot_start_nothing_is_left(told: dict[str, Any]) -> None:
    command = list(HOSTS.argv(0, sys.executable))
    told["argv"] = ["/nowhere/python"]
    done = run(command, _given(told))
    assert done.returncode == 1 and b"No such file or directory" in done.stderr
    assert not Path(told["folder"]).exists()
    cut = run(command, _given(told)[:-300])
    assert cut.returncode == 1 and not Path(told["folder"]).exists()
    os.mkdir(told["folder"])  # somebody else's
    try:
        taken = run(command, _given(told))
        assert b"File exists" in taken.stderr and os.listdir(told["folder"]) == []
    finally:
        os.rmdir(told["folder"])


def test_what_belongs_to_the_machine_stays_here() -> None:
    go = {"NCCL_ALGO": "Ring", "LD_LIBRARY_PATH": "/x", "PATH": "/bin", "MY_DATA": "1", "TERMS": ""}
    stay = {"HOME": "/root", "SSH_AUTH_SOCK": "/s", "TMPDIR": "/t", "SLURM_JOB_ID": "1", "PWD": "/"}
    stay["NCCL_HOSTID"] = "a"
    assert travelling({**go, **stay}) == go


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("Host key verification failed.", "its host key is not known here, or has changed: `ssh"),
        ("me@there: Permission denied (publickey).", "`ssh there true` has to work without a"),
        ("bash: line 1: /opt/python: No such file or directory", "under the same path: --python"),
        ("cannot reach the tuner at 10.0.0.1:5: timed out", "reach each other by TCP"),
        ("ssh: connect to host there port 22: No route to host", ""),
    ],
)
def test_what_ssh_says_comes_with_what_to_do(said: str, words: str) -> None:
    advice = _advice(said, NODES[1], "/opt/python")
    assert words in advice and bool(advice) == bool(words)


def test_folders_of_a_node_are_its_own(tmp_path: Path) -> None:
    command = Command("name", "/opt/python", ("-m", "x"), {}, tmp_path)
    plan = HOSTS.shown(command)
    assert plan.argv == ("/opt/python", "-m", "x") and len(plan.carriers) == 2
    logs, worker = HOSTS.logs_there(Path("/a/launch-0001"), 7), HOSTS.worker_there(Path("/a"))
    assert logs.name == "launch-0001" and logs.parts[-2] == "7"
    assert logs.parts[0] == worker.parts[0] == "{nccltune_folder}"
