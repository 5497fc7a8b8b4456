"""Evidence of the first kind: from the files of the image, nothing run.

The path that a collective's bytes take is followed file by file, as ld.so would: the RCCL that a program gets, the
plugin that this RCCL opens (by the names in its own bytes), everything that the plugin pulls in, and whether the
libfabric among it has the cxi provider. What may come from the host at run time is said to be open, not wrong.

The process is modelled without the files that the engine hides for sure, by what it mounts over their folder: whatever
it then lacks is a finding of its own. Whether others are there depends on who starts the container, which is open.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from lumiimg.check.registry import Findings
from lumiimg.check.static.plugin import judge_plugin, load_plugin
from lumiimg.check.static.process_faults import check_unmodelled, judge_process
from lumiimg.check.static.rccl import load_rccl, read_path
from lumiimg.check.static.result import StaticResult, files_of
from lumiimg.check.static.variables import doubted, judge_binds, judge_plugin_name, judge_variables
from lumiimg.fabric.names import RCCL_OR_PLUGIN
from lumiimg.fabric.path import FabricPath
from lumiimg.fabric.provider import PROVIDER_PATH
from lumiimg.fabric.rccl import PLUGIN_VARIABLE
from lumiimg.findings import Code, Finding, Level, Severity
from lumiimg.host.engine_mounts import hidden_files, may_be_hidden
from lumiimg.host.ldd import refusal
from lumiimg.host.rccl_process import job_of_library, rccl_files

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lumiimg.check.context import ImageInContext
    from lumiimg.elf.loader import Process
    from lumiimg.host.job_process import JobProcess, JobProcesses
    from lumiimg.image import Image

_SHOWN = 8


def check_static(context: ImageInContext) -> StaticResult:
    """Follow the fabric path through the image's files, from the program that its jobs start.

    Where an image has several frameworks, each with an RCCL, the one that fares worst is returned, and the others are
    named.

    Raises BadInputError where the image itself cannot be read, or has no such program; a broken library in it is a
    finding.
    """
    found, image = Findings(Level.STATIC), context.image
    for warning in image.warnings:
        found.add(Code.IMAGE_PARTLY_READ, Severity.UNKNOWN, warning)
    if (musl := refusal(image.root)) is not None:
        found.add(Code.IMAGE_MUSL, Severity.UNKNOWN, musl)
        return StaticResult(findings=tuple(found.found))
    files, jobs, inside = rccl_files(image.root), context.jobs, context.inside
    if jobs.hidden:
        _judge_hidden_program(image, jobs.hidden, found)
        return StaticResult(findings=tuple(found.found))
    processes = jobs.processes or (job_of_library(image.root, inside.settings, files),)
    check_unmodelled(image.root, inside.doubts, processes, found)
    results = {job: _check_process(context, job, files) for job in processes}
    worst = min(results, key=lambda job: _rank(results[job]))
    if jobs.note:
        _note_program(jobs, results, worst, found)
    for job, result in results.items():
        if result.path.rccl not in {None, results[worst].path.rccl}:
            what = f"{job.title} gets another RCCL, {result.path.rccl}; this result is about {worst.title}"
            names = {"path": result.path.rccl}
            found.add(Code.RCCL_SEVERAL, Severity.INFO, what, reason="other", names=names, where=result.path.rccl)
    _note_shadowed(image, results[worst].findings, found)
    return replace(results[worst], findings=(*found.found, *results[worst].findings))


def _note_program(
    jobs: JobProcesses, results: dict[JobProcess, StaticResult], worst: JobProcess, found: Findings
) -> None:
    """Note how the program was found; where another may be the one, problems of this one are not problems of the image.

    What no process of the image gets past is one all the same: then it is about libraries, and no program is known.
    """
    lines: tuple[str, ...] = ()
    if jobs.is_open and worst.is_program:
        own = results[worst].findings
        lines = tuple(f"if it is this one: {each.summary}" for each in own if each.severity is Severity.PROBLEM)
        left = tuple(each for each in own if each.severity is not Severity.PROBLEM)
        results[worst] = replace(results[worst], findings=left)
    what = jobs.note or ""
    found.add(Code.PROGRAM_UNKNOWN, Severity.UNKNOWN if jobs.is_open else Severity.INFO, what, evidence=lines)


def _rank(result: StaticResult) -> int:
    """Return how a result compares: the least has a problem, then a question that is open."""
    severities = {finding.severity for finding in result.findings}
    return next((i for i, each in enumerate((Severity.PROBLEM, Severity.UNKNOWN)) if each in severities), 2)


def _check_process(context: ImageInContext, job: JobProcess, files: list[str]) -> StaticResult:
    """Follow the path of one process."""
    found, image, variables = Findings(Level.STATIC), context.image, context.variables
    begun = load_rccl(image, context.inside.settings, job, files, found)
    process, rccl = begun.process, begun.rccl
    if rccl is None:
        broken = job.program if not job.is_program and begun.failed and image.root.is_file(job.program) else None
        return StaticResult(FabricPath(rccl=broken), findings=doubted(found.found, variables))
    path, library = read_path(image, rccl, variables.get(PLUGIN_VARIABLE), found)
    outcome = load_plugin(variables, process, rccl, files, path, library, found)
    provider_path = variables.get(PROVIDER_PATH)
    result = StaticResult(path, process.system.loader, job=job, provider_path=provider_path)
    if outcome is not None:
        result = judge_plugin(image.root, outcome, process, result, found)
        judge_process(image.root, process, found)
    judge_plugin_name(variables, result.path, found)
    judge_variables(variables, result.path, found)
    judge_binds(context.read_by_engine, process, found)
    _judge_shadowed(image, job, process, found)
    opened, later = files_of(image.root, process)
    return replace(result, opened=opened, opened_by_libfabric=later, findings=doubted(found.found, variables))


def _judge_shadowed(image: Image, job: JobProcess, process: Process, found: Findings) -> None:
    """Judge whether what the process has is there for everybody who starts it."""
    files = (job.program, *job.opens, *(process.settings.absolute(loaded.path) for loaded in process.objects))
    for cover, below in may_be_hidden(image, files):
        what = f"{below[0]} is in a folder that may be another in the container: {cover.path}"
        lines = tuple(below[:_SHOWN])
        found.add(Code.IMAGE_COVERED, Severity.UNKNOWN, what, where=below[0], evidence=lines, cause=cover.by)


def _judge_hidden_program(image: Image, program: str, found: Findings) -> None:
    """Judge that what jobs of the image start is not there in the container."""
    real = image.whole.resolve(program)
    by = next((cover.by for cover in image.covers if cover.hides(real)), None)
    what = f"{program} is in the image but not in the container: a job cannot start it"
    found.add(Code.PROGRAM_LOAD, Severity.PROBLEM, what, reason="covered", where=program, evidence=(real,), cause=by)


def _note_shadowed(image: Image, findings: Iterable[Finding], found: Findings) -> None:
    """Note the files that the image has for what a process lacks, in folders that the engine mounts over."""
    lacking = {re.escape(name.rpartition("/")[2]) for finding in findings for name in finding.chain[-1:]}
    wanted = re.compile("|".join((RCCL_OR_PLUGIN.pattern, *sorted(lacking))))
    for cover, path in islice(hidden_files(image, wanted), _SHOWN):
        what = f"{path} is in the image, and is not there in the container"
        found.add(Code.IMAGE_COVERED, Severity.INFO, what, where=path, cause=cover.by)
