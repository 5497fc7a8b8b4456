"""What the nodes of a check come to together: one answer, and which nodes differ from the others, and in what."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lumiimg.check.answer import advice_from_findings, levels_taken
from lumiimg.check.pipeline import CheckResult, LevelsTaken, conclusion
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
"""Of a report: its number in report/json_kinds.toml."""
_MAX_BYTES = 64 << 20
_LONG_NAMES = 200
"""Characters of names of nodes, above which too many are at fault to continue without them."""
_WORST_FIRST = (Answer.NO, Answer.UNDECIDED, Answer.NO_OBSTACLE)
_SAID = {Answer.NO: "NO on", Answer.UNDECIDED: "CANNOT TELL for", Answer.NO_OBSTACLE: "no obstacle found on"}
_DIFFERENCES = 4
"""At most, of a group of nodes."""
_GROUPS = 20
"""The largest, which are shown one by one: thousands of nodes may be other than the rest, each in its own way."""
_LONG_TROUBLE, _SAID_LINES = 500, 4
"""A node may answer anything."""
_TALLY = 4
"""Kinds of nodes that a sentence names."""
_BUILD_DIGITS = 8


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Nodes that are the same, and what that means."""

    nodes: NodeNames
    """Names."""
    answer: Answer
    """Of these nodes."""
    sentence: str
    """The answer for a person."""
    differs: tuple[str, ...]
    """From the largest group, in a few words; empty for that one."""
    path: FabricPath
    """As it is on these nodes."""
    findings: tuple[Finding, ...]
    """On these nodes."""
    libraries: tuple[Library, ...]
    """That were in the processes of the probes."""
    gpus: int | None = None
    """Of one node, as HIP says there; None where it was not asked."""
    steps: tuple[Step, ...] = ()
    """The path step by step, with what is known of each."""
    trouble: str | None = None
    """Why nothing could be probed on these nodes."""
    to_do: str | None = None
    """What helps with that, where it is known."""
    said: tuple[str, ...] = ()
    """The last lines of an engine that starts no container."""
    engine: str | None = None
    """With its version."""
    kernel: str = ""
    """Its release."""
    gpu_driver: str | None = None
    """Version of amdgpu."""
    nics: tuple[Nic, ...] = ()
    """Without what is a node's own."""

    @property
    def as_answer(self) -> NodeAnswer:
        """What one of these nodes answers: by this it is the same as others, of this report or another one."""
        rccl = self.path.rccl_version
        probed = NodeAnswer("", self.nodes[0], self.findings, self.path, rccl, self.libraries, self.engine, self.kernel)
        return replace(probed, gpu_driver=self.gpu_driver, nics=self.nics, gpus=self.gpus, trouble=self.trouble)


@dataclass(frozen=True, slots=True)
class NodesReport(CheckResult):
    """The same on nodes of a job; identical nodes are reported as one group."""

    job: str
    """Number of the job."""
    groups: tuple[NodeGroup, ...]
    """Those that say no first, then the largest."""
    silent: tuple[UnresponsiveNodes, ...]
    """Nodes that gave no answer."""
    output: tuple[str, ...]
    """What the step printed at its end, where nodes are silent: for people."""

    @property
    def silent_nodes(self) -> tuple[str, ...]:
        """The names of those that gave no answer."""
        return tuple(node for entry in self.silent for node in entry.nodes)


def read_report(path: Path) -> NodesReport:
    """Return a report out of a file. Raises DecodeError, whatever the bytes."""
    where, hint = str(path), "lumiimg check IMAGE --nodes N --json > report.json"
    data = parse_json(read_whole(path, _MAX_BYTES), where=where, hint=hint)
    if not isinstance(data, dict) or "groups" not in data:
        raise DecodeError("is not a report of `check --nodes --json`", where=where, hint=hint)
    if data.get("schema") != SCHEMA:
        raise DecodeError(f"was written by another lumiimg (this one reads schema {SCHEMA})", where=where, hint=hint)
    report = decode(data, NodesReport, where=where, hint=hint)
    names = Counter([*report.silent_nodes, *(node for group in report.groups for node in group.nodes)])
    if twice := next((name for name, number in names.items() if number > 1), None):
        raise DecodeError(f"has two answers of {twice}", where=where)
    if len(report.groups) > _GROUPS + 2 * len(Answer):
        raise DecodeError("has more groups than a report has", where=where)
    return report


