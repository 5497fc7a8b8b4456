"""A package index on loopback with the real releases of tests/fixtures/releases. Its sdists and wheels contain only the
lines that are read, and padding. It answers in JSON or HTML, with or without METADATA beside each wheel.
"""

from __future__ import annotations

import io
import json
import re
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from tests.shared.loopback import Asked, Reply, listening
from tests.shared.world import JSON, archive_of

FIXTURE = Path(__file__).parents[1] / "fixtures" / "releases" / "index.toml"
HTML = "text/html; charset=utf-8"


@dataclass
class ReleaseIndex:
    """The content and behaviour of the index; tests change it while it serves."""

    url: str = ""
    files: list[dict[str, Any]] = field(default_factory=lambda: tomllib.loads(FIXTURE.read_text("utf-8"))["file"])
    is_html: bool = False
    metadata: bool = True
    """Whether METADATA is offered beside each wheel."""
    yanked: dict[str, str] = field(default_factory=dict)
    """Reasons for withdrawn files, by file name."""
    pages: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    """Type and body of the answer for a project, instead of its page."""
    broken: dict[str, bytes] = field(default_factory=dict)
    """Content that replaces that of a file, by file name."""
    asked: list[str] = field(default_factory=list)


def body_of(file: dict[str, Any]) -> bytes:
    """Return an sdist or a wheel with the texts of a release, and a megabyte that should never be fetched."""
    texts: dict[str, str] = file.get("texts", {})
    if file["file"].endswith(".tar.gz"):
        return archive_of({"AUTHORS": "nobody\n", **texts, "zzz": "z" * 1_000_000})
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as wheel:
        wheel.writestr("big.so", bytes(1_000_000))
        folder = "-".join(file["file"].split("-")[:2]) + ".dist-info"
        wheel.writestr(f"{folder}/METADATA", texts.get("METADATA", "Metadata-Version: 2.1\n"))
    return out.getvalue()


def _project(name: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"-[0-9]", name)[0]).lower()


def _page(index: ReleaseIndex, project: str) -> tuple[int, str, bytes]:
    if project in index.pages:
        return 200, *index.pages[project]
    files = [file for file in index.files if _project(file["file"]) == project]
    if not files:
        return 404, "text/plain", b"no such project"
    if index.is_html:
        links = []
        for file in files:
            data = f'data-requires-python="{escape(file["requires-python"])}"'
            data += f' data-yanked="{escape(index.yanked[file["file"]])}"' if file["file"] in index.yanked else ""
            data += ' data-core-metadata="true"' if index.metadata else ""
            links.append(f'<a href="/files/{file["file"]}#sha256=0" {data}>{file["file"]}</a><br/>')
        return 200, HTML, f"<!DOCTYPE html><html><body>{''.join(links)}</body></html>".encode()
    entries = [
        {
            "filename": file["file"],
            "url": f"/files/{file['file']}",
            "hashes": {},
            "requires-python": file["requires-python"],
            "upload-time": f"{file['uploaded']}T10:00:00Z",
            "yanked": index.yanked.get(file["file"], False),
            "core-metadata": index.metadata,
        }
        for file in files
    ]
    return 200, JSON, json.dumps({"meta": {"api-version": "1.1"}, "name": project, "files": entries}).encode()


def _answer(index: ReleaseIndex, path: str) -> tuple[int, str, bytes]:
    name = path.rstrip("/").rpartition("/")[2]
    if "/files/" not in path:
        return _page(index, name)
    file = next((one for one in index.files if one["file"] == unquote(name.removesuffix(".metadata"))), None)
    if file is None:
        return 404, "text/plain", b"no such file"
    if name.endswith(".metadata"):
        return 200, "text/plain", file["texts"]["METADATA"].encode()
    return 200, "application/octet-stream", index.broken.get(name) or body_of(file)


@contextmanager
def serving(index: ReleaseIndex) -> Iterator[ReleaseIndex]:
    """Serve an index until the block ends."""

    def answer(asked: Asked) -> Reply:
        index.asked.append(asked.path)
        status, kind, body = _answer(index, asked.path)
        return Reply(status, body, {"Content-Type": kind})

    with listening(answer) as url:
        index.url = f"{url}/simple"
        yield index
