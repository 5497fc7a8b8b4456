"""Combine the answers of a check's nodes: one answer, and how some nodes differ from the others."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lumiimg.check.answer import advice_from_findings, level_statuses
from lumiimg.check.pipeline import CheckResult, LevelResults, conclusion
from lumiimg.cluster.nodes.node import Library, NodeAnswer, NodeNames, UnresponsiveNodes
from lumiimg.core.decode import DecodeError, decode, parse_json, read_whole
from lumiimg.core.errors import shortened
from lumiimg.core.findings import Advice, Answer, Finding, Level
from lumiimg.core.text import count, hostlist, shell_join
from lumiimg.fabric.path import FabricPath, Step  # noqa: TC001 - `decode` reads the types of the fields
from lumiimg.host.snapshot import Nic  # noqa: TC001 - as above

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from lumiimg.check.context import ImageInContext
    from lumiimg.check.run.execution import RunResult
    from lumiimg.check.static.files import HostFit
    from lumiimg.cluster.nodes.node import NodeAnswers, NodesAlike

SCHEMA = 1
"""Schema number of a report, from report/json_kinds.toml."""
_MAX_BYTES = 64 << 20
_LONG_NAMES = 200
"""Length of a node list from which on too many nodes are at fault for a job to exclude them."""
_WORST_FIRST = (Answer.NO, Answer.UNDECIDED, Answer.NO_OBSTACLE)
_SAID = {Answer.NO: "NO on", Answer.UNDECIDED: "CANNOT TELL for", Answer.NO_OBSTACLE: "no obstacle found on"}
_MAX_DIFFERENCES = 4
"""Maximum number of differences shown for a group of nodes."""
_MAX_GROUPS = 20
"""Number of groups shown one by one, the largest first: thousands of nodes may each differ in their own way."""
_LONG_TROUBLE, _SAID_LINES = 500, 4
"""Limits on texts from nodes, which may contain anything."""
_TALLY = 4
"""Maximum number of kinds of nodes in a sentence."""
_BUILD_DIGITS = 8


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Nodes that are alike, and their answer."""

    nodes: NodeNames
    """Names of the nodes."""
    answer: Answer
    """The answer for these nodes."""
    sentence: str
    """The answer for people."""
    differs: tuple[str, ...]
    """Differences from the largest group, in a few words each; empty for that group."""
    path: FabricPath
    """The fabric path on these nodes."""
    findings: tuple[Finding, ...]
    """Findings on these nodes."""
    libraries: tuple[Library, ...]
    """Libraries mapped in the probes' processes."""
    gpus: int | None = None
    """GPUs per node, as HIP reports there; None if it was not queried."""
    steps: tuple[Step, ...] = ()
    """The path step by step, with what is known about each step."""
    trouble: str | None = None
    """Why nothing could be probed on these nodes."""
    to_do: str | None = None
    """Remedy for that, if known."""
    said: tuple[str, ...] = ()
    """Last output lines of an engine that cannot start containers."""
    engine: str | None = None
    """Container engine with its version."""
    kernel: str = ""
    """Kernel release."""
    gpu_driver: str | None = None
    """Version of the amdgpu driver."""
    nics: tuple[Nic, ...] = ()
    """NICs, without node-specific values."""

    @property
    def as_answer(self) -> NodeAnswer:
        """The answer of one of these nodes, for comparison with other nodes, of this report or another."""
        rccl = self.path.rccl_version
        probed = NodeAnswer("", self.nodes[0], self.findings, self.path, rccl, self.libraries, self.engine, self.kernel)
        return replace(probed, gpu_driver=self.gpu_driver, nics=self.nics, gpus=self.gpus, trouble=self.trouble)


@dataclass(frozen=True, slots=True)
class NodesReport(CheckResult):
    """The result of a check on nodes of a job; identical nodes are reported as one group."""

    job: str
    """Job number."""
    groups: tuple[NodeGroup, ...]
    """Groups of nodes: those that answer no first, then by size."""
    silent: tuple[UnresponsiveNodes, ...]
    """Nodes that gave no answer."""
    output: tuple[str, ...]
    """The last output lines of the step, for people, if some nodes are silent."""

    @property
    def silent_nodes(self) -> tuple[str, ...]:
        """Names of the nodes that gave no answer."""
        return tuple(node for entry in self.silent for node in entry.nodes)


