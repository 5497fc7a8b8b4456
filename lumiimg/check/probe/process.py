"""The process of a job, started for real in the container, compared with what the files of the image predict.

A Python imports and opens what its jobs do, and reports which RCCL then answers and which variables it has; then it
asks RCCL for a unique id, if that makes RCCL open its plugin, and opens the plugin (`inside.py`). For any other
program the loader lists what its start would open; the program itself does not run. If the process has other
variables or another RCCL than the files predict, the rules for files are applied again, to what was seen.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from importlib import resources
from typing import TYPE_CHECKING

from lumiimg.check.answer import process_questions
from lumiimg.check.probe.container import EVIDENCE_LINES, SILENCING, VERBOSE, ProbeRun
from lumiimg.check.registry import Findings
from lumiimg.check.static.files import check_files
from lumiimg.core.findings import Finding, Level, Severity
from lumiimg.elf import FoundBy, c_library_of
from lumiimg.fabric.path import Part, part_of
from lumiimg.fabric.rccl import generation_of
from lumiimg.host.container_view import READ_VARIABLES, is_read
from lumiimg.host.frameworks import RCCL_PATH_VARIABLES, built_for
from lumiimg.host.job_process import Setting

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lumiimg.check.context import ImageInContext
    from lumiimg.check.registry import FindingDetails
    from lumiimg.check.static.files import HostFit
    from lumiimg.check.static.process import StaticResult
    from lumiimg.host.job_process import JobProcess

_FATAL = re.compile(
    r"cannot open shared object|undefined symbol|version `.*' not found|wrong ELF|invalid ELF"
    r"|^(?:ImportError|ModuleNotFoundError): "
)
"""Errors that end a step of a job: a missing library or module."""
_ENDED = re.compile(r"error while loading shared libraries|^Fatal Python error: init")
"""Errors that end a program at its start: a missing library, or a Python without its own modules."""
_PROBE_VARIABLES = frozenset({"PATH", *SILENCING, *VERBOSE})
"""Variables that the probe sets, and the one that led to the program that it starts."""
_LEFT_OUT = _PROBE_VARIABLES | {"PYTHONPATH", "PYTHONHOME"}
_ENGINE_PREFIXES = ("APPTAINER", "SINGULARITY")
# a job starts `python`: if that is a script, as with pyenv, the files do not show what it starts in turn
_BY_NAME = 'p=$(command -v python) || p=$(command -v python3) || exit 127; exec "$p" "$@"'
_PROGRAM = """\
LD_TRACE_LOADED_OBJECTS=1 "$0" 2>&1 | while read -r name arrow path rest; do
    [ "$arrow" = '=>' ] || path=$name
    case $path in
    /*) printf '\n@probe mapped path=%s\n' "$(readlink -f "$path")" ;;
    not) printf '\n@probe failed step=start error=%s:%%20cannot%%20open%%20shared%%20object%%20file\n' "$name" ;;
    esac
done
printf '\n@probe end stage=process code=0\n'
"""


@dataclass(frozen=True, slots=True)
class SeenProcess:
    """The process of a job as it was in the container after its imports; paths are without symlinks."""

    program: str
    rccl: str | None
    """The file that answers `ncclCommInitRank`; None if there is none."""
    module: str | None
    """The module that its job imported."""
    package: str | None
    """Folder of the module, if it is a package."""
    loaded: tuple[str, ...]
    """Libraries, in load order."""
    variables: tuple[tuple[str, str], ...]
    """Its environment as C has it, of variables that a rule reads; the loader's as they were at its start."""
    mapped: tuple[str, ...]
    """Mapped files, including those of the plugin that was opened afterwards."""

    @property
    def variables_to_pass(self) -> tuple[tuple[str, str], ...]:
        """The variables to set for a program started in its place; it already has those of the loader."""
        read = (name for name, _ in self.variables if is_read(name) and not name.startswith("LD_") and "=" not in name)
        names = {*read} - _PROBE_VARIABLES
        return tuple(pair for pair in self.variables if pair[0] in names)


def command_of(static: StaticResult) -> list[str] | None:
    """Return the command that starts the process of a job in the container; None if no program is known."""
    job, path = static.job, static.path
    if job is None or not (job.is_program or static.is_open):
        return None
    if not job.is_python and not static.is_open:
        return ["/bin/sh", "-c", _PROGRAM, job.program]
    module = job.imports or (job.framework if not job.is_program else None)
    steps = [f"import={module}"] if module else [f"open={file}" for file in job.opens]
    if job.framework is None:  # none in the files, but code that runs at the start may load one
        steps.append("try=torch")
    if job.asks:
        named = [f"${RCCL_PATH_VARIABLES[job.framework]}"] if job.framework in RCCL_PATH_VARIABLES else []
        steps.append(f"{'either' if job.framework else 'else'}={':'.join([*named, *job.asks])}")
    steps.append("ran=")
    generation = generation_of(path.rccl_version or "")
    if generation is not None and generation.unique_id_loads_plugin:
        steps.append(f"rccl={path.rccl}")
    if path.plugin is not None:
        is_of_rccl = static.plugin_found_by in {FoundBy.RUNPATH, FoundBy.RPATH}  # ctypes does not have its search path
        steps.append(f"plugin={path.plugin if is_of_rccl else ':'.join(path.plugin_files) or path.plugin}")
    text = resources.files(__package__).joinpath("inside.py").read_text(encoding="utf-8")
    program = ["/bin/sh", "-c", _BY_NAME, "sh"] if static.is_open else [job.program]
    return [*program, "-B", "-c", text, " ".join(READ_VARIABLES), *steps]


def read_seen(run: ProbeRun) -> SeenProcess | None:
    """Return what a process of the job reported; None if it did not get that far."""
    if not run.has("ran"):
        return None
    files = [event.get("file", "") for event in run.all("module")]
    package = next((file.rpartition("/")[0] for file in files if "/__init__." in file), None)
    return SeenProcess(
        program=run.first("python").get("program", ""),
        rccl=next(_answers(run, package), None),
        module=next((event.get("name") for event in run.all("module")), None),
        package=package,
        loaded=tuple(event.get("path", "") for event in run.all("loaded")),
        variables=tuple((event.get("name", ""), event.get("value", "")) for event in run.all("variable")),
        mapped=tuple(event.get("path", "") for event in run.all("mapped")),
    )


def _answers(run: ProbeRun, package: str | None) -> Iterator[str]:
    """Yield the files that may be its RCCL: first what it asked for, then what its module calls, then any other."""
    yield from filter(None, (event.get("file") for event in run.all("asked")))
    found = [(event.get("user", ""), event.get("file", "")) for event in run.all("answers")]
    own = [pair for pair in found if package is not None and pair[0].startswith(f"{package}/")]
    for pairs in (own, found):
        yield from (file for user, file in pairs if file != user)
        yield from (file for user, file in pairs if file == user)


def judge_process_of_job(run: ProbeRun, static: StaticResult, found: Findings) -> SeenProcess | None:
    """Compare what a process of the job has mapped with what the files predict; return it, if it got that far."""
    job, failed = static.job, run.first("failed")
    assert job is not None  # noqa: S101 - asked by the caller
    seen = read_seen(run)
    names = {"title": job.title, "ending": run.ending, "number": str(len(static.opened))}
    details: FindingDetails = {"where": job.program}
    ended = None if run.has("end") else next(filter(_ENDED.search, run.tail), None)
    if failed or ended is not None:
        error = failed.get("error") or ended or ""
        names["at"], details["evidence"] = failed.get("step", "its start").replace("=", " "), (error,)
        if (ended or _FATAL.search(error)) and not static.is_open:
            found.add("program.load", Severity.PROBLEM, reason="in-container", names=names, **details)
        else:
            found.add("program.probe", Severity.UNKNOWN, reason="fails", names=names, **details)
    elif not run.has("end") or (job.is_python and seen is None):
        found.add("program.probe", Severity.UNKNOWN, names=names, evidence=run.tail)
    elif not job.is_python and not static.is_open:
        if not judge_mapped([event.get("path", "") for event in run.all("mapped")], static, found):
            found.add("program.starts", Severity.OK, names=names, **details)
    elif seen is not None:
        reason = "otherwise" if judge_mapped(seen.mapped, static, found) else None
        names["title"] = replace(job, program=seen.program).title
        names["rccl"], details["evidence"] = seen.rccl or "none", tuple(_evidence(run))
        found.add("program.opens", Severity.OK, reason=reason, names=names, **details)
    return seen


def _evidence(run: ProbeRun) -> Iterator[str]:
    """Yield the version and path of a Python, its imported modules, and its import finders that are not standard."""
    yield f"Python {run.first('python').get('version')}, {run.first('python').get('program')}"
    yield from (f"{event.get('name')}: {event.get('file')}" for event in run.all("module"))
    finders = [event.get("name", "") for event in run.all("finder")]
    yield from [f"sys.meta_path: {name}" for name in finders if not name.startswith("_frozen_importlib")][:2]


def judge_mapped(mapped: Sequence[str], static: StaticResult, found: Findings, *, with_plugin: bool = True) -> bool:
    """Judge whether a process has other libraries than the files predict, and return that.

    A Python may open more than predicted, except libraries of the fabric. `with_plugin`: it opened the plugin.
    """
    job = static.job
    assert job is not None  # noqa: S101 - asked by the caller
    expected = {*static.opened, *static.opened_by_libfabric}
    more = [path for path in mapped if path not in expected and (part_of(path) is not None or not job.is_python)]
    less = [path for path in static.opened if path not in mapped] if job.is_python else []
    if not with_plugin:
        more, less = ([path for path in paths if part_of(path) is Part.RCCL] for paths in (more, less))
    lines = [*(f"not opened: {path}" for path in less), *(f"opened unexpectedly: {path}" for path in more)]
    if lines:
        found.add(
            "program.other-files",
            Severity.UNKNOWN,
            names={"title": job.title},
            where=job.program,
            evidence=tuple(lines[:EVIDENCE_LINES]),
            source="/proc/self/maps" if job.is_python else "ld.so(8), LD_TRACE_LOADED_OBJECTS",
        )
    return bool(lines)


# -- the files checked again, for the process that was seen --


def recheck_as_seen(
    context: ImageInContext, files: HostFit, probed: Sequence[Finding], seen: SeenProcess
) -> tuple[HostFit, Sequence[Finding]]:
    """Return the account of the files for the process that was seen, and the remaining findings of the probes.

    If it is as predicted, both are unchanged.
    """
    static, predicted, job = files.static, files.static.job, _job(context, files, seen)
    assert predicted is not None  # noqa: S101 - it was started
    by_scripts, by_code = _changed_variables(context, files, seen)
    if job is None or (job == predicted and not (by_scripts or by_code or static.is_open)):
        return files, probed
    others = () if static.is_open else tuple(each for each in context.jobs.processes if each != predicted)
    jobs = tuple(_setting(each, by_code) for each in (job, *others))
    again = check_files(context.as_seen(jobs, by_scripts))
    known = {(finding.id, finding.summary) for finding in static.findings}
    findings = [
        replace(f, level=Level.PROBE) if f.severity is Severity.PROBLEM and (f.id, f.summary) not in known else f
        for f in again.static.findings
    ]
    findings += [finding for finding in process_questions(static.findings) if finding not in findings]
    found = Findings(Level.PROBE, [finding for finding in probed if finding.id != "program.other-files"])
    path = again.static.path
    is_same = (path.rccl, path.plugin_files) == (static.path.rccl, static.path.plugin_files)
    if not judge_mapped(seen.mapped, again.static, found, with_plugin=is_same) and job.opens != predicted.opens:
        names = {"title": job.title, "rccl": seen.rccl or "no RCCL"}
        found.add("program.other-files", Severity.INFO, reason="followed", names=names, where=job.program)
    return again.with_findings(tuple(findings)), found.found


def _changed_variables(
    context: ImageInContext, files: HostFit, seen: SeenProcess
) -> tuple[dict[str, str | None], tuple[Setting, ...]]:
    """Return the variables that were not as the files predict: (of the start, those that its own code has set).

    The first include those that only a shell knew.
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
    """Return a process with the variables that code at its start was seen to set, and without open questions."""
    variable = RCCL_PATH_VARIABLES.get(job.framework or "")
    asks = tuple(setting.value for setting in by_code if setting.name == variable and setting.value)
    return replace(job, sets=(*job.sets, *by_code), questions=(), asks=asks or job.asks)


def _is_judged(name: str) -> bool:
    return is_read(name) and name not in _LEFT_OUT and not name.startswith(_ENGINE_PREFIXES)


def _job(context: ImageInContext, files: HostFit, seen: SeenProcess) -> JobProcess | None:
    """Return the process as it was seen; None if it has files that the image does not have."""
    root, static, job = context.image.root, files.static, files.static.job
    assert job is not None  # noqa: S101 - it was started
    rccl, package = (root.resolve_where_possible(path) if path else None for path in (static.path.rccl, job.package))
    others = {path for path in seen.loaded if part_of(path) is not None} - {*static.opened, *static.opened_by_libfabric}
    is_same = job.is_program and seen.rccl == rccl and not others and (seen.package or package) == package
    if is_same and (not static.is_open or seen.program == job.program):
        return replace(job, questions=())
    if not all(map(root.is_file, seen.loaded)):
        return None
    loader = c_library_of(root).loader  # not opened by anything
    opens = tuple(path for path in seen.loaded if loader is None or path != root.resolve(loader))
    package = seen.package or job.package
    return replace(
        job,
        program=seen.program,
        is_program=True,
        is_python=True,
        failure=None,
        questions=(),
        framework=job.framework or seen.module,
        imports=job.imports or seen.module,
        package=package,
        built_for=built_for(root, package) if package is not None and seen.rccl is None else None,
        opens=opens,
        asks=(seen.rccl,) if seen.rccl else (),
    )
