"""On which kind of machine a job ran, if the log shows it: elsewhere, advice for Slingshot is left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from lumiimg.joblog.vocabulary import vocabulary

if TYPE_CHECKING:
    from lumiimg.joblog.report import Cause
    from lumiimg.joblog.state import JobLog, ProcessLog

_OTHER_CARDS = ("efa", "ib")
"""Events by which a node has cards of another network."""
_OF_SLINGSHOT = ("hsn", "slingshot")
"""Events of its interfaces, and of the variables of its steps."""


def has_other_network(processes: Sequence[ProcessLog], log: JobLog) -> bool:
    """Return whether nodes have EFA, InfiniBand or RoCE, and none shows a sign of Slingshot."""
    known = vocabulary()
    if not any(process.saw(*_OTHER_CARDS) for process in processes) or log.job.saw(*_OF_SLINGSHOT):
        return False
    devices = (one.value("device") for process in processes for one in process.saw("gdr-device"))
    providers = {one.value("provider") for process in processes for one in process.saw("provider")}
    hosts = (process.name for process in processes)
    return not (
        any(map(known.slingshot_device.match, devices))
        or any(map(known.slingshot_host.match, hosts))
        or "cxi" in providers
    )


def has_other_gpus(processes: Sequence[ProcessLog]) -> bool:
    """Return whether the GPUs are of another maker than LUMI's: NCCL for CUDA, or oneCCL."""
    cuda = ("+cuda" in one.text for process in processes for one in process.saw("library"))
    return any(cuda) or any(process.saw("oneccl-library") for process in processes)


def advice_here(causes: Sequence[Cause], processes: Sequence[ProcessLog], log: JobLog) -> tuple[Cause, ...]:
    """Return causes without the reasons and commands that are for another machine alone: of Slingshot, or of LUMI."""
    known = vocabulary()
    if has_other_network(processes, log):
        elsewhere = known.slingshot_only
    elif has_other_gpus(processes):
        elsewhere = known.lumi_only
    else:
        return tuple(causes)
    return tuple(
        replace(
            one,
            because=tuple(reason for reason in one.because if not elsewhere.search(reason)),
            remedy=tuple(step for step in one.remedy if not elsewhere.search(step)),
        )
        for one in causes
    )
