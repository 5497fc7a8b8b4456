"""Which object a symbol is bound to: the model compared with LD_DEBUG=bindings and dlsym of the real loader.

A program opens random libraries, after some that are preloaded. They define, need and call a few functions: weak,
protected, hidden and unique ones, with default or hidden versions, of types that do not count; some bind to themselves.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lumiimg.elf import Process, definer_of, dlsym, find_undefined, reference_of
from lumiimg.image import open_image
from tests.shared.elf_builder import entry_at, exe, patched, runpath, settings_here, so, with_symbol
from tests.shared.programs import EVERYTHING

_OPENER = Path(__file__).parents[1] / "fixtures/elf/opener.o"
NAMES = ("one", "two", "three")
_BOUND = re.compile(r"binding file (\S+) \[0\] to (\S+) \[0\]: (?:normal|protected) symbol `(\w+)'")
_DT_FLAGS, _DF_SYMBOLIC = 30, 2
Bindings = dict[tuple[str, str], str]
"""(path of the referring object, name of the function) to the path of the defining object."""


@dataclass
class Drawn:
    """A random process: what it starts with, and what it opens with RTLD_NOW."""

    folder: Path
    program: Path
    preloaded: list[Path] = field(default_factory=list)
    opens: list[tuple[bool, Path]] = field(default_factory=list)
    """Pairs of whether RTLD_GLOBAL is given, and the library."""

    @property
    def environment(self) -> dict[str, str]:
        return {"LD_PRELOAD": ":".join(map(str, self.preloaded))} if self.preloaded else {}


def library(draw: random.Random, path: Path, made: list[Path]) -> Path:
    """Link a library that defines some functions, and calls some of its own or of others.

    Only the first library with a name may define it as unique: of several, the first one bound would count for all.
    """
    own = draw.sample(NAMES, draw.choice([0, 1, 1, 2]))
    used = draw.sample(NAMES, draw.choice([0, 1, 2, 3]))
    source = "int nothing; " + "".join(f"int {name}(void) {{ return 1; }} " for name in own)
    for name in used:
        mark = " __attribute__((weak))" if name not in own and draw.random() < 0.8 else ""
        source += f"extern int {name}(void){mark}; " if name not in own else ""
        source += f"int call_{name}(void) {{ return {name}(); }} "
    words: list[str | Path] = []
    has_versions = bool(own) and draw.random() < 0.5
    if has_versions:
        nodes: dict[str, list[str]] = {}
        for name in own:
            nodes.setdefault(draw.choice(["V1", "V2", "V3"]), []).append(name)
        script = path.with_suffix(".map")
        first = "V0 { global: nothing; };\n" if draw.random() < 0.5 else ""
        script.write_text(
            first + "".join(f"{node} {{ global: {'; '.join(names)}; }};\n" for node, names in nodes.items())
        )
        words += ["--version-script", script]
    is_symbolic = draw.random() < 0.1
    words += ["-z", "now"] if is_symbolic else []
    needed = draw.sample(made, min(len(made), draw.choice([0, 1, 1, 2])))
    so(path, *words, *needed, *runpath(path.parent), source=source)
    for name in own:
        match draw.randrange(12):
            case 0:
                with_symbol(path, name, visibility=3)
            case 1:
                with_symbol(path, name, visibility=2)
            case 2:
                with_symbol(path, name, binding=2)
            case 3 if name not in used:
                with_symbol(path, name, kind=3)
            case 4 if name not in used:
                with_symbol(path, name, binding=0)
            case 5 if not made:
                with_symbol(path, name, binding=10)
            case 6 | 7 | 8 if has_versions:
                with_symbol(path, name, hides_version=True)
    if is_symbolic:
        at = entry_at(path, _DT_FLAGS) + 8
        patched(path, at, bytes([path.read_bytes()[at] | _DF_SYMBOLIC]))
    return path


def drawn(seed: int, folder: Path) -> list[Drawn]:
    """Return some processes with one program and one set of libraries."""
    draw = random.Random(seed)  # noqa: S311 - the same each time
    folder.mkdir()
    made: list[Path] = []
    for number in range(draw.randint(3, 7)):
        made.append(library(draw, folder / f"lib{number}.so", made))
    needed = draw.sample(made, draw.choice([0, 0, 1, 2]))
    program = exe(folder / "prog", _OPENER, *needed, "-lc", *runpath(folder), source="")
    found: list[Drawn] = []
    for _ in range(5):
        opens = [(draw.random() < 0.4, draw.choice(made)) for _ in range(draw.randint(1, 3))]
        found.append(Drawn(folder, program, draw.sample(made, draw.choice([0, 0, 1, 2])), opens))
    return found


def real(it: Drawn) -> tuple[Bindings, list[str | None]]:
    """Return what the loader binds, and what dlsym finds for each name in each opened library."""
    opens = [(f"n{'g' * is_global}:{path}", *(f"s:{name}" for name in NAMES)) for is_global, path in it.opens]
    found: list[str | None] = []
    started, *parts = _run(it, [word for words in opens for word in words], {})[0].split("--\n")
    for part in parts if started else ():
        if "error " in part:
            break
        if not part.startswith("has "):
            found.append(part.removeprefix("symbol ").strip() or None)
    # up to the first that fails
    _, lines = _run(it, [words[0] for words in opens[: len(found) // len(NAMES) + 1]], {"LD_DEBUG": "bindings"})
    return {(user, name): definer for user, definer, name in _BOUND.findall(lines) if name in NAMES}, found


def _run(it: Drawn, words: list[str], more: dict[str, str]) -> tuple[str, str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("LD_")}
    environment |= {"LD_BIND_NOW": "1"} | it.environment | more
    done = subprocess.run([it.program, *words], capture_output=True, text=True, check=False, env=environment)
    return done.stdout, done.stderr


def modelled(it: Drawn) -> tuple[Bindings, list[str | None]]:
    bound: Bindings = {}
    found: list[str | None] = []
    with open_image(Path("/")) as image:
        process = Process(image.root, settings_here(it.environment))
        outcome = process.start(str(it.program), exec_start=True)
        steps = iter(it.opens)
        while True:
            assert not outcome.errors, outcome.errors
            ours = [each for each in outcome.objects if each.path.startswith(f"{it.folder}/lib")]
            for each in ours:
                for name in NAMES:
                    reference = reference_of(process, each, name)
                    definer = definer_of(process, each, reference) if reference else None
                    # the loader does not look up what the linker has bound
                    if reference and definer and not reference.is_bound:
                        bound[each.path, name] = definer.path
            if find_undefined(process, ours).found:
                return bound, found
            if outcome.root is not process.objects[0]:
                assert outcome.root is not None
                at = [dlsym(process, outcome.root, name) for name in NAMES]
                found += [each.path if each else None for each in at]
            step = next(steps, None)
            if step is None:
                return bound, found
            outcome = process.dlopen(str(step[1]), rtld_global=step[0])


def differs(it: Drawn) -> list[str]:
    """Return the differences between both; a load that fails ends before everything is bound."""
    (bound, found), (of_model, found_by_model) = real(it), modelled(it)
    is_intact = len(found) == len(NAMES) * len(it.opens)
    keys = {*bound, *(of_model if is_intact else ())}
    other = {key: (bound.get(key), of_model.get(key)) for key in keys if bound.get(key) != of_model.get(key)}
    # of its own symbols, what is bound to itself is left out
    lines = [f"{key}: {each}" for key, each in other.items() if each != (key[0], None)]
    return lines + ([f"{found} {found_by_model}"] if found != found_by_model else [])


@pytest.mark.parametrize("part", range(20 if EVERYTHING else 1))
def test_a_symbol_is_taken_from_where_the_loader_takes_it(part: int, tmp_path: Path) -> None:
    processes = [it for seed in range(24 * part, 24 * (part + 1)) for it in drawn(seed, tmp_path / str(seed))]
    assert {str(it): lines for it in processes if (lines := differs(it))} == {}
