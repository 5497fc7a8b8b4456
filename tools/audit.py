"""`make audit`: what is installed here beside lumiimg, and whether it may and should be.

Asked of every package that pyproject.toml leads to: are all requirements met (`pip check`), is each file what its RECORD
says, does its licence go with Apache-2.0 (audit.toml); of the index, whether what users install was withdrawn; and of
the advisories, by pip-audit. Exit code 0 if all is well, 1 if something is not, 3 if somebody could not be asked.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_sdist_filename, parse_wheel_filename

from lumiimg.errors import FailedError, LumiimgError
from lumiimg.resolve.network.mirrors import Mirrors, general_index
from lumiimg.resolve.network.web import Web

PROJECT = "lumiimg"
_TABLE = Path(__file__).with_name("audit.toml")
_LIMIT_S = 300
_PAGE_BYTES = 64 << 20
_JSON = "application/vnd.pypi.simple.v1+json"


@dataclass
class Audit:
    """What was found."""

    problems: list[str] = field(default_factory=list)
    open: list[str] = field(default_factory=list)
    """Who could not be asked what."""

    @property
    def exit_code(self) -> int:
        return 1 if self.problems else 3 if self.open else 0


def needed(installed: Mapping[str, metadata.Distribution], extras: Iterable[str] = ()) -> set[str]:
    """Return the packages that the project leads to, of those that are installed."""
    found: set[str] = set()
    asked = [(PROJECT, "")] + [(PROJECT, extra) for extra in extras]
    done: set[tuple[str, str]] = set()
    while asked:
        name, extra = one = asked.pop()
        if one in done or name not in installed:
            continue
        done.add(one)
        found.add(name)
        for requirement in map(Requirement, installed[name].requires or ()):
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                inner = str(canonicalize_name(requirement.name))
                asked += [(inner, wanted) for wanted in ("", *requirement.extras)]
    return found - {PROJECT}


def licences_of(package: metadata.Distribution, table: Mapping[str, Any]) -> set[str]:
    """Return the licences that a package says it has, as SPDX has them; of a choice (`A OR B`) the first that is allowed."""
    named = {str(canonicalize_name(entry["name"])): str(entry["licence"]) for entry in table["package"]}
    if (known := named.get(str(canonicalize_name(package.name)))) is not None:
        return {known}
    fields: Any = package.metadata
    words = table["words"]
    if expression := fields.get("License-Expression"):
        choices = [set(re.findall(r"[\w.+-]+", part)) - {"AND", "WITH"} for part in str(expression).split(" OR ")]
        return min(choices, key=lambda choice: not choice <= {*table["licences"]["users"]})
    told = [
        str(line).split("::")[-1].strip() for line in fields.get_all("Classifier") or () if line.startswith("License")
    ]
    told = [word for word in told if word != "OSI Approved"] or [str(fields.get("License") or "").strip()]
    return {words.get(word, word) for word in told}


def wrong_licences(
    packages: Iterable[metadata.Distribution], users: set[str], table: Mapping[str, Any]
) -> Iterator[str]:
    """Yield what is wrong with the licences; `users` are the names of what users install."""
    named = {str(canonicalize_name(entry["name"])) for entry in table["package"]}
    for package in packages:
        name = str(canonicalize_name(package.name))
        allowed = {*table["licences"]["users"]}
        if name not in users or name in named:
            allowed |= {*table["licences"]["developers"]}
        if wrong := licences_of(package, table) - allowed:
            told = ", ".join(sorted(one[:60] or "none" for one in wrong))
            yield f"{package.name}: its licence is {told}, which {_TABLE.name} does not allow there"


def changed_files(package: metadata.Distribution) -> Iterator[str]:
    """Yield the files that are not what the package's RECORD says (PEP 376, PEP 427)."""
    text = package.read_text("RECORD")
    if text is None:
        yield f"{package.name}: has no RECORD of its files"
        return
    for path, digest, *_ in csv.reader(text.splitlines()):
        kind, _, value = digest.partition("=")
        if not value:
            continue  # what was made while it was installed
        file = Path(str(package.locate_file(path)))
        try:
            actual = hashlib.new(kind, file.read_bytes()).digest()
        except OSError as error:
            yield f"{package.name}: {path}: {error.strerror}"
            continue
        if base64.urlsafe_b64encode(actual).rstrip(b"=").decode() != value:
            yield f"{package.name}: {path} is not what was installed"


