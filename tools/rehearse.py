"""Test each row of the catalogue as thoroughly as possible here: each release of a layer, on each Python of a base.

python -m tools.rehearse [LAYER...]      also: make rehearse [ROWS=vllm,jax]

Each row is locked with the package index of this machine, for every base that accepts it. Of a source build, only host
code is compiled, with torch's own headers. Then the row is built on one base, with the layer's own scripts and tests,
unless the ledger has a build of the unchanged row; --again builds it anyway.
tools/rehearsal has stand-ins for GPUs, AMD's images and the wheels of other indexes.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.catalog.catalogue import open_catalogue
from lumiimg.catalog.ledger import LEDGER, LedgerEntry, fingerprint, read_ledger
from lumiimg.core.errors import LumiimgError, one_line
from lumiimg.core.files import today
from lumiimg.core.text import count
from lumiimg.resolve.lock import wants_python
from tools.ledger import REHEARSALS, record
from tools.rehearsal.archives import SDISTS, Archives
from tools.rehearsal.bases import Bases, is_of_registry
from tools.rehearsal.compile import Compiler
from tools.rehearsal.headers import Headers
from tools.rehearsal.index import PackageIndex
from tools.rehearsal.program import Program
from tools.rehearsal.rows import Row, closure_of, lock_of, rows, unread
from tools.rehearsal.server import Shelves, serve
from tools.rehearsal.wheels import stand_in_wheels

if TYPE_CHECKING:
    import datetime as dt

    from lumiimg.catalog.layers import Reach
    from lumiimg.resolve.plan import Plan

FOLDER = Path("build/rehearse")
AT_ONCE = 2
CHECKS = Path(__file__).parent / "rehearsal/standin/layers"


_WHEELS = "wheels of PyTorch's and vLLM's indexes: stand-ins with the requirements of the releases"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a row: how far it got."""

    row: Row
    resolved: bool = False
    rehearsed: str = ""
    """The base on which the row was built; empty if none."""
    compiled: str = ""
    """The source files that were compiled, with which torch, and the sources of which none was."""
    failed: str = ""
    """The obstacle, if the row failed."""
    remark: str = ""
    """Why it went no further, if this machine is the reason."""
    date: dt.date = field(default_factory=today)
    """Date of the build."""
    seconds: float = 0.0

    @property
    def reach(self) -> str:
        return "FAILED" if self.failed else "rehearsed" if self.rehearsed else "resolved" if self.resolved else "-"


class Rehearsal:
    """One run, whose rows may be tested in parallel."""

    def __init__(
        self,
        program: Program,
        bases: Bases,
        shelves: Shelves,
        compiler: Compiler,
        known: Sequence[LedgerEntry] = (),
    ) -> None:
        self._program = program
        self._compiler = compiler
        self._bases = bases
        self._shelves = shelves
        self._known = known
        self._one = threading.Lock()
        self._locked: dict[object, Future[str]] = {}

    def row(self, row: Row) -> Outcome:
        """Resolve a row on every base, and build it on one. The outcome lists every obstacle."""
        begun = time.monotonic()
        try:
            outcome = self._tried(row)
        except LumiimgError as error:
            outcome = Outcome(row, failed=one_line(str(error)))
        return replace(outcome, seconds=time.monotonic() - begun)

    def _tried(self, row: Row) -> Outcome:
        if not row.plans:
            return Outcome(row, failed="no base takes it")
        for plan in row.plans:
            if against := self._locks(plan):
                return Outcome(row, failed=f"{plan.base.name}: {against}")
        compiled = self._compiler.row(row)
        if compiled.failed:
            return Outcome(row, resolved=True, failed=compiled.failed)
        if before := recorded(row, compiled.how, self._known):
            return before
        return replace(self._built(row), compiled=compiled.how)

    def _built(self, row: Row) -> Outcome:
        """Build a row on one base."""
        reasons = {plan.base.name: self._bases.why_not(plan.base) for plan in row.plans}
        here = sorted((plan for plan in row.plans if not reasons[plan.base.name]), key=_plainness)
        if not here:
            return Outcome(row, resolved=True, remark=next(iter(reasons.values())))
        self._serve(here[0])
        checks = _checks(here[0]) if row.uses_python else []
        against = self._program.build(here[0], file_name(row), checks)
        where = here[0].base.name
        if against:
            return Outcome(row, resolved=True, failed=f"{where}: {against}")
        return Outcome(row, resolved=True, rehearsed=where)

    def _locks(self, plan: Plan) -> str:
        """Return the obstacle in the closure of a plan; it is computed once."""
        key = closure_of(plan)
        with self._one:
            known = self._locked.get(key)
            mine = self._locked.setdefault(key, Future())
        if known is None:
            against = "an error of the rehearsal's own"
            try:
                self._serve(plan)
                against = self._program.lock(plan, f"{plan.base.name}-{abs(hash(key))}")
            except LumiimgError as error:
                against = one_line(str(error))
            finally:
                mine.set_result(against)
        return mine.result()

    def _serve(self, plan: Plan) -> None:
        """Make the registry serve the base of a plan."""
        if not is_of_registry(plan.base):
            return
        name = next(one.origin for one in plan.base.bootstraps if one.agent == "docker").removeprefix("docker.io/")
        with self._one:
            if name not in self._shelves.images:
                self._shelves.images[name] = self._bases.image(plan.base)


