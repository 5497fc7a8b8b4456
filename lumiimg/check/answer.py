"""Derive from findings an answer, its sentence, and one command to run next.

The answer is no, no obstacle found at this level, or cannot tell.
"""

from __future__ import annotations

import shlex
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from lumiimg.catalog.sites import sbatch_options, submit_conditions
from lumiimg.check.registry import finding_types
from lumiimg.check.static.commands import ON_NODE, after_scan
from lumiimg.core.findings import NO_ADVICE, Advice, Answer, Finding, Level, Severity
from lumiimg.core.text import shell_join

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lumiimg.catalog.sites import Site
    from lumiimg.check.context import ImageInContext
    from lumiimg.fabric.path import FabricPath

_EFFECTS = frozenset({"rccl", "run", "simulated"})
"""Families of findings that show what RCCL did because of a fault in its plugin."""
_SEVERITIES = (Severity.PROBLEM, Severity.UNKNOWN, Severity.OK, Severity.INFO)
_MAX_FILES = 3
_NODE_QUESTIONS = frozenset({"image.driver"})
"""Open questions that only a check on a node can settle, whatever the level."""
_PROOFS = frozenset({"run.network", "provider.cxi"})
_OF_LOADER = frozenset({"program.load", "rccl.load", "plugin.loads", "fabric.two-hip"})
"""Findings for which `lumiimg ldd` shows more detail."""


def level_statuses(probe: str, run: str) -> dict[str, str]:
    """Return the status of each level, given that the files were read."""
    return {Level.STATIC.value: "done", Level.PROBE.value: probe, Level.RUN.value: run}


