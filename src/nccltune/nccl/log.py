"""What NCCL says of itself: the lines of NCCL_DEBUG=INFO, of NCCL 2.18 to 2.30.

Everything is read from the text of one or more ranks. Lines that are not NCCL's, or that are cut
or garbled, are passed over: a log never makes the parser fail.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from packaging.version import Version

from nccltune.nccl.catalog import lookup
from nccltune.nccl.versions import parse_version

Link = tuple[int, int, str]
"""(source rank, destination rank, transport), the transport as in "P2P/CUMEM" or "NET/Socket"."""


@dataclass(frozen=True)
class Choice:
    """What NCCL chose for one size of a collective.

    `function` is NCCL's name ("AllReduce"; empty in logs of 2.20 to 2.22, which do not tell),
    `bytes` the size of the message, `channels` the number of channels (None before 2.24).
    `algorithm` and `protocol` are spelled as in NCCL_ALGO and NCCL_PROTO. Two paths go past both:
    symmetric kernels (2.27) are "Symmetric" with the kernel as protocol, the copy engine (2.29) is
    "CopyEngine" with its call.
    """

    function: str
    bytes: int
    algorithm: str
    protocol: str
    channels: int | None = None


@dataclass(frozen=True)
class NcclLog:
    """What was found; a field that the log does not speak of is empty or None.

    environment: by variable, the value that NCCL says it took. A variable that was set but is
        missing here was never looked at in this run.
    config: by attribute of torch's ProcessGroupNCCL config, what the communicator was given.
    links: distinct connections, in order of rank.
    network: what carries data between hosts, from the connections alone; that NCCL merely has a
        network ready ("Using network Socket") does not count. "IB and Socket" where ranks use
        several, as where a node's fast network is down: no network's settings fit all then.
    coll_channels: channels for collectives, of the last communicator that was set up.
    nvls: whether all devices offer NVLink multicast.
    plugins: by kind (net, tuner, env, profiler), the name of one that is loaded and not NCCL's own.
    nodes: hosts as NCCL counts them (2.20 and later), the most of any communicator.
    choices, warnings: distinct, in order of appearance.
    """

    version: Version | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, int] = field(default_factory=dict)
    links: tuple[Link, ...] = ()
    network: str | None = None
    coll_channels: int | None = None
    nvls: bool | None = None
    nodes: int | None = None
    plugins: Mapping[str, str] = field(default_factory=dict)
    choices: tuple[Choice, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def transport(self) -> tuple[str, ...]:
        """The families of transport in use, sorted: of "P2P", "SHM" and "NET"."""
        return tuple(sorted({transport.split("/", 1)[0] for _, _, transport in self.links}))


def parse(text: str) -> NcclLog:
    """Reads the log of one or more ranks."""
    reader = _Reader()
    for line in text.split("\n"):
        reader.read(line)
    return reader.result()


def merge(logs: Iterable[NcclLog]) -> NcclLog:
    """One log of several, for instance of all ranks; where two differ, the later one holds.

    `version` is the first that is known, `nvls` true only if no log says otherwise.
    """
    reader = _Reader()
    for log in logs:
        reader.add(log)
    return reader.result()


# Numbers are bounded so that no garbled line makes one that int() refuses.
_RECORD = re.compile(r"\bNCCL (INFO|WARN) (.*)")
_VERSION = re.compile(r"\bNCCL version (\d{1,4}(?:\.\d{1,4}){1,3})")
_INTEGER_TAKEN = re.compile(r"-?\d+\.")
_SET = re.compile(r"(NCCL_[A-Z0-9_]+) set by environment to (.*)")
# Variables whose line is worded differently.
_SET_OTHERWISE = (
    re.compile(r"(NCCL_IB_HCA|NCCL_SOCKET_IFNAME) set to (.*)"),
    re.compile(r"(NCCL_PROXY_CPUSET) = (.*)"),
    re.compile(r"Parsed environment variable (NCCL_[A-Z0-9_]+)=(.*) to -?\d+"),
)
_INVALID = re.compile(r"Invalid value .* for (NCCL_[A-Z0-9_]+), using default (-?\d{1,18})")
_CONFIG = re.compile(r"Comm config ([A-Za-z ]+) (?:set to |reset to NCCL_[A-Z0-9_]+=)(-?\d{1,18})")
_LINK = re.compile(
    r"Channel \d+(?:/\d+)? : (\d{1,18})\[\w+\] -> (\d{1,18})\[\w+\](?: \[(?:send|receive)\])?"
    r" via (P2P|SHM|NET)/([^/]+)"
)
_CHANNELS = re.compile(r"(\d{1,18}) coll channels,")
_NODES = re.compile(r"comm \S+ rank \d+ nRanks \d+ nNodes (\d{1,18})")
_NVLS = re.compile(r"NVLS multicast support is (not )?available on dev")
_PLUGIN = re.compile(
    r"(NET|TUNER|ENV|PROFILER)/Plugin: "
    r"(?:Loaded net plugin|Using(?: tuner plugin| profiler plugin)?) (?!internal)([^()]+)"
)
_CHOICE = re.compile(
    r"(?:(\w+): )?(\d{1,18}) Bytes -> Algo (\w+) proto (\w+)(?: time [\d.]+)?"
    r"(?: channel\{Lo\.\.Hi\}=\{(\d{1,18})\.\.(\d{1,18})\})?"
)
_OTHER_PATH = re.compile(
    r"(\w+) \[(Symmetric|Copy Engine)\]: (\d{1,18}) Bytes -> (?:Kernel )?(\w+)"
    r"(?: nchannels (\d{1,18}))?"
)

# The order of NCCL's own enumerations; logs before 2.24 give the numbers.
_ALGORITHMS = ("Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT")
_PROTOCOLS = ("LL", "LL128", "Simple")


class _Reader:
    """Gathers what the lines say; the mutable side of NcclLog."""

    def __init__(self) -> None:
        self.version: Version | None = None
        self.environment: dict[str, str] = {}
        self.config: dict[str, int] = {}
        self.links: set[Link] = set()
        self.coll_channels: int | None = None
        self.nvls: bool | None = None
        self.nodes: int | None = None
        self.plugins: dict[str, str] = {}
        # Dictionaries serve as sets that keep the order.
        self.choices: dict[Choice, None] = {}
        self.warnings: dict[str, None] = {}

    def read(self, line: str) -> None:
        version = _VERSION.search(line)
        if version is not None:
            self._see_version(parse_version(version[1]))
        record = _RECORD.search(line)
        if record is None:
            return
        level, message = record[1], record[2].rstrip("\r\n")
        if level == "WARN":
            self.warnings[message.strip()] = None
        else:
            self._read_info(message)

    def _read_info(self, message: str) -> None:
        if self._read_variable(message):
            return
        if match := _LINK.match(message):
            self.links.add((int(match[1]), int(match[2]), f"{match[3]}/{match[4].rstrip()}"))
        elif match := _CHOICE.match(message):
            self.choices[_choice(match)] = None
        elif match := _OTHER_PATH.match(message):
            self.choices[_other_path(match)] = None
        elif match := _CHANNELS.search(message):
            self.coll_channels = int(match[1])
        elif match := _NODES.search(message):
            self._see_nodes(int(match[1]))
        elif match := _NVLS.search(message):
            self._see_nvls(match[1] is None)
        elif match := _PLUGIN.match(message):
            self.plugins[match[1].lower()] = match[2].strip()

    def _read_variable(self, message: str) -> bool:
        if match := _CONFIG.match(message):
            self.config[_attribute(match[1])] = int(match[2])
        elif match := _SET.match(message):
            self.environment[match[1]] = _taken(match[1], match[2])
        elif match := _INVALID.match(message):
            self.environment[match[1]] = match[2]
        elif match := next(filter(None, (known.match(message) for known in _SET_OTHERWISE)), None):
            self.environment[match[1]] = match[2]
        else:
            return False
        return True

    def add(self, log: NcclLog) -> None:
        self._see_version(log.version)
        self.environment.update(log.environment)
        self.config.update(log.config)
        self.links.update(log.links)
        self.plugins.update(log.plugins)
        if log.coll_channels is not None:
            self.coll_channels = log.coll_channels
        if log.nvls is not None:
            self._see_nvls(log.nvls)
        if log.nodes is not None:
            self._see_nodes(log.nodes)
        self.choices.update(dict.fromkeys(log.choices))
        self.warnings.update(dict.fromkeys(log.warnings))

    def _see_version(self, version: Version | None) -> None:
        if self.version is None:
            self.version = version

    def _see_nvls(self, available: bool) -> None:
        self.nvls = available if self.nvls is None else self.nvls and available

    def _see_nodes(self, nodes: int) -> None:
        self.nodes = nodes if self.nodes is None else max(self.nodes, nodes)

    def result(self) -> NcclLog:
        links = tuple(sorted(self.links))
        networks = sorted({name[4:] for _, _, name in links if name.startswith("NET/")})
        return NcclLog(
            version=self.version,
            environment=dict(self.environment),
            config=dict(self.config),
            links=links,
            network=" and ".join(networks) or None,
            coll_channels=self.coll_channels,
            nvls=self.nvls,
            nodes=self.nodes,
            plugins=dict(self.plugins),
            choices=tuple(self.choices),
            warnings=tuple(self.warnings),
        )


def _taken(name: str, logged: str) -> str:
    """The value in a "set by environment" line, without the full stop of the integer form."""
    variable = lookup(name)
    is_text = variable is not None and variable.kind in ("string", "list")
    if _INTEGER_TAKEN.fullmatch(logged) or (logged.endswith(".") and not is_text):
        return logged[:-1]
    return logged


def _attribute(label: str) -> str:
    """torch's attribute for NCCL's label: "Min CTAs" and "minCTAs" are both min_ctas."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", label).replace("CTAPolicy", "CTA policy")
    return "_".join(words.lower().split())


def _choice(match: re.Match[str]) -> Choice:
    low, high = match[5], match[6]
    return Choice(
        function=match[1] or "",
        bytes=int(match[2]),
        algorithm=_spelled(match[3], _ALGORITHMS),
        protocol=_spelled(match[4], _PROTOCOLS),
        channels=None if low is None else int(high) - int(low) + 1,
    )


def _other_path(match: re.Match[str]) -> Choice:
    channels = match[5]
    return Choice(
        function=match[1],
        bytes=int(match[3]),
        algorithm=match[2].replace(" ", ""),
        protocol=match[4],
        channels=None if channels is None else int(channels),
    )


def _spelled(logged: str, known: tuple[str, ...]) -> str:
    """The spelling of NCCL_ALGO and NCCL_PROTO for a number or a name such as NVLS_TREE."""
    plain = logged.replace("_", "").lower()
    for number, name in enumerate(known):
        if plain in (str(number), name.lower()):
            return name
    return logged