def withdrawn(packages: Iterable[metadata.Distribution], index: str, web: Web) -> Iterator[str]:
    """Yield what an index has withdrawn (PEP 592). Raises LumiimgError where it cannot be asked."""
    for package in packages:
        name = canonicalize_name(package.name)
        answer = web.ask(f"{index.rstrip('/')}/{name}/", limit_bytes=_PAGE_BYTES, headers={"Accept": _JSON})
        try:
            files = json.loads(answer.body)["files"]
        except (ValueError, TypeError, KeyError) as error:
            raise FailedError("is no page of a package index", where=answer.url) from error
        yanked = [one.get("yanked", False) for one in files if _version_in(str(one["filename"])) == package.version]
        if yanked and all(one is not False for one in yanked):
            reason = yanked[0] if isinstance(yanked[0], str) and yanked[0] else "no reason given"
            yield f"{package.name} {package.version}: was withdrawn from the index: {reason}"


def _version_in(filename: str) -> str | None:
    try:
        parse = parse_wheel_filename if filename.endswith(".whl") else parse_sdist_filename
        return str(parse(filename)[1])
    except ValueError:
        return None


def judge_advisories(document: Mapping[str, Any], names: set[str]) -> tuple[list[str], list[str]]:
    """Return (what advisories say of packages, the names that nobody could be asked about), out of pip-audit's JSON.

    pip-audit itself ends well where it could ask about none: a mirror of an index that has no advisories answers so.
    """
    problems, unasked = [], []
    for one in document["dependencies"]:
        name = str(canonicalize_name(one["name"]))
        if name not in names:
            continue
        if "skip_reason" in one:
            unasked.append(name)
        for advisory in one.get("vulns", ()):
            fixed = ", ".join(advisory["fix_versions"]) or "none"
            problems.append(f"{one['name']} {one['version']}: {advisory['id']}; mended in {fixed}")
    missing = names - {str(canonicalize_name(one["name"])) for one in document["dependencies"]}
    return problems, sorted([*unasked, *missing])


def _ask_advisories(audit: Audit, names: set[str]) -> None:
    argv = [sys.executable, "-m", "pip_audit", "--local", "--format=json", "--progress-spinner=off"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=_LIMIT_S)
        problems, unasked = judge_advisories(json.loads(done.stdout), names)
    except (subprocess.TimeoutExpired, ValueError, KeyError) as error:
        audit.open.append(f"the advisories: pip-audit does not answer here ({type(error).__name__})")
        return
    audit.problems += problems
    if unasked:
        which = "all" if len(unasked) == len(names) else ", ".join(unasked)
        audit.open.append(f"the advisories about {len(unasked)} of {len(names)} packages: {which}")
    print(f"advisories: {len(problems)} about {len(names) - len(unasked)} packages")


def main() -> int:
    table = tomllib.loads(_TABLE.read_text(encoding="utf-8"))
    installed = {str(canonicalize_name(one.name)): one for one in metadata.distributions()}
    extras = metadata.metadata(PROJECT).get_all("Provides-Extra") or []
    users, names = needed(installed), needed(installed, extras)
    packages = [installed[name] for name in sorted(names)]
    audit = Audit()
    print(f"{len(packages)} packages, {len(users)} of them for users")

    done = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False)
    audit.problems += done.stdout.splitlines() if done.returncode else []
    for package in packages:
        audit.problems += changed_files(package)
    audit.problems += wrong_licences(packages, users, table)
    try:
        index = general_index(Mirrors({}))
        audit.problems += withdrawn([installed[name] for name in sorted(users)], index, Web())
    except LumiimgError as error:
        audit.open.append(f"the index, what was withdrawn: {error}")
    _ask_advisories(audit, names)

    for what in audit.problems:
        print(f"x {what}")
    for what in audit.open:
        print(f"? could not be asked: {what}")
    print(
        "good"
        if audit.exit_code == 0
        else "something is wrong"
        if audit.problems
        else "good as far as it can be told here"
    )
    return audit.exit_code


if __name__ == "__main__":
    sys.exit(main())
