"""From what a process was seen to print to the network that it used.

Order of proof (strongest first): channel lines, `Using network`/`Assigned NET plugin`, the transport's own start or the
provider line, plugin initialising. The provider line, not the network's name, distinguishes cxi from tcp. A domain or
endpoint that cannot be opened overrides any of them on libfabric: the provider is selected before it is opened.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lumiimg.joblog.events import ProcessState, Sighting, first_sightings
from lumiimg.joblog.report import Confidence, Verdict
from lumiimg.joblog.vocabulary import Effect, vocabulary

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lumiimg.joblog.causes import Trouble

FAILURES = {
    Effect.INIT_ERROR: Verdict.PLUGIN_INIT_ERROR,
    Effect.LOAD_ERROR: Verdict.PLUGIN_LOAD_ERROR,
    Effect.MISSING: Verdict.PLUGIN_MISSING,
    Effect.NETWORK_ABSENT: Verdict.PLUGIN_MISSING,
    Effect.NO_NETWORK: Verdict.PLUGIN_INIT_ERROR,
}
"""What a process without a transport failed of; the effect nearest to success names it."""
_FATAL = frozenset({Effect.NETWORK_ABSENT, Effect.NO_NETWORK})


@dataclass(frozen=True, slots=True)
class Judgement:
    """What one process, or the job, came to."""

    verdict: Verdict
    confidence: Confidence
    proof: tuple[Sighting, ...] = ()
    network: str | None = None
    provider: str | None = None
    soft: bool = False
    """Only the plugin's presence was seen, so another process may say better what is used."""
    doubted: bool = False
    """It had an error that ends its network, and whether that came before the lines that show it is not known."""
    ended: bool = False
    """It could not go on with another network: its own did not open, or was asked for by name and is not there."""


NOTHING = Judgement(Verdict.NONE, Confidence.UNKNOWN)


@dataclass(frozen=True, slots=True)
class Job:
    """What one process is judged by beside its own lines."""

    provider: Sighting | None
    """The provider line, where all provider lines of the job name the same one."""
    over_mpi: bool
    """Whether oneCCL leaves the network to MPI, so that MPI's provider is that of the traffic."""
    cxi_hint: Sighting | None
    """What speaks for Slingshot where no provider is named."""
    nodes: int
    """Hosts that the log shows."""
    connected: tuple[int, ...]
    """Positions at which processes were last seen to be connected."""
    same_file: Callable[[int, int], bool]
    """Whether two positions are in one file: only there it is known which line came first."""


def job_of(processes: Sequence[ProcessState], whole: ProcessState, same_file: Callable[[int, int], bool]) -> Job:
    """Return what the processes of a job tell about each other; `whole`: what any said of the whole job."""
    over_mpi = any(True for _ in whole.saw("oneccl-over-mpi"))
    providers = first_sightings(processes, "provider")
    if over_mpi and not providers:
        providers = first_sightings(processes, "mpi-provider")
    hints = (hint for process in processes if (hint := _cxi_hint(process)) is not None)
    return Job(
        provider=providers[0] if len({s.value("provider") for s in providers}) == 1 else None,
        over_mpi=over_mpi,
        cxi_hint=next(hints, None),
        nodes=len({process.node for process in processes} - {None}),
        connected=tuple(s.last for process in processes for s in process.saw("connected")),
        same_file=same_file,
    )