def process_questions(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the open questions about files that the process of a job can answer."""
    kinds = finding_types()
    return tuple(f for f in findings if f.severity is Severity.UNKNOWN and kinds[f.id].demoted_by == "program.opens")


def unfollowed_files(findings: Iterable[Finding]) -> str:
    """Return the files behind such questions, for the end of a sentence; empty if there are none."""
    firsts = {f: f.summary.split(maxsplit=1)[0].rstrip(":") for f in process_questions(findings)}
    named = (f.where or (first if first.startswith("/") else f.summary) for f, first in firsts.items())
    files = dict.fromkeys(named)
    more = len(files) - _MAX_FILES
    return ", ".join([*islice(files, _MAX_FILES), *([f"{more} more"] if more > 0 else [])])


def probe_command(context: ImageInContext) -> str:
    """Return the command of a probe that starts the process of a job."""
    return shell_join(["lumiimg", "check", context.name, *context.options, "--level", "probe"])


def decide(findings: Sequence[Finding], path: FabricPath, *, level: Level, level_was_asked_for: bool) -> Answer:
    """Return the answer that the findings support.

    A problem means no. Without one, the answer is green in three cases. The provider cxi listens on a NIC, and no
    question from a probe or a run, or one that survives probes, is open. A collective on several nodes went over the
    fast network, and the run left no question open. Or the user limited the check to the files, or to probes that saw
    the process of a job, a plugin was found, and every open question is only about the NIC.
    """
    if any(finding.severity is Severity.PROBLEM for finding in findings):
        return Answer.NO
    asked = [finding for finding in findings if finding.severity is Severity.UNKNOWN]
    unanswered = {finding.level for finding in asked}
    beyond = any(finding_types()[finding.id].survives_probe for finding in asked)
    proved = not beyond and any(f.id == "provider.cxi" and f.severity is Severity.OK for f in findings)
    if proved and not unanswered & {Level.PROBE, Level.RUN}:
        return Answer.NO_OBSTACLE
    if _has_used_fabric(findings) and Level.RUN not in unanswered:
        return Answer.NO_OBSTACLE
    is_seen = level is Level.STATIC or any(f.id == "program.opens" and f.severity is Severity.OK for f in findings)
    asked_for_no_more = level_was_asked_for and level is not Level.RUN and is_seen and path.plugin is not None
    if asked_for_no_more and all(finding_types()[finding.id].needs_nic for finding in asked):
        return Answer.NO_OBSTACLE
    return Answer.UNDECIDED


def _has_used_fabric(findings: Iterable[Finding]) -> bool:
    """Return whether a collective was seen to go over the fast network."""
    return any(finding.id == "run.network" and finding.severity is Severity.OK for finding in findings)


def sentence(answer: Answer, findings: Iterable[Finding], level: Level) -> str:
    if answer is Answer.NO:
        problems = [finding for finding in findings if finding.severity is Severity.PROBLEM]
        first = next((finding for finding in problems if finding.level is Level.RUN), problems[0])
        how = "from its files alone" if level is Level.STATIC else "as it is run here"
        slow = f"NO: {how}, RCCL would use TCP sockets, several times slower than Slingshot"
        return finding_types()[first.id].no or slow
    if answer is Answer.NO_OBSTACLE and level is Level.RUN:
        if _has_used_fabric(findings):
            return "no obstacle found at level run: a real collective went over Slingshot"
        level = Level.PROBE  # on one node, nothing crossed the network
    if answer is Answer.NO_OBSTACLE:
        tried = level is not Level.PROBE or any(finding.id == "provider.cxi" for finding in findings)
        at = f"level {level.value}{'' if tried else ', without a NIC'}"
        return f"no obstacle found at {at}: nothing checked here keeps RCCL from using Slingshot"
    return "CANNOT TELL from here whether RCCL would use Slingshot"


def merge_levels(
    static: Sequence[Finding], probed: Sequence[Finding], ran: Sequence[Finding] = ()
) -> tuple[Finding, ...]:
    """Merge the levels: what was seen happening overrides what the files alone say, and a run overrides both.

    A plugin from a bind mount is not in the image's files; a library that the files lack may come from the host.
    Causes come before their effects: first what is wrong with the plugin, then what RCCL did because of it.
    """
    seen = {finding.id for finding in probed if finding.severity is Severity.OK}
    answered = {finding.id for finding in probed}
    merged = list(probed)
    for finding in static:
        kind = finding_types()[finding.id]
        if finding.id in answered or kind.answered_by in seen:
            continue  # a probe answered the same question, perhaps because of a bind (--rocm)
        stronger = kind.demoted_by if kind.demoted_by in seen else None
        merged.append(_as_note(finding, finding_types()[stronger].outweighs or "") if stronger else finding)
    if _has_used_fabric(ran):  # of all components with GPU code, a collective calls only RCCL
        merged = [f if f.family == "gpu" else _as_note(f, "the collective went over Slingshot") for f in merged]
    if any(finding.id in {"run.network", "run.selected"} for finding in ran):  # RCCL ran with a GPU
        merged = [f for f in merged if f.id != "rccl.silent"]
    if any(finding.id == "run.selected" and finding.severity is Severity.OK for finding in ran):
        served = "a collective ran on the GPUs here"
        merged = [_as_note(f, served) if f.id == "image.driver" else f for f in merged]
    merged += ran
    return tuple(sorted(merged, key=lambda finding: (_SEVERITIES.index(finding.severity), finding.family in _EFFECTS)))


def _as_note(finding: Finding, why: str) -> Finding:
    """Return an obstacle or an open question as a note, since something outweighs it; any other finding unchanged."""
    if finding.severity in {Severity.OK, Severity.INFO}:
        return finding
    return replace(finding, severity=Severity.INFO, summary=f"{finding.summary} ({why})")


def advice_from_findings(answer: Answer, findings: Sequence[Finding], image: str | None = None) -> Advice:
    """Return the reason for the answer, and a remedy or a command that shows more, from the finding that decides."""
    decided_by = _deciding_finding(answer, findings)
    if decided_by is None:
        return NO_ADVICE
    if answer is Answer.NO_OBSTACLE:
        return Advice(decided_by.summary)
    remedy = next((remedy for remedy in decided_by.remedy if remedy.command), None)
    command = remedy.command if remedy is not None else None
    if command is None and image is not None and decided_by.id in _OF_LOADER and ".so" in (decided_by.where or ""):
        command = shell_join(["lumiimg", "ldd", image, str(decided_by.where)])
    return Advice(decided_by.summary, command, remedy.where if remedy is not None else None)


def next_step(
    answer: Answer, findings: Sequence[Finding], context: ImageInContext, *, level: Level, limited: bool
) -> Advice:
    """Return the reason, and a command that fixes the problem or investigates further.

    `level` was taken, and no higher one because the user limited the check (`limited`) or none is possible here.
    """
    site = context.site
    advice = advice_from_findings(answer, findings, context.name)
    if answer is Answer.NO or level is Level.RUN:
        return advice
    check = shell_join(["lumiimg", "check", context.name, *context.options])
    decided_by = _deciding_finding(answer, findings)
    code = decided_by.id if decided_by is not None else None
    if code == "image.musl":
        return advice  # no level settles it
    if code == "plugin.needs-host" and not (advice.next or "lumiimg").startswith("lumiimg"):
        return advice  # the image has it, in a folder that the loader does not search
    if code == "plugin.needs-host" and "--host" not in context.machine:
        where = f"{ON_NODE}{f' of {site.name}' if site is not None else ''}"
        return Advice(advice.why, after_scan(f"{check} --host host.json"), where)
    why = advice.why or "the files show no obstacle; only a run shows which provider is used"
    if limited and level is Level.STATIC and code not in _NODE_QUESTIONS:
        return Advice(why, probe_command(context) if process_questions(findings) else check)
    return _on_nodes(why, check, site, context.environment)


def _deciding_finding(answer: Answer, findings: Sequence[Finding]) -> Finding | None:
    """Return the finding that decides an answer; those of a run come first."""
    if answer is Answer.NO_OBSTACLE:
        return next((f for f in findings if f.id in _PROOFS and f.severity is Severity.OK), None)
    severity = Severity.PROBLEM if answer is Answer.NO else Severity.UNKNOWN
    found = [finding for finding in findings if finding.severity is severity]
    # unknowns about the network come before those about the GPU and its driver
    found.sort(key=lambda f: f.severity is Severity.UNKNOWN and (f.family == "gpu" or f.id in _NODE_QUESTIONS))
    return next((f for f in found if f.level is Level.RUN), found[0] if found else None)


def _on_nodes(why: str, check: str, site: Site | None, environment: Mapping[str, str]) -> Advice:
    """Return the command that checks on nodes with GPUs: in this job, else in a job that it submits."""
    if environment.get("SLURM_JOB_ID"):
        return Advice(why, f"{check} --nodes {environment.get('SLURM_JOB_NUM_NODES', '1')}")
    options = " ".join(sbatch_options(site, environment))
    return Advice(why, f"{check} --nodes 2 --sbatch={shlex.quote(options)}", submit_conditions(environment))
