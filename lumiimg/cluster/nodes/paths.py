"""The fabric path of each kind of node, step by step, for a report of a check on many."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.check.opening import opened
from lumiimg.check.steps import fabric_steps, origins

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from lumiimg.cluster.nodes.check import NodesReport
    from lumiimg.fabric.path import Step


def paths_of(report: NodesReport, image: Path, environment: Mapping[str, str]) -> tuple[tuple[Step, ...], ...]:
    """Return the steps of each group of a report; whose a file is, is looked up in the image.

    Raises BadInputError if the image cannot be read any more.
    """
    verdict = report.collective.verdict if report.collective else None
    with opened(image) as inside:
        return tuple(
            fabric_steps(
                group.path,
                group.findings,
                origins(group.path, inside, environment, running=True),
                verdict=verdict,
            )
            for group in report.groups
        )
