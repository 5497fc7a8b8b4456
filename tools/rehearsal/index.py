"""The package index of this machine: what is taken from it for stand-ins, metadata of wheels and archives of sources."""

from __future__ import annotations

import hashlib
import re
import threading
import zipfile
from email.parser import HeaderParser
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import requests

from lumiimg.core.errors import FailedError
from lumiimg.fetch.mirrors import Mirrors, general_index

_LIMIT_S = 300


class PackageIndex:
    """Asked as PEP 691 and 658 have it; what is fetched lies in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pages: dict[str, list[tuple[str, dict[str, Any]]]] = {}

    @cached_property
    def address(self) -> str:
        return general_index(Mirrors({})).rstrip("/")

    def requirements(self, project: str, version: str) -> list[str]:
        """Return what a release requires, as its smallest wheel says it whose metadata the index offers, or else has."""
        wheels = [
            one for one in self._files(project) if re.search(rf"-{re.escape(version)}-.*\.whl$", one[1]["filename"])
        ]
        if not wheels:
            raise FailedError(f"the index has no wheel of {project} {version}")
        for url, _ in sorted(wheels, key=lambda one: int(one[1].get("size") or 0)):
            answer = requests.get(f"{url}.metadata", timeout=_LIMIT_S)
            if answer.ok:
                return HeaderParser().parsestr(answer.text).get_all("Requires-Dist") or []
        smallest = min((one for _, one in wheels), key=lambda one: int(one.get("size") or 0))
        return requires(self.file(project, smallest["filename"]))

    def file(self, project: str, ending: str) -> Path:
        """Return a file of a project: the one whose name ends so, compared with the digest of the index."""
        for url, file in self._files(project):
            if not file["filename"].endswith(ending):
                continue
            target = self._folder / str(file["filename"])
            if not target.is_file():
                data = requests.get(url, timeout=_LIMIT_S).content
                if hashlib.sha256(data).hexdigest() != file["hashes"]["sha256"]:
                    raise FailedError(f"{file['filename']} is not what the index says")
                # others may want the same file at this time
                part = self._folder / f"{target.name}.{threading.get_ident()}"
                part.write_bytes(data)
                part.rename(target)
            return target
        raise FailedError(f"the index has no {project} whose file ends in {ending}")

    def wheel(self, project: str, pattern: re.Pattern[str]) -> tuple[str, int]:
        """Return address and size of the first file of a project whose whole name a pattern takes; FailedError: none."""
        for url, file in self._files(project):
            if pattern.fullmatch(str(file["filename"])):
                return url, int(file["size"])
        raise FailedError(f"the index has no file of {project} like {pattern.pattern}")

    def _files(self, project: str) -> list[tuple[str, dict[str, Any]]]:
        if project not in self._pages:
            headers = {"Accept": "application/vnd.pypi.simple.v1+json"}
            page = requests.get(f"{self.address}/{project}/", headers=headers, timeout=_LIMIT_S)
            page.raise_for_status()
            self._pages[project] = [(urljoin(page.url, file["url"]), file) for file in page.json()["files"]]
        return self._pages[project]


def requires(wheel: Path) -> list[str]:
    """Return what a wheel requires."""
    with zipfile.ZipFile(wheel) as archive:
        about = next(one for one in archive.namelist() if one.endswith(".dist-info/METADATA"))
        return HeaderParser().parsestr(archive.read(about).decode()).get_all("Requires-Dist") or []
