"""A job's log beside a model of its image: the log says that the plugin failed, the model which library made it so."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from lumiimg.check.context import open_for_check
from lumiimg.check.pipeline import check_image
from lumiimg.core.findings import Finding, Level, Severity
from lumiimg.core.text import count
from lumiimg.host.container_view import told_to_engine
from lumiimg.joblog import FAST, Confidence, LogReport, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from lumiimg.host.snapshot import Snapshot

_PASSED_ON = ("NCCL_NET", "NCCL_NET_PLUGIN")
"""Variables of the job that change what RCCL opens."""

_CONTRADICTED = """the log proves the fast network, but the model has an obstacle: the job used another image, \
or started it with other binds and variables"""
_NO_OBSTACLE = """the model of the image has no obstacle: look at how the job started it (binds, LD_LIBRARY_PATH, \
--cleanenv), or at what only a run can show (VNI, devices)"""


class Agreement(StrEnum):
    """How the log and the model of the image stand to each other."""

    EXPLAINED = "explained"
    """The log shows no fast network, and the model has obstacles."""
    NO_OBSTACLE = "no-obstacle"
    """The log shows no fast network, and the model has no obstacle: the job was started otherwise than is modelled."""
    CONTRADICTED = "contradicted"
    """The log proves the fast network, the model has obstacles: another image, or started otherwise."""
    AGREED = "agreed"
    OTHER_IMAGE = "other-image"
    """The library in the log is not the one in the image."""
    UNKNOWN = "unknown"
    """The log does not tell."""


@dataclass(frozen=True, slots=True)
class ImageOfJob:
    """What the image that the job is said to have used adds to its log."""

    image: str
    """As it was named."""
    agreement: Agreement
    """How the log and the model of the image stand to each other."""
    sentence: str
    """The same for a person."""
    findings: tuple[Finding, ...]
    """Obstacles and open questions of the model, the obstacles first."""


def compare(report: LogReport, image: Path, environment: Mapping[str, str], snapshot: Snapshot | None) -> ImageOfJob:
    """Return how the model of `image`, on the host of the snapshot if there is one, bears on the log.

    Variables that the log shows and that change what RCCL opens are those of the job, not of this shell. Raises
    BadInputError for what is not an image.
    """
    of_job = {name: value for name, value in report.environment.items() if name in _PASSED_ON}
    with open_for_check(image, {**environment, **told_to_engine(of_job)}, snapshot) as context:
        checked = check_image(context, Level.STATIC)
    obstacles = [f for f in checked.findings if f.severity is Severity.PROBLEM]
    doubts = [f for f in checked.findings if f.severity is Severity.UNKNOWN]
    agreement, sentence = _agreement(report, checked.path.rccl_version, obstacles)
    return ImageOfJob(checked.image, agreement, sentence, (*obstacles, *doubts))


def _agreement(report: LogReport, version: str | None, obstacles: list[Finding]) -> tuple[Agreement, str]:
    library = report.library
    if library is not None and version is not None and library.version != version:
        of_log = f"{library.name} {library.version}"
        return Agreement.OTHER_IMAGE, f"is not that of the job: the log is of {of_log}, the image has RCCL {version}"
    if report.verdict in {Verdict.NONE, Verdict.INTRA_NODE_ONLY}:
        return Agreement.UNKNOWN, "the log does not say what the image would explain"
    if report.verdict in FAST and report.confidence is Confidence.PROVED:
        if not obstacles:
            return Agreement.AGREED, "the model of the image has no obstacle either"
        return Agreement.CONTRADICTED, _CONTRADICTED
    if obstacles:
        return Agreement.EXPLAINED, f"the model of the image names {count(len(obstacles), 'obstacle')}"
    return Agreement.NO_OBSTACLE, _NO_OBSTACLE
