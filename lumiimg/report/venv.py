"""`lumiimg venv` for people: what was put in, what stays, and how a job takes it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from lumiimg.report.console import console, detail, headline, marked, proposal
from lumiimg.wording import count

if TYPE_CHECKING:
    from pathlib import Path

    from lumiimg.resolve.venv import VenvRecord

_SHOWN = 12


def print_venv(record: VenvRecord, image: Path, output: Path, doubt: str | None, *, quiet: bool, stderr: bool) -> None:
    out = console(stderr=stderr, quiet=quiet)
    stays = f"its torch {record.torch} stays" if record.torch else "what it has stays"
    headline(out, f"made {output} over {image}: {count(len(record.packages), 'package')}, {stays}", "ok")
    if quiet:
        return
    names = [f"{name} {version}" for name, version in sorted(record.packages.items())]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    detail(out, f"{', '.join(names[:_SHOWN])}{more}")
    detail(out, f"for Python {record.python} of this image alone; nothing was imported", style="dim")
    if doubt:
        marked(out, "unknown", f"{doubt}: what it adds was not held")
    words = ("lumiimg", "job", str(image), "--venv", str(output), "-o", "job.sh", "--", "python", "train.py")
    proposal(out, shlex.join(words))
