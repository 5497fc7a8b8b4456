"""Which RCCL the process of a job gets, and what it says of itself."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lumiimg.check.static.plugin import lacks_of_host
from lumiimg.check.static.process_faults import judge_symbols
from lumiimg.fabric.path import FabricPath
from lumiimg.fabric.rccl import PLUGIN_VARIABLE, Rccl, read_rccl
from lumiimg.findings import Code, Severity
from lumiimg.host.job_process import Begun, JobProcess, begin
from lumiimg.host.rccl_process import rccl_candidates

if TYPE_CHECKING:
    from lumiimg.check.registry import Findings
    from lumiimg.elf.objects import LoadedObject, LoadOutcome
    from lumiimg.elf.rules import LoaderSettings
    from lumiimg.image import Image, RootFileSystem


def load_rccl(image: Image, settings: LoaderSettings, job: JobProcess, files: list[str], found: Findings) -> Begun:
    """Model the process of a job up to its RCCL; without an RCCL where it has none, or cannot be loaded."""
    begun = begin(image.root, settings, job)
    candidates = rccl_candidates(image.root, files)
    if begun.failed is not None and (candidates or job.is_program):
        _judge_failure(job, begun.failed, found)
    elif (cuda := _of_cuda(image.root, job)) is not None:
        begun = replace(begun, rccl=None)  # one that something else has brought along is not its
        names, lines = {"job": job.title}, tuple(candidates[:4])
        found.add(Code.PROGRAM_CUDA, Severity.PROBLEM, names=names, where=cuda, evidence=lines)
    elif not candidates:
        found.add(Code.RCCL_ABSENT, Severity.PROBLEM, reason="image")
    elif begun.rccl is None:
        names = {"job": job.title}
        found.add(Code.RCCL_ABSENT, Severity.PROBLEM, reason="process", names=names, where=candidates[0])
    else:
        rccl = begun.rccl
        begun = judge_symbols(image.root, job, begun, found)
        others = [file for file in candidates if image.root.resolve(file) != image.root.resolve(rccl.path)]
        if others:
            names = {"rccl": rccl.path, "why": _why(job)}
            found.add(Code.RCCL_SEVERAL, Severity.INFO, names=names, evidence=tuple(others[:8]))
    return begun


def _why(job: JobProcess) -> str:
    if job.framework:
        return f"it is what {job.framework} of {job.program} loads"
    return f"it is what {job.program} finds" if job.is_program else "no program is known that would load another"


def _judge_failure(job: JobProcess, outcome: LoadOutcome, found: Findings) -> None:
    where, chain = job.package or job.program, outcome.missing[0].chain if outcome.missing else ()
    code, severity, what = Code.PROGRAM_LOAD, Severity.PROBLEM, f"{job.program} cannot load RCCL"
    if job.is_program and (names := lacks_of_host(outcome)):
        severity = Severity.UNKNOWN
        what = f"{job.title} needs {', '.join(names)} at its start, which must come from the host"
    elif job.framework is not None:
        what = f"`import {job.framework}` of {job.program} fails"
    elif not job.is_program:
        code, what = Code.RCCL_LOAD, f"{job.program} cannot be loaded in this image"
    found.add(code, severity, what, reason="libraries", where=where, evidence=outcome.errors[:8], chain=chain)


def _of_cuda(root: RootFileSystem, job: JobProcess) -> str | None:
    """Return the file by which the torch of a job is CUDA's."""
    file, of_rocm = (f"{job.package}/lib/libtorch_{kind}.so" for kind in ("cuda", "hip"))
    return file if job.imports == "torch" and root.is_file(file) and not root.is_file(of_rocm) else None


def read_path(image: Image, rccl: LoadedObject, named: str | None, found: Findings) -> tuple[FabricPath, Rccl]:
    """Return the path so far: what this RCCL looks for and takes, and what else its bytes say.

    `named` is NCCL_NET_PLUGIN, if it is set.
    """
    library = read_rccl(image.root.open(rccl.path))
    files, accepts = library.names(named), library.accepts
    source = library.generation.basis if library.generation else None
    names = {"version": library.version or "(version not found)", "names": " or ".join(files)}
    names |= {"apis": ", ".join(f"v{number}" for number in accepts), "variable": f"{PLUGIN_VARIABLE}={named}"}
    if library.opens_none(named):
        found.add(Code.RCCL_FOUND, Severity.INFO, reason="none", names=names, where=rccl.path, source=source)
    elif not files or not accepts:
        names["version"] = library.version or "not found in it"
        found.add(Code.RCCL_UNKNOWN, Severity.UNKNOWN, reason="files", names=names, where=rccl.path)
    else:
        reason = "named" if named else None
        source = "; ".join(filter(None, ("strings in the library", source)))
        found.add(Code.RCCL_FOUND, Severity.INFO, reason=reason, names=names, where=rccl.path, source=source)
    return FabricPath(rccl.path, library.version, files, named, accepts), library
