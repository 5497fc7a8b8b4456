"""Asks about every pair of the generator and images of the examiner, and writes docs/reference/prediction.md: `make score`.

Some forty minutes of a processor. Ends with 1 where an answer was wrong; the page is written all the same.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sys
import tempfile
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.core.findings import Answer
from lumiimg.fetch.mirrors import apt_mirror
from tests.shared.job.bases import BASES
from tests.shared.job.examiner import KINDS, WRONG, Examined, Examiner, Mark
from tests.shared.job.generator import CHANGES, NODES, VARIABLES, Machine, cases
from tests.shared.job.ground import DEBIANS, fetch_debian, ground_here, ground_of_debian
from tests.shared.job.pairs import Grade, Pair

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "prediction.md"
_OLDER_TAKE_ONE_OF = 9
_PLANTED_OF_A_KIND = 100
_SAID = {
    Answer.NO_OBSTACLE: "no obstacle found (0)",
    Answer.NO: "no (1)",
    Answer.UNDECIDED: "cannot tell (3)",
}
_TEXT = """\
# How often `check` was right

*For whoever wants to know what an answer from files alone is worth.*

`lumiimg check IMAGE --level static` says from the files of an image what a job would do. Here each such answer stands beside what a job then did:
the same image as its root folder, the same variables, the same binds, started by the kernel and the image's own ld.so. A real Python
(Python {python}, glibc {glibc} of the machine that wrote this; of some pairs those of Debian 11, 12 and 13) does the imports, in a virtual environment, a conda with DT_RPATH or as the system's.
RCCL, its plugin, libfabric, libcxi, HIP and the libraries of torch are stand-ins of a few lines each. They open what the originals open, and the last of them says
whether it was reached: RCCL → plugin → libfabric → cxi. In a yes, every library in `/proc/self/maps` was predicted too, and nothing else.

Written by `make score` on {date}. A part of the pairs is asked about in each `make test`, all of them in `make test-all`.

## {pairs} pairs, {wrong} wrong

| `check` said | the job used cxi | it did not | wrong |
|---|---:|---:|---:|
{rows}

| glibc of the image | pairs | cannot tell | wrong |
|---|---:|---:|---:|
{by_glibc}

"Cannot tell" is neither a wrong answer nor a good one. It stands where something may come from a machine that the files do not show, and where two copies of
one library meet in one process. What was left open, by the finding that says so:

| finding | the job used cxi | it did not |
|---|---:|---:|
{open}

## {planted} images with one thing planted, {planted_wrong} wrong
Here something is drawn and planted into a known-good image: start-up code of Python, the order of `.pth` files, folders of packages, forms of a torch, who answers
for RCCL, symbols of the plugin, FI_PROVIDER, modes of files, environment scripts. The process is one of a user who owns nothing of the image. An open question is
fair where it names the file whose code files cannot follow, or that does the harm.

| what is planted | images | right | fair question | question that files answer | wrong |
|---|---:|---:|---:|---:|---:|
{by_kind}

## How the pairs are made
The generator is `tests/shared/job/`. It has {bases} known-good images, {changes} changes (faults, and decoys that look like them and do no harm), {nodes} kinds of
nodes that binds come from, and {variables} variables that a user sets. A pair is each image alone, each image with each change, each image with each variable, and
1,000 drawn ones: with a node, with two changes at once, with a change and a variable. Nothing in it says which change does harm: that is what the job shows.

