"""Real module systems for tests: Lmod and Tcl modules, started as in a login shell."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

LMOD = Path("/usr/share/lmod/lmod/init/bash")
# Debian's two packages conflict, so CI unpacks the second one beside the first (.ci/run)
_TCL = ("/opt/environment-modules/usr/lib/x86_64-linux-gnu/modulecmd.tcl", "/usr/lib/x86_64-linux-gnu/modulecmd.tcl")
SYSTEMS = ("lmod", "tcl")
NEXT = "-- next --"


def start(system: str) -> str:
    """Return the shell code that defines `module` in bash; skip the test if the system is not installed."""
    if system == "lmod":
        if not LMOD.is_file():
            pytest.skip("lmod is not installed")
        return f". {LMOD}"
    command = next((path for path in _TCL if Path(path).is_file()), None)
    if command is None:
        pytest.skip("environment-modules is not installed")
    return f'module() {{ eval "$(tclsh {command} bash "$@")"; }}'


def environments(
    system: str, use: Path, words: list[str], env: Mapping[str, str] | None = None
) -> tuple[list[dict[str, str]], str]:
    """Run module commands one after the other; return the environment after each, and standard error."""
    lines = [start(system), f"module use {shlex.quote(str(use))}"]
    for word in words:
        lines += [f"module {word}", "env -0", f"printf '%s\\0' '{NEXT}'"]
    done = subprocess.run(
        ["bash", "-c", "\n".join(lines)],
        env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "LANG": "C.UTF-8", **(env or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    parts = done.stdout.split(f"{NEXT}\0")[:-1]
    assert len(parts) == len(words), done.stderr
    return [dict(item.partition("=")[::2] for item in part.split("\0") if item) for part in parts], done.stderr
