"""`python -m tests.fuzz.grow [--seconds S] [TARGET…]`: find a minimal corpus that reaches more code.

These are the mutations of `make fuzz`, guided by coverage: an input that takes a new step from one line of the package
to another is mutated further. Then few inputs that together take all of these steps become the stored corpus. A new
target begins with the good inputs that a person put into `tests/corpus/TARGET/`.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.fuzz import corpus
from tests.fuzz.mutation import mutated
from tests.fuzz.table import TARGETS
from tests.fuzz.target import FaultError, Target, bounded, try_input

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType

    Steps = set[tuple[CodeType, int, int]]

_MOST_INPUTS = 60
_INPUT_BYTES = 16 << 10
"""Size limit of new stored inputs; those already in the corpus may be larger."""
_PACKAGE = str(Path(__file__).parents[2] / "lumiimg")


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.grow")
    parser.add_argument("--seconds", type=float, default=60, help="of the processor, for each target (60)")
    parser.add_argument("names", nargs="*", metavar="TARGET")
    asked = parser.parse_args(words)
    for name in asked.names or TARGETS:
        target = TARGETS[name]
        first = {*corpus.inputs(name)}
        with bounded():
            reached = {data: _steps_of(target, data) for data in sorted(first)}
            tried = _grow(target, reached, asked.seconds)
        steps = len(set[Any]().union(*reached.values()))
        smallest = _fewest(
            {data: steps for data, steps in reached.items() if len(data) <= _INPUT_BYTES or data in first}
        )
        corpus.pack(name, smallest)
        print(f"{name:20} {len(first)} inputs before, {tried} tried, {len(smallest)} kept, {steps} steps", flush=True)
    return 0


def _grow(target: Target, reached: dict[bytes, Steps], seconds: float) -> int:
    """Add inputs that reach more code to the known ones; return how many were tried."""
    chance = random.Random()  # noqa: S311
    inputs = [*reached]
    known: Steps = set().union(*reached.values())
    start, tried = time.process_time(), 0
    while time.process_time() - start < seconds:
        data = mutated(target, chance, inputs)
        steps = _steps_of(target, data)
        tried += 1
        if steps - known:
            known |= steps
            inputs.append(data)
            reached[data] = steps
    return tried


def _steps_of(target: Target, data: bytes) -> Steps:
    """Return the steps of an input; if tracing makes it too slow, those up to the time limit."""
    with _traced() as steps, contextlib.suppress(FaultError):
        try_input(target, data)
    return steps


def _fewest(reached: dict[bytes, Steps]) -> list[bytes]:
    """Return few inputs that together take all steps, those with the most steps for their size first."""
    left: Steps = set().union(*reached.values())
    smallest: list[bytes] = []
    while left and len(smallest) < _MOST_INPUTS:
        best = max(reached, key=lambda data: (len(reached[data] & left) / (200 + len(data)), data))
        left -= reached.pop(best)
        smallest.append(best)
    return smallest


@contextlib.contextmanager
def _traced() -> Iterator[Steps]:
    """Collect the steps from line to line in the package."""
    steps: Steps = set()

    def enter(frame: Any, *_: Any) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(_PACKAGE):
            return None
        last = 0

        def step(inner: Any, event: str, _argument: object) -> Any:
            nonlocal last
            if event == "line":
                steps.add((code, last, inner.f_lineno))
                last = inner.f_lineno
            return step

        return step

    sys.settrace(enter)
    try:
        yield steps
    finally:
        sys.settrace(None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
