"""Findings from what the probes did, each with the line that proves it."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from packaging.version import Version

from lumiimg.catalog.settings import user_cache
from lumiimg.check.probe.container import EVIDENCE_LINES, NOISE, Container, ProbeRun, cause_details
from lumiimg.check.probe.process import SeenProcess, command_of, judge_process_of_job
from lumiimg.check.registry import FindingDetails, Findings
from lumiimg.core.errors import LumiimgError
from lumiimg.core.findings import Level, Severity
from lumiimg.core.text import count
from lumiimg.elf import FoundBy
from lumiimg.fabric.path import PLUGIN_FILES, FabricPath, Part, part_of
from lumiimg.fabric.rccl import PLUGIN_VARIABLE, Generation, Rccl, generation_of, read_rccl, version_of_code
from lumiimg.image import open_image
from lumiimg.joblog import vocabulary

if TYPE_CHECKING:
    from pathlib import Path

    from lumiimg.check.static.process import StaticResult

# What RCCL prints about the plugin when it opens it; all generations use this wording (NET/Plugin lines).
_PLUGIN_LINE = re.compile(r"NET/Plugin")
_LOADER_COMPLAINT = re.compile(r"^(?!INFO|WARNING).*(not found|error while loading|cannot open)")
_STAGES = {12: "plugin.init", 13: "plugin.devices", 14: "plugin.properties", 15: "plugin.listen"}
"""What failed, by the exit code of the handshake."""
_SIGNAL_BASE = 128
_LAST_SIGNAL = 192


@dataclass(slots=True)
class ProbeResult:
    """Results of the probes."""

    path: FabricPath
    runs: list[ProbeRun] = field(default_factory=list)
    seen: SeenProcess | None = None
    """The process of a job; None if it did not reach its RCCL, or none is known."""
    findings: Findings = field(default_factory=lambda: Findings(Level.PROBE))

    @property
    def loaded_rccl(self) -> str | None:
        """The version that RCCL itself reports in the container, where a bind may have replaced the image's."""
        code = next((code for run in self.runs if (code := run.number("version", "value"))), None)
        return version_of_code(code) if code is not None else self.path.rccl_version

    @property
    def plugin_version(self) -> str | None:
        """The version that the plugin reports."""
        return next((plugin.version for run in self.runs if (plugin := run.read_log().plugin)), None)


def probe(container: Container, static: StaticResult, *, inconclusive: str | None) -> ProbeResult:
    """Run the probes that can answer, and judge what they did.

    `inconclusive`: why a plugin that fails, or selects another provider than cxi, proves nothing here; None if it does.

    Raises MissingHereError if no container starts.
    """
    result = ProbeResult(static.path)
    in_job = _ask_job(container, static, result)
    if result.seen is not None:
        container = replace(container, variables=result.seen.variables_to_pass)
    if result.path.rccl is not None and container.programs.folder:
        _Probes(container, static, inconclusive, result).take(result.path.rccl, in_job)
    return result


def _ask_job(container: Container, static: StaticResult, result: ProbeResult) -> str | None:
    """Start the process of a job, judge what it opens, and return the plugin that RCCL opened in it.

    If its RCCL, or the name of its plugin, is not as the files predict, the path continues with what it has.
    """
    command = command_of(static)
    if command is None:
        return None
    run = container.run("job", command)
    result.runs.append(run)
    seen = result.seen = judge_process_of_job(run, static, result.findings)
    if seen is not None:
        named = dict(seen.variables).get(PLUGIN_VARIABLE)
        if seen.rccl not in {None, static.path.rccl, *static.opened}:
            result.path = _path_of(container.image, str(seen.rccl), named)
        elif named not in {None, static.path.named_by}:
            files = Rccl(static.path.rccl_version).names(named)
            result.path = replace(static.path, named_by=named, plugin_files=files)
    opened = (event.get("path", "") for event in run.all("opened"))
    return next((path for path in opened if part_of(path) is Part.PLUGIN), None)


def _path_of(image: Path, rccl: str, named: str | None) -> FabricPath:
    """Return the path of an RCCL so far; if the image does not have it, RCCL itself is asked later."""
    with contextlib.suppress(LumiimgError, OSError), open_image(image, user_cache) as opened:
        with contextlib.closing(opened.root.open(rccl)) as file:
            library = read_rccl(file)
        return FabricPath(rccl, library.version, library.names(named), named, library.accepts)
    return FabricPath(rccl=rccl, named_by=named)


