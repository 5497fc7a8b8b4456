"""Determine the network that each process and the job used from what they printed.

Order of proof, strongest first: channel lines, `Using network`/`Assigned NET plugin`, the start of the transport or the
provider line, plugin initialisation. The provider line, not the network's name, distinguishes cxi from tcp. For
libfabric, a domain or endpoint that cannot be opened overrides all of them: the provider is selected before that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lumiimg.joblog.state import JobLog, Match, ProcessLog, first_matches
from lumiimg.joblog.verdict import FAST, TRANSPORTS, Confidence, Verdict, weakest
from lumiimg.joblog.vocabulary import Effect, vocabulary

if TYPE_CHECKING:
    from lumiimg.joblog.troubles import Trouble

FAILURES = {
    Effect.INIT_ERROR: Verdict.PLUGIN_INIT_ERROR,
    Effect.LOAD_ERROR: Verdict.PLUGIN_LOAD_ERROR,
    Effect.MISSING: Verdict.PLUGIN_MISSING,
    Effect.NETWORK_ABSENT: Verdict.PLUGIN_MISSING,
    Effect.NO_NETWORK: Verdict.PLUGIN_INIT_ERROR,
}
"""Verdict by effect for a process without a transport; the effect closest to success comes first."""
_FATAL = frozenset({Effect.NETWORK_ABSENT, Effect.NO_NETWORK})
_OFI = FAST | {Verdict.OFI_OTHER}


@dataclass(frozen=True, slots=True)
class NetworkVerdict:
    """The network result of one process, or of the job."""

    verdict: Verdict = Verdict.NONE
    confidence: Confidence = Confidence.UNKNOWN
    proof: tuple[Match, ...] = ()
    network: str | None = None
    provider: str | None = None
    only_loaded: bool = False
    """Whether only the plugin's presence was seen, so that another process may show better what is used."""
    order_unknown: bool = False
    """Whether it had a fatal network error that may have come before or after the lines that show the network."""
    ended: bool = False
    """Whether it could not fall back: its network did not open, or was requested by name and is not available."""
    unrecovered: bool = False
    """Whether it could not open the endpoint of the provider that it had selected."""

    @property
    def is_transport(self) -> bool:
        """Whether the verdict names a network that was seen in use."""
        return self.verdict in TRANSPORTS and not self.only_loaded


@dataclass(frozen=True, slots=True)
class JobContext:
    """Facts about the job by which a process is judged, besides its own lines."""

    provider: Match | None
    """The provider line, if all provider lines of the job name the same provider."""
    over_mpi: bool
    """Whether oneCCL leaves the network to MPI, so that MPI's provider carries the traffic."""
    cxi_hint: Match | None
    """Evidence for Slingshot if no provider is named."""
    nodes: int
    """Number of hosts in the log."""
    connected: tuple[int, ...]
    """Positions at which processes were last seen connected."""
    same_file: Callable[[int, int], bool]
    """Whether two positions are in one file: only then is it known which line came first."""

    @classmethod
    def of(cls, processes: Sequence[ProcessLog], log: JobLog) -> JobContext:
        """Return the context that the processes of a job provide for each other."""
        over_mpi = bool(log.job.saw("oneccl-over-mpi"))
        providers = first_matches(processes, "provider")
        if over_mpi and not providers:
            providers = first_matches(processes, "mpi-provider")
        hints = (hint for process in processes if (hint := _cxi_hint(process)) is not None)
        return cls(
            provider=providers[0] if len({one.value("provider") for one in providers}) == 1 else None,
            over_mpi=over_mpi,
            cxi_hint=next(hints, None),
            nodes=len({process.node for process in processes} - {None}),
            connected=tuple(one.last_at for process in processes for one in process.saw("connected")),
            same_file=log.same_file,
        )


# -- of a process


def judge_process(process: ProcessLog, troubles: Sequence[Trouble], job: JobContext) -> NetworkVerdict:
    """Return the network that the process used."""
    dead = _unrecovered_endpoint_errors(process, troubles, job)
    return replace(_judged(process, troubles, dead, job), unrecovered=bool(dead))


