"""What is read after an answer, and often alone: why it is so, in one sentence, and one command to go on with."""

from __future__ import annotations

import shlex
import shutil
from typing import TYPE_CHECKING

from lumiimg.check.answer import Answer
from lumiimg.check.static.commands import ON_NODE, SCAN
from lumiimg.findings import NO_ADVICE, Advice, Code, Family, Finding, Level, Severity
from lumiimg.wording import typed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lumiimg.catalog.sites import Site
    from lumiimg.check.context import ImageInContext

_BY_NODES = frozenset({Code.IMAGE_DRIVER})
"""Open questions that no level settles but on a node."""
_GREEN = frozenset({Code.RUN_NETWORK, Code.PROVIDER_CXI})
_OF_LOADER = frozenset({Code.PROGRAM_LOAD, Code.RCCL_LOAD, Code.PLUGIN_LOADS, Code.FABRIC_TWO_HIP})
"""Of which `lumiimg ldd` shows more."""
_GPUS = 8
"""Of a node, where the site does not say."""


def advice_from_findings(answer: Answer, findings: Sequence[Finding], image: str | None = None) -> Advice:
    """Return why, and what mends it, else what shows more of it, by the finding that decides the answer."""
    decided_by = _deciding(answer, findings)
    if decided_by is None:
        return NO_ADVICE
    if answer is Answer.NO_OBSTACLE:
        return Advice(decided_by.summary)
    remedy = next((remedy for remedy in decided_by.remedy if remedy.command), None)
    command = remedy.command if remedy is not None else None
    if command is None and image is not None and decided_by.id in _OF_LOADER and ".so" in (decided_by.where or ""):
        command = typed(["lumiimg", "ldd", image, str(decided_by.where)])
    return Advice(decided_by.summary, command, remedy.where if remedy is not None else None)


def next_step(
    answer: Answer, findings: Sequence[Finding], context: ImageInContext, *, level: Level, limited: bool
) -> Advice:
    """Return why, and what mends it or looks further.

    `level` was taken, and no higher one because the user wanted none (`limited`) or none can be taken here.
    """
    site = context.site
    advice = advice_from_findings(answer, findings, context.name)
    if answer is Answer.NO or level is Level.RUN:
        return advice
    check = typed(["lumiimg", "check", context.name, *context.options])
    decided_by = _deciding(answer, findings)
    code = decided_by.id if decided_by is not None else None
    if code is Code.PLUGIN_NEEDS_HOST and "--host" not in context.machine:
        where = f"{ON_NODE}{f' of {site.name}' if site is not None else ''}"
        return Advice(advice.why, f"{SCAN} && {check} --host host.json", where)
    why = advice.why or "the files show no obstacle; only a run shows which provider is used"
    if limited and level is Level.STATIC and code not in _BY_NODES:
        return Advice(why, check)
    return Advice(why, *_on_nodes(check, site, context.environment))


def _deciding(answer: Answer, findings: Sequence[Finding]) -> Finding | None:
    """Return the finding that decides an answer: of a run, if there is one."""
    if answer is Answer.NO_OBSTACLE:
        return next((f for f in findings if f.id in _GREEN and f.severity is Severity.OK), None)
    severity = Severity.PROBLEM if answer is Answer.NO else Severity.UNKNOWN
    found = [finding for finding in findings if finding.severity is severity]
    # what is not known of the network, before what jobs meet beside it
    found.sort(key=lambda f: f.severity is Severity.UNKNOWN and (f.id.family is Family.GPU or f.id in _BY_NODES))
    return next((f for f in found if f.level is Level.RUN), found[0] if found else None)


def _on_nodes(check: str, site: Site | None, environment: Mapping[str, str]) -> tuple[str, str | None]:
    """Return what checks on nodes with GPUs, and where to type it: in this job, else in one that it submits."""
    if environment.get("SLURM_JOB_ID"):
        return f"{check} --nodes {environment.get('SLURM_JOB_NUM_NODES', '1')}", None
    options = " ".join(sbatch_options(site, environment))
    return f"{check} --nodes 2 --sbatch={shlex.quote(options)}", where_to_submit(environment)


def where_to_submit(environment: Mapping[str, str]) -> str | None:
    """Return where a job can be submitted from here, and with what; None: here, as it is."""
    lacks = [] if shutil.which("sbatch", path=environment.get("PATH")) else ["where jobs are submitted"]
    lacks += [] if environment.get("SBATCH_ACCOUNT") else ["with your project in SBATCH_ACCOUNT"]
    return ", ".join(lacks) or None


def sbatch_options(site: Site | None, environment: Mapping[str, str]) -> list[str]:
    """Return what Slurm must be asked for nodes with GPUs, where no variable says it: `-p dev-g …`."""
    near = site.binding if site is not None else None
    options = [f"--gpus-per-node={len(near.near) if near is not None else _GPUS}"]
    if site is not None and not environment.get("SBATCH_PARTITION"):
        ordered = sorted(site.partitions, key=lambda one: not one.debug)
        options[:0] = [f"-p {partition.name}" for partition in ordered[:1]]
    return options
