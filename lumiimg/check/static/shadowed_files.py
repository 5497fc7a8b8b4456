"""Files of the image that a process in the container does not have: the engine mounts something over their folder.

The process is modelled without those that are hidden for sure; whatever it then lacks is a finding of its own, and
here is why. Where it depends on who starts the container whether a file is there, that is an open question.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING

from lumiimg.fabric.names import RCCL_OR_PLUGIN
from lumiimg.findings import Code, Finding, Severity
from lumiimg.host.engine_mounts import hidden_files, may_be_hidden

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lumiimg.check.registry import Findings
    from lumiimg.elf.loader import Process
    from lumiimg.host.job_process import JobProcess
    from lumiimg.image import Image

_SHOWN = 8


def check_shadowed(image: Image, job: JobProcess, process: Process, found: Findings) -> None:
    """Judge whether what the process has is there for everybody who starts it."""
    files = (job.program, *job.opens, *(process.settings.absolute(loaded.path) for loaded in process.objects))
    for cover, below in may_be_hidden(image, files):
        what = f"{below[0]} is in a folder that may be another in the container: {cover.path}"
        lines = tuple(below[:_SHOWN])
        found.add(Code.IMAGE_COVERED, Severity.UNKNOWN, what, where=below[0], evidence=lines, cause=cover.by)


def check_shadowed_program(image: Image, program: str, found: Findings) -> None:
    """Judge that what jobs of the image start is not there in the container."""
    real = image.whole.resolve(program)
    found.add(
        Code.PROGRAM_LOAD,
        Severity.PROBLEM,
        f"{program} is in the image but not in the container: a job cannot start it",
        reason="covered",
        where=program,
        evidence=(real,),
        cause=next((cover.by for cover in image.covers if cover.hides(real)), None),
    )


def note_shadowed(image: Image, findings: Iterable[Finding], found: Findings) -> None:
    """Note the files that the image has for what a process lacks, in folders that the engine mounts over."""
    lacking = {re.escape(name.rpartition("/")[2]) for finding in findings for name in finding.chain[-1:]}
    wanted = re.compile("|".join((RCCL_OR_PLUGIN.pattern, *sorted(lacking))))
    for cover, path in islice(hidden_files(image, wanted), _SHOWN):
        what = f"{path} is in the image, and is not there in the container"
        found.add(Code.IMAGE_COVERED, Severity.INFO, what, where=path, cause=cover.by)