@dataclass(frozen=True, slots=True)
class _Probes:
    """The probes of an RCCL, each chosen by the result of the one before it."""

    container: Container
    static: StaticResult
    inconclusive: str | None
    result: ProbeResult

    def take(self, rccl: str, in_job: str | None) -> None:
        run = self._ran(self.container.rccl_probe(rccl))
        if not self._rccl_runs(run, rccl):
            return
        generation = self._learn_version(run)
        plugin = self._judge_rccl(run, generation, in_job)
        names = [plugin] if plugin else self._names_as_rccl_asks()
        if not names:
            return  # the variable keeps RCCL from any plugin, or what it asks for is not known
        for name in names:
            run = self._ran(self.container.handshake(name, rccl=rccl, accepts=self.result.path.accepts))
            if not _is_absent(run, name):
                break
        self._judge_handshake(run, names)

    def _ran(self, run: ProbeRun) -> ProbeRun:
        self.result.runs.append(run)
        return run

    @property
    def _plugin_of_files(self) -> str | None:
        """The plugin that the files predict, if this RCCL looks for the same names."""
        path = self.static.path
        return path.plugin if path.plugin_files == self.result.path.plugin_files else None

    def _names_as_rccl_asks(self) -> list[str]:
        """Return what to give to dlopen: RCCL's own names, so that the container's loader searches as it would for it.

        A path is needed only if RCCL's own RUNPATH finds the plugin: the probe has no such RUNPATH.
        """
        plugin, path = self._plugin_of_files, self.result.path
        if self.static.plugin_found_by in {FoundBy.RUNPATH, FoundBy.RPATH} and plugin:
            return [plugin]
        return list(path.plugin_files) or ([] if path.named_by is not None else [*PLUGIN_FILES])

    def _rccl_runs(self, run: ProbeRun, rccl: str) -> bool:
        """Judge whether RCCL itself can be opened in the container; nothing else matters if it cannot."""
        found, is_open = self.result.findings, run.first("dlopen").get("ok") == "1"
        names = {"rccl": rccl, "ending": run.ending}
        if is_open and not run.has("signal"):
            found.add("rccl.runs", Severity.OK, names=names)
        elif is_open:
            # It was opened, and died later: most likely because of the plugin that it opened; the handshake shows that.
            found.add("rccl.runs", Severity.INFO, reason="died", names=names)
        elif not run.has("dlopen") and not run.has("signal") and not run.is_hung:
            found.add("rccl.probe", Severity.UNKNOWN, reason="not-asked", names=names, evidence=run.tail)
        else:
            error = run.first("dlopen").get("error") or f"it {run.ending}"
            found.add("rccl.load", Severity.PROBLEM, reason="in-container", where=rccl, evidence=(error,))
        return is_open

    def _learn_version(self, run: ProbeRun) -> Generation | None:
        """Fill in the version that the library itself reports, if its bytes do not show one."""
        code, path = run.number("version", "value"), self.result.path
        known = path.rccl_version
        if known is not None or code is None:
            return generation_of(known) if known else None
        version = version_of_code(code)
        generation = generation_of(version)
        self.result.path = path = replace(path, rccl_version=version)
        if generation is not None:
            files = path.plugin_files or Rccl(version).names(path.named_by)
            self.result.path = replace(path, plugin_files=files, accepts=path.accepts or generation.accepts)
            names = {"version": version}
            self.result.findings.add("rccl.unknown", Severity.INFO, reason="said", names=names, source=generation.basis)
        return generation

    def _judge_rccl(self, run: ProbeRun, generation: Generation | None, in_job: str | None) -> str | None:
        """Judge what RCCL did when it was asked for a unique id; return the plugin file that it opened, if any.

        `in_job`: the plugin in the process of the job, whose search path our own program does not have.
        """
        found, plugin = self.result.findings, run.mapped(Part.PLUGIN) or in_job
        lines = [line for line in run.output.splitlines() if _PLUGIN_LINE.search(line) and not NOISE.search(line)]
        proof = tuple(lines[-EVIDENCE_LINES:])
        names = {"version": self.result.path.rccl_version or "of this image", "ending": run.ending}
        if plugin is not None:
            found.add("rccl.opens-plugin", Severity.OK, names=names, where=plugin, evidence=proof)
        elif generation is None or not generation.unique_id_loads_plugin:
            found.add("rccl.silent", Severity.INFO, names=names, source=generation.basis if generation else None)
        elif not run.has("uniqueid"):
            found.add("rccl.probe", Severity.UNKNOWN, reason="no-answer", names=names, evidence=run.tail)
        elif not lines:
            found.add("rccl.probe", Severity.UNKNOWN, reason="no-line", evidence=run.tail)
        else:
            reason = "old" if generation.since < Version("2.17") else None
            found.add("rccl.no-plugin", Severity.PROBLEM, reason=reason, names=names, evidence=proof)
        return plugin

    def _judge_handshake(self, run: ProbeRun, names: list[str]) -> None:
        found, opened = self.result.findings, run.first("dlopen")
        if run.is_hung:
            at = {"during": run.first("timeout").get("during", "its run")}
            found.add("plugin.hang", Severity.PROBLEM, names=at, evidence=run.tail)
        elif run.has("signal") or _SIGNAL_BASE < run.exit_code <= _LAST_SIGNAL:
            at = {"number": str(run.exit_code - _SIGNAL_BASE), "during": "work", **run.first("signal")}
            if at["during"] == "rccl":
                at["rccl"] = str(self.result.path.rccl)
                found.add("rccl.load", Severity.PROBLEM, reason="crash", names=at, evidence=run.tail)
            else:
                reason = "sigbus" if at["number"] == "7" else None
                found.add("plugin.crash", Severity.PROBLEM, reason=reason, names=at, evidence=run.tail)
        elif not run.has("dlopen"):
            found.add("plugin.handshake", Severity.UNKNOWN, names={"ending": run.ending}, evidence=run.tail)
        elif opened.get("ok") != "1":
            self._judge_failed_open(run, names)
        else:
            plugin = opened.get("file") or opened.get("path")
            libfabric, libcxi = run.mapped(Part.LIBFABRIC), run.mapped(Part.LIBCXI)
            self.result.path = replace(self.result.path, plugin=plugin, libfabric=libfabric, libcxi=libcxi)
            found.add("plugin.loads", Severity.OK, reason="opened", names={"plugin": str(plugin)})
            if plugin is not None:
                self._judge_libraries(plugin)
            self._judge_stages(run)

    def _list_libraries(self, library: str) -> list[str]:
        """Ask the image's own ld.so which file it finds for each name that a library needs."""
        if self.static.loader is None:
            return []
        run = self._ran(self.container.run("ld.so", [self.static.loader, "--list", library]))
        return [line.strip() for line in run.output.splitlines()]

    def _judge_libraries(self, plugin: str) -> None:
        listed = [line for line in self._list_libraries(plugin) if " => /" in line]
        if listed:
            fabric = [line for line in listed if re.match(r"lib(fabric|cxi|amdhip64|hsa-runtime64)\.so", line)]
            names, evidence = {"libraries": count(len(listed), "library")}, tuple(fabric[:EVIDENCE_LINES])
            self.result.findings.add("loader.lists", Severity.INFO, names=names, evidence=evidence)

    def _judge_failed_open(self, run: ProbeRun, names: list[str]) -> None:
        found, opened = self.result.findings, run.first("dlopen")
        path, error = opened.get("path", "the plugin"), opened.get("error", "")
        if _is_absent(run, path) and self._plugin_of_files is None:
            if not any(finding.family == "plugin" for finding in self.static.findings):
                asked = {"names": " or ".join(names)}
                found.add("plugin.absent", Severity.PROBLEM, reason="in-container", names=asked, evidence=(error,))
            return  # else the findings about files say more: another name, another folder, or nothing at all
        file = opened.get("file") or self._plugin_of_files or path
        complaints = filter(_LOADER_COMPLAINT.search, self._list_libraries(file) if "/" in file else ())
        details = cause_details(run.read_log().causes, evidence=(error, *complaints))
        found.add("plugin.loads", Severity.PROBLEM, reason="in-container", names={"file": file}, **details)

    def _judge_stages(self, run: ProbeRun) -> None:
        found, log, nothing = self.result.findings, run.read_log(), self.inconclusive
        if run.has("none"):
            of = {"exported": "none", "version": self.result.path.rccl_version or "of this image"}
            of |= {key: value for key, value in run.first("none").items() if value}
            found.add("plugin.api", Severity.PROBLEM, reason="refused", names=of)
            return
        api, provider = run.number("using", "version") or self.result.path.plugin_api, log.provider
        self.result.path = replace(self.result.path, plugin_api=api, provider=provider)
        severity, causes = (Severity.UNKNOWN, ()) if nothing else (Severity.PROBLEM, log.causes)
        lines = [values["text"] for values in run.all("log") if "text" in values]
        warnings = [line for line in run.output.splitlines() if line.startswith("libfabric:")]
        evidence = (*lines, *warnings)[-EVIDENCE_LINES:]
        names = {"here": f"; that proves nothing here: {nothing}" if nothing else "", "ending": run.ending}
        if run.exit_code in _STAGES:
            found.add(_STAGES[run.exit_code], severity, names=names, **cause_details(causes, evidence=evidence))
        elif not _listens(run):
            found.add("plugin.handshake", Severity.UNKNOWN, reason="not-whole", names=names, evidence=run.tail)
        elif provider == "cxi":
            names["nics"] = count(len(run.all("listen")), "NIC")
            named = tuple(line for line in evidence if "rovider" in line)
            found.add("provider.cxi", Severity.OK, names=names, evidence=named or evidence[:2])
        elif provider is not None:
            names["provider"] = provider
            selected = [line for line in lines if "rovider is" in line][-2:]
            found.add("provider.other", severity, names=names, **cause_details(causes, evidence=selected))
        else:
            found.add("provider.unnamed", Severity.UNKNOWN, evidence=evidence)


