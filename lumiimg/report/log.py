"""The JSON of `log` beside what the reader returns."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from lumiimg.report.views.log import advice_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumiimg.check.run.job_log import ImageOfJob
    from lumiimg.errors import ExitCode
    from lumiimg.findings import Finding
    from lumiimg.nccl.report import LogReport, RankResult


def json_keys(
    report: LogReport, measured: Sequence[Finding], image: ImageOfJob | None, answer: ExitCode
) -> dict[str, Any]:
    """Return the keys of the JSON beside the attributes of the report."""
    return {
        "answer": answer.name.lower(),
        "advice": advice_of(report),
        "ranks": dict(_keyed(report.ranks)),
        **asdict(report.transport),
        "environment": dict(report.environment),
        "findings": measured,
        "image": image,
    }


def _keyed(ranks: tuple[RankResult, ...]) -> list[tuple[str, RankResult]]:
    """Ranks by number; by number and process where several say to be the same (two jobs in one log)."""
    taken = Counter(r.rank for r in ranks)
    return [
        (r.process if r.rank is None else str(r.rank) if taken[r.rank] == 1 else f"{r.rank} {r.process}", r)
        for r in ranks
    ]
