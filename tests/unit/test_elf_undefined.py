"""Symbols that nothing defines: their effect at start and in dlopen, compared with the real loader.

A program opens libraries one after the other, each with given flags, and prints whether each was opened; LD_BIND_NOW is
not set. Each kind of need is compared alone, then random sets of libraries.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lumiimg.elf import Process, find_interposer, find_undefined
from lumiimg.image import open_image
from tests.shared.elf_builder import exe, runpath, settings_here, so

_OPENER = Path(__file__).parents[1] / "fixtures/elf/opener.o"
USES = {
    "data-by-address": "extern int {0}; int *address_{0} = &{0};",
    "data-by-table": "extern int {0}; int read_{0}(void) {{ return {0}; }}",
    "function-by-address": "extern int {0}(void); int (*address_{0})(void) = {0};",
    "call": "extern int {0}(void); int call_{0}(void) {{ return {0}(); }}",
    "weak-data": "extern int {0} __attribute__((weak)); int *weak_{0} = &{0};",
    "weak-call": "extern int {0}(void) __attribute__((weak)); int weak_{0}(void) {{ return {0} ? {0}() : 0; }}",
    "thread-local": "extern __thread int {0}; int thread_{0}(void) {{ return {0}; }}",
    "nothing": "extern int {0}; int other_{0};",
}


@dataclass
class Situation:
    """A program with libraries, and what it opens."""

    folder: Path
    program_needs: list[Path] = field(default_factory=list)
    opens: list[tuple[str, Path]] = field(default_factory=list)
    """Flags (`n` for RTLD_NOW, `g` for RTLD_GLOBAL) and library."""

    def program(self) -> Path:
        return exe(self.folder / "prog", _OPENER, *self.program_needs, "-lc", *runpath(self.folder), source="")

    def really(self, program: Path) -> list[bool]:
        """Return whether it starts, and whether each library is opened, up to the first that is not."""
        words = [f"{flags}:{path}" for flags, path in self.opens]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("LD_")}
        done = subprocess.run([program, *words], capture_output=True, text=True, check=False, env=environment)
        started, *opened = done.stdout.split("--\n")
        if not started:
            assert "undefined symbol" in done.stderr, done.stderr
            return [False]
        errors = [line for part in opened for line in part.splitlines() if line.startswith("error ")]
        assert all("undefined symbol" in line for line in errors), errors
        return _up_to_the_first([True, *("error " not in part for part in opened)])

    def modelled(self, program: Path) -> list[bool]:
        with open_image(Path("/")) as image:
            process = Process(image.root, settings_here({}))
            outcome = process.start(str(program), exec_start=True)
            found = [not outcome.errors and not find_undefined(process, process.objects, process.objects).found]
            for flags, path in self.opens if found[0] else ():
                outcome = process.dlopen(str(path), rtld_global="g" in flags)
                lazy = () if "n" in flags else outcome.objects
                found.append(not outcome.errors and not find_undefined(process, outcome.objects, lazy).found)
        return _up_to_the_first(found)


def _up_to_the_first(ends: list[bool]) -> list[bool]:
    return ends[: ends.index(False) + 1] if False in ends else ends


@pytest.mark.parametrize("kind", USES)
@pytest.mark.parametrize("how", ["start", "start-now", "lazily", "at-once", "lazily-now"])
def test_a_need_that_nothing_defines_ends_what_the_loader_says_it_ends(kind: str, how: str, tmp_path: Path) -> None:
    """At start and in dlopen; `now`: the file requests immediate binding (DF_BIND_NOW)."""
    it = Situation(tmp_path)
    asks = ("-z", "now") if how.endswith("now") else ("-z", "lazy")
    used = so(tmp_path / "libused.so", *asks, source=USES[kind].format("nowhere"))
    if how.startswith("start"):
        it.program_needs = [used]
    else:
        it.opens = [("n" if how == "at-once" else "l", used)]
    program = it.program()
    printed = it.really(program)
    assert it.modelled(program) == printed
    assert printed[-1] is (
        kind.startswith("weak") or kind == "nothing" or (kind == "call" and how in {"start", "lazily"})
    )


def test_a_library_that_is_preloaded_serves_a_function_before_one_that_is_needed(tmp_path: Path) -> None:
    """The order in LD_DEBUG=bindings: the program, preloaded libraries, their needs."""
    provider, preloaded = (
        so(tmp_path / name, source="int shared_function(void) { return 1; }") for name in ("libown.so", "libpre.so")
    )
    user = so(tmp_path / "libuser.so", provider, *runpath(tmp_path), source=USES["call"].format("shared_function"))
    program = exe(tmp_path / "prog", _OPENER, user, "-lc", *runpath(tmp_path), source="")
    environment = {"LD_PRELOAD": str(preloaded)}
    variables = {"LD_DEBUG": "bindings", "LD_BIND_NOW": "1"} | environment
    lines = subprocess.run([program], env=variables, capture_output=True, text=True, check=False).stderr.splitlines()
    bound = [line for line in lines if "symbol `shared_function'" in line]
    assert [re.sub(r".*binding file (\S+) \[0\] to (\S+) .*", r"\1 \2", line) for line in bound] == [
        f"{user} {preloaded}"
    ]
    with open_image(Path("/")) as image:
        process = Process(image.root, settings_here(environment))
        process.start(str(program), exec_start=True)
        asking, own = process.find("libuser.so"), process.find("libown.so")
        assert asking is not None
        assert own is not None
        found = find_interposer(process, asking, own, "shared_")
        assert found is not None
        assert (found[0].path, found[1]) == (str(preloaded), "shared_function")


@pytest.mark.parametrize("seed", range(24))
def test_drawn_libraries_are_opened_where_the_loader_opens_them(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)  # noqa: S311 - the same each time
    it = Situation(tmp_path)
    names = [f"name{number}" for number in range(5)]
    made: list[Path] = []
    for number in range(6):
        own = draw.sample(names, draw.randint(0, 2))
        asked = [name for name in draw.sample(names, draw.randint(0, 2)) if name not in own]
        source = "".join(f"int {name};" for name in own)
        source += "".join(USES[draw.choice([*USES][:6])].format(name) for name in asked)
        needed = draw.sample(made, min(len(made), draw.randint(0, 2)))
        path = tmp_path / f"lib{number}.so"
        made.append(
            so(path, "-z", draw.choice(["lazy", "now"]), *needed, *runpath(tmp_path), source=source or "int f;")
        )
    it.program_needs = draw.sample(made, draw.randint(0, 1))
    it.opens = [(draw.choice(["l", "n", "lg", "ng"]), draw.choice(made)) for _ in range(4)]
    program = it.program()
    assert it.modelled(program) == it.really(program)
