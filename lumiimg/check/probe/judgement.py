"""From what the probes did to findings: each with the line that proves it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from packaging.version import Version

from lumiimg.check.probe.container import EVIDENCE_LINES, NOISE, Container, ProbeRun, ending, explained, log_of, tail
from lumiimg.check.probe.process import command_of, judge_process_of_job
from lumiimg.check.registry import Findings
from lumiimg.elf.objects import FoundBy
from lumiimg.fabric.names import PLUGIN_FILES, part_of
from lumiimg.fabric.path import FabricPath, Part
from lumiimg.fabric.rccl import Generation, Rccl, generation_of, version_of_code
from lumiimg.findings import Code, Family, Level, Severity

if TYPE_CHECKING:
    from lumiimg.check.static.result import StaticResult
    from lumiimg.nccl.report import Cause

# What RCCL says of the plugin when it opens it; the wording is that of every generation (NET/Plugin lines).
_PLUGIN_LINE = re.compile(r"NET/Plugin")
_LOADER_COMPLAINT = re.compile(r"^(?!INFO|WARNING).*(not found|error while loading|cannot open)")
_STAGES = {
    12: ("init", Code.PLUGIN_INIT),
    13: ("devices", Code.PLUGIN_DEVICES),
    14: ("properties", Code.PLUGIN_PROPERTIES),
    15: ("listen", Code.PLUGIN_LISTEN),
}
"""Exit codes of the handshake: where it stopped."""
_SIGNAL_BASE = 128
_LAST_SIGNAL = 192


@dataclass(slots=True)
class ProbeResult:
    """What the probes saw."""

    path: FabricPath
    runs: list[ProbeRun] = field(default_factory=list)
    findings: Findings = field(default_factory=lambda: Findings(Level.PROBE))


def probe(container: Container, static: StaticResult, *, inconclusive: str | None) -> ProbeResult:
    """Run the probes that can answer, and judge what they did.

    `inconclusive`: why a plugin that fails, or takes another provider than cxi, proves nothing here; None if it does.

    Raises MissingHereError if no container starts.
    """
    result = ProbeResult(static.path)
    if static.path.rccl is None:
        return result
    in_job = _ask_job(container, static, result)
    run = container.rccl_probe(static.path.rccl)
    result.runs.append(run)
    if not _rccl_runs(run, result):
        return result
    generation = _learn_version(run, result)
    plugin = _judge_rccl(run, generation, in_job, result)
    names = [plugin] if plugin else _names_as_rccl_asks(static, result.path)
    if not names:
        return result  # the variable keeps RCCL from any plugin, or what it asks for is not known
    for name in names:
        run = container.handshake(name, rccl=static.path.rccl, accepts=result.path.accepts)
        result.runs.append(run)
        if not _is_absent(run, name):
            break
    _judge_handshake(run, names, container, static, result, inconclusive=inconclusive)
    return result


def _ask_job(container: Container, static: StaticResult, result: ProbeResult) -> str | None:
    """Start what jobs start, and judge what it opens; return the plugin that RCCL opened in it."""
    command = command_of(static)
    if command is None:
        return None
    run = container.job(command)
    result.runs.append(run)
    judge_process_of_job(run, static, result.findings)
    opened = (event.get("path", "") for event in run.all("opened"))
    return next((path for path in opened if part_of(path) is Part.PLUGIN), None)


def _names_as_rccl_asks(static: StaticResult, path: FabricPath) -> list[str]:
    """Return what to give to dlopen: RCCL's own names, so that the container's loader searches as it would for RCCL.

    Only where RCCL's own RUNPATH finds the plugin must the path be given: the probe has no such RUNPATH.
    """
    if static.plugin_found_by in {FoundBy.RUNPATH, FoundBy.RPATH} and static.path.plugin:
        return [static.path.plugin]
    return list(path.plugin_files) or ([] if path.named_by is not None else [*PLUGIN_FILES])


def _is_absent(run: ProbeRun, name: str) -> bool:
    opened = run.first("dlopen") or {}
    return opened.get("ok") == "0" and opened.get("error", "").startswith(
        f"{name}: cannot open shared object file: No such"
    )


def _rccl_runs(run: ProbeRun, result: ProbeResult) -> bool:
    """Judge whether RCCL itself can be opened in the container; nothing else matters if it cannot."""
    opened = run.first("dlopen")
    if opened is not None and opened.get("ok") == "1" and run.first("signal") is None:
        result.findings.add(Code.RCCL_RUNS, Severity.OK, f"{result.path.rccl} was opened in the container")
        return True
    if opened is None and run.first("signal") is None and not run.timed_out and run.first("timeout") is None:
        what = f"RCCL could not be asked: the probe {ending(run)}"
        result.findings.add(Code.RCCL_PROBE, Severity.UNKNOWN, what, evidence=tail(run))
        return False
    if opened is not None and opened.get("ok") == "1":
        # It was opened, and died later: of the plugin that it opened, most likely, which the handshake shows.
        what = f"{result.path.rccl} was opened, and {ending(run)} afterwards"
        result.findings.add(Code.RCCL_RUNS, Severity.INFO, what)
        return True
    error = (opened or {}).get("error", "") or f"it {ending(run)}"
    what = f"{result.path.rccl} cannot be opened in the container"
    result.findings.add(Code.RCCL_LOAD, Severity.PROBLEM, what, evidence=(error,), where=result.path.rccl)
    return False


def _learn_version(run: ProbeRun, result: ProbeResult) -> Generation | None:
    """Fill in what the library's bytes did not tell: it says its version when it is asked."""
    code = (run.first("version") or {}).get("value", "")
    known = result.path.rccl_version
    if known is not None or not code.isdigit():
        return generation_of(known) if known else None
    version = version_of_code(int(code))
    generation = generation_of(version)
    result.path = replace(result.path, rccl_version=version)
    if generation is not None:
        result.path = replace(
            result.path,
            plugin_files=result.path.plugin_files or Rccl(version).names(result.path.named_by),
            accepts=result.path.accepts or generation.accepts,
        )
        what = f"RCCL says that it is {version}"
        result.findings.add(Code.RCCL_UNKNOWN, Severity.INFO, what, source=generation.basis)
    return generation


