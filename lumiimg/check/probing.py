"""From what the probes did to findings: each with the line that proves it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from packaging.version import Version

from lumiimg.findings import Details, Findings, Level, Severity
from lumiimg.nccl.reader import LogReader
from lumiimg.resolve.rccl import generation_of, version_of_code

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lumiimg.check.answer import FabricPath
    from lumiimg.check.probes import Container, ProbeRun
    from lumiimg.check.static import StaticResult
    from lumiimg.nccl.report import Cause
    from lumiimg.resolve.rccl import Generation

_PLUGIN_FILE = r"/lib[nr]ccl-net[^/]*\.so[^/]*$"
# What RCCL says of the plugin when it opens it; the wording is that of every generation (NET/Plugin lines).
_PLUGIN_LINE = re.compile(r"NET/Plugin")
_NOISE = re.compile(r"CollNet|TUNER/|PROFILER/")
_LOADER_COMPLAINT = re.compile(r"^(?!INFO|WARNING).*(not found|error while loading|cannot open)")
EXIT_STAGES = {12: "init", 13: "devices", 14: "properties", 15: "listen"}
"""Exit codes of the handshake, and where it stopped."""
_SIGNAL_BASE = 128
_EVIDENCE_LINES = 6


@dataclass(slots=True)
class ProbeResult:
    """What the probes saw."""

    path: FabricPath
    runs: list[ProbeRun] = field(default_factory=list)
    findings: Findings = field(default_factory=lambda: Findings(Level.PROBE))


def probe(container: Container, static: StaticResult, *, has_cxi_device: bool) -> ProbeResult:
    """Run the probes that can answer, and judge what they did.

    `has_cxi_device`: whether this machine has a Slingshot NIC, without which another provider than cxi proves nothing.

    Raises MissingHereError if no container starts.
    """
    result = ProbeResult(static.path)
    if static.path.rccl is None:
        return result
    run = container.rccl_probe(static.path.rccl)
    result.runs.append(run)
    generation = _learn_version(run, static, result)
    plugin = _judge_rccl(run, generation, result) or static.path.plugin
    wanted = (*result.path.plugin_files, "librccl-net.so")[0]
    run = container.handshake(plugin or wanted, rccl=static.path.rccl, accepts=result.path.accepts)
    result.runs.append(run)
    _judge_handshake(run, container, static, result, has_cxi_device=has_cxi_device)
    return result


def _learn_version(run: ProbeRun, static: StaticResult, result: ProbeResult) -> Generation | None:
    """Fill in what the library's bytes did not tell: it says its version when it is asked."""
    code = (run.first("version") or {}).get("value", "")
    if result.path.rccl_version is not None or not code.isdigit():
        return static.generation
    version = version_of_code(int(code))
    generation = generation_of(version)
    result.path = replace(result.path, rccl_version=version)
    if generation is not None:
        result.path = replace(
            result.path,
            plugin_files=result.path.plugin_files or generation.files,
            accepts=result.path.accepts or generation.accepts,
        )
        result.findings.add("rccl.unknown", Severity.INFO, f"RCCL says that it is {version}", source=generation.basis)
    return generation


