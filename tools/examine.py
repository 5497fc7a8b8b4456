"""Test `check --level static` on images with one planted item: `python -m tools.examine [KIND|NAME] [--count N]`.

Print each image with a wrong answer, and a table by kind. `--keep FOLDER NAME` stores the image NAME in FOLDER.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

from tests.shared.job.examiner import KINDS, Examined, Examiner, Mark
from tests.shared.job.system import system_here

_SHOWN = [mark for mark in Mark if mark not in {Mark.RIGHT, Mark.FAIR}]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", help="letters of kinds, or names such as A-17; default: all kinds")
    parser.add_argument("--count", type=int, default=30, help="images of each kind")
    parser.add_argument("--start", type=int, default=0, help="the first number")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--python", default=sys.executable, help="the Python that is in the images")
    parser.add_argument("--keep", metavar="FOLDER", help="leave the image of the one NAME in this folder")
    parser.add_argument("--all", action="store_true", help="print what was right, too")
    words = parser.parse_args()
    names = [name for name in words.what if "-" in name]
    kinds = [kind for kind in words.what if "-" not in kind] or ([] if names else [*KINDS])
    names += [f"{kind}-{number}" for number in range(words.start, words.start + words.count) for kind in kinds]
    if words.keep:
        return _keep(names[0], Path(words.keep), words.python)
    parts = [names[part :: words.jobs] for part in range(words.jobs)]
    with multiprocessing.get_context("fork").Pool(words.jobs) as pool:
        found = [
            each for part in pool.starmap(_part, [(part, words.python, words.all) for part in parts]) for each in part
        ]
    print("\n".join(table(found)))
    return 1 if any(each.mark in {Mark.WRONG_GREEN, Mark.FALSE_NO, Mark.CRASH} for each in found) else 0


def table(found: list[Examined]) -> list[str]:
    marks = [
        Mark.WRONG_GREEN,
        Mark.FALSE_NO,
        Mark.CRASH,
        Mark.NEEDLESS,
        Mark.LATE,
        Mark.OTHER_FILES,
        Mark.FAIR,
        Mark.RIGHT,
    ]
    counted: defaultdict[str, Counter[Mark]] = defaultdict(Counter)
    for each in found:
        counted[each.name.partition("-")[0]][each.mark] += 1
    lines = [f"| kind | images | {' | '.join(mark.value for mark in marks)} |", f"|---|---:|{'---:|' * len(marks)}"]
    for kind, own in sorted(counted.items()):
        lines.append(
            f"| {kind} {', '.join(KINDS[kind])} | {own.total()} | {' | '.join(str(own[mark]) for mark in marks)} |"
        )
    total = sum(counted.values(), Counter())
    return [*lines, f"| all | {total.total()} | {' | '.join(str(total[mark]) for mark in marks)} |"]


def _part(names: list[str], python: str, shows_all: bool) -> list[Examined]:
    found = []
    with tempfile.TemporaryDirectory(prefix="lumiimg-examine-") as folder:
        examiner = Examiner(Path(folder) / "images", system_here(Path(folder) / "system", python))
        for each in examiner.examined(names):
            found.append(each)
            if shows_all or each.mark in _SHOWN:
                print(each, flush=True)
    return found


def _keep(name: str, folder: Path, python: str) -> int:
    own = folder.absolute().with_name(f"{folder.name}.parts")
    examiner = Examiner(own / "images", system_here(own / "system", python))
    with examiner.image(name) as made:
        if made is None:
            print("its base has nothing that this could be done to")
            return 1
        world, base, planted = made
        shutil.copytree(world.root, folder, symlinks=True, copy_function=shutil.copy2)
        print(f"{name}: {base}: {planted.variant}")
        print(" ".join(f"{key}={value!r}" for key, value in world.variables.items()))
        print("\n".join(world.jobs))
    shutil.rmtree(own)
    os.sync()
    return 0


if __name__ == "__main__":
    sys.exit(main())