def _judge_rccl(run: ProbeRun, generation: Generation | None, in_job: str | None, result: ProbeResult) -> str | None:
    """Judge what RCCL did when it was asked for a unique id; return the plugin file that it opened, if it did.

    `in_job`: the plugin in the process of the job, whose search path a program of ours does not have.
    """
    plugin = run.mapped(Part.PLUGIN) or in_job
    lines = [line for line in run.output.splitlines() if _PLUGIN_LINE.search(line) and not NOISE.search(line)]
    proof = tuple(lines[-EVIDENCE_LINES:])
    version = result.path.rccl_version or "of this image"
    if plugin is not None:
        what = f"RCCL {version} opened {plugin}: it is mapped in its process"
        result.findings.add(Code.RCCL_OPENS_PLUGIN, Severity.OK, what, where=plugin, evidence=proof)
    elif generation is None or not generation.unique_id_loads_plugin:
        what = f"RCCL {version} looks for its plugin only with a GPU: without one, no plugin line means nothing"
        result.findings.add(Code.RCCL_SILENT, Severity.INFO, what, source=generation.basis if generation else None)
    elif run.first("uniqueid") is None:
        what = f"RCCL did not answer: it {ending(run)}"
        result.findings.add(Code.RCCL_PROBE, Severity.UNKNOWN, what, evidence=tail(run))
    elif not lines:
        what = "RCCL printed nothing about a plugin"
        result.findings.add(Code.RCCL_PROBE, Severity.UNKNOWN, what, evidence=tail(run))
    else:
        result.findings.add(
            Code.RCCL_NO_PLUGIN,
            Severity.PROBLEM,
            f"RCCL {version}, run in the container, took no plugin and uses its own transport",
            reason="old" if generation.since < Version("2.17") else None,
            evidence=proof,
        )
    return plugin


def _judge_handshake(
    run: ProbeRun,
    names: list[str],
    container: Container,
    static: StaticResult,
    result: ProbeResult,
    *,
    inconclusive: str | None,
) -> None:
    opened = run.first("dlopen")
    causes = log_of(run).causes
    if run.timed_out or run.first("timeout") is not None:
        during = (run.first("timeout") or {}).get("during", "its run")
        what = f"the plugin did not return from {during}"
        result.findings.add(Code.PLUGIN_HANG, Severity.PROBLEM, what, evidence=tail(run))
        return
    crashed = run.first("signal")
    if crashed is not None or _SIGNAL_BASE < run.exit_code <= _LAST_SIGNAL:
        number = (crashed or {}).get("number", str(run.exit_code - _SIGNAL_BASE))
        during = (crashed or {}).get("during", "handled")
        if during == "rccl":
            what = f"the process died of signal {number} while {result.path.rccl} was opened"
            result.findings.add(Code.RCCL_LOAD, Severity.PROBLEM, what, evidence=tail(run))
            return
        result.findings.add(
            Code.PLUGIN_CRASH,
            Severity.PROBLEM,
            f"the process died of signal {number} while the plugin was at {during}",
            reason="sigbus" if number == "7" else None,
            evidence=tail(run),
        )
        return
    if opened is None:
        what = f"the handshake did not run: it {ending(run)}"
        result.findings.add(Code.PLUGIN_HANDSHAKE, Severity.UNKNOWN, what, evidence=tail(run))
        return
    if opened.get("ok") != "1":
        _judge_failed_open(run, names, container, static, result, causes)
        return
    result.path = replace(
        result.path,
        plugin=opened.get("file") or opened.get("path"),
        libfabric=run.mapped(Part.LIBFABRIC),
        libcxi=run.mapped(Part.LIBCXI),
    )
    result.findings.add(Code.PLUGIN_LOADS, Severity.OK, f"{result.path.plugin} was opened, with all its libraries")
    _list_libraries(container, static, result)
    _judge_stages(run, result, causes, inconclusive=inconclusive)