def _judge_rccl(run: ProbeRun, generation: Generation | None, result: ProbeResult) -> str | None:
    """Judge what RCCL did when it was asked for a unique id; return the plugin file that it opened, if it did."""
    plugin = run.mapped(_PLUGIN_FILE)
    lines = [line for line in run.output.splitlines() if _PLUGIN_LINE.search(line) and not _NOISE.search(line)]
    proof = tuple(lines[-_EVIDENCE_LINES:])
    version = result.path.rccl_version or "of this image"
    if plugin is not None:
        what = f"RCCL {version} opened {plugin}: it is mapped in its process"
        result.findings.add("rccl.opens-plugin", Severity.OK, what, where=plugin, evidence=proof)
    elif generation is None or not generation.unique_id_loads_plugin:
        result.findings.add(
            "rccl.silent",
            Severity.INFO,
            f"RCCL {version} looks for its plugin only when it has a GPU: its silence here means nothing",
            source=generation.basis if generation else None,
        )
    elif run.first("uniqueid") is None:
        what = f"RCCL could not be asked: {_ending(run)}"
        result.findings.add("rccl.probe", Severity.UNKNOWN, what, evidence=_tail(run))
    elif not lines:
        result.findings.add("rccl.probe", Severity.UNKNOWN, "RCCL said nothing of a plugin", evidence=_tail(run))
    else:
        result.findings.add(
            "rccl.no-plugin",
            Severity.PROBLEM,
            f"RCCL {version}, run in the container, took no plugin and goes on with its own transport",
            evidence=proof,
            cause="RCCL prints this line for a plugin that is absent, and for one that cannot be loaded"
            if generation.since < Version("2.17")
            else None,
            source="run of ncclGetUniqueId with NCCL_DEBUG=INFO",
        )
    return plugin


def _judge_handshake(
    run: ProbeRun, container: Container, static: StaticResult, result: ProbeResult, *, has_cxi_device: bool
) -> None:
    opened = run.first("dlopen")
    causes = _known_causes(run)
    crashed = run.first("signal")
    if crashed is not None or run.exit_code >= _SIGNAL_BASE:
        number = (crashed or {}).get("number", str(run.exit_code - _SIGNAL_BASE))
        result.findings.add(
            "plugin.loads" if opened is None else "plugin.init",
            Severity.PROBLEM,
            f"the process died of signal {number} while the plugin was handled",
            evidence=_tail(run),
            cause="a file that is shorter than its own header says (a broken copy) dies of SIGBUS (7)"
            if number == "7"
            else None,
            remedy=("copy or build the plugin and its libraries again, and compare their checksums",),
        )
        return
    if run.timed_out or run.first("timeout") is not None:
        during = (run.first("timeout") or {}).get("during", "its run")
        result.findings.add(
            "plugin.init", Severity.PROBLEM, f"the plugin did not come back from {during}", evidence=_tail(run)
        )
        return
    if opened is None:
        result.findings.add(
            "plugin.handshake", Severity.UNKNOWN, f"the handshake did not run: {_ending(run)}", evidence=_tail(run)
        )
        return
    if opened.get("ok") != "1":
        _judge_failed_open(opened, container, static, result, causes)
        return
    result.path = replace(result.path, plugin=opened.get("file") or opened.get("path"))
    libfabric, libcxi = run.mapped(r"/libfabric\.so"), run.mapped(r"/libcxi\.so")
    result.path = replace(result.path, libfabric=libfabric, libcxi=libcxi)
    result.findings.add("plugin.loads", Severity.OK, f"{result.path.plugin} was opened, with all its libraries")
    _judge_stages(run, result, causes, has_cxi_device=has_cxi_device)


def _judge_failed_open(
    opened: Mapping[str, str],
    container: Container,
    static: StaticResult,
    result: ProbeResult,
    causes: tuple[Cause, ...],
) -> None:
    path, error = opened.get("path", "the plugin"), opened.get("error", "")
    absent = error.startswith(f"{path}: cannot open shared object file: No such file") and static.path.plugin is None
    evidence = [error]
    if not absent and static.loader is not None and "/" in path:
        listing = container.list_libraries(static.loader, path)
        result.runs.append(listing)
        evidence += [line.strip() for line in listing.output.splitlines() if _LOADER_COMPLAINT.search(line)]
    if absent and any(finding.id.startswith("plugin.") for finding in static.findings.found):
        return  # the files say more: another name, another folder, or nothing at all
    result.findings.add(
        "plugin.absent" if absent else "plugin.loads",
        Severity.PROBLEM,
        f"{path} cannot be opened in the container" if not absent else f"no {path} on the loader's path",
        **_explained(causes, evidence=dict.fromkeys(evidence)),
    )