def read_report(path: Path) -> NodesReport:
    """Read a report from a file. Raises only DecodeError, whatever the bytes."""
    where, hint = str(path), "lumiimg check IMAGE --nodes N --json > report.json"
    data = parse_json(read_whole(path, _MAX_BYTES), where=where, hint=hint)
    if not isinstance(data, dict) or "groups" not in data:
        raise DecodeError("is not a report of `check --nodes --json`", where=where, hint=hint)
    if data.get("schema") != SCHEMA:
        raise DecodeError(f"was written by another lumiimg (this one reads schema {SCHEMA})", where=where, hint=hint)
    report = decode(data, NodesReport, where=where, hint=hint)
    names = Counter([*report.silent_nodes, *(node for group in report.groups for node in group.nodes)])
    if twice := next((name for name, number in names.items() if number > 1), None):
        raise DecodeError(f"has two answers from {twice}", where=where)
    if len(report.groups) > _MAX_GROUPS + 2 * len(Answer):
        raise DecodeError("has more groups than a report can have", where=where)
    return report


def build_report(
    context: ImageInContext,
    files: HostFit,
    job: str,
    taken: LevelResults[NodeAnswers],
    output: tuple[str, ...] = (),
    earlier: NodesReport | None = None,
) -> NodesReport:
    """Combine the nodes' answers, a collective and the check of the image's files.

    `output`: of the step. `earlier`: a report whose silent nodes were asked again; its other answers stay valid.
    """
    gathered, silent = taken.probed.groups, taken.probed.silent
    found = [_group(context, files, group, gathered[0].answer, taken.ran) for group in gathered]
    collective, of_run = taken.ran.outcome if taken.ran is not None else None, taken.why
    if earlier is not None:
        found = _joined(earlier.groups, found)
        if collective is None or (earlier.collective is not None and earlier.collective.nodes > collective.nodes):
            collective, of_run = earlier.collective, earlier.levels.get(Level.RUN, of_run)
    groups = tuple(sorted(_folded(found), key=lambda group: _WORST_FIRST.index(group.answer)))
    probed = sum(len(group.nodes) for group in groups if group.trouble is None)
    # a single no makes the answer no, a single silent node leaves it undecided
    answers = [*(group.answer for group in groups), *([Answer.UNDECIDED] if silent else [])]
    answer = min(answers, key=_WORST_FIRST.index, default=Answer.NO_OBSTACLE)
    words = _sentence(answer, groups, silent)
    missing = f"level run {taken.why}" if taken.wanted_run and taken.ran is None else None
    if answer is Answer.NO_OBSTACLE and missing is not None:
        answer, words = Answer.UNDECIDED, f"CANNOT TELL: {missing}; {words}"
    return NodesReport(
        image=context.title,
        job=job,
        answer=answer,
        sentence=words,
        levels=level_statuses(f"done on {count(probed, 'node')}" if probed else "not done", of_run),
        groups=groups,
        silent=silent,
        output=output if silent else (),
        collective=collective,
        gpu=files.gpu,
        advice=_advice(answer, groups, silent, missing, context),
    )


def _joined(groups: Sequence[NodeGroup], found: Sequence[NodeGroup]) -> list[NodeGroup]:
    """Return the groups of a report, with the nodes that were asked again merged into them or added as new groups."""
    joined = [*groups]
    usual = next((group for group in groups if not group.differs), None)
    for new in found:
        same = next((i for i, group in enumerate(joined) if not differences(new.as_answer, group.as_answer)), None)
        if same is not None:
            joined[same] = replace(joined[same], nodes=tuple(sorted((*joined[same].nodes, *new.nodes))))
        else:
            joined.append(replace(new, differs=differences(new.as_answer, usual.as_answer)) if usual else new)
    return sorted(joined, key=lambda group: (-len(group.nodes), group.nodes))


