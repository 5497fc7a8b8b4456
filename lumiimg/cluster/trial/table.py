"""Claims against facts: the table of a trial, without names of people, projects, nodes and folders."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.cluster.trial.case import TrialCase, read_case
from lumiimg.cluster.trial.measure import notes, outcome, reading
from lumiimg.cluster.trial.values import (
    ClaimOutcome,
    Ending,
    ReportedImage,
    Row,
    TrialReport,
)
from lumiimg.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lumiimg.cluster.trial.case import TrialCase
    from lumiimg.cluster.trial.folder import TrialFolder
    from lumiimg.cluster.trial.values import Claim, TrialPlan

_ORDER = tuple(ClaimOutcome)
_PROJECT = re.compile(r"project_\d+")
_OWN = re.compile(r"(/(?:home|users|u|pfs/lustre[^/\s]*/users|scratch|flash|projappl|project)/)[^/\s$][^/\s]*")
_LEAST_NAME = 3


def report_of(folder: TrialFolder, plan: TrialPlan, environment: Mapping[str, str]) -> TrialReport:
    """Return the table. Raises BadInputError for a file that no trial has written."""
    case = read_case(folder, plan)
    names = _Names(case, folder, environment)
    rows = sorted((_row(case, claim, names) for claim in plan.claims), key=lambda row: _ORDER.index(row.outcome))
    done = [record for record in case.records.values() if record.ending is Ending.DONE]
    return TrialReport(
        id=plan.id,
        made=plan.made,
        measured=max((record.began for record in done), default=""),
        tool=plan.tool,
        site=plan.site,
        nodes=plan.nodes,
        node_minutes=round(folder.spent(), 1),
        node_minutes_most=plan.node_minutes,
        stand_in=plan.stand_in or _stand_in(case),
        images=tuple(
            ReportedImage(number=number, content=image.content, rows=image.rows, rocm=image.rocm)
            for number, image in enumerate(plan.images, 1)
        ),
        steps_done=len(done),
        steps=len(plan.steps),
        counts={kind.value: sum(row.outcome is kind for row in rows) for kind in ClaimOutcome},
        rows=tuple(rows),
        notes=tuple(map(names.hidden, notes(case))),
    )


def answer_of(report: TrialReport) -> ExitCode:
    """Return the exit code: 1 where something differs, 3 where something is open, else 0."""
    if report.counts[ClaimOutcome.DIFFERS]:
        return ExitCode.NO
    return ExitCode.UNDECIDED if report.counts[ClaimOutcome.OPEN] else ExitCode.GOOD


def _row(case: TrialCase, claim: Claim, names: _Names) -> Row:
    read = reading(case, claim)
    return Row(
        id=names.hidden(claim.id),
        about=names.hidden(claim.about),
        predicted=names.hidden(claim.predicted) if claim.predicted is not None else None,
        measured=names.hidden(read.value) if read.value is not None else None,
        outcome=outcome(claim, read),
        why=names.hidden(read.why),
        source=names.hidden(claim.source),
        date=claim.date,
        step=claim.step,
        gb_s=read.number,
    )


def _stand_in(case: TrialCase) -> str | None:
    """Return what cannot be real: a collective on GPUs of nodes that have none."""
    ran = any(report.collective for report in case.reports.values())
    if ran and not any(look.gpus or look.gpu_driver for look in case.looks):
        return "GPUs: a collective ran, and no node showed a GPU of AMD's"
    return None


class _Names:
    """What must not leave the machine, and what stands for it."""

    def __init__(self, case: TrialCase, folder: TrialFolder, environment: Mapping[str, str]) -> None:
        words = {look.node: f"node-{number}" for number, look in enumerate(case.looks, 1)}
        words |= {environment.get(name, ""): "USER" for name in ("USER", "LOGNAME")}
        words |= {environment.get("SLURM_JOB_ACCOUNT", ""): "PROJECT", os.uname().nodename.partition(".")[0]: "login"}
        places = {image.path: f"IMAGE-{number}" for number, image in enumerate(case.plan.images, 1)}
        places |= {str(folder.path.absolute()): "TRIAL", str(Path(environment.get("HOME", "/root"))): "HOME"}
        longest = sorted((*words, *places), key=len, reverse=True)
        self._words = {word: (words | places)[word] for word in longest if len(word) >= _LEAST_NAME}

    def hidden(self, text: str) -> str:
        """Return a text without them."""
        for word, stands in self._words.items():
            text = re.sub(rf"(?<![\w-]){re.escape(word)}(?![\w-])", stands, text)
        return _OWN.sub(r"\1…", _PROJECT.sub("PROJECT", text))
