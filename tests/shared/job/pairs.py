"""What the model says of a job, and what happens to it: one pair of answers for an image, a node and some variables."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from lumiimg.check.answer import decide
from lumiimg.check.context import ImageInContext
from lumiimg.check.pipeline import final_findings
from lumiimg.check.static.files import check_files
from lumiimg.core.errors import BadInputError
from lumiimg.core.findings import Answer, Level, Severity
from lumiimg.host.container_view import as_engine_variables
from lumiimg.image import FolderTree, open_image
from tests.shared.job.oracle import Happened, run_job
from tests.shared.job.system import LOCALE

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from lumiimg.check.static.files import HostFit
    from lumiimg.check.static.process import StaticResult
    from tests.shared.job.world import Node, World


class Grade(StrEnum):
    """How an answer compares with what happened."""

    RIGHT = "right"
    OPEN = "not decided"
    """The model reports that it cannot know, whatever happened."""
    WRONG_GREEN = "wrong green"
    WRONG_RED = "wrong red"
    OTHER_FILES = "other files"
    """The answer is right, and the files that it names are not those of the process."""


@dataclass(frozen=True)
class Pair:
    """One pair."""

    name: str
    answer: Answer
    findings: tuple[str, ...]
    """Those that keep the answer from a yes, and their sentences."""
    happened: tuple[Happened, ...]
    difference: str = ""
    """Between the libraries that were predicted and those that were mapped."""
    asked: str = ""
    """The open questions, with all that is reported of them."""

    @property
    def is_fast(self) -> bool:
        return all(each.is_fast for each in self.happened)

    @property
    def grade(self) -> Grade:
        if self.answer is Answer.UNDECIDED:
            return Grade.OPEN
        if self.answer is Answer.NO_OBSTACLE:
            return Grade.WRONG_GREEN if not self.is_fast else Grade.OTHER_FILES if self.difference else Grade.RIGHT
        return Grade.WRONG_RED if self.is_fast else Grade.RIGHT

    def __str__(self) -> str:
        ends = "; ".join(each.network for each in self.happened)
        message = "; ".join(self.findings) or "nothing against it"
        return f"{self.name}: {self.grade.value}: said {self.answer.value} ({message}), was {ends} {self.difference}".strip()


def ask(world: World, given: Mapping[str, str], node: Node | None) -> tuple[Answer, HostFit]:
    """Return what `check --level static` says of an image, with the snapshot of a node or without."""
    with open_image(world.root) as image:
        tree: Any = image.root.tree  # whoever runs the tests, the image is root's
        tree.stat = lambda node: FolderTree.stat(tree, node)._replace(uid=0, gid=0)
        snapshot = node.snapshot if node else None
        variables = as_engine_variables(given)
        seen = image.for_users()
        context = ImageInContext(world.root, seen, seen, variables, snapshot, program=world.program)
        files = check_files(context)
        found = final_findings(context, files.static.findings)
        return decide(found, files.static.path, level=Level.STATIC, level_was_asked_for=True), files


def pair_of(name: str, world: World, given: Mapping[str, str], node: Node | None) -> Pair:
    """Ask the model, then do it."""
    try:
        answer, files = ask(world, given, node)
    except BadInputError as error:
        return Pair(name, Answer.UNDECIDED, (str(error),), (Happened("not tried", frozenset()),))
    static, manifest = files.static, files.manifest
    binds: list[tuple[Path, str]] = []
    inside = dict(given)
    if manifest is not None and node is not None:
        sources = [(node.root / bind.source.lstrip("/"), bind.target) for bind in manifest.binds]
        binds = [(source.resolve(), target) for source, target in sources if source.exists()]
        inside |= {item.name: item.value for item in manifest.variables}
    # a yes or no may be about an environment that is not on PATH; it says so
    is_of_another = static.job is not None and any(each.id == "program.unknown" for each in static.findings)
    python = static.job.program if static.job is not None and is_of_another and static.job.is_program else "python"
    happened = tuple(run_job(world, job, inside, binds, python) for job in world.jobs)
    against = (each for each in static.findings if each.severity in {Severity.PROBLEM, Severity.UNKNOWN})
    reported = tuple(f"{each.id}: {each.summary}" for each in against)
    asked = "\n".join(str(each) for each in static.findings if each.severity is Severity.UNKNOWN)
    return Pair(name, answer, reported, happened, _difference(static, happened), asked)


def _difference(static: StaticResult, happened: tuple[Happened, ...]) -> str:
    """Return which libraries one side alone has; what Python's standard library opens itself is left out."""
    if not static.opened or not any(each.is_fast for each in happened):
        return ""
    own = re.compile(r"/lib-dynload/[^/]*$|/_ctypes\.|/libffi\.so")
    predicted = {path for path in (*static.opened, *static.opened_by_libfabric) if not own.search(path)}
    # of several jobs the prediction is about the one that fares worst
    nearest = min(happened, key=lambda each: len(predicted ^ each.mapped))
    mapped = {path for path in nearest.mapped if not own.search(path) and path != LOCALE}
    lines = [f"not mapped: {', '.join(sorted(predicted - mapped))}"] if predicted - mapped else []
    lines += [f"not predicted: {', '.join(sorted(mapped - predicted))}"] if mapped - predicted else []
    return "; ".join(lines)
