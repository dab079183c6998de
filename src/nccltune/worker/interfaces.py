"""The network interface that has an address of this machine. Standard library only."""

from __future__ import annotations

import array
import fcntl
import socket
import struct

_SIOCGIFCONF = 0x8912
_ENTRY, _NAME = 40, 16  # bytes of struct ifreq, and of the name in it
_MOST = 1024


def interface_of(address: str) -> str | None:
    """Its name; None where no interface of this machine has this IPv4 address."""
    try:
        wanted = socket.inet_aton(address)
    except OSError:
        return None
    for name, found in _addresses():
        if found == wanted or wanted[0] == found[0] == 127:  # all of 127.0.0.0/8 is one interface's
            return name
    return None


def _addresses() -> list[tuple[str, bytes]]:
    held = array.array("B", bytes(_ENTRY * _MOST))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        request = struct.pack("iL", len(held), held.buffer_info()[0])
        answer = fcntl.ioctl(asked.fileno(), _SIOCGIFCONF, request)
    entries = held.tobytes()[: struct.unpack("iL", answer)[0]]
    return [
        (
            entries[at : at + _NAME].partition(b"\0")[0].decode().partition(":")[0],
            entries[at + _NAME + 4 : at + _NAME + 8],
        )
        for at in range(0, len(entries), _ENTRY)
    ]