def _is_absent(run: ProbeRun, name: str) -> bool:
    opened = run.first("dlopen")
    missing = f"{name}: cannot open shared object file: No such"
    return opened.get("ok") == "0" and opened.get("error", "").startswith(missing)


def _listens(run: ProbeRun) -> bool:
    """Return whether the handshake completed, with every device listening."""
    end, listens = run.first("end"), run.all("listen")
    whole = run.exit_code == 0 and end.get("stage") == "listen" and end.get("code") == "0"
    return whole and bool(listens) and all(values.get("rc") == "0" for values in listens)


# -- a simulation, for those who request it: RCCL on a stand-in for HIP, up to its choice of a network --
#
# RCCL from 2.22 on looks for its plugin only if it has a GPU. The few results of HIP that it needs before that are
# made up (`layers/netprobe/rcclsim.c`): every finding says SIMULATION, and none makes an answer green.

SIMULATED = "done, plus a simulation (a stand-in for HIP): see the findings marked `simulated`"
_NETWORK = re.compile(r"Using network (\S.*)")
_STARTED = re.compile(r"Initialized NET plugin (\S.*)")
_GIVES_UP = re.compile(r"Failed to initialize any NET plugin|network .+ not found")
_TELLING = re.compile(rf"NET/Plugin|NET/OFI|external plugin|{_NETWORK.pattern}|{_GIVES_UP.pattern}")
# RCCL's line about a plugin whose API it takes, and a line of the plugin's own init.
_TAKEN = re.compile(r"Loaded net plugin|NET/OFI")