def _judged(
    process: ProcessLog, troubles: Sequence[Trouble], dead: Sequence[Trouble], job: JobContext
) -> NetworkVerdict:
    chosen = [*process.saw("channel"), *process.saw("network")]
    matches = chosen or _started(process) or _mpi_provider(process, job)
    families = {_family(match) for match in matches} - {None}
    if matches and not families and (chosen or not dead):
        return NetworkVerdict(proof=tuple(matches[:1]), network=matches[0].value("network"))
    fatal = [t for t in troubles if t.signature.effect in _FATAL]
    # a transport that started in a process that may not use it (NCCL_NET) carried nothing
    if families - {"ofi"} and (chosen or not fatal):
        return _built_in(process, matches, families, final=any(match.has_origin for match in chosen))
    if dead:
        return replace(_failure(Verdict.PLUGIN_INIT_ERROR, dead), ended=True)
    if chosen or (families and not any(t.signature.effect in FAILURES for t in troubles)):
        return _libfabric(process, matches, troubles, job)
    if not fatal and (local := _intra_node(process, job)):
        return local
    for effect, verdict in FAILURES.items():
        if found := _with_effect(troubles, effect):
            return replace(_failure(verdict, found), ended=bool(fatal) or verdict is Verdict.PLUGIN_INIT_ERROR)
    # a plugin that only began to start; one that was only loaded shows nothing
    starting = tuple(process.saw("plugin"))[:1]
    begun = NetworkVerdict(Verdict.OFI_OTHER, Confidence.LIKELY, starting, only_loaded=True)
    return begun if starting else NetworkVerdict()


def _with_effect(troubles: Sequence[Trouble], effect: Effect) -> list[Trouble]:
    return [t for t in troubles if t.signature.effect is effect]


def _unrecovered_endpoint_errors(process: ProcessLog, troubles: Sequence[Trouble], job: JobContext) -> list[Trouble]:
    """Return the domain or endpoint errors after which nothing was connected.

    If the connection is in another file, so that the order is not known, any one counts. `Connected` does not name its
    communicator: one of several may still lack its endpoint, so only a channel over the network settles it.
    """
    event = "channel" if len(process.communicators) > 1 else "connected"
    signs = job.connected if process.shared else tuple(one.last_at for one in process.saw(event))
    errors = _with_effect(troubles, Effect.ENDPOINT_ERROR)
    return [
        t for t in errors if not any(sign > (at := t.match.last_at) or not job.same_file(sign, at) for sign in signs)
    ]


def _started(process: ProcessLog) -> list[Match]:
    """Return the transport that started last, for when no line names the chosen one.

    IB and Socket start after the plugin has failed. If libfabric starts last, these are several processes whose lines
    have no prefix, and all transports are returned.
    """
    started = sorted(process.saw("socket", "ib", "initialized", "provider"), key=lambda one: one.last_at)
    return started if started and _family(started[-1]) == "ofi" else started[-1:]


def _mpi_provider(process: ProcessLog, job: JobContext) -> list[Match]:
    """Return the provider that MPI names if oneCCL runs over MPI; any other MPI program in the script is irrelevant."""
    return process.saw("mpi-provider") if job.over_mpi else []


def _family(match: Match) -> str | None:
    if match.event in {"socket", "ib"}:
        return match.event
    return "ofi" if match.event in {"provider", "mpi-provider"} else vocabulary().family(match.value("network"))


def _built_in(process: ProcessLog, matches: list[Match], families: set[str | None], *, final: bool) -> NetworkVerdict:
    network = matches[0].value("network") or None
    proof = tuple(matches[:2])
    if len(families) > 1:
        return NetworkVerdict(Verdict.MIXED, Confidence.LIKELY, proof, network)
    verdict = Verdict.SOCKET if "socket" in families else Verdict.IB
    # for a slow network, having been chosen is enough; for a fast one, it proves nothing
    carried = _set_up(process) or any(one.has_origin for one in process.saw("connected"))
    certain = final and (verdict is Verdict.SOCKET or carried)
    return NetworkVerdict(verdict, Confidence.PROVED if certain else Confidence.LIKELY, proof, network)


