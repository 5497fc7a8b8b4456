"""`python -m tests.fuzz.grow [--seconds S] [TARGET…]`: a corpus that reaches more code, and no more of it than needed.

Atheris (libFuzzer for Python) makes the inputs, by its own mutations and by those of `make fuzz`: what reaches new
branches of the package is changed further. Then the fewest inputs that reach all that was reached, by lines one after
another, become the kept corpus. A target's seeds are asked for here only.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST_INPUTS = 60
_INPUT_BYTES = 16 << 10
"""Of an input that is kept; a seed may be larger where nothing smaller reaches as much."""
_PACKAGE = str(Path(__file__).parents[2] / "lumiimg")


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.grow")
    parser.add_argument("--seconds", type=int, default=60, help="for each target (60); 0 only picks the inputs anew")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("names", nargs="*", metavar="TARGET")
    asked = parser.parse_args(words)
    if asked.inside is not None:
        _run_atheris(asked.names[0], asked.inside, asked.seconds)
    from tests.fuzz import corpus  # noqa: PLC0415 - the package is imported under Atheris only once
    from tests.fuzz.table import TARGETS  # noqa: PLC0415

    for name in asked.names or TARGETS:
        with tempfile.TemporaryDirectory() as folder:
            seeds = [*TARGETS[name].seeds(), *corpus.kept(name)]
            for data in seeds:
                Path(folder, corpus.digest(data)).write_bytes(data)
            told = _grown(name, folder, asked.seconds) if asked.seconds else []
            grown = {path.read_bytes() for path in Path(folder).iterdir()}
        kept = _fewest(name, grown, {*seeds})
        path = corpus.pack(name, kept)
        size = f"{path.stat().st_size / 1024:.0f} KiB"
        print(
            f"{name}: {len(seeds)} seeds, {len(grown)} grown, {len(kept)} kept, {size}; {'; '.join(told)}", flush=True
        )
    return 0


def _grown(name: str, folder: str, seconds: int) -> list[str]:
    """Let a folder of inputs grow, in another process, and return what it told."""
    words = [sys.executable, "-m", "tests.fuzz.grow", "--inside", folder, f"--seconds={seconds}", name]
    done = subprocess.run(words, capture_output=True, text=True, errors="replace", check=False)
    return [line for line in done.stderr.splitlines() if line.startswith(("FIND", "Done", "Traceback", "=="))]


def _run_atheris(name: str, folder: Path, seconds: int) -> None:
    """Let a folder of inputs grow; does not return."""
    import atheris  # type: ignore[import-not-found, import-untyped, unused-ignore]  # noqa: PLC0415

    with atheris.instrument_imports(include=["lumiimg"]):
        from tests.fuzz import corpus, mutation  # noqa: PLC0415
        from tests.fuzz.table import TARGETS  # noqa: PLC0415
        from tests.fuzz.target import LIMIT_BYTES, FaultError, bounded, try_input  # noqa: PLC0415

    target = TARGETS[name]
    inputs = [path.read_bytes() for path in folder.iterdir()]
    seen: set[str] = set()

    def mutate(data: bytes, size: int, seed: int) -> bytes:
        chance = random.Random(seed)  # noqa: S311
        if chance.random() < 0.4:
            return bytes(atheris.Mutate(data, size))
        return mutation.mutated(target, chance, [data, data, chance.choice(inputs)])[:size]

    def one(data: bytes) -> None:
        try:
            try_input(target, data)
        except FaultError as fault:
            what = str(fault)[:60]
            if what not in seen and len(seen) < 20:
                seen.add(what)
                print(f"FIND {corpus.keep_find(name, type(fault.__cause__).__name__, data)}: {fault}", file=sys.stderr)

    options = [f"-max_total_time={seconds}", "-max_len=32768", "-timeout=60", "-rss_limit_mb=4096", "-len_control=0"]
    with bounded(16 * LIMIT_BYTES):
        atheris.Setup([sys.argv[0], *options, "-print_final_stats=1", str(folder)], one, custom_mutator=mutate)
        atheris.Fuzz()


def _fewest(name: str, grown: set[bytes], seeds: set[bytes]) -> list[bytes]:
    """Return few inputs that reach together what all reach, the one that adds most first."""
    from tests.fuzz.table import TARGETS  # noqa: PLC0415

    reached = {}
    for data in sorted(grown, key=len):
        if len(data) <= _INPUT_BYTES or data in seeds:
            with _reached() as steps, contextlib.suppress(Exception):
                TARGETS[name].call(data)
            reached[data] = steps
    left: set[Any] = set().union(*reached.values())
    kept: list[bytes] = []
    while left and len(kept) < _MOST_INPUTS:
        best = max(reached, key=lambda data: (len(reached[data] & left) / (200 + len(data)), -len(data)))
        if not reached[best] & left:
            break
        left -= reached.pop(best)
        kept.append(best)
    return kept


@contextlib.contextmanager
def _reached() -> Iterator[set[Any]]:
    """Gather the steps from line to line of the package."""
    steps: set[Any] = set()

    def enter(frame: Any, *_: Any) -> Any:
        if not frame.f_code.co_filename.startswith(_PACKAGE):
            return None
        last = 0

        def step(inner: Any, event: str, _argument: object) -> Any:
            nonlocal last
            if event == "line":
                steps.add((frame.f_code, last, inner.f_lineno))
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