def _folded(groups: Sequence[NodeGroup]) -> Iterator[NodeGroup]:
    """Yield the largest groups, and merge all others into one per answer, with the evidence of its first node."""
    beyond = defaultdict[tuple[Answer, bool], list[NodeGroup]](list)
    for group in groups[_MAX_GROUPS:]:
        beyond[group.answer, group.trouble is None].append(group)
    yield from groups[:_MAX_GROUPS]
    for small in beyond.values():
        others = (f"of {count(len(small), 'more kind')}, of which the first is shown",) if len(small) > 1 else ()
        nodes = tuple(sorted(node for group in small for node in group.nodes))
        yield replace(small[0], nodes=nodes, differs=(*others, *small[0].differs))


def _advice(
    answer: Answer,
    groups: Sequence[NodeGroup],
    silent: Sequence[UnresponsiveNodes],
    missing: str | None,
    context: ImageInContext,
) -> Advice:
    """Return why, and a remedy: if no obstacle is found on other nodes, these nodes are at fault, not the image."""
    worst = next((group for group in groups if group.answer is answer), None)
    if answer is Answer.UNDECIDED and silent:
        bad = [node for entry in silent for node in entry.nodes]
        why = f"{count(len(bad), 'node')} gave no answer: {silent[0].why}"
    elif worst is None:
        return Advice(missing)
    else:
        advice = advice_from_findings(worst.answer, worst.findings) if worst.trouble is None else _fault(worst, context)
        if len(groups) == 1 or answer is Answer.NO_OBSTACLE:
            return advice if answer is not Answer.UNDECIDED or advice.why else Advice(missing)
        bad = [*worst.nodes]
        why = f"on {count(len(bad), 'node')}: {advice.why or worst.sentence}"
    names = hostlist(bad)
    fine = len(names) < _LONG_NAMES and any(group.answer is Answer.NO_OBSTACLE for group in groups)
    return Advice(why, f"#SBATCH --exclude={names}", "in the job script") if fine else Advice(why)


def _fault(group: NodeGroup, context: ImageInContext) -> Advice:
    """Return why an engine cannot start containers on some nodes, and a command that shows it on the first of them."""
    given = ((option, context.environment.get(f"SLURM_JOB_{option.upper()}")) for option in ("partition", "account"))
    options = [f"--{option}={value}" for option, value in given if value]
    check = ["lumiimg", "check", context.name, *context.options, "--level=probe", "--verbose"]
    command = shell_join(["srun", "--nodes=1", f"--nodelist={group.nodes[0]}", *options, *check])
    return Advice(group.said[-1] if group.said else group.trouble, command, "it shows it on one node")


def _group(
    context: ImageInContext, files: HostFit, group: NodesAlike, usual: NodeAnswer, ran: RunResult | None
) -> NodeGroup:
    """Return the result for nodes that are alike; `ran` counts only for nodes that were probed."""
    here = group.answer
    ran = ran if here.trouble is None else None
    trouble = here.trouble and shortened(here.trouble, _LONG_TROUBLE)
    level = Level.STATIC if here.trouble else Level.RUN if ran is not None else Level.PROBE
    found = conclusion(context, files, here.fabric, here.findings, ran, seen=here.seen, level=level)
    return NodeGroup(
        nodes=group.nodes,
        answer=found.answer if here.trouble is None else Answer.UNDECIDED,
        sentence=found.sentence if here.trouble is None else f"CANNOT TELL: not probed: {trouble}",
        trouble=trouble,
        to_do=here.to_do and shortened(here.to_do, _LONG_TROUBLE),
        said=tuple(shortened(line) for line in here.said[-_SAID_LINES:]),
        differs=differences(here, usual),
        path=here.fabric,
        steps=found.steps,
        findings=found.findings,
        libraries=here.libraries,
        gpus=here.gpus,
        engine=here.engine,
        kernel=here.kernel,
        gpu_driver=here.gpu_driver,
        nics=here.nics,
    )