def judge_process(process: ProcessState, troubles: Sequence[Trouble], job: Job) -> Judgement:
    """Return what the process used."""
    chosen = [*process.saw("channel"), *process.saw("network")]
    sightings = chosen or _started(process) or _of_mpi(process, job)
    families = {_family(s) for s in sightings} - {None}
    if sightings and not families and (chosen or not dead_of(process, troubles, job)):
        return Judgement(Verdict.NONE, Confidence.UNKNOWN, tuple(sightings[:1]), network=sightings[0].value("network"))
    fatal = [t for t in troubles if t.signature.effect in _FATAL]
    # a transport that only started, in a process that may not use it (NCCL_NET), carried nothing
    if families - {"ofi"} and (chosen or not fatal):
        return _built_in(process, sightings, families, final=any(s.has_origin for s in chosen))
    if dead := dead_of(process, troubles, job):
        return replace(_failure(Verdict.PLUGIN_INIT_ERROR, dead), ended=True)
    if chosen or (families and not any(t.signature.effect in FAILURES for t in troubles)):
        return _libfabric(process, sightings, troubles, job)
    if not fatal and (local := _intra_node(process, job)):
        return local
    for effect, verdict in FAILURES.items():
        if found := _with_effect(troubles, effect):
            return replace(_failure(verdict, found), ended=bool(fatal) or verdict is Verdict.PLUGIN_INIT_ERROR)
    return _presence(process)


def _with_effect(troubles: Sequence[Trouble], effect: Effect) -> list[Trouble]:
    return [t for t in troubles if t.signature.effect is effect]


def dead_of(process: ProcessState, troubles: Sequence[Trouble], job: Job) -> list[Trouble]:
    """Return the errors of the domain or endpoint after which nothing was connected."""
    return [t for t in _with_effect(troubles, Effect.ENDPOINT_ERROR) if not _settled(t.sighting.last, process, job)]


def _settled(error: int, process: ProcessState, job: Job) -> bool:
    """Whether the process was connected after an error at a position, or in a file of its own where order is not known.

    `Connected` does not tell of which communicator: with several, one of them may still lack its endpoint, and only a
    channel over the network settles it.
    """
    event = "channel" if len(process.communicators) > 1 else "connected"
    signs = job.connected if process.shared else tuple(s.last for s in process.saw(event))
    return any(sign > error or not job.same_file(sign, error) for sign in signs)


def _started(process: ProcessState) -> list[Sighting]:
    """Return the transport that started last, for want of a line that names the chosen one.

    IB and Socket start after the plugin has failed. The other order is not one process but several whose lines carry
    no prefix: then all are returned.
    """
    started = sorted(process.saw("socket", "ib", "initialized", "provider"), key=lambda s: s.last)
    return started if started and _family(started[-1]) == "ofi" else started[-1:]


def _of_mpi(process: ProcessState, job: Job) -> list[Sighting]:
    """Return the provider that MPI names, where oneCCL goes by MPI: another MPI of the job script says nothing."""
    return list(process.saw("mpi-provider")) if job.over_mpi else []


def _family(sighting: Sighting) -> str | None:
    if sighting.event in {"socket", "ib"}:
        return sighting.event
    return "ofi" if sighting.event in {"provider", "mpi-provider"} else vocabulary().family(sighting.value("network"))


def _built_in(process: ProcessState, sightings: list[Sighting], families: set[str | None], *, final: bool) -> Judgement:
    network = sightings[0].value("network") or None
    proof = tuple(sightings[:2])
    if len(families) > 1:
        return Judgement(Verdict.MIXED, Confidence.LIKELY, proof, network)
    verdict = Verdict.SOCKET if "socket" in families else Verdict.IB
    # of a slow network the choice is enough, of a fast one it proves nothing
    certain = final and (verdict is Verdict.SOCKET or any(s.has_origin for s in process.saw("channel", "connected")))
    return Judgement(verdict, Confidence.PROVED if certain else Confidence.LIKELY, proof, network)


def _libfabric(process: ProcessState, sightings: list[Sighting], troubles: Sequence[Trouble], job: Job) -> Judgement:
    own = list(process.saw("provider")) or _of_mpi(process, job)
    named_itself = (bool(own) and all(s.has_origin for s in own)) or bool(_of_mpi(process, job))
    if len({_of_provider(s) for s in own}) > 1:
        return Judgement(Verdict.MIXED, Confidence.LIKELY, tuple(own[:2]))
    named = own[-1] if own else job.provider
    network = next((s.value("network") for s in sightings if s.value("network")), None)
    lines = sightings[:2]
    if named is None:
        verdict = Verdict.OFI_CXI if job.cxi_hint else Verdict.OFI_OTHER
        return Judgement(verdict, Confidence.LIKELY, (*lines, *([job.cxi_hint] if job.cxi_hint else [])), network)
    provider = named.value("provider")
    if named not in lines:
        lines.append(named)
    gathered = _gathered(process, job)
    lines.extend(gathered)
    doubted = _error_of_unknown_order(process, troubles, job)
    certain = named_itself and (gathered or _crossed(process)) and not doubted
    confidence = Confidence.PROVED if certain else Confidence.LIKELY
    return Judgement(_of_provider(named), confidence, tuple(lines), network, provider, doubted=doubted)