## What it does not show
The network itself. That RCCL opens its plugin here is what the stand-in does by the same facts about each generation that lumiimg has; with real
ones (2.13.4, 2.27.7) the engine tests compare. A call that a library binds at its first use (JAX's plugin, a program that is not Python) may meet a symbol that
nothing defines: of those, only what is looked up when a file is loaded is foreseen, and all of RCCL's own.
"""


def main() -> int:
    parts = os.cpu_count() or 1
    if (mirror := apt_mirror("debian")) is None:
        print("this machine's apt sources name no Debian mirror, where the older C libraries are from")
        return 4
    with tempfile.TemporaryDirectory(prefix="lumiimg-score-") as folder:
        ground = ground_here(Path(folder) / "ground")
        for suite in DEBIANS:
            fetch_debian(suite, mirror, Path(folder) / suite)
        words = [(folder, part, parts, suite) for suite in ("", *DEBIANS) for part in range(parts)]
        with multiprocessing.get_context("fork").Pool(parts) as pool:
            answers = pool.starmap(_asked, words)
            planted = [
                each
                for part in pool.starmap(_planted, [(folder, part, parts) for part in range(parts)])
                for each in part
            ]
    by_glibc: dict[str, list[Pair]] = {}
    for (*_, suite), each in zip(words, answers, strict=True):
        by_glibc.setdefault(DEBIANS.get(suite, ground.glibc), []).extend(each)
    pairs = [pair for each in by_glibc.values() for pair in each]
    wrong = [pair for pair in pairs if _is_wrong(pair)]
    wrong_planted = [each for each in planted if each.mark in WRONG]
    PAGE.write_text(page(pairs, wrong, by_glibc, planted, ground.version, ground.glibc))
    print("\n".join(str(each) for each in (*wrong, *wrong_planted)))
    print(f"{len(pairs)} pairs, {len(wrong)} wrong; {len(planted)} planted, {len(wrong_planted)} wrong: {PAGE}")
    return 1 if wrong or wrong_planted else 0


def _asked(folder: str, part: int, parts: int, suite: str) -> list[Pair]:
    """Ask about all pairs on this machine's C library, and on that of a Debian release about some."""
    own = Path(folder) / f"part-{part}-{suite}"
    place = own / "ground"
    ground = ground_of_debian(Path(folder) / suite, suite, place) if suite else ground_here(place)
    wanted = cases()[::_OLDER_TAKE_ONE_OF] if suite else cases()
    pairs = [*Machine(own / "images", ground).pairs(wanted[part::parts])]
    shutil.rmtree(own)
    return pairs


def _planted(folder: str, part: int, parts: int) -> list[Examined]:
    own = Path(folder) / f"planted-{part}"
    examiner = Examiner(own / "images", ground_here(own / "ground"))
    names = [f"{kind}-{number}" for number in range(_PLANTED_OF_A_KIND) for kind in KINDS]
    found = [*examiner.examined(names[part::parts])]
    shutil.rmtree(own)
    return found


def _is_wrong(pair: Pair) -> bool:
    return pair.grade not in {Grade.RIGHT, Grade.OPEN}


def page(
    pairs: list[Pair],
    wrong: list[Pair],
    by_glibc: dict[str, list[Pair]],
    planted: list[Examined],
    python: str,
    glibc: str,
) -> str:
    return _TEXT.format(
        python=python,
        glibc=glibc,
        date=datetime.now(UTC).date(),
        pairs=f"{len(pairs):,}",
        wrong=len(wrong) or "none",
        rows="\n".join(_rows(pairs)),
        by_glibc="\n".join(
            f"| {version} | {len(own):,} | {sum(pair.grade is Grade.OPEN for pair in own)} | {sum(map(_is_wrong, own))} |"
            for version, own in by_glibc.items()
        ),
        open="\n".join(_left_open(pairs)),
        planted=f"{len(planted):,}",
        planted_wrong=sum(each.mark in WRONG for each in planted) or "none",
        by_kind="\n".join(_by_kind(planted)),
        bases=len(BASES),
        changes=len(CHANGES),
        nodes=len(NODES),
        variables=len([name for name in VARIABLES if name]),
    )


def _rows(pairs: list[Pair]) -> Iterator[str]:
    for answer, said in _SAID.items():
        own = [pair for pair in pairs if pair.answer is answer]
        fast = sum(pair.is_fast for pair in own)
        wrong = sum(map(_is_wrong, own))
        yield f"| {said} | {fast} | {len(own) - fast} | {wrong if answer is not Answer.UNDECIDED else ''} |"


def _by_kind(planted: list[Examined]) -> Iterator[str]:
    for kind, own_kinds in KINDS.items():
        own = Counter(each.mark for each in planted if each.name.startswith(f"{kind}-"))
        needless = own[Mark.NEEDLESS] + own[Mark.LATE]
        wrong = sum(own[mark] for mark in WRONG)
        yield f"| {', '.join(own_kinds)} | {own.total()} | {own[Mark.RIGHT]} | {own[Mark.FAIR]} | {needless} | {wrong} |"


def _left_open(pairs: list[Pair]) -> Iterator[str]:
    counted: Counter[tuple[str, bool]] = Counter()
    for pair in pairs:
        if pair.grade is Grade.OPEN and pair.findings:
            counted[pair.findings[0].partition(":")[0], pair.is_fast] += 1
    for finding in sorted({finding for finding, _ in counted}):
        yield f"| `{finding}` | {counted[finding, True]} | {counted[finding, False]} |"


if __name__ == "__main__":
    sys.exit(main())