def _libfabric(
    process: ProcessLog, matches: list[Match], troubles: Sequence[Trouble], job: JobContext
) -> NetworkVerdict:
    own = process.saw("provider") or _mpi_provider(process, job)
    named_itself = (bool(own) and all(one.has_origin for one in own)) or bool(_mpi_provider(process, job))
    if len({_provider_verdict(one) for one in own}) > 1:
        return NetworkVerdict(Verdict.MIXED, Confidence.LIKELY, tuple(own[:2]))
    named = own[-1] if own else job.provider
    network = next((one.value("network") for one in matches if one.value("network")), None)
    lines = matches[:2]
    if named is None:
        verdict = Verdict.OFI_CXI if job.cxi_hint else Verdict.OFI_OTHER
        return NetworkVerdict(verdict, Confidence.LIKELY, (*lines, *([job.cxi_hint] if job.cxi_hint else [])), network)
    if named not in lines:
        lines.append(named)
    exchanged = _exchanged_data(process, job)
    order_unknown = _has_error_of_unknown_order(process, troubles, job)
    certain = named_itself and (exchanged or _used_network(process)) and not order_unknown
    confidence = Confidence.PROVED if certain else Confidence.LIKELY
    provider, proof = named.value("provider"), (*lines, *exchanged)
    return NetworkVerdict(_provider_verdict(named), confidence, proof, network, provider, order_unknown=order_unknown)


def _has_error_of_unknown_order(process: ProcessLog, troubles: Sequence[Trouble], job: JobContext) -> bool:
    errors = _with_effect(troubles, Effect.ENDPOINT_ERROR)
    signs = [one.last_at for one in process.saw("channel", "connected")]
    return any(not job.same_file(sign, error.match.last_at) for error in errors for sign in signs)


def _provider_verdict(match: Match) -> Verdict:
    return vocabulary().providers.get(match.value("provider"), Verdict.OFI_OTHER)


def _set_up(process: ProcessLog) -> bool:
    """Return whether a process set up network channels, and connected them or printed no warning after that."""
    channels = [one.last_at for one in process.saw("channel") if one.has_origin]
    warned = any(one.last_at > max(channels, default=0) for one in process.saw("warning"))
    return bool(channels) and (bool(process.saw("connected")) or not warned)


def _used_network(process: ProcessLog) -> bool:
    """Return whether the process had connections over the network that it chose."""
    if _set_up(process):
        return True
    # `Connected` does not name its communicator
    crosses = [one.crosses and one.has_origin for one in process.communicators.values()]
    shown = {one.event for one in process.saw("connected", "network") if one.has_origin}
    return bool(crosses) and all(crosses) and len(shown) == 2


def _exchanged_data(process: ProcessLog, job: JobContext) -> tuple[Match, ...]:
    """Return the lines that show that ranks on several nodes exchanged data over the endpoints that oneCCL opened.

    Rank 0 prints the library's version when its first communicator is created, after all ranks have completed an
    allgather over their own transport (2021.6 on: atl_base_comm.cpp create_comm_id, comm.cpp allocate_resources).
    """
    apart = [one for one in process.saw("coordinates") if int(one.value("here")) < int(one.value("ranks"))]
    for version in () if process.shared else process.saw("oneccl-library"):
        at = version.first_at
        before = [
            [one for one in seen if one.first_at < at and job.same_file(one.first_at, at)]
            for seen in (apart, process.saw("endpoints"))
        ]
        if all(before):
            return before[0][-1], version
    return ()


def _cxi_hint(process: ProcessLog) -> Match | None:
    """Return evidence for Slingshot if no provider is named: a cxi device, or RDMA on a Slingshot host."""
    for match in process.saw("gdr-device"):
        if vocabulary().slingshot_device.match(match.value("device")):
            return match
    if vocabulary().slingshot_host.match(process.name):
        return next((one for one in process.saw("channel") if one.value("gdr")), None)
    return None