def _sentence(answer: Answer, groups: Sequence[NodeGroup], silent: Sequence[UnresponsiveNodes]) -> str:
    """Return the answer with a tally such as: 60 the same, 3 with another libcxi, 1 gave no answer."""
    total = sum(len(group.nodes) for group in groups) + sum(len(entry.nodes) for entry in silent)
    if len(groups) == 1 and not silent:
        return f"{groups[0].sentence} ({count(total, 'node')}{', all the same' if total > 1 else ''})"
    tally = [
        f"{len(group.nodes)} {group.differs[0] if group.differs else 'the same'}"
        for group in sorted(groups, key=lambda group: (bool(group.differs), -len(group.nodes)))
    ]
    tally += [f"{len(entry.nodes)} {entry.why}" for entry in silent]
    more = len(tally) - _TALLY
    tally = [*tally[:_TALLY], *([f"{count(more, 'more kind')} of nodes"] if more > 0 else [])]
    number = sum(len(group.nodes) for group in groups if group.answer is answer)
    number += sum(len(entry.nodes) for entry in silent if answer is Answer.UNDECIDED)
    return f"{_SAID[answer]} {number} of {count(total, 'node')}: {'; '.join(tally)}"


def differences(node: NodeAnswer, usual: NodeAnswer) -> tuple[str, ...]:
    """Return a few differences between a node and the usual one, those that best explain the others first."""
    if node.compared == usual.compared:
        return ()
    found = tuple(dict.fromkeys(map(shortened, _all_differences(node, usual)))) or ("something that is not shown here",)
    more = len(found) - _MAX_DIFFERENCES + 1
    return found if more < 2 else (*found[: _MAX_DIFFERENCES - 1], f"{more} more differences")


def _all_differences(node: NodeAnswer, usual: NodeAnswer) -> Iterator[str]:
    if node.trouble != usual.trouble:
        yield f"not probed: {node.trouble}" if node.trouble else "probed"
        return
    yield from _libraries(node, usual)
    for name, value in _COMPARED.items():
        here, there = value(node) or "none", value(usual) or "none"
        if here != there:
            yield f"{name} {here} instead of {there}"
    yield from (f"{identity} is {severity}" for identity, severity in sorted({*node.severities} - {*usual.severities}))
    yield from (f"no {identity}" for identity in sorted(dict(usual.severities).keys() - dict(node.severities).keys()))


def _nics(node: NodeAnswer) -> str:
    if not node.nics:
        return "none"
    down = sum(nic.link_is_up is False for nic in node.nics)
    firmware = ", ".join(sorted({nic.firmware for nic in node.nics if nic.firmware}))
    return f"{len(node.nics)}{f', {down} down' if down else ''}{f', firmware {firmware}' if firmware else ''}"


_COMPARED: Mapping[str, Callable[[NodeAnswer], object]] = {
    "RCCL": lambda node: node.rccl,
    "provider": lambda node: node.fabric.provider,
    "other NICs:": _nics,
    "plugin": lambda node: node.fabric.plugin,
    "plugin api": lambda node: node.fabric.plugin_api,
    "libfabric": lambda node: node.fabric.libfabric,
    "libcxi": lambda node: node.fabric.libcxi,
    "GPUs": lambda node: node.gpus or "0",
    "amdgpu": lambda node: node.gpu_driver,
    "engine": lambda node: node.engine,
    "kernel": lambda node: node.kernel,
}
"""Compared values besides the libraries, by their names in a sentence."""


def _libraries(node: NodeAnswer, usual: NodeAnswer) -> Iterator[str]:
    """Yield differing libraries; for equal builds, only a different path counts."""
    # compared by the name up to `.so.N`: libcxi.so.1.5.0 is another build of libcxi.so.1.7.0
    ours, theirs = ({_soname(library.name): library for library in one.libraries} for one in (node, usual))
    for name in sorted(ours.keys() & theirs.keys()):
        here, there = ours[name], theirs[name]
        if here.build != there.build:
            builds = (library.build[:_BUILD_DIGITS] or "unknown" for library in (here, there))
            yield f"another {name} (build {' instead of '.join(builds)})"
        elif here.path != there.path:
            yield f"{name} from {here.path} instead of {there.path}"
    yield from (f"without {name}" for name in sorted(theirs.keys() - ours.keys()))
    yield from (f"with {name}" for name in sorted(ours.keys() - theirs.keys()))


def _soname(name: str) -> str:
    stem, so, versions = name.partition(".so")
    major = versions.split(".")[1:2]
    return ".".join((stem + so, *major)) if so else name
