"""A simulation, for those who ask for it: RCCL on a stand-in for HIP, as far as the network that it takes.

RCCL from 2.22 on (ROCm 6.4) looks for its plugin only when it has a GPU, so without one nothing else can show which
plugin it takes. RCCL, the loader, the plugin and libfabric are the image's own; only the few answers of HIP that RCCL
needs before it chooses a network are made up (`layers/netprobe/rcclsim.c`). What is found is worth less than a run:
every finding says SIMULATION, and none makes an answer green.
"""

from __future__ import annotations

import re

from lumiimg.check.probe.container import EVIDENCE_LINES, NOISE, ProbeRun, explained
from lumiimg.check.registry import Findings
from lumiimg.core.findings import Level, Severity
from lumiimg.fabric.path import Part
from lumiimg.joblog import vocabulary

DONE = "done, and a simulation (a stand-in for HIP) beside it: findings called `simulated`"
_NETWORK = re.compile(r"Using network (\S.*)")
_STARTED = re.compile(r"Initialized NET plugin (\S.*)")
_GIVES_UP = re.compile(r"Failed to initialize any NET plugin|network .+ not found")
_TELLING = re.compile(rf"NET/Plugin|NET/OFI|external plugin|{_NETWORK.pattern}|{_GIVES_UP.pattern}")
# Of RCCL about a plugin whose API it takes, and of the plugin's own init.
_TAKEN = re.compile(r"Loaded net plugin|NET/OFI")


def judge(run: ProbeRun, version: str | None, probed: str | None, *, inconclusive: str | None) -> Findings:
    """Return what the simulation shows of this RCCL.

    `probed`: the plugin's file that the handshake had mapped. `inconclusive`: why a plugin whose init fails here proves
    nothing; it does not cover one that RCCL does not find, cannot load, or whose API it does not take, as that needs
    no NIC.
    """
    found = Findings(Level.PROBE)
    rccl = f"SIMULATION, with a stand-in for HIP: RCCL {version or 'of this image'}"
    lines = [line for line in run.output.splitlines() if _TELLING.search(line) and not NOISE.search(line)]
    shown = tuple(lines[-EVIDENCE_LINES:])
    chosen = [match[1] for match in map(_NETWORK.search, lines) if match]
    taken = any(_TAKEN.search(line) for line in lines)
    report = run.read_log()
    if chosen and not _is_built_in(chosen[-1]):
        plugin = run.mapped(Part.PLUGIN)
        what = f"{rccl} takes {plugin or 'a plugin'} and says `Using network {chosen[-1]}`"
        if plugin and probed and plugin != probed:
            what += f"; everything else here about a plugin is about {probed}"
            found.add("simulated.network", Severity.UNKNOWN, what, where=plugin, evidence=shown)
        else:
            what += f", on the provider {report.provider}" if report.provider else ""
            found.add("simulated.network", Severity.OK, what, where=plugin, evidence=shown)
    elif not chosen and not any(_GIVES_UP.search(line) for line in lines):
        what = f"{rccl} did not get as far as its network: it {run.ending}, which may be due to the stand-in"
        found.add("simulated.network", Severity.UNKNOWN, what, evidence=run.tail)
    else:
        goes_on = f"goes on with {chosen[-1]}" if chosen else "gives up"
        started = any(match and not _is_built_in(match[1]) for match in map(_STARTED.search, run.output.splitlines()))
        if taken and inconclusive and not started:
            what = f"{rccl} opens the plugin, whose init fails here, and {goes_on}; that proves nothing: {inconclusive}"
            found.add("simulated.network", Severity.UNKNOWN, what, evidence=shown)
        else:
            does = (
                "starts the plugin" if started else "opens the plugin, whose init fails" if taken else "takes no plugin"
            )
            what = f"{rccl} {does}, and {goes_on}"
            found.add("simulated.network", Severity.PROBLEM, what, **explained(report.causes, evidence=lines))
    return found


def _is_built_in(network: str) -> bool:
    return vocabulary().family(network) in {"socket", "ib"}
