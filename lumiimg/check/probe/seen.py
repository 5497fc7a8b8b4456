"""The files of an image judged once more, for the process of a job that was seen: with its variables and its RCCL.

Code that a Python runs at its start, or a script that only a shell follows, may set NCCL_NET or import another torch.
The rules for files then hold of what was seen.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lumiimg.check.answer import asks_process
from lumiimg.check.probe.container import SILENCING, VERBOSE
from lumiimg.check.probe.process import judge_mapped
from lumiimg.check.registry import Findings
from lumiimg.check.static.files import check_files
from lumiimg.core.findings import Finding, Level, Severity
from lumiimg.elf import c_library_of
from lumiimg.fabric.path import part_of
from lumiimg.host.container_view import is_read
from lumiimg.host.frameworks import SERVING, built_for
from lumiimg.host.job_process import Setting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumiimg.check.context import ImageInContext
    from lumiimg.check.probe.process import SeenProcess
    from lumiimg.check.static.files import HostFit
    from lumiimg.host.job_process import JobProcess

_LEFT_OUT = frozenset({"PATH", "PYTHONPATH", "PYTHONHOME", *SILENCING, *VERBOSE})
"""What led to the process that was seen, and what the probe itself sets."""
_OF_ENGINE = ("APPTAINER", "SINGULARITY")


def judged_as_seen(
    context: ImageInContext, files: HostFit, probed: Sequence[Finding], seen: SeenProcess
) -> tuple[HostFit, Sequence[Finding]]:
    """Return what the files say of the process that was seen, and what the probes say beside that.

    As it was predicted, both are what they were.
    """
    static, predicted, job = files.static, files.static.job, _job(context, files, seen)
    assert predicted is not None  # noqa: S101 - it was started
    by_scripts, by_code = _changed(context, files, seen)
    if job is None or (job == predicted and not (by_scripts or by_code or static.is_open)):
        return files, probed
    others = () if static.is_open else tuple(each for each in context.jobs.processes if each != predicted)
    jobs = tuple(_setting(each, by_code) for each in (job, *others))
    again = check_files(context.as_seen(jobs, by_scripts))
    of_files = {(finding.id, finding.summary) for finding in static.findings}
    is_news = [f.severity is Severity.PROBLEM and (f.id, f.summary) not in of_files for f in again.static.findings]
    findings = [
        replace(finding, level=Level.PROBE) if is_new else finding
        for finding, is_new in zip(again.static.findings, is_news, strict=True)
    ]
    findings += [finding for finding in asks_process(static.findings) if finding not in findings]
    found = Findings(Level.PROBE, [finding for finding in probed if finding.id != "program.other-files"])
    path = again.static.path
    is_same = (path.rccl, path.plugin_files) == (static.path.rccl, static.path.plugin_files)
    if not judge_mapped(seen.mapped, again.static, found, with_plugin=is_same) and job.opens != predicted.opens:
        names = {"title": job.title, "rccl": seen.rccl or "no RCCL"}
        found.add("program.other-files", Severity.INFO, reason="followed", names=names, where=job.program)
    return again.with_findings(tuple(findings)), found.found


def _changed(
    context: ImageInContext, files: HostFit, seen: SeenProcess
) -> tuple[dict[str, str | None], tuple[Setting, ...]]:
    """Return what was seen otherwise than the files say: (variables of the start, those that code of it has set).

    To the first belong those that only a shell knew.
    """
    image, environment, now, job = context.image, context.read_by_engine, dict(seen.variables), files.static.job
    names = {name for name in {*now, *image.environment, *environment, *image.doubts} if _is_judged(name)}
    variables = replace(context.variables, of_conf={}, job=job)
    expected = {name: variables.get(name) for name in names}
    if "LD_LIBRARY_PATH" in now:
        expected["LD_LIBRARY_PATH"] = context.inside.settings.library_path
    changed = {name: now.get(name) for name in sorted(names) if now.get(name) != expected[name]}
    in_doubt = {name: now.get(name) for name in sorted(names) if image.is_in_doubt(name)}
    by_scripts = in_doubt | {name: value for name, value in changed.items() if name.startswith("LD_")}
    file = variables.code_not_followed or seen.program
    return by_scripts, tuple(Setting(name, changed[name], file) for name in changed.keys() - by_scripts.keys())


def _setting(job: JobProcess, by_code: tuple[Setting, ...]) -> JobProcess:
    """Return a process with what code at its start was seen to set, and no question left."""
    variable = SERVING.get(job.framework or "")
    asks = tuple(setting.value for setting in by_code if setting.name == variable and setting.value)
    return replace(job, sets=(*job.sets, *by_code), questions=(), asks=asks or job.asks)


def _is_judged(name: str) -> bool:
    return is_read(name) and name not in _LEFT_OUT and not name.startswith(_OF_ENGINE)


def _job(context: ImageInContext, files: HostFit, seen: SeenProcess) -> JobProcess | None:
    """Return the process as it was seen; None where it has files that the image does not have."""
    root, static, job = context.image.root, files.static, files.static.job
    assert job is not None  # noqa: S101 - it was started
    rccl, package = (root.resolve_where_possible(path) if path else None for path in (static.path.rccl, job.package))
    others = {path for path in seen.loaded if part_of(path) is not None} - {*static.opened, *static.opened_by_libfabric}
    is_same = job.is_program and seen.rccl == rccl and not others and (seen.package or package) == package
    if is_same and (not static.is_open or seen.program == job.program):
        return replace(job, questions=())
    if not all(map(root.is_file, seen.loaded)):
        return None
    loader = c_library_of(root).loader  # which nothing opens
    opens = tuple(path for path in seen.loaded if loader is None or path != root.resolve(loader))
    started = replace(job, program=seen.program, is_program=True, is_python=True, failure=None, questions=())
    package = seen.package or job.package
    of_other = built_for(root, package) if package is not None and seen.rccl is None else None
    asks = (seen.rccl,) if seen.rccl else ()
    framework, imports = job.framework or seen.module, job.imports or seen.module
    started = replace(started, framework=framework, imports=imports, package=package, built_for=of_other)
    return replace(started, opens=opens, asks=asks)
