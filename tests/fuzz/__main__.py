"""`python -m tests.fuzz [--seconds S] [--seed N] [TARGET…]`: try new inputs for each target, on all processors.

`python -m tests.fuzz TARGET FILE…` tries files. Each find is written into the corpus; the exit code is then 1.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz import corpus
from tests.fuzz.mutation import mutated
from tests.fuzz.table import TARGETS
from tests.fuzz.target import FaultError, bounded, try_input

_FINDS = 5


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of fuzzing a target."""

    name: str
    tried: int
    taken: int
    """Number of inputs that the parser accepted."""
    seconds: float
    """Processor time."""
    finds: tuple[str, ...]


def fuzz(name: str, seconds: float, seed: int) -> Outcome:
    """Try the corpus, then mutations of it, for this processor time; some accepted inputs are mutated further."""
    target, chance = TARGETS[name], random.Random(f"{seed}{name}")  # noqa: S311 - to be repeated
    inputs = corpus.inputs(name)
    good: list[bytes] = []
    found: dict[str, str] = {}
    tried = taken = 0
    start = time.process_time()
    with bounded():
        todo = list(inputs)
        while time.process_time() - start < seconds and len(found) < _FINDS:
            # inputs that are refused early reach little code
            known = good if good and chance.random() < 0.7 else inputs
            data = todo.pop() if todo else mutated(target, chance, known)
            tried += 1
            try:
                is_taken = try_input(target, data)
            except FaultError as fault:
                cause = fault.__cause__
                frame = traceback.extract_tb(cause.__traceback__)[-1] if cause else None
                where = f"{Path(frame.filename).stem}-{frame.lineno}" if frame else "shown"
                what = f"{type(cause).__name__}-{where}"
                if what not in found:
                    path = corpus.keep_find(name, what, data)
                    found[what] = f"{name}: {fault}\n    at {where}; {path}"
                continue
            taken += is_taken
            if is_taken and len(good) < 2000 and (todo or chance.random() < 0.02):
                good.append(data)
    return Outcome(name, tried, taken, time.process_time() - start, tuple(found.values()))


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each target (2)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    parser.add_argument("names", nargs="*", metavar="TARGET|FILE")
    asked = parser.parse_args(words)
    names = [name for name in asked.names if name in TARGETS] or list(TARGETS)
    files = [Path(name) for name in asked.names if name not in TARGETS]
    if files:
        return _try(names[0], files)
    print(f"seed {asked.seed}", flush=True)
    outcomes = []
    # one process per target, so that no target affects the next
    with multiprocessing.get_context("fork").Pool(maxtasksperchild=1) as pool:
        runs = [pool.apply_async(fuzz, (name, asked.seconds, asked.seed)) for name in names]
        for run in runs:
            one = run.get()
            outcomes.append(one)
            rate, share = one.tried / max(one.seconds, 0.001), 100 * one.taken / max(one.tried, 1)
            progress = f"{one.tried:9} inputs {rate:9.0f}/s {share:4.0f} % taken {len(one.finds):3} new finds"
            print(f"{one.name:20} {progress}", flush=True)
    finds = [find for one in outcomes for find in one.finds]
    print(f"{len(outcomes)} targets, {sum(one.tried for one in outcomes)} inputs, {len(finds)} new finds")
    for find in finds:
        print(find, file=sys.stderr)
    return 1 if finds else 0


def _try(name: str, files: list[Path]) -> int:
    for file in files:
        try:
            with bounded():
                is_taken = try_input(TARGETS[name], file.read_bytes())
        except FaultError:
            traceback.print_exc()
            return 1
        print(f"{file}: {'taken' if is_taken else 'refused'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
