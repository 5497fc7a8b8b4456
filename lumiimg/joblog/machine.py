"""On which kind of machine a job ran, as far as it shows: elsewhere than on Slingshot its advice is left out."""

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


def without_slingshot(cause: Cause) -> Cause:
    """Return a cause without the reasons and commands that are of Slingshot, or of LUMI, alone."""
    of_slingshot = vocabulary().slingshot_only.search
    because = tuple(reason for reason in cause.because if not of_slingshot(reason))
    return replace(cause, because=because, remedy=tuple(step for step in cause.remedy if not of_slingshot(step)))
