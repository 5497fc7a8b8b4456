"""What the ranks of a job show besides the verdict: nodes, communicators, versions, coverage."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from lumiimg.core.redact import HIDDEN, is_secret_name, redact
from lumiimg.joblog.network import confidence_of
from lumiimg.joblog.report import Communicator, Coverage, LoggedLibrary, RankResult, Transport, VerdictGroup
from lumiimg.joblog.state import ProcessLog, first_matches
from lumiimg.joblog.verdict import FAST, Verdict, weakest
from lumiimg.joblog.vocabulary import ExitRole

if TYPE_CHECKING:
    from lumiimg.joblog.network import NetworkVerdict
    from lumiimg.joblog.troubles import Trouble

_COMMUNICATORS = 256
"""Maximum number of communicators in a report."""
_INTERFACE = re.compile(r"\[\d{1,4}\]([\w.-]{1,40}):")

_Result = tuple[Verdict, str | None, str | None, str | None]
"""Verdict, network, provider, and id of the most likely cause."""


class JudgedProcess(NamedTuple):
    """A process, its troubles, and the network that it used."""

    process: ProcessLog
    troubles: Sequence[Trouble]
    network: NetworkVerdict

    @property
    def says_network(self) -> bool:
        return self.network.verdict is not Verdict.NONE or self.network.network is not None

    @property
    def ranks(self) -> list[int | None]:
        """Its ranks in its largest communicator, which count as its ranks in the job."""
        seen = self.process.communicators.values()
        largest = max((one.ranks for one in seen), default=0)
        return [*sorted({one.rank for one in seen if one.ranks == largest})] or [None]


def rank_results(judged: Sequence[JudgedProcess]) -> tuple[RankResult, ...]:
    """Return what each rank used; a process with neither a verdict nor a communicator is left out."""
    results = [
        RankResult(one.process.name, of.verdict, of.confidence, of.network, of.provider, rank)
        for one in judged
        if (of := one.network).verdict is not Verdict.NONE or one.process.communicators
        for rank in one.ranks
    ]
    return tuple(sorted(results, key=lambda r: (r.rank is None, r.rank or 0, r.process)))


def communicators(judged: Sequence[JudgedProcess]) -> tuple[Communicator, ...]:
    """Return each communicator of the job once; `mixed` if its ranks used different networks."""
    found: dict[str, Communicator] = {}
    for process, _, network in judged:
        for address, seen in process.communicators.items():
            key = seen.id or f"{process.name} {address.partition('/')[0]}"
            known = found.get(key, Communicator(key, seen.ranks, None, None, network.verdict))
            if key in found or len(found) < _COMMUNICATORS:
                nodes = seen.nodes if known.nodes is None else known.nodes
                crosses = seen.crosses if known.crosses_network is None else known.crosses_network
                verdicts = {known.verdict, network.verdict} - {Verdict.NONE} or {Verdict.NONE}
                verdict = verdicts.pop() if len(verdicts) == 1 else Verdict.MIXED
                found[key] = Communicator(key, seen.ranks, nodes, crosses, verdict)
    return tuple(found.values())


def component(processes: Sequence[ProcessLog], event: str, name: str | None = None) -> LoggedLibrary | None:
    """Return the library or plugin that the job names first; `name` is used if it prints only its version."""
    matches = first_matches(processes, event)
    return LoggedLibrary(name or matches[0].value("name"), matches[0].value("version")) if matches else None


def node_groups(judged: Sequence[JudgedProcess]) -> tuple[VerdictGroup, ...]:
    """Return the nodes grouped by the result of their ranks; `mixed` if the ranks of a node differ.

    Groups without a fast network come first, then larger groups.
    """
    by_node: dict[str, set[_Result]] = {}
    ranks: dict[str, list[NetworkVerdict]] = {}
    for one in judged:
        network, node = one.network, one.process.node
        if not one.says_network or node is None:
            continue
        of_network = [t.signature for t in one.troubles if t.signature.ends is ExitRole.NO]
        cause = min(of_network, key=lambda signature: signature.likelihood).id if of_network else None
        by_node.setdefault(node, set()).add((network.verdict, network.network, network.provider, cause))
        ranks.setdefault(node, []).append(network)
    groups: dict[_Result, list[str]] = {}
    for node, results in by_node.items():
        groups.setdefault(_common(results), []).append(node)
    ordered = sorted(
        groups.items(), key=lambda group: (group[0][0] in FAST, -len(group[1]), group[0][0], min(group[1]))
    )
    return tuple(
        VerdictGroup(*result, weakest(confidence_of(ranks[node]) for node in of), tuple(sorted(of)))
        for result, of in ordered
    )


def _common(results: set[_Result]) -> _Result:
    """Return what the ranks of a node agree on, field by field."""
    verdicts, *others = (set(field) for field in zip(*results, strict=True))
    network, provider, cause = (field.pop() if len(field) == 1 else None for field in others)
    return (verdicts.pop() if len(verdicts) == 1 else Verdict.MIXED, network, provider, cause)


def coverage(judged: Sequence[JudgedProcess], job: ProcessLog) -> Coverage:
    """Return how many ranks and nodes report their network, out of how many, judging by the largest communicator."""
    speaking = [one for one in judged if one.says_network]
    seen = [communicator for one in judged for communicator in one.process.communicators.values()]
    slurm = {one.value("name"): one.value("value") for one in job.saw("slurm")}
    # a rank that was restarted on its node is one rank
    places = ((one.process.node or one.process.name, one.process.name, rank) for one in speaking for rank in one.ranks)
    ranks = len({(node, name if rank is None else rank) for node, name, rank in places})
    nodes = len({one.process.node for one in speaking} - {None})
    of_ranks = max([one.ranks for one in seen] or _numbers(slurm, "SLURM_NTASKS"), default=None)
    sizes = [one.nodes for one in seen if one.nodes is not None]
    if max(sizes, default=1) == 1:
        # other ranks of the job may have connected elsewhere, or not at all
        sizes += _numbers(slurm, "SLURM_NNODES", "SLURM_JOB_NUM_NODES")
    of_nodes = max(sizes, default=None)
    return Coverage(
        ranks=ranks,
        # more ranks than in the largest communicator: none has all ranks, or there were several runs
        of_ranks=None if of_ranks is not None and of_ranks < ranks else of_ranks,
        nodes=nodes,
        of_nodes=None if of_nodes is not None and of_nodes < nodes else of_nodes,
    )


def _numbers(variables: Mapping[str, str], *names: str) -> list[int]:
    return [int(value) for name in names if (value := variables.get(name, "")).isdecimal() and len(value) < 8]


def transport(processes: Sequence[ProcessLog], job: ProcessLog) -> Transport:
    """Return how the network was used, if all processes that print it agree."""
    lists = [_INTERFACE.findall(one.value("interfaces")) for one in first_matches(processes, "socket")]
    counts = {one.value("count") for one in job.saw("nics")}
    return Transport(
        gdr=_gdr(processes),
        nics=int(counts.pop()) if len(counts) == 1 else None,
        interfaces=tuple(dict.fromkeys(name for names in lists for name in names)),
    )


def _gdr(processes: Sequence[ProcessLog]) -> bool | None:
    """Return whether network channels use GPUDirect RDMA; device capabilities count only if there are no channels."""
    channels = {bool(one.value("gdr")) for one in first_matches(processes, "channel")}
    devices = {one.value("gdr") == "Enabled" for one in first_matches(processes, "gdr-device")}
    answers = channels or devices
    return answers.pop() if len(answers) == 1 else None


def environment(job: ProcessLog) -> dict[str, str]:
    """Return the first value of each variable that the log shows, by name; secrets are hidden."""
    found: dict[str, str] = {}
    for match in job.saw("environment", "oneccl-setting", "slurm", "slingshot"):
        name = match.value("name")
        found.setdefault(name, HIDDEN if is_secret_name(name) else redact(match.value("value")))
    return dict(sorted(found.items()))


def is_single_node(processes: Sequence[ProcessLog]) -> bool:
    """Return whether the log proves that nothing crosses a network.

    `nNodes` shows it from 2.21 on; before, all ranks of each communicator must have been seen, on one host.
    """
    seen = [one for process in processes for one in process.communicators.values()]
    if not seen or any(process.saw("channel") for process in processes) or not all(one.has_origin for one in seen):
        return False
    if all(one.crosses is False for one in seen):
        return True
    if any(one.crosses for one in seen):
        return False
    # Without commId, those of equal size look the same: if all are complete, each rank occurs equally often.
    ranks_seen: dict[str | int, Counter[int]] = {}
    sizes: dict[str | int, int] = {}
    for one in seen:
        key = one.id or one.ranks
        ranks_seen.setdefault(key, Counter())[one.rank] += 1
        sizes[key] = one.ranks
    complete = all(len(ranks) == sizes[key] and len(set(ranks.values())) == 1 for key, ranks in ranks_seen.items())
    hosts = {process.node for process in processes if process.communicators}
    return len(hosts) == 1 and None not in hosts and complete