def _error_of_unknown_order(process: ProcessState, troubles: Sequence[Trouble], job: Job) -> bool:
    errors = _with_effect(troubles, Effect.ENDPOINT_ERROR)
    signs = [s.last for s in process.saw("channel", "connected")]
    return any(not job.same_file(sign, error.sighting.last) for error in errors for sign in signs)


def _of_provider(sighting: Sighting) -> Verdict:
    return vocabulary().providers.get(sighting.value("provider"), Verdict.OFI_OTHER)


def _crossed(process: ProcessState) -> bool:
    """Whether the process had connections over the network that it chose."""
    if any(s.has_origin for s in process.saw("channel")):
        return True
    # `Connected` does not tell of which communicator
    crosses = [c.crosses and c.has_origin for c in process.communicators.values()]
    shown = {s.event for s in process.saw("connected", "network") if s.has_origin}
    return bool(crosses) and all(crosses) and len(shown) == 2


def _gathered(process: ProcessState, job: Job) -> tuple[Sighting, ...]:
    """Return the lines which show that ranks of several nodes exchanged data over the endpoints that oneCCL opened.

    Rank 0 prints the library's version when its first communicator is made, for which all ranks have gone through an
    allgather of their own transport (2021.6 on: atl_base_comm.cpp create_comm_id, comm.cpp allocate_resources).
    """
    apart = [s for s in process.saw("coordinates") if int(s.value("here")) < int(s.value("ranks"))]
    for told in () if process.shared else process.saw("oneccl-library"):
        before = [
            [s for s in seen if s.first < told.first and job.same_file(s.first, told.first)]
            for seen in (apart, process.saw("endpoints"))
        ]
        if all(before):
            return before[0][-1], told
    return ()


def _cxi_hint(process: ProcessState) -> Sighting | None:
    """Return what speaks for Slingshot where no provider is named: a cxi device, or RDMA on a Slingshot host."""
    for sighting in process.saw("gdr-device"):
        if vocabulary().slingshot_device.match(sighting.value("device")):
            return sighting
    if vocabulary().slingshot_host.match(process.name):
        return next((s for s in process.saw("channel") if s.value("gdr")), None)
    return None


def _intra_node(process: ProcessState, job: Job) -> Judgement | None:
    local = next(process.saw("local-channel"), None)
    crosses = [c.crosses for c in process.communicators.values()]
    if any(crosses) or (None in crosses and job.nodes > 1):
        return None
    if local is not None:
        return Judgement(Verdict.INTRA_NODE_ONLY, Confidence.LIKELY, (local,))
    if crosses and all(crossing is False for crossing in crosses):
        proof = tuple(process.saw("communicator", "coordinates"))[:1]
        sure = all(s.has_origin for s in proof)
        return Judgement(Verdict.INTRA_NODE_ONLY, Confidence.PROVED if sure else Confidence.LIKELY, proof)
    return None


def _presence(process: ProcessState) -> Judgement:
    """Return what a plugin that began to start, and no more, is worth; one that was only loaded is worth nothing."""
    starting = list(process.saw("plugin"))[:1]
    return Judgement(Verdict.OFI_OTHER, Confidence.LIKELY, tuple(starting), soft=True) if starting else NOTHING


def _failure(verdict: Verdict, troubles: Sequence[Trouble]) -> Judgement:
    sure = any(t.signature.sure for t in troubles)
    proof = tuple(t.sighting for t in troubles[:3])
    return Judgement(verdict, Confidence.PROVED if sure else Confidence.LIKELY, proof)
