"""What `lumiimg` alone says: what it is for, and what to do next here.

Of the place only what costs nothing to see is used: names in the current folder, and Slurm's variables. No program is
run, so whether this machine builds images is left to doctor.
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
from lumiimg.core.files import unused
from lumiimg.core.toml import package_toml

_MOST_HINTS = 3
_MOST_NAMES = 2000
"""Of a folder: the home of a busy project may hold millions."""


def show_start(environment: Mapping[str, str]) -> None:
    """Print the page: at most 24 lines."""
    texts = package_toml("lumiimg.cli.commands", "start.toml")
    print(texts["page"])
    print("next, from the files here:")
    for because, command in islice(hints(environment, texts), _MOST_HINTS):
        print(f"  {one_safe_line(because)}\n      {one_safe_line(command)}")
    print(f"\n{texts['end']}")


def hints(environment: Mapping[str, str], texts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield reasons and commands that suit the current folder and the machine, the most telling first."""
    in_job, count = "SLURM_JOB_ID" in environment, environment.get("SLURM_JOB_NUM_NODES", "")
    nodes = f" --nodes {count}" if in_job and re.fullmatch(r"[1-9]\d{1,5}|[2-9]", count, re.ASCII) else ""
    newest = _newest([file["pattern"] for file in texts["files"]])
    for file in texts["files"]:
        if name := newest.get(file["pattern"]):
            yield file["because"], file["command"].format(name=name, nodes=nodes, image=unused("image.sif"))
    if in_job and not os.path.lexists("host.json"):
        yield "this is a job: record what its node offers, for bind:", "lumiimg host scan -o host.json"
    elif not newest:
        yield "can this machine build images? A quick test:", "lumiimg doctor"
        yield "bases, layers, recipes and sites:", "lumiimg list"


def _newest(patterns: Sequence[str]) -> dict[str, str]:
    """Return the newest file whose name is of each pattern, ready for a command line."""
    found: dict[str, tuple[float, str]] = {}
    with suppress(OSError), os.scandir() as listing:  # a folder that is gone, or closed
        for entry in islice(listing, _MOST_NAMES):
            kind = next((pattern for pattern in patterns if re.fullmatch(pattern, entry.name)), None)
            if kind is not None and entry.name.isprintable():
                with suppress(OSError):  # a link to nowhere
                    found[kind] = max(found.get(kind, (0.0, "")), (entry.stat().st_mtime, entry.name))
    return {pattern: shlex.quote(name) for pattern, (_, name) in found.items()}
