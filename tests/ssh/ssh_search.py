"""A search over two nodes, each with an sshd of the test's own."""

from __future__ import annotations

import contextlib
import re
import subprocess
from pathlib import Path

from sshd import Network

from nodes_search import NodesSearch, nccltune, wait_for
from running import Cli


class Search(NodesSearch):
    """`nccltune search --launcher ssh`."""

    named_by = "NCCLTUNE_NODE_NAME"

    def __init__(self, network: Network, cli: Cli) -> None:
        super().__init__(cli)
        self.network = network
        first, second = network.servers
        self.names = first.address, second.address
        self._tuners: set[int] = set()

    def command(self, launcher: str) -> tuple[list[str], dict[str, str]]:
        options = ("--hosts", ",".join(self.names), "--ssh", self.network.ssh)
        return [*self.network.servers[0].within, *nccltune(launcher, *options)], {}

    def start(self, *options: str, launcher: str, **env: str) -> subprocess.Popen[str]:
        process = super().start(*options, launcher=launcher, **env)
        self._tuners.add(process.pid)
        return process

    def status(self, launch: int) -> Path:
        """In the node's own folder: it shares no files with the tuner."""
        found = (each.glob(f"logs/*/launch-{launch:04d}/rank1.status") for each in self.folders(1))
        return next((file for files in found for file in files), Path("/nowhere"))

    def folders(self, node: int) -> list[Path]:
        """The folders of agents on that node."""
        return [each for each in Path("/tmp").glob(f"nccltune-*-{node}") if self._is_ours(each)]

    def _is_ours(self, folder: Path) -> bool:
        """By the tag of its tuner, which names the process."""
        with contextlib.suppress(OSError):
            found = re.search(r"\.(\d+)\.\d+/\d+$", (folder / "owner").read_text())
            return found is not None and int(found[1]) in self._tuners
        return False

    def secrets_on_command_lines(self) -> list[str]:
        """Tokens of this search that everybody on the machine can see."""
        tokens, lines = set[bytes](), list[bytes]()
        for pid in self.cli.processes():
            with contextlib.suppress(OSError):
                for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    name, _, value = entry.partition(b"=")
                    if name in (b"NCCLTUNE_STEP_TOKEN", b"NCCLTUNE_TOKEN"):
                        tokens.add(value)
                lines.append(Path(f"/proc/{pid}/cmdline").read_bytes())
        assert len(tokens) == 2 and any(line.startswith(b"ssh\0") for line in lines)
        return [token.decode() for token in tokens if any(token in line for line in lines)]

    def assert_nothing_left(self) -> None:
        """Neither processes nor the folders of agents."""
        super().assert_nothing_left()
        wait_for(lambda: [*self.folders(0), *self.folders(1)] == [], "folders to go", 20)
