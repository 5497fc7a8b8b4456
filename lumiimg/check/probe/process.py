"""The process of a job, started for real in the container: does it open the libraries that the files of the image say?

A Python imports and opens what its jobs do, asks RCCL for a unique id where that makes RCCL open its plugin, then opens
the plugin; /proc/self/maps says what came of it. Of any other program the loader lists what its start would open, and
nothing of the program itself is run.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lumiimg.check.probe.container import EVIDENCE_LINES, ProbeRun
from lumiimg.core.findings import Severity
from lumiimg.fabric.path import part_of
from lumiimg.fabric.rccl import generation_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumiimg.check.registry import FindingDetails, Findings
    from lumiimg.check.static.process import StaticResult

_OF_THE_LOADER = re.compile(r"cannot open shared object|undefined symbol|version `.*' not found|wrong ELF|invalid ELF")

# The words are those of `probe.h`. Any Python 3 takes it; its arguments are steps.
_PYTHON = """\
import ctypes, os, sys
PLAIN = b'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789/._:+-'
def quote(text):
    return ''.join(chr(byte) if byte in PLAIN else '%%%02X' % byte for byte in os.fsencode(text))
def say(topic, **values):
    words = [key + '=' + quote(str(value)) for key, value in values.items()]
    print(chr(10) + '@probe', topic, *words, flush=True)
def mapped():
    with open('/proc/self/maps') as maps:
        return sorted({line.split(None, 5)[5].strip() for line in maps if '/' in line})
def rccl(path):
    before = mapped()
    ctypes.CDLL(path).ncclGetUniqueId(ctypes.create_string_buffer(1024))
    for path in mapped():
        if path not in before:
            say('opened', path=path)
def either(names):
    for name in names.split(':'):
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            kept = error
    raise kept
does = {'import': __import__, 'open': ctypes.CDLL, 'either': either, 'rccl': rccl}
sys.path[:] = filter(None, sys.path)
for step in sys.argv[1:]:
    kind, _, value = step.partition('=')
    try:
        does[kind](value)
    except BaseException as error:
        say('failed', step=step, error=type(error).__name__ + ': ' + str(error))
        break
for path in mapped():
    say('mapped', path=path)
say('end', stage='process', code=0)
os._exit(0)
"""
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


def command_of(static: StaticResult) -> list[str] | None:
    """Return what starts the process of a job in the container; None where no program is known."""
    job = static.job
    if job is None or not job.is_program:
        return None
    if not job.is_python:
        return ["/bin/sh", "-c", _PROGRAM, job.program]
    steps = [f"import={job.imports}"] if job.imports else [f"open={path}" for path in job.opens]
    if job.asks:
        steps.append(f"either={':'.join(job.asks)}")
    generation = generation_of(static.path.rccl_version or "")
    if generation is not None and generation.unique_id_loads_plugin:
        steps.append(f"rccl={static.path.rccl}")
    if static.path.plugin is not None:
        steps.append(f"open={static.path.plugin}")
    return [job.program, "-B", "-c", _PYTHON, *steps]


def judge_process_of_job(run: ProbeRun, static: StaticResult, found: Findings) -> None:
    """Hold what a process of the job has mapped against what the files say."""
    job, failed = static.job, run.first("failed")
    assert job is not None  # noqa: S101 - asked by the caller
    names = {"title": job.title, "ending": run.ending, "number": str(len(static.opened))}
    if not run.has("end"):
        found.add("program.probe", Severity.UNKNOWN, names=names, evidence=run.tail)
    elif failed:
        error, names["at"] = failed.get("error", ""), failed.get("step", "").replace("=", " ")
        details: FindingDetails = {"where": job.program, "evidence": (error,)}
        if _OF_THE_LOADER.search(error):
            found.add("program.load", Severity.PROBLEM, reason="in-container", names=names, **details)
        else:
            found.add("program.probe", Severity.UNKNOWN, reason="fails", names=names, **details)
    elif lines := _differences([event.get("path", "") for event in run.all("mapped")], static):
        found.add(
            "program.other-files",
            Severity.UNKNOWN,
            names=names,
            where=job.program,
            evidence=tuple(lines[:EVIDENCE_LINES]),
            source="/proc/self/maps" if job.is_python else "ld.so(8), LD_TRACE_LOADED_OBJECTS",
        )
    else:
        found.add("program.opens" if job.is_python else "program.starts", Severity.OK, names=names, where=job.program)


def _differences(mapped: Sequence[str], static: StaticResult) -> list[str]:
    """Return what one side alone has; a Python may open more than is predicted, but for libraries of the fabric."""
    expected = {*static.opened, *static.opened_by_libfabric}
    is_python = static.job is not None and static.job.is_python
    more = [path for path in mapped if path not in expected and (part_of(path) is not None or not is_python)]
    less = [path for path in static.opened if path not in mapped] if is_python else []
    return [*(f"not opened: {path}" for path in less), *(f"opened unexpectedly: {path}" for path in more)]