def recorded(row: Row, compiled: str, known: Iterable[LedgerEntry]) -> Outcome | None:
    """Return the outcome in the ledger for an unchanged row, with what was compiled now; None if there is none."""
    content = fingerprint(row.facts, row.chosen, "rehearsed")
    for entry in known:
        if (entry.name, entry.reach, entry.content) == (row.name, "rehearsed", content):
            bases = entry.how.partition("; ")[0].removeprefix("on ").split(", ")
            names = (plan.base.name for plan in row.plans if f"{plan.base.name}{_python(row)}" in bases)
            if name := next(names, ""):
                return Outcome(row, True, name, compiled, remark=f"built on {entry.date}", date=entry.date)
    return None


def _checks(plan: Plan) -> list[str]:
    """Return arguments that add the checks of `standin/layers/rehearsal` to the finished image."""
    releases = [layer.release for layer in lock_of(plan).layers if layer.release]
    torch = next((release.has["torch"] for release in releases if "torch" in release.has), "")
    return ["--layers", str(CHECKS), "--add", "rehearsal", "--arg", f"rehearsal.TORCH={torch}"]


def _plainness(plan: Plan) -> tuple[bool, int]:
    """Return a sort key for bases: first those without torch, which have no Python packages for a layer to rely on."""
    return "torch" in plan.base.has, len(lock_of(plan).layers)


def file_name(row: Row) -> str:
    """Return the base name for the files of a row."""
    return "-".join(filter(None, (row.name, row.release, row.python, row.kind)))


def trials(outcomes: Sequence[Outcome]) -> Iterator[LedgerEntry]:
    """Yield the ledger entries of one release, from its outcomes on several Pythons: only what is true for all."""
    row = outcomes[0].row
    hows: list[tuple[Reach, dt.date, str]] = []
    is_resolved = all(outcome.resolved for outcome in outcomes)
    if is_resolved and any(wants_python(layer) for plan in row.plans for layer in lock_of(plan).layers):
        names = ", ".join(f"{count(len(one.row.plans), 'base')}{_python(one.row)}" for one in outcomes)
        hows.append(("resolved", today(), f"against the package index for {names}; {_WHEELS}"))
    built = [outcome for outcome in outcomes if outcome.rehearsed]
    if built and not any(outcome.failed for outcome in outcomes):
        names = ", ".join(f"{one.rehearsed}{_python(one.row)}" for one in built)
        stand_ins = sorted(set().union(*(_stood_in(one) for one in built)))
        compiled = "; ".join(sorted({one.compiled for one in built if one.compiled}))
        how = f"on {names}; stand-ins: {', '.join(stand_ins) or 'none'}"
        hows.append(("rehearsed", min(one.date for one in built), f"{how}; {compiled}" if compiled else how))
    for reach, date, how in hows:
        content = fingerprint(row.facts, row.chosen, reach)
        yield LedgerEntry(row.name, row.release, reach, content, date, how)


def entries_of_failed(outcomes: Sequence[Outcome]) -> Iterator[tuple[Reach, str]]:
    """Yield reach and content of the entries that a failure removes."""
    for row in (outcome.row for outcome in outcomes if outcome.failed and outcome.row.plans):
        yield from ((reach, fingerprint(row.facts, row.chosen, reach)) for reach in REHEARSALS)


def _python(row: Row) -> str:
    return f" (Python {row.python})" if row.python else ""


