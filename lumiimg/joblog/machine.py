"""Which kind of machine a job ran on, if the log shows it: off Slingshot, advice for Slingshot is left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from lumiimg.joblog.vocabulary import vocabulary

if TYPE_CHECKING:
    from lumiimg.joblog.report import Cause
    from lumiimg.joblog.state import JobLog, ProcessLog

_OTHER_CARDS = ("efa", "ib")
"""Events that show cards of another network in a node."""
_SLINGSHOT_EVENTS = ("hsn", "slingshot")
"""Events that show Slingshot: its interfaces, and variables of its job steps."""


def has_other_network(processes: Sequence[ProcessLog], log: JobLog) -> bool:
    """Return whether nodes have EFA, InfiniBand or RoCE, and nothing in the log points to Slingshot."""
    known = vocabulary()
    if not any(process.saw(*_OTHER_CARDS) for process in processes) or log.job.saw(*_SLINGSHOT_EVENTS):
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
    """Return whether the GPUs are from another vendor than LUMI's: NCCL for CUDA, or oneCCL."""
    cuda = ("+cuda" in one.text for process in processes for one in process.saw("library"))
    return any(cuda) or any(process.saw("oneccl-library") for process in processes)


def advice_here(causes: Sequence[Cause], processes: Sequence[ProcessLog], log: JobLog) -> tuple[Cause, ...]:
    """Return causes without the reasons and commands that apply only to other machines: Slingshot ones, or LUMI."""
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
