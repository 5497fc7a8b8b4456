"""New inputs for one target."""

from __future__ import annotations

import random
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
    """What a target came to."""

    name: str
    tried: int
    taken: int
    """Inputs that the parser did not refuse."""
    seconds: float
    """Of the processor."""
    finds: tuple[str, ...]


def fuzz(name: str, seconds: float, seed: int) -> Outcome:
    """Try the corpus, then mutations of it for so long; what comes out new and is taken is changed further."""
    target, chance = TARGETS[name], random.Random(f"{seed}{name}")  # noqa: S311 - to be repeated
    inputs = corpus.kept(name)
    good: list[bytes] = []
    found: dict[str, str] = {}
    tried = taken = 0
    start = time.process_time()
    with bounded():
        todo = list(inputs)
        while time.process_time() - start < seconds and len(found) < _FINDS:
            # of what is refused early, little can be learned
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
