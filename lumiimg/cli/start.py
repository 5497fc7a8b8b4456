"""The output of `lumiimg` without arguments: its purpose, and suggestions for the current folder.

The suggestions use only cheap information: file names in the current folder, and Slurm's variables. No program is run,
so only `lumiimg doctor` tests whether this machine can build images.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

from lumiimg.core.errors import one_safe_line
from lumiimg.core.files import free_name
from lumiimg.core.toml import package_toml

_MAX_HINTS = 3
_MAX_NAMES = 2000
"""Maximum number of names read from a folder, which may contain millions."""


def show_start(environment: Mapping[str, str]) -> None:
    """Print the page: at most 24 lines."""
    texts = package_toml("lumiimg.cli.commands", "start.toml")
    print(texts["page"])
    print("next, from the files here:")
    for because, command in islice(hints(environment, texts), _MAX_HINTS):
        print(f"  {one_safe_line(because)}\n      {one_safe_line(command)}")
    print(f"\n{texts['end']}")


def hints(environment: Mapping[str, str], texts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield reasons and commands that fit the current folder and the machine, the most relevant first."""
    in_job, count = "SLURM_JOB_ID" in environment, environment.get("SLURM_JOB_NUM_NODES", "")
    nodes = f" --nodes {count}" if in_job and re.fullmatch(r"[1-9]\d{1,5}|[2-9]", count, re.ASCII) else ""
    newest = _newest([file["pattern"] for file in texts["files"]])
    for file in texts["files"]:
        if name := newest.get(file["pattern"]):
            yield file["because"], file["command"].format(name=name, nodes=nodes, image=free_name("image.sif"))
    if in_job and not os.path.lexists("host.json"):
        yield "this is a job: record what its node offers, for bind:", "lumiimg host scan -o host.json"
    elif not newest:
        yield "can this machine build images? A quick test:", "lumiimg doctor"
        yield "bases, layers, recipes and sites:", "lumiimg list"


def _newest(patterns: Sequence[str]) -> dict[str, str]:
    """Return the newest file for each name pattern, quoted for a command line."""
    found: dict[str, tuple[float, str]] = {}
    with suppress(OSError), os.scandir() as listing:  # the folder was removed, or is not readable
        for entry in islice(listing, _MAX_NAMES):
            kind = next((pattern for pattern in patterns if re.fullmatch(pattern, entry.name)), None)
            if kind is not None and entry.name.isprintable():
                with suppress(OSError):  # a broken link
                    found[kind] = max(found.get(kind, (0.0, "")), (entry.stat().st_mtime, entry.name))
    return {pattern: shlex.quote(name) for pattern, (_, name) in found.items()}
