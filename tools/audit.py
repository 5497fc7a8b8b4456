"""`make audit`: what is installed here beside lumiimg, and whether it may and should be.

Asked of every package that pyproject.toml leads to: are all requirements met (`pip check`), and what do advisories say of
it (pip-audit). Exit code 0 if all is well, 1 if something is not, 3 if somebody could not be asked.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = "lumiimg"
_LIMIT_S = 300


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
    installed = {str(canonicalize_name(one.name)): one for one in metadata.distributions()}
    extras = metadata.metadata(PROJECT).get_all("Provides-Extra") or []
    users, names = needed(installed), needed(installed, extras)
    audit = Audit()
    print(f"{len(names)} packages, {len(users)} of them for users")

    done = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False)
    audit.problems += done.stdout.splitlines() if done.returncode else []
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
