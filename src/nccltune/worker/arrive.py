"""How a node gets what it is to run: sent through ssh, not installed, and on no command line.

The tuner has the node's Python read this file from its stdin and run it, since nothing of nccltune
is there yet; so it is standard library only and stands alone. After it comes one line of JSON:
`folder` (made here, private, marked as ours), `files` (text by path below it), `environment`,
`held` (names in it that stay as the node's own login has set them; those in `kept` for every trial,
and the variable `kept_as` tells ranks which these are), `owner` and `address` (of the
tuner, for whoever finds the folder later), `network` (a variable for the network namespace, in
which alone that address is the tuner's), `cwd` and `argv`.
"""

import json
import os
import shutil
import sys
from typing import BinaryIO


def arrive(stream: BinaryIO) -> None:
    """Never returns where all is well."""
    told = json.loads(stream.readline() or b"null")
    if told is None:
        sys.exit("the connection was closed before anything came")
    folder = told["folder"]
    try:
        os.mkdir(folder, 0o700)  # nobody else's: it is not there yet
    except OSError as error:
        sys.exit(f"cannot make {folder}: {error.strerror}")
    try:
        network = os.readlink("/proc/self/ns/net")
        marks = {"owner": told["owner"], "address": told["address"] + " " + network}
        for path, text in {**marks, **told["files"]}.items():
            file = os.path.join(folder, path)
            os.makedirs(os.path.dirname(file), exist_ok=True)
            with open(file, "w", encoding="utf-8") as opened:
                opened.write(text)
        held = {name for name in told["held"] if name in os.environ}
        os.environ.update({n: v for n, v in told["environment"].items() if n not in held})
        os.environ[told["kept_as"]] = ",".join(sorted(held & set(told["kept"])))
        os.environ[told["network"]] = network
        try:
            os.chdir(told["cwd"])
        except OSError:  # not there, or not for us
            os.chdir(folder)
        os.execv(told["argv"][0], told["argv"])
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        sys.exit(f"cannot start in {folder}: {error}")


if __name__ == "__main__":
    arrive(sys.stdin.buffer)