def judge_simulation(run: ProbeRun, version: str | None, probed: str | None, *, inconclusive: str | None) -> Findings:
    """Return what the simulation shows about this RCCL.

    `probed`: the plugin's file that the handshake mapped. `inconclusive`: why a plugin whose init fails here proves
    nothing; it does not apply if RCCL does not find the plugin, cannot load it, or refuses its API: that needs no NIC.
    """
    found, log, plugin = Findings(Level.PROBE), run.read_log(), run.mapped(Part.PLUGIN)
    lines = [line for line in run.output.splitlines() if _TELLING.search(line) and not NOISE.search(line)]
    chosen = next((match[1] for match in map(_NETWORK.search, reversed(lines)) if match), None)
    started = any(match and not _is_built_in(match[1]) for match in map(_STARTED.search, run.output.splitlines()))
    taken = any(_TAKEN.search(line) for line in lines)
    names = {
        "version": version or "of this image",
        "plugin": plugin or "a plugin",
        "probed": probed or "",
        "network": chosen or "",
        "provider": f", on the provider {log.provider}" if log.provider else "",
        "ending": run.ending,
        "then": f"continues with {chosen}" if chosen else "gives up",
        "nothing": inconclusive or "",
    }
    shown, is_own = lines[-EVIDENCE_LINES:], chosen is not None and not _is_built_in(chosen)
    severity, details = Severity.UNKNOWN, FindingDetails(evidence=shown)
    if is_own and plugin and probed and plugin != probed:
        reason, details["where"] = "other-plugin", plugin
    elif is_own:
        found.add("simulated.network", Severity.OK, reason="takes", names=names, where=plugin, evidence=shown)
        return found
    elif chosen is None and not any(_GIVES_UP.search(line) for line in lines):
        reason, details["evidence"] = "not-so-far", run.tail
    elif taken and inconclusive and not started:
        reason = "fails-here"
    else:
        severity, reason = Severity.PROBLEM, "starts" if started else "fails" if taken else "takes-none"
        details = cause_details(log.causes, evidence=lines)
    found.add("simulated.network", severity, reason=reason, names=names, **details)
    return found


def _is_built_in(network: str) -> bool:
    return vocabulary().family(network) in {"socket", "ib"}
