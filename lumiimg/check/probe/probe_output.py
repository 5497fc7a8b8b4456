"""What findings about a run have in common: the lines that are shown, how it ended, the cause that its log names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lumiimg.nccl.reader import read_lines

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lumiimg.check.probe.container import ProbeRun
    from lumiimg.findings import FindingDetails
    from lumiimg.nccl.report import Cause, LogReport

EVIDENCE_LINES = 6
NOISE = re.compile(r"CollNet|TUNER/|PROFILER/")
"""Lines of RCCL about plugins of other kinds."""


def log_of(run: ProbeRun) -> LogReport:
    """Return what the log reader makes of the plugin's and the library's own lines."""
    return read_lines(run.name, run.output.splitlines())


def told_plugin(runs: Iterable[ProbeRun]) -> str | None:
    """Return the version that the plugin says of itself."""
    found = (log_of(run).plugin for run in runs)
    return next((component.version for component in found if component is not None), None)


def explained(causes: tuple[Cause, ...], *, evidence: Iterable[str], otherwise: str | None = None) -> FindingDetails:
    """Return evidence, cause and remedy: of the first cause that the knowledge base has, else what helps in general."""
    lines = tuple(dict.fromkeys(evidence))[-EVIDENCE_LINES:]
    remedy = (otherwise,) if otherwise else ()
    if not causes:
        return {"evidence": lines, "remedy": remedy}
    first = causes[0]
    return {"evidence": lines, "cause": first.summary, "remedy": first.remedy or remedy, "source": first.source}


def ending(run: ProbeRun) -> str:
    """Return how a run ended, for the end of a sentence."""
    return "ran out of time" if run.timed_out else f"ended with {run.exit_code}"


def tail(run: ProbeRun) -> tuple[str, ...]:
    """Return the last lines of a run that say something."""
    passing = ("@probe mapped", "INFO:", "WARNING:")  # the engine's own chatter
    lines = [line for line in run.output.splitlines() if line.strip() and not line.startswith(passing)]
    return tuple(lines[-EVIDENCE_LINES:])