def _stood_in(outcome: Outcome) -> Iterator[str]:
    """Yield the stand-ins that were used to build a row."""
    plan = next(plan for plan in outcome.row.plans if plan.base.name == outcome.rehearsed)
    if is_of_registry(plan.base):
        yield "the image, its ROCm and compilers"
    for layer in lock_of(plan).layers:
        if layer.release and layer.release.indexes:
            yield f"the wheels of {layer.name}'s own indexes"
        yield from (f"the archive of {source.name}" for source in layer.sources if source.name not in SDISTS)


def row_line(outcome: Outcome) -> str:
    """Return an outcome as a line for the table."""
    row = outcome.row
    where = outcome.rehearsed or f"{count(len(row.plans), 'base')}"
    python = f"Python {row.python}" if row.python else ""
    why = outcome.failed or "; ".join(filter(None, (outcome.compiled, outcome.remark)))
    line = f"{row!s:24} {row.kind:10} {python:12} {outcome.reach:10} {where:24} {outcome.seconds:5.0f} s  {why}"
    return line.rstrip()


def summary(outcomes: Sequence[Outcome]) -> str:
    """Return the number of rows at each stage."""
    reached = Counter(outcome.reach for outcome in outcomes)
    plans = sum(len(outcome.row.plans) for outcome in outcomes)
    parts = ", ".join(f"{number} {reach}" for reach, number in sorted(reached.items()))
    return f"{count(len(outcomes), 'row')}, {count(plans, 'plan')}: {parts}"


def made_for_now(folder: Path) -> Path:
    """Return the folder for the stand-ins of this version of the tool; those of other versions are removed."""
    makers = [CHECKS.parents[1] / f"{name}.py" for name in ("archives", "bases", "wheels")]
    files = [*makers, *sorted(path for path in CHECKS.parent.rglob("*") if path.is_file() and path.suffix != ".pyc")]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:12]
    made = folder / "made" / digest
    for old in made.parent.iterdir() if made.parent.is_dir() else ():
        if old != made:
            shutil.rmtree(old)
    for path in (
        made / "archives",
        made / "bases",
        made / "wheels",
        *(folder / name for name in ("bases", "compiled", "headers", "images", "sources")),
    ):
        path.mkdir(parents=True, exist_ok=True)
    return made


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layer", nargs="*", help="only these")
    parser.add_argument("--folder", type=Path, default=FOLDER, help=f"for what is made and kept ({FOLDER})")
    parser.add_argument("--record", action="store_true", help="write into the ledger how far each row got")
    parser.add_argument("--again", action="store_true", help="build also what the ledger has as rehearsed")
    parser.add_argument("--layers", type=Path, action="append", default=[], help="folder of layers, searched first")
    asked = parser.parse_args(words)
    catalogue = open_catalogue({"HOME": "/nonexistent"}, asked.layers)
    folder = asked.folder.absolute()
    made = made_for_now(folder)
    index = PackageIndex(folder / "sources")
    layers = [catalogue.entry(name) for name in catalogue.layer_names()]
    releases = [release for layer in layers for release in layer.releases]
    archives = Archives(index, made / "archives")
    shelves = Shelves(wheels=stand_in_wheels(releases, index, made / "wheels"))
    begun, outcomes = time.monotonic(), list[Outcome]()
    with serve(shelves) as address, ThreadPoolExecutor(AT_ONCE) as pool:
        program = Program(
            address, index.address, folder / "images", archives, folder / "images/cache", tuple(asked.layers)
        )
        bases = Bases(folder / "bases", made / "bases", index, shelves.wheels)
        compiler = Compiler(archives, Headers(index, folder / "headers"), folder / "compiled")
        rehearsal = Rehearsal(program, bases, shelves, compiler, () if asked.again else read_ledger(LEDGER))
        for outcome in pool.map(rehearsal.row, rows(frozenset(asked.layer), catalogue)):
            outcomes.append(outcome)
            print(row_line(outcome), flush=True)
            if asked.record:
                same = [one for one in outcomes if one.row.same_release(outcome.row)]
                record(trials(same), failed=entries_of_failed(same))
    if names := unread(catalogue):
        print(f"nothing of Python is tried on {', '.join(names)}: no name says their Python, so they are read first")
    print(f"{summary(outcomes)}; {time.monotonic() - begun:.0f} s")
    return int(not outcomes or any(outcome.failed for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