def _intra_node(process: ProcessLog, job: JobContext) -> NetworkVerdict | None:
    crosses = [one.crosses for one in process.communicators.values()]
    if any(crosses) or (None in crosses and job.nodes > 1):
        return None
    if local := process.saw("local-channel"):
        return NetworkVerdict(Verdict.INTRA_NODE_ONLY, Confidence.LIKELY, (local[0],))
    if crosses and all(crossing is False for crossing in crosses):
        proof = tuple(process.saw("communicator", "coordinates"))[:1]
        sure = all(one.has_origin for one in proof)
        return NetworkVerdict(Verdict.INTRA_NODE_ONLY, Confidence.PROVED if sure else Confidence.LIKELY, proof)
    return None


def _failure(verdict: Verdict, troubles: Sequence[Trouble]) -> NetworkVerdict:
    sure = any(t.signature.sure for t in troubles)
    proof = tuple(t.match for t in troubles[:3])
    return NetworkVerdict(verdict, Confidence.PROVED if sure else Confidence.LIKELY, proof)


# -- of the job


def judge_job(pairs: Sequence[tuple[ProcessLog, NetworkVerdict]]) -> NetworkVerdict:
    """Return the verdict of the job, from the first of these rules that gives one.

    Any program in the job script may have printed a line without a prefix. If processes themselves reported what they
    use, such a line counts only if it shows an endpoint error without recovery.
    """
    own = any(one.is_transport and not process.shared for process, one in pairs)
    ranks = [one for process, one in pairs if one.unrecovered or not (own and process.shared)]
    transports = [one for one in ranks if one.is_transport]
    kinds = {one.verdict for one in transports}
    failed = [one for one in ranks if one.verdict in FAILURES.values()]

    def of(verdict: Verdict) -> list[NetworkVerdict]:
        return [one for one in ranks if one.verdict is verdict]

    if mixed := of(Verdict.MIXED):
        return _mixed(mixed)
    not_opened = of(Verdict.PLUGIN_INIT_ERROR)
    if not_opened and kinds <= _OFI and any(one.unrecovered for one in ranks):
        return _strongest(not_opened)
    unknown = [one for one in of(Verdict.NONE) if one.network]
    # a rank without a plugin falls back to verbs
    ended_on_verbs = Verdict.IB in kinds and any(one.ended for one in failed)
    if len(kinds) > 1 or (kinds and unknown) or ended_on_verbs or (failed and kinds & _OFI):
        return _mixed([*transports, *failed, *unknown])
    if transports:
        return replace(_strongest(transports), confidence=confidence_of(transports))
    crossing = any(one.crosses for process, _ in pairs for one in process.communicators.values())
    local = [] if crossing else of(Verdict.INTRA_NODE_ONLY)
    last = (*map(of, FAILURES.values()), [one for one in ranks if one.only_loaded], local)
    return next((_strongest(found) for found in last if found), NetworkVerdict())


def confidence_of(ranks: Sequence[NetworkVerdict]) -> Confidence:
    """Return the lowest of each verdict's best confidence: not every rank has a channel of its own.

    Proof from one rank does not settle another rank's error.
    """
    doubts = [Confidence.LIKELY for one in ranks if one.order_unknown]
    kinds = {one.verdict for one in ranks}
    return weakest((*doubts, *(_strongest([one for one in ranks if one.verdict is kind]).confidence for kind in kinds)))


def _strongest(verdicts: Sequence[NetworkVerdict]) -> NetworkVerdict:
    """Return the best proved verdict, preferring channel lines, and the first among equals."""
    order = list(Confidence)
    return min(
        verdicts, key=lambda one: (order.index(one.confidence), all(match.event != "channel" for match in one.proof))
    )


def _mixed(verdicts: Sequence[NetworkVerdict]) -> NetworkVerdict:
    """Return a mixed verdict with one line of proof per verdict, slow networks first, and the lowest confidence."""
    kinds = sorted(dict.fromkeys(one.verdict for one in verdicts), key=FAST.__contains__)
    best = [_strongest([one for one in verdicts if one.verdict is kind]) for kind in kinds]
    return NetworkVerdict(Verdict.MIXED, weakest(one.confidence for one in best), tuple(one.proof[0] for one in best))
