"""Whole searches over two addresses of this machine, by real sshds, gloo on the CPU."""

from __future__ import annotations

import json
import os
import signal
import stat
import sys
from pathlib import Path

import pytest
from ssh_search import Search
from sshd import Network

from nodes_search import FAULTY, ONE
from running import Cli

pytestmark = [pytest.mark.ranks, pytest.mark.ssh]

WARM, PLAIN = "ssh", "ssh-torchrun"
either = pytest.mark.parametrize("launcher", [WARM, PLAIN])


@pytest.mark.slow
@pytest.mark.parametrize(("launcher", "ranks"), [(WARM, 1), (PLAIN, 2)])
def test_a_whole_search_over_two_nodes(search: Search, launcher: str, ranks: int) -> None:
    search.check_a_whole_search(launcher, ranks)


@pytest.mark.slow
def test_a_rank_that_hangs_on_another_node_is_asked_where(search: Search) -> None:
    search.check_faults_of_the_other_node(WARM, ["hang"])


@pytest.mark.slow
@either
def test_a_faulty_rank_of_another_node_is_a_record(search: Search, launcher: str) -> None:
    search.check_faults_of_the_other_node(launcher)


def test_ranks_have_folders_of_their_nodes_alone_and_their_logs_come_back(search: Search) -> None:
    """No file of the tuner's is needed on another node: the study is where nobody else can look."""
    telling = ("--model", "smalljobs:telling", "--space", "inert.yaml", "--confirm-launches", "0")
    process = search.start(*telling, *ONE, "--trials", "1", launcher=PLAIN, JOBS_OWN="7", PWD="/x")
    search.await_measuring(0, process)
    for node in (0, 1):
        (folder,) = search.folders(node)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert search.secrets_on_command_lines() == []
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    logs = search.study / "logs/launch-0000"
    seen = [json.loads((logs / f"seen.{rank}.json").read_text()) for rank in (0, 1)]
    environments = [each["environment"] for each in seen]
    nodes = [environment["NCCLTUNE_NODE"] for environment in environments]
    assert sorted(nodes) == ["0", "1"]
    for node, environment in zip(nodes, environments, strict=True):
        place = Path(environment["NCCLTUNE_LOG_DIR"]).parents[2]
        assert place.name.startswith("nccltune-") and place.name.endswith(f"-{node}")
        assert environment["PYTHONPATH"].startswith(f"{place}/worker:")
        assert environment["JOBS_OWN"] == "7", "the tuner's variables are all nodes'"
        assert environment["GLOO_SOCKET_IFNAME"] == "lo"
    of_other = environments[nodes.index("1")]
    assert of_other["PWD"] != "/x" and "SSH_CONNECTION" in of_other
    for rank in (0, 1):
        assert {f"rank{rank}.{kind}" for kind in ("log", "pid", "status")} <= set(os.listdir(logs))
    search.assert_nothing_left()


@pytest.mark.slow
@either
def test_a_connection_that_is_cut_costs_no_trial(search: Search, launcher: str) -> None:
    """The node's sshd goes on; the session by which the launch was started is killed."""
    process = search.start(*FAULTY, *ONE, "--trials", "3", launcher=launcher)
    search.await_measuring(1, process)
    for session in search.network.servers[1].sessions():
        os.kill(session, signal.SIGKILL)
    search.check_repeated(process)


@pytest.mark.slow
@either
def test_a_node_that_is_gone_ends_the_search_with_its_name(search: Search, launcher: str) -> None:
    process = search.start(*FAULTY, *ONE, "--trials", "3", launcher=launcher)
    search.await_measuring(1, process)
    search.network.servers[1].kill()
    search.check_stops_with_its_name(process, launcher, search.network.recover)


@pytest.mark.slow
@either
def test_an_agent_that_is_killed_leaves_nothing_and_costs_no_trial(
    search: Search, launcher: str
) -> None:
    """Its private folder goes too."""
    search.check_agent_that_is_killed(launcher)


def test_nothing_outlives_a_tuner_that_is_killed(search: Search) -> None:
    search.check_tuner_that_ends(WARM, signal.SIGKILL, resumes=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "number"),
    [(WARM, signal.SIGKILL), (PLAIN, signal.SIGKILL), (WARM, signal.SIGINT)],
)
def test_and_the_same_command_goes_on(
    search: Search, launcher: str, number: signal.Signals
) -> None:
    search.check_tuner_that_ends(launcher, number)


def test_a_host_that_does_not_let_us_in_is_named_with_what_to_do(search: Search) -> None:
    network, other = search.network, "127.0.0.2"
    tiny = ("--model", "smalljobs:tiny", *ONE, "--trials", "1")

    def told() -> str:
        run = search.run(*tiny, launcher=WARM)
        assert run.returncode == 1 and not search.study.exists()
        assert f"node {other} does not answer: {other}: " in run.stderr
        return run.stderr

    network.trust(other)
    assert f"its host key is not known here, or has changed: `ssh {other} true`" in told()
    network.trust()
    network.write_config(key="stranger")
    assert f"`ssh {other} true` has to work without a question" in told()
    network.write_config()
    network.servers[1].kill()
    assert "Connection refused" in told()
    search.assert_nothing_left()


def test_a_dry_run_shows_ssh_and_torchrun(search: Search) -> None:
    hosts = search.cli.folder / "hosts"
    hosts.write_text("".join(f"{name} slots=2\n" for name in search.names))
    run = search.run(*FAULTY, "--hosts", "./hosts", "--dry-run", launcher=PLAIN)
    assert run.returncode == 0, run.stderr
    lines = [each.strip() for each in run.stdout.splitlines()]
    (ssh,) = [line for line in lines if line.startswith("ssh ")]
    assert ssh.startswith(f"{search.network.ssh} -o ") and " 127.0.0.2 " in ssh
    assert " -o BatchMode=yes " in ssh
    assert "StrictHostKeyChecking" not in ssh
    (launch,) = [line for line in lines if "torch.distributed.run" in line]
    assert f"{sys.executable} -m nccltune.worker.node -- " in launch
    assert "--nnodes=2 --nproc-per-node=2 --rdzv-backend=c10d" in launch
    assert not search.study.exists()


MISTAKES = {
    "no hosts": (("--launcher", "ssh"), "--launcher ssh: needs --hosts"),
    "no launcher": (("--hosts", "a,b"), "--hosts is for --launcher ssh (or ssh-torchrun)"),
    "an option": (("--launcher", "ssh", "--hosts", "a,-oProxyCommand=x"), "is no host; give HOST"),
    "twice": (("--launcher", "ssh", "--hosts", "a,b,a"), "a is there twice"),
    "elsewhere": (
        ("--launcher", "ssh", "--hosts", "192.0.2.77,192.0.2.78"),
        "this machine is none of 192.0.2.77 (192.0.2.77), 192.0.2.78 (192.0.2.78)",
    ),
    "half loopback": (
        ("--launcher", "ssh", "--hosts", "127.0.0.1,192.0.2.78"),
        "127.0.0.1 is 127.0.0.1 here, which the other hosts cannot reach; give its address",
    ),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_where_it_cannot_work_it_says_what_to_do(network: Network, cli: Cli, case: str) -> None:
    options, words = MISTAKES[case]
    run = cli.run("search", "--device", "cpu", *options)
    assert run.returncode == 2
    assert words in run.stderr
    assert not (cli.folder / "studies").exists()