def build_report(
    context: ImageInContext,
    files: HostFit,
    job: str,
    taken: LevelsTaken[NodeAnswers],
    output: tuple[str, ...] = (),
    earlier: NodesReport | None = None,
) -> NodesReport:
    """Return what the answers and a collective come to, with what the files of the image say.

    `output` is that of the step. `earlier`: the report whose silent nodes these are; its other answers stand.
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
    # one node that says no is a no, one that says nothing leaves it open
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
        levels=levels_taken(f"done on {count(probed, 'node')}" if probed else "not done", of_run),
        groups=groups,
        silent=silent,
        output=output if silent else (),
        collective=collective,
        gpu=files.gpu,
        advice=_advice(answer, groups, silent, missing, context),
    )


def _joined(groups: Sequence[NodeGroup], found: Sequence[NodeGroup]) -> list[NodeGroup]:
    """Return the groups of a report with those of nodes that were asked again: identical ones are one, as ever."""
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
    """Yield the largest groups, and one for each answer of all others, with the evidence of its first node."""
    beyond = defaultdict[tuple[Answer, bool], list[NodeGroup]](list)
    for group in groups[_GROUPS:]:
        beyond[group.answer, group.trouble is None].append(group)
    yield from groups[:_GROUPS]
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
    """Return why, and what to do: where the image works on other nodes, the nodes are at fault, and not the image."""
    worst = next((group for group in groups if group.answer is answer), None)
    if answer is Answer.UNDECIDED and silent:
        bad = [node for entry in silent for node in entry.nodes]
        why = f"{count(len(bad), 'node')} gave no answer: {silent[0].why}"
    elif worst is None:
        return Advice(missing)
    else:
        of_group = advice_from_findings(worst.answer, worst.findings) if worst.trouble is None else _of(worst, context)
        if len(groups) == 1 or answer is Answer.NO_OBSTACLE:
            return of_group if answer is not Answer.UNDECIDED or of_group.why else Advice(missing)
        bad = [*worst.nodes]
        why = f"on {count(len(bad), 'node')}: {of_group.why or worst.sentence}"
    names = hostlist(bad)
    fine = len(names) < _LONG_NAMES and any(group.answer is Answer.NO_OBSTACLE for group in groups)
    return Advice(why, f"#SBATCH --exclude={names}", "in the job script") if fine else Advice(why)


def _of(group: NodeGroup, context: ImageInContext) -> Advice:
    """Return why an engine starts no container on nodes, and the command that shows it on the first of them."""
    given = ((option, context.environment.get(f"SLURM_JOB_{option.upper()}")) for option in ("partition", "account"))
    options = [f"--{option}={value}" for option, value in given if value]
    check = ["lumiimg", "check", context.name, *context.options, "--level=probe", "--verbose"]
    command = shell_join(["srun", "--nodes=1", f"--nodelist={group.nodes[0]}", *options, *check])
    return Advice(group.said[-1] if group.said else group.trouble, command, "it shows it on one node")


def _group(
    context: ImageInContext, files: HostFit, group: NodesAlike, usual: NodeAnswer, ran: RunResult | None
) -> NodeGroup:
    """Return what nodes that are the same come to; `ran` counts for those that were probed."""
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
    """Return the answer with the tally: 60 the same, 3 with another libcxi, 1 gave no answer."""
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


def differences(of: NodeAnswer, usual: NodeAnswer) -> tuple[str, ...]:
    """Return what a node has other than the usual one, what most explains the rest first; a few at most."""
    if of.compared == usual.compared:
        return ()
    found = tuple(dict.fromkeys(map(shortened, _all(of, usual)))) or ("something that is not shown here",)
    more = len(found) - _DIFFERENCES + 1
    return found if more < 2 else (*found[: _DIFFERENCES - 1], f"{more} more differences")


def _all(of: NodeAnswer, usual: NodeAnswer) -> Iterator[str]:
    if of.trouble != usual.trouble:
        yield f"not probed: {of.trouble}" if of.trouble else "probed"
        return
    yield from _libraries(of, usual)
    for name, value in _COMPARED.items():
        here, there = value(of) or "none", value(usual) or "none"
        if here != there:
            yield f"{name} {here} instead of {there}"
    yield from (f"{identity} is {severity}" for identity, severity in sorted({*of.severities} - {*usual.severities}))
    yield from (f"no {identity}" for identity in sorted(dict(usual.severities).keys() - dict(of.severities).keys()))


def _nics(of: NodeAnswer) -> str:
    if not of.nics:
        return "none"
    down = sum(nic.link_is_up is False for nic in of.nics)
    firmware = ", ".join(sorted({nic.firmware for nic in of.nics if nic.firmware}))
    return f"{len(of.nics)}{f', {down} down' if down else ''}{f', firmware {firmware}' if firmware else ''}"


_COMPARED: Mapping[str, Callable[[NodeAnswer], object]] = {
    "RCCL": lambda of: of.rccl,
    "provider": lambda of: of.fabric.provider,
    "other NICs:": _nics,
    "plugin": lambda of: of.fabric.plugin,
    "plugin api": lambda of: of.fabric.plugin_api,
    "libfabric": lambda of: of.fabric.libfabric,
    "libcxi": lambda of: of.fabric.libcxi,
    "GPUs": lambda of: of.gpus or "0",
    "amdgpu": lambda of: of.gpu_driver,
    "engine": lambda of: of.engine,
    "kernel": lambda of: of.kernel,
}
"""What is compared besides the libraries, with its name in a sentence."""


def _libraries(of: NodeAnswer, usual: NodeAnswer) -> Iterator[str]:
    """Yield which libraries are others; one that lies elsewhere is the same if its build is."""
    # by the name up to `.so.N`: libcxi.so.1.5.0 is another build of libcxi.so.1.7.0
    ours, theirs = ({_soname(library.name): library for library in one.libraries} for one in (of, usual))
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
