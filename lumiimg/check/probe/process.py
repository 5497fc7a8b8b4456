"""The process of a job, started for real in the container: does it open the libraries that the files of the image say?

A Python imports and opens what its jobs do, and reports what then answers for RCCL and which variables it has; then it
asks RCCL for a unique id where that makes RCCL open its plugin, and opens the plugin (`inside.py`). /proc/self/maps
says what came of it. Of any other program the loader lists what its start would open, and nothing of the program itself
is run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from importlib import resources
from typing import TYPE_CHECKING

from lumiimg.check.probe.container import EVIDENCE_LINES, SILENCING, VERBOSE, ProbeRun
from lumiimg.core.findings import Severity
from lumiimg.elf import FoundBy
from lumiimg.fabric.path import Part, part_of
from lumiimg.fabric.rccl import generation_of
from lumiimg.host.container_view import READ_VARIABLES, is_read
from lumiimg.host.frameworks import SERVING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lumiimg.check.registry import FindingDetails, Findings
    from lumiimg.check.static.process import StaticResult

_FATAL = re.compile(
    r"cannot open shared object|undefined symbol|version `.*' not found|wrong ELF|invalid ELF"
    r"|^(?:ImportError|ModuleNotFoundError): "
)
"""What ends a step of a job: it lacks a library, or a module."""
_ENDED = re.compile(r"error while loading shared libraries|^Fatal Python error: init")
"""What ends a program at its start: it lacks a library, or a Python its own modules."""
_OF_PROBE = frozenset({"PATH", *SILENCING, *VERBOSE})
# `python` is what a job starts: where that is a script, as of pyenv, the files do not show what it starts in turn
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
    """The process of a job as it was in the container when its imports were done; paths are without links."""

    program: str
    rccl: str | None
    """The file that answers `ncclCommInitRank`; None where there is none."""
    module: str | None
    """What its job has imported."""
    package: str | None
    """Folder of that, where it is a package."""
    loaded: tuple[str, ...]
    """Libraries, in the order in which they came."""
    variables: tuple[tuple[str, str], ...]
    """Its environment as C has it, of those for which a rule asks; the loader's as they were at its start."""
    mapped: tuple[str, ...]
    """Files, with those of the plugin that was opened then."""

    @property
    def set_by_itself(self) -> tuple[tuple[str, str], ...]:
        """The variables that a program started in its stead is to have; those of the loader it has."""
        kept = (pair for pair in self.variables if not pair[0].startswith("LD_") and pair[0] not in _OF_PROBE)
        return tuple(pair for pair in kept if is_read(pair[0]) and "=" not in pair[0])


def command_of(static: StaticResult) -> list[str] | None:
    """Return what starts the process of a job in the container; None where no program is known."""
    job, path = static.job, static.path
    if job is None or not (job.is_program or static.is_open):
        return None
    if not job.is_python and not static.is_open:
        return ["/bin/sh", "-c", _PROGRAM, job.program]
    module = job.imports or (job.framework if not job.is_program else None)
    steps = [f"import={module}"] if module else [f"open={file}" for file in job.opens]
    if job.framework is None:  # by the files; code that runs at the start may bring one
        steps.append("try=torch")
    if job.asks:
        named = [f"${SERVING[job.framework]}"] if job.framework in SERVING else []
        steps.append(f"{'either' if job.framework else 'else'}={':'.join([*named, *job.asks])}")
    steps.append("ran=")
    generation = generation_of(path.rccl_version or "")
    if generation is not None and generation.unique_id_loads_plugin:
        steps.append(f"rccl={path.rccl}")
    if path.plugin is not None:
        is_of_rccl = static.plugin_found_by in {FoundBy.RUNPATH, FoundBy.RPATH}  # whose search path ctypes has not
        steps.append(f"plugin={path.plugin if is_of_rccl else ':'.join(path.plugin_files) or path.plugin}")
    text = resources.files(__package__).joinpath("inside.py").read_text(encoding="utf-8")
    program = ["/bin/sh", "-c", _BY_NAME, "sh"] if static.is_open else [job.program]
    return [*program, "-B", "-c", text, " ".join(READ_VARIABLES), *steps]


def read_seen(run: ProbeRun) -> SeenProcess | None:
    """Return what a process of the job reported; None where it did not come so far."""
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
    """Yield the files that may be its RCCL: first what it asked for, then what its module calls, then any."""
    yield from filter(None, (event.get("file") for event in run.all("asked")))
    found = [(event.get("user", ""), event.get("file", "")) for event in run.all("answers")]
    own = [pair for pair in found if package is not None and pair[0].startswith(f"{package}/")]
    for pairs in (own, found):
        yield from (file for user, file in pairs if file != user)
        yield from (file for user, file in pairs if file == user)


def judge_process_of_job(run: ProbeRun, static: StaticResult, found: Findings) -> SeenProcess | None:
    """Hold what a process of the job has mapped against what the files say; return it, where it came that far."""
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
    """Yield what a process of Python is, and what in it is not of every Python."""
    yield f"Python {run.first('python').get('version')}, {run.first('python').get('program')}"
    yield from (f"{event.get('name')}: {event.get('file')}" for event in run.all("module"))
    finders = [event.get("name", "") for event in run.all("finder")]
    yield from [f"sys.meta_path: {name}" for name in finders if not name.startswith("_frozen_importlib")][:2]


def judge_mapped(mapped: Sequence[str], static: StaticResult, found: Findings, *, with_plugin: bool = True) -> bool:
    """Judge whether a process has other libraries than the files predict, and return that.

    A Python may open more than is predicted, but for libraries of the fabric. `with_plugin`: it opened the plugin.
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
