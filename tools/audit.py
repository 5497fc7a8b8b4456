"""`make audit`: are the packages that are installed here complete (`pip check`), and what do advisories say (pip-audit).

Exit code 0 if all is well, 1 if something is not, 3 if somebody could not be asked.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

_LIMIT_S = 300
_NOT_OURS = {"lumiimg", "pip", "setuptools"}
"""The project itself, and what a virtual environment begins with."""


def judge_advisories(document: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return (what advisories say of packages, the names that nobody could be asked about), out of pip-audit's JSON.

    pip-audit itself ends well where it could ask about none: a mirror of an index that has no advisories answers so.
    """
    packages = [one for one in document["dependencies"] if one["name"] not in _NOT_OURS]
    problems = [
        f"{one['name']} {one['version']}: {advisory['id']}; mended in {', '.join(advisory['fix_versions']) or 'none'}"
        for one in packages
        for advisory in one.get("vulns", ())
    ]
    return problems, [one["name"] for one in packages if "skip_reason" in one]


def main() -> int:
    done = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False)
    problems = done.stdout.splitlines() if done.returncode else []
    argv = [sys.executable, "-m", "pip_audit", "--local", "--format=json", "--progress-spinner=off"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=_LIMIT_S)
        found, unasked = judge_advisories(json.loads(done.stdout))
    except (subprocess.TimeoutExpired, ValueError, KeyError) as error:
        found, unasked = [], [f"any (pip-audit does not answer here: {type(error).__name__})"]
    problems += found
    for problem in problems:
        print(f"x {problem}")
    if unasked:
        print(f"? no advisories can be had about {', '.join(unasked)}")
    if not problems:
        print("no problem found, as far as could be asked" if unasked else "good")
    return 1 if problems else 3 if unasked else 0


if __name__ == "__main__":
    sys.exit(main())