def _judge_stages(run: ProbeRun, result: ProbeResult, causes: tuple[Cause, ...], *, has_cxi_device: bool) -> None:
    none = run.first("none")
    if none is not None:
        result.findings.add(
            "plugin.api",
            Severity.PROBLEM,
            f"the plugin exports net API {none.get('exported') or 'none'}, this RCCL takes {none.get('accepted')}",
            remedy=("use aws-ofi-nccl 1.18 or newer: `lumiimg build … --add aws-ofi-nccl`",),
        )
        return
    using = run.first("using")
    if using is not None and using.get("version", "").isdigit():
        result.path = replace(result.path, plugin_api=int(using["version"]))
    provider = _provider(run)
    result.path = replace(result.path, provider=provider)
    stage = EXIT_STAGES.get(run.exit_code)
    lines = tuple(values["text"] for values in run.all("log") if "text" in values)
    warnings = tuple(line for line in run.output.splitlines() if line.startswith("libfabric:"))
    evidence = (*lines, *warnings)[-_EVIDENCE_LINES:]
    if stage is not None:
        severity = Severity.PROBLEM if has_cxi_device else Severity.UNKNOWN
        place = "" if has_cxi_device else "; this machine has no Slingshot NIC (/dev/cxi*), so it could not"
        result.findings.add(
            f"plugin.{stage}",
            severity,
            f"the plugin failed at {stage}{place}",
            **_explained(causes, evidence=evidence, otherwise="run the check on a node with Slingshot, in a job step"),
        )
    elif provider == "cxi":
        result.findings.add(
            "provider.cxi",
            Severity.OK,
            "the plugin selected the provider cxi and listens on the NIC",
            evidence=tuple(line for line in evidence if "rovider" in line) or evidence[:2],
        )
    elif provider is not None:
        severity = Severity.PROBLEM if has_cxi_device else Severity.UNKNOWN
        result.findings.add(
            "provider.other",
            severity,
            f"the plugin works, but selected the provider {provider}, which is TCP and not Slingshot"
            + ("" if has_cxi_device else "; this machine has no Slingshot NIC (/dev/cxi*), so that proves nothing"),
            **_explained(
                causes if has_cxi_device else (),
                evidence=[line for line in lines if "rovider is" in line][-2:],
                otherwise="run the check on a node with Slingshot: `srun … lumiimg check IMAGE`",
            ),
        )
    else:
        result.findings.add(
            "provider.unnamed",
            Severity.UNKNOWN,
            "the plugin works, and does not say which provider it selected",
            evidence=evidence,
        )


def _provider(run: ProbeRun) -> str | None:
    """Return libfabric's provider as the plugin's own log names it."""
    for values in run.all("log"):
        if match := re.search(r"Selected [Pp]rovider is ([\w;.-]+)", values.get("text", "")):
            return match[1]
    return None


def _known_causes(run: ProbeRun) -> tuple[Cause, ...]:
    reader = LogReader()
    for number, line in enumerate(run.output.splitlines(), start=1):
        reader.feed(run.name, number, line)
    return reader.report().causes


def _explained(causes: tuple[Cause, ...], *, evidence: Iterable[str], otherwise: str | None = None) -> Details:
    """Return evidence, cause and remedy: of the first cause that the knowledge base has, else what helps in general."""
    lines = tuple(evidence)[-_EVIDENCE_LINES:]
    remedy = (otherwise,) if otherwise else ()
    if not causes:
        return {"evidence": lines, "remedy": remedy}
    first = causes[0]
    return {"evidence": lines, "cause": first.summary, "remedy": first.remedy or remedy, "source": first.source}


def _ending(run: ProbeRun) -> str:
    return "it ran out of time" if run.timed_out else f"it ended with {run.exit_code}"


def _tail(run: ProbeRun) -> tuple[str, ...]:
    lines = [line for line in run.output.splitlines() if line.strip() and not line.startswith("@probe mapped")]
    return tuple(lines[-_EVIDENCE_LINES:])
