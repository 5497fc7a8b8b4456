"""The general index of Python packages: the one that is named, else the one that pip on this machine would ask.

As with apt's sources for Debian, what the machine is set to holds: an index behind a firewall, or everybody's.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.engine.process import run, which
from lumiimg.errors import MissingHereError
from lumiimg.resolve.network.mirrors import checked

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lumiimg.resolve.network.mirrors import Mirrors

NAME = "pypi"
"""What --mirror, and `[mirrors]` in config.toml, call it."""
_TIMEOUT_S = 60.0
_DEFAULT = re.compile(r"--index-url <url>\s+Base URL[^(]*\(default (\S+?)\)")


def general_index(mirrors: Mirrors, environment: Mapping[str, str] = os.environ) -> str:
    """Return the address of the index.

    Raises MissingHereError where pip cannot be asked, BadInputError for an address that is none or carries a password.
    """
    named = mirrors.named(NAME)
    if named is not None:
        return named
    # The Python that uv makes for a tool has no pip; that of the machine reads the same settings.
    for python in dict.fromkeys((sys.executable, which("python3", environment.get("PATH")))):
        if python is None:
            continue
        # Its help names the index that its settings, files and variables, come to; one wide line, so that none is cut.
        argv = [python, "-m", "pip", "download", "--help"]
        # From `/`: a pip.py of the current folder is none of ours (-P, which says so, is not known before Python 3.11).
        completed = run(argv, env={**environment, "COLUMNS": "10000"}, cwd=Path("/"), timeout_s=_TIMEOUT_S)
        if completed.ok and (found := _DEFAULT.search(completed.output)):
            return mirrors.rewrite(checked(found[1], "the index of pip's settings"))
    raise MissingHereError(
        "pip, which would say where Python packages are looked up, does not answer here",
        hint=f"name the index: --mirror {NAME}=URL",
    )
