"""Programs that read exports: docker and kubectl, talking to a server of the tests' own."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

_KINDS = {
    "kind": "APIResourceList",
    "groupVersion": "v1",
    "resources": [
        {"name": "configmaps", "singularName": "", "namespaced": True, "kind": "ConfigMap",
         "verbs": ["create"]},
    ],
}  # fmt: skip
_ANSWERS: Sequence[tuple[str, int, Any]] = (
    ("/_ping", 200, "OK"),
    ("/containers/create", 201, {"Id": "a" * 64, "Warnings": []}),
    ("/api/v1/namespaces", 201, None),  # what was sent
    ("/api/v1", 200, _KINDS),
    ("/apis", 200, {"kind": "APIGroupList", "apiVersion": "v1", "groups": []}),
    ("/api", 200, {"kind": "APIVersions", "versions": ["v1"]}),
)


class _Handler(BaseHTTPRequestHandler):
    """As much of docker's and Kubernetes' servers as is asked to create something."""

    protocol_version = "HTTP/1.1"
    posted: list[Any]

    def do_GET(self) -> None:
        sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.command == "POST":
            self.posted.append(json.loads(sent))
        found = (answer for answer in _ANSWERS if answer[0] in self.path)
        _, status, content = next(found, ("", 404, {}))
        body = sent if content is None else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_POST = do_HEAD = do_GET

    def log_message(self, *_: Any) -> None:
        pass


@contextlib.contextmanager
def _server() -> Iterator[tuple[str, list[Any]]]:
    posted: list[Any] = []
    handler = type("Handler", (_Handler,), {"posted": posted})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}", posted
        finally:
            server.shutdown()
            thread.join()


def _posted(text: str, *command: str) -> Any:
    """What the command sends of a file with this text: {} stands for its path, @ for the server."""
    with tempfile.TemporaryDirectory() as folder, _server() as (address, posted):
        file = Path(folder) / "exported"
        file.write_bytes(text.encode())
        words = [word.replace("{}", str(file)).replace("@", address) for word in command]
        environ = {"PATH": os.environ["PATH"], "HOME": folder}
        done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    (document,) = posted
    return document


def docker_environment(text: str) -> dict[str, str]:
    """The environment of a container, as docker reads it from an env file."""
    sent = _posted(text, "docker", "-H", "tcp://@", "create", "--env-file", "{}", "image")
    return dict(entry.split("=", 1) for entry in sent["Env"])


def kubectl_document(text: str) -> Any:
    """What kubectl makes of a manifest."""
    return _posted(
        text, "kubectl", "--server", "http://@", "create", "--validate=false", "-f", "{}"
    )
