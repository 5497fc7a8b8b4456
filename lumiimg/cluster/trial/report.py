"""The table of a trial, claims beside measurements, without names of people, projects, nodes and folders."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.cluster.nodes.report import NodesReport
from lumiimg.cluster.trial.model import ClaimOutcome, Ending, ReportRow, TrialReport
from lumiimg.cluster.trial.readings import notes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lumiimg.cluster.trial.folder import TrialFolder
    from lumiimg.cluster.trial.model import Claim, TrialPlan
    from lumiimg.cluster.trial.readings import TrialResults

_ORDER = tuple(ClaimOutcome)
_SHAPES = (
    (re.compile(r"project_\d+"), "PROJECT"),
    (re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+"), "ADDRESS"),
    (re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.])"), "ADDRESS"),
    (re.compile(r"\b(?:nid\d{3,}|x\d+c\d+s\d+b\d+n\d+)\b"), "node"),
    (re.compile(r"\b((?:node(?:-\d+)?|login))(?:\.[A-Za-z][\w-]*){2,}"), r"\1"),
)
"""Projects as named by CSC, addresses of people and machines, nodes as named by HPE, with their domain."""
_OWN = r"/(?:\w[\w/]*/)?(?:home|users|u|scratch|flash|projappl|projects?|work|tmp|shm)"
_LIBRARY = re.compile(r"/[\w+-]+\.so[\w.]*$")
_WORD = re.compile(r"(?<![\w./-])[a-z0-9]+")
_LEAST_NAME = 3


def report_of(folder: TrialFolder, plan: TrialPlan, environment: Mapping[str, str]) -> TrialReport:
    """Return the report. Raises BadInputError for a file that no trial has written."""
    results = folder.results(plan)
    names = _Names(results, folder, environment)
    rows = sorted((_row(results, claim, names) for claim in plan.claims), key=lambda row: _ORDER.index(row.outcome))
    done = [result for result in results.steps.values() if result.ending is Ending.DONE]
    return TrialReport(
        id=plan.id,
        made=plan.made,
        measured=max((result.began for result in done), default=""),
        tool=plan.tool,
        site=names.hidden(plan.site),
        nodes=plan.nodes,
        node_minutes=round(folder.spent(), 1),
        node_minutes_most=plan.node_minutes,
        stand_in=_stand_in(results),
        images=plan.images,
        steps_done=len(done),
        steps=len(plan.steps),
        counts={kind.value: sum(row.outcome is kind for row in rows) for kind in ClaimOutcome},
        rows=tuple(rows),
        notes=tuple(map(names.hidden, notes(results))),
    )


def _row(results: TrialResults, claim: Claim, names: _Names) -> ReportRow:
    read = results.measured(claim)
    key, of, name = claim.id.partition(":")
    texts = {"measured": read.value, "why": read.why}
    texts |= {text: getattr(claim, text) for text in ("about", "predicted", "source", "what")}
    shown = {text: names.hidden(original) if original is not None else None for text, original in texts.items()}
    also = tuple(map(names.hidden, claim.also))
    row = asdict(claim) | shown | {"id": f"{key}{of}{names.hidden(name)}", "also": also}
    return ReportRow(**row, outcome=read.outcome(claim), gb_s=read.number)


def _stand_in(results: TrialResults) -> str | None:
    """Return what cannot be real: a collective on GPUs, on nodes that have none."""
    ran = any(one.collective for one in results.printed.values() if isinstance(one, NodesReport))
    if ran and not any(node.shown.get("gpus") or node.shown.get("driver") for node in results.nodes):
        return "GPUs were used, but no node showed an AMD GPU"
    return None


class _Names:
    """Names that must not leave the machine, with their replacements."""

    def __init__(self, results: TrialResults, folder: TrialFolder, environment: Mapping[str, str]) -> None:
        jobs = [*folder.job_times()]
        nodes = dict.fromkeys(facts.node for facts in results.nodes)
        nodes |= dict.fromkeys(host for job in jobs for host in job.hosts)
        words = {node: f"node-{number}" for number, node in enumerate(nodes, 1)}
        words[os.uname().nodename.partition(".")[0]] = "login"
        # if a name were also a word of the table, the gaps there would reveal it
        ours = {word for claim in results.plan.claims for word in _WORD.findall(f"{claim.about} {claim.predicted}")}
        persons = ((environment.get(variable, ""), "USER") for variable in ("USER", "LOGNAME"))
        accounts = (
            (name, "PROJECT") for name in (environment.get("SLURM_JOB_ACCOUNT", ""), *(j.account for j in jobs))
        )
        words |= {name: stands for name, stands in (*persons, *accounts) if name.lower() not in ours}
        places: dict[str, str] = {}
        for number, image in enumerate(map(Path, results.plan.paths), 1):
            places |= dict.fromkeys((*_as_written(image), image.name), f"IMAGE-{number}")
        places |= dict.fromkeys(_as_written(folder.path), "TRIAL")
        known = {name: stands for name, stands in (words | places).items() if len(name) >= _LEAST_NAME}
        self._stands = {name.lower(): stands for name, stands in known.items()}
        longest = sorted(map(re.escape, known), key=len, reverse=True)
        self._known = re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(longest)})(?![A-Za-z0-9])", re.IGNORECASE)
        homes = "|".join(map(re.escape, _as_written(Path(environment.get("HOME", "/root")))))
        self._own = re.compile(rf"(?:{homes}|{_OWN})(?:/[^\s:;,'\"()]*)")

    def hidden(self, text: str) -> str:
        """Return a text with these names replaced."""
        text = self._known.sub(lambda found: self._stands[found[0].lower()], text)
        text = self._own.sub(_cut, text)
        for pattern, stands in _SHAPES:
            text = pattern.sub(stands, text)
        return text


def _as_written(path: Path) -> Iterator[str]:
    """Yield a path as given, and without symlinks; a path in a plan may be invalid as a file name."""
    yield str(path.absolute())
    with suppress(ValueError):
        yield os.path.realpath(path)


def _cut(found: re.Match[str]) -> str:
    """Shorten a private path to `…`, with the name of the library at its end, if any."""
    if "$" in found[0]:
        return found[0]  # as written in a site file
    library = _LIBRARY.search(found[0])
    return f"…{library[0] if library else ''}"