def _list_libraries(container: Container, static: StaticResult, result: ProbeResult) -> None:
    """Ask the image's own ld.so for the plugin's libraries: which file each name is."""
    if static.loader is None or result.path.plugin is None:
        return
    run = container.list_libraries(static.loader, result.path.plugin)
    result.runs.append(run)
    listed = [line.strip() for line in run.output.splitlines() if " => /" in line]
    if listed:
        fabric = tuple(line for line in listed if re.match(r"lib(fabric|cxi|amdhip64|hsa-runtime64)\.so", line))
        what = f"ld.so of the image finds all {len(listed)} libraries of the plugin"
        result.findings.add(Code.LOADER_LISTS, Severity.INFO, what, evidence=fabric[:EVIDENCE_LINES])


def _judge_failed_open(
    run: ProbeRun,
    names: list[str],
    container: Container,
    static: StaticResult,
    result: ProbeResult,
    causes: tuple[Cause, ...],
) -> None:
    opened = run.first("dlopen") or {}
    path, error = opened.get("path", "the plugin"), opened.get("error", "")
    if _is_absent(run, path) and static.path.plugin is None:
        if not any(finding.id.family is Family.PLUGIN for finding in static.findings):
            what = f"no net plugin: nothing called {' or '.join(names)} is on the loader's path"
            result.findings.add(Code.PLUGIN_ABSENT, Severity.PROBLEM, what, evidence=(error,))
        return  # else the files say more: another name, another folder, or nothing at all
    evidence = [error]
    file = opened.get("file") or static.path.plugin or path
    if static.loader is not None and "/" in file:
        listing = container.list_libraries(static.loader, file)
        result.runs.append(listing)
        evidence += [line.strip() for line in listing.output.splitlines() if _LOADER_COMPLAINT.search(line)]
    what = f"{file} cannot be opened in the container"
    told = explained(causes, evidence=dict.fromkeys(evidence))
    result.findings.add(Code.PLUGIN_LOADS, Severity.PROBLEM, what, **told)


def _judge_stages(run: ProbeRun, result: ProbeResult, causes: tuple[Cause, ...], *, inconclusive: str | None) -> None:
    none = run.first("none")
    if none is not None:
        what = f"the plugin exports net API {none.get('exported') or 'none'}; this RCCL takes {none.get('accepted')}"
        result.findings.add(Code.PLUGIN_API, Severity.PROBLEM, what, reason="refused")
        return
    using = run.first("using")
    if using is not None and using.get("version", "").isdigit():
        result.path = replace(result.path, plugin_api=int(using["version"]))
    provider = log_of(run).provider
    result.path = replace(result.path, provider=provider)
    failed = _STAGES.get(run.exit_code)
    lines = tuple(values["text"] for values in run.all("log") if "text" in values)
    warnings = tuple(line for line in run.output.splitlines() if line.startswith("libfabric:"))
    evidence = (*lines, *warnings)[-EVIDENCE_LINES:]
    if failed is not None:
        stage, code = failed
        severity = Severity.UNKNOWN if inconclusive else Severity.PROBLEM
        what = f"the plugin failed at {stage}{f', which proves nothing here: {inconclusive}' if inconclusive else ''}"
        told = explained(() if inconclusive else causes, evidence=evidence)
        result.findings.add(code, severity, what, **told)
    elif not _listens(run):
        what = f"the handshake {ending(run)} without having listened on every device"
        result.findings.add(Code.PLUGIN_HANDSHAKE, Severity.UNKNOWN, what, evidence=tail(run))
    elif provider == "cxi":
        what = f"the plugin selected the provider cxi and listens on {len(run.all('listen'))} NIC(s)"
        lines = tuple(line for line in evidence if "rovider" in line) or evidence[:2]
        result.findings.add(Code.PROVIDER_CXI, Severity.OK, what, evidence=lines)
    elif provider is not None:
        severity = Severity.UNKNOWN if inconclusive else Severity.PROBLEM
        what = f"the plugin works, but selected the provider {provider}, which is TCP and not Slingshot"
        result.findings.add(
            Code.PROVIDER_OTHER,
            severity,
            f"{what}; that proves nothing here: {inconclusive}" if inconclusive else what,
            **explained(
                () if inconclusive else causes,
                evidence=[line for line in lines if "rovider is" in line][-2:],
            ),
        )
    else:
        what = "the plugin works, and does not say which provider it selected"
        result.findings.add(Code.PROVIDER_UNNAMED, Severity.UNKNOWN, what, evidence=evidence)


def _listens(run: ProbeRun) -> bool:
    """Whether the handshake came to its end, with every device listening."""
    end, listens = run.first("end") or {}, run.all("listen")
    whole = run.exit_code == 0 and end.get("stage") == "listen" and end.get("code") == "0"
    return whole and bool(listens) and all(values.get("rc") == "0" for values in listens)
