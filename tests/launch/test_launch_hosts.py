"""Which hosts are named, and whether they can work together."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from nccltune.cli.nodes import _node_words
from nccltune.errors import UsageError
from nccltune.launch.cluster import Node
from nccltune.launch.hosts import Hosts, _check_addresses, find_hosts, read_hosts
from nccltune.launch.ssh import SshHosts


def test_hosts_are_a_list_or_a_file(tmp_path: Path) -> None:
    assert read_hosts("gpu1, me@gpu2,10.0.0.3") == Hosts(("gpu1", "me@gpu2", "10.0.0.3"))
    file = tmp_path / "hosts"
    file.write_text("# two\ngpu1 slots=8\n\n  gpu2   slots=8  # the other\n")
    assert read_hosts(str(file)) == Hosts(("gpu1", "gpu2"), 8)
    file.write_text("gpu1\ngpu2\n")
    assert read_hosts(str(file)) == Hosts(("gpu1", "gpu2"))


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("gpu1 slots=8\ngpu2 slots=4\n", "all hosts need the same slots="),
        ("gpu1 slots=8\ngpu2\n", "all hosts need the same slots="),
        ("gpu1 slots=x\n", "line 1: write it as HOST or HOST slots=8"),
        ("gpu1\ngpu2 max_slots=8\n", "line 2: write it as HOST or HOST slots=8"),
        ("# none\n", "names no host"),
        ("gpu1\n-oProxyCommand=reboot\n", "'-oProxyCommand=reboot' is no host"),
    ],
)
def test_a_file_that_is_none_is_told(tmp_path: Path, lines: str, words: str) -> None:
    file = tmp_path / "hosts"
    file.write_text(lines)
    with pytest.raises(UsageError, match=words):
        read_hosts(str(file))


@pytest.mark.parametrize(
    "host", ["-l", "a b", "a;reboot", "$(reboot)", "a'b", "me@-x", "@a", "a:22", "a\nb", "ä", "::1"]
)
def test_what_a_shell_or_ssh_could_take_for_more_is_refused(host: str) -> None:
    with pytest.raises(UsageError, match="is no host; give HOST or USER@HOST"):
        read_hosts(f"good,{host}")


@pytest.mark.parametrize("text", ["/nowhere/hosts", "./hosts"])
def test_a_file_that_is_not_there_is_told(text: str) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_hosts(text)


def _nodes(*addresses: str) -> list[Node]:
    return [Node(f"gpu{at}", address, "") for at, address in enumerate(addresses)]


def test_hosts_have_an_address_each_that_the_others_can_reach() -> None:
    _check_addresses(_nodes("10.0.0.1", "10.0.0.2"))
    _check_addresses(_nodes("127.0.0.1", "127.0.0.2"))
    with pytest.raises(UsageError, match=r"gpu0 and gpu2 are the same \(10.0.0.1\)"):
        _check_addresses(_nodes("10.0.0.1", "10.0.0.2", "10.0.0.1"))
    told = r"gpu0 is 127.0.1.1 here, which the other hosts cannot reach; give its address"
    with pytest.raises(UsageError, match=told):
        _check_addresses(_nodes("127.0.1.1", "10.0.0.2"))


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """An ssh that answers -G as OpenSSH does, for a host that its configuration renames."""
    program = tmp_path / "ssh"
    program.write_text(
        "#!/bin/sh\n"
        'for host; do :; done\n[ "$host" = other ] && host=192.0.2.7\n'
        '[ "$host" = me@127.0.0.4 ] && host=127.0.0.4\n'
        'echo "user me"; echo "hostname $host"; echo "port 22"\n'
    )
    program.chmod(0o755)
    return {**os.environ, "PATH": f"{tmp_path}:/usr/bin:/bin"}


def test_addresses_are_those_of_sshs_own_settings(environ: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=r"none of 192.0.2.9 \(192.0.2.9\), other \(192.0.2.7\)"):
        find_hosts(Hosts(("192.0.2.9", "other")), "ssh", environ)


def test_an_address_that_could_be_bound_may_be_another_machines() -> None:
    bind = (
        "import socket; socket.socket().bind(('192.0.2.7', 0)); from nccltune.launch import hosts"
    )
    shown = f"{bind}; print([hosts._is_here(a) for a in ('192.0.2.7', '127.0.0.1', '127.0.0.2')])"
    setting = "echo 1 > /proc/sys/net/ipv4/ip_nonlocal_bind && ip link set lo up || exit 77"
    apart = ["unshare", "-rn", "sh", "-c", f'{setting}; exec "$0" -c "$1"', sys.executable, shown]
    try:
        done = subprocess.run(apart, capture_output=True, text=True, timeout=60, check=False)
    except FileNotFoundError:
        pytest.skip("no unshare here")
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip(f"no network of its own here: {done.stderr}")
    assert done.stdout == "[False, True, True]\n", done.stderr


def test_the_first_that_is_here_is_this_machine(environ: dict[str, str]) -> None:
    found = find_hosts(Hosts(("127.0.0.3", "me@127.0.0.4")), "ssh -F 'a b'", environ)
    assert found.here == 0 and found.own_address == "127.0.0.3"
    assert found.names == ("127.0.0.3", "me@127.0.0.4") and found.ssh == ("ssh", "-F", "a b")


@pytest.mark.parametrize("visible", ["GPU-8f1c", "0, MIG-9a"])
def test_gpus_of_one_machine_alone_are_refused(environ: dict[str, str], visible: str) -> None:
    environ["CUDA_VISIBLE_DEVICES"] = visible
    with pytest.raises(UsageError, match="(GPU-8f1c|MIG-9a) is on one machine alone; give"):
        find_hosts(Hosts(("127.0.0.3", "127.0.0.4")), "ssh", environ)
    environ["CUDA_VISIBLE_DEVICES"] = "0,1"
    find_hosts(Hosts(("127.0.0.3", "127.0.0.4")), "ssh", environ)


def test_what_sshs_messages_call_a_host_is_among_its_words(environ: dict[str, str]) -> None:
    """Records have the node's number in their place."""
    found = find_hosts(Hosts(("127.0.0.3", "me@127.0.0.4")), "ssh", environ)
    assert found.argv(1, "/opt/python")[-2] == "me@127.0.0.4", "as the user has it"
    words = _node_words(SshHosts((Node("a", "10.0.0.1", "a.in.net"), found.nodes[1]), 0))
    assert words == {
        "a": 0,
        "10.0.0.1": 0,
        "a.in.net": 0,
        "me@127.0.0.4": 1,
        "127.0.0.4": 1,
    }


def test_an_ssh_that_is_not_there_is_told(environ: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="--ssh: /nowhere/ssh does not work"):
        find_hosts(Hosts(("127.0.0.1",)), "/nowhere/ssh", environ)
    with pytest.raises(UsageError, match="--ssh 'ssh -F FILE'"):
        find_hosts(Hosts(("127.0.0.1",)), " ", environ)
    with pytest.raises(UsageError, match="false is not OpenSSH|`false -G 127.0.0.1` failed"):
        find_hosts(Hosts(("127.0.0.1",)), "false", environ)


def test_a_host_without_an_address_is_told(environ: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="has no address here .*; give the address itself"):
        find_hosts(Hosts(("nowhere.invalid",)), "ssh", environ)


def test_our_own_name_is_this_machine(environ: dict[str, str]) -> None:
    address = socket.gethostbyname(socket.gethostname())
    found = find_hosts(Hosts((address,)), "ssh", environ)
    assert found.here == 0 and found.own_address == address
