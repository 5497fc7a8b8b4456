"""Git repositories on loopback, served by git's own `http-backend`, as real servers do."""

from __future__ import annotations

import contextlib
import http.server
import os
import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

QUIET = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"} | {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in {"NAME": "the tests", "EMAIL": "tests@example.org", "DATE": "2026-01-02T03:04:05Z"}.items()
}


def git(folder: Path, *words: str) -> str:
    """Run git in a folder; return what it prints."""
    done = subprocess.run(
        ["git", *words], cwd=folder, env=os.environ | QUIET, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def commit(repository: Path, files: Mapping[str, str], *, links: Mapping[str, str] | None = None) -> str:
    """Add files to a repository, which is made if it does not exist; return the new commit."""
    if not repository.exists():
        repository.mkdir(parents=True)
        git(repository, "init", "--quiet", "--initial-branch=main")
    for name, text in files.items():
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text(text)
    for name, target in (links or {}).items():
        (repository / name).symlink_to(target)
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--message=x")
    return git(repository, "rev-parse", "HEAD")


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Serve the repositories in a folder until the block ends; yield the address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            env = os.environ | QUIET | {"GIT_PROJECT_ROOT": f"{folder}", "GIT_HTTP_EXPORT_ALL": "1"}
            env |= {
                "PATH_INFO": path,
                "QUERY_STRING": query,
                "REQUEST_METHOD": self.command,
                "REMOTE_ADDR": "127.0.0.1",
            }
            env |= {"CONTENT_TYPE": self.headers.get("Content-Type", "")}
            env |= {f"HTTP_{name.upper().replace('-', '_')}": value for name, value in self.headers.items()}
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            done = subprocess.run(["git", "http-backend"], env=env, input=body, capture_output=True, check=False)
            head, _, content = done.stdout.partition(b"\r\n\r\n")
            lines = [line.partition(":") for line in head.decode().split("\r\n")]
            headers = {name.lower(): value.strip() for name, _, value in lines}
            self.send_response(int(headers.pop("status", "200").split()[0]))
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET  # noqa: N815 - the name that the module calls

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
