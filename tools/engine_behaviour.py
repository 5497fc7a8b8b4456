"""What the engine that is here does, of that in which SingularityCE and Apptainer differ, and that takes seconds.

python -m tools.engine_behaviour IMAGE

It tries the rows of tools/engine_differences.toml that say what each engine shows, and prints one line for each: `same`,
`other` with what was expected, or `open` with the reason. The exit code is 1 where a row is `other`.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lumiimg.engine.engine import EngineKind, clean_environment, find_container_engine
from lumiimg.engine.namespaces.ids import own_ranges
from lumiimg.engine.process import run, which
from lumiimg.errors import LumiimgError, one_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from lumiimg.engine.engine import Engine
    from lumiimg.engine.process import Completed

TABLE = Path(__file__).with_name("engine_differences.toml")
_TRY_S, _ALL_S = 20.0, 180.0
_SAID = 300
"""Characters of an answer."""
_MARK = "lumiimg-engine:"
"""Begins the line of a script: what else is printed is the image's, or the engine's."""
_INSIDE = "/mnt", "/srv"
"""Folders of FHS, on which something is mounted."""
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
_OWN_VARIABLE = re.compile(r"^(?:export|declare -x) (APPTAINER|SINGULARITY)_([A-Z]{1,20})(?==|$)", re.MULTILINE)
_CONFIGURATION = re.compile(r"^(?:APPTAINER|SINGULARITY)_CONF_FILE=(/[!-~]{1,200})$", re.MULTILINE)
_ROOT = ("dev", "proc", "sys", "etc", "tmp", "var/tmp", "home", "root", "bin")
_SUBUID = "/etc/subuid"
NO_SUCH_OPTION = "no such option"


Row = Mapping[str, Any]
"""Of the table."""


def tried_differences() -> list[Row]:
    """Return the rows that can be tried."""
    return [row for row in tomllib.loads(TABLE.read_text(encoding="utf-8"))["difference"] if "shows" in row]


def behaviour_of(image: Path, environment: Mapping[str, str]) -> tuple[Engine, dict[str, tuple[str | None, str]]]:
    """Return the engine of this machine, and of each row what it does with an image, in the words of the row.

    None stands where that could not be tried, with the reason. Raises MissingHereError where there is no engine. Nothing is
    written but into a folder that is removed again.
    """
    engine = find_container_engine(environment)
    shown: dict[str, tuple[str | None, str]] = {}
    with tempfile.TemporaryDirectory(prefix="lumiimg-engine-") as folder:
        own = clean_environment(environment) | {f"{engine.prefix}_TMPDIR": folder, "LC_ALL": "C"}
        bench = _Bench(engine, image, Path(folder), own, time.monotonic() + _ALL_S)
        starts, why = _tried(lambda: _said(bench.inside(f"echo {_MARK} starts")))
        for row in tried_differences():
            needs_start, attempt = TRIES[row["id"]]
            if needs_start and starts is None:
                shown[row["id"]] = None, f"the image does not start: {why}"
            else:
                shown[row["id"]] = _tried(partial(attempt, bench, row))
    return engine, shown


class _CannotTellError(Exception):
    """A try shows nothing, and why."""


def _tried(attempt: Callable[[], str]) -> tuple[str | None, str]:
    try:
        return one_line(attempt())[:_SAID], ""
    except _CannotTellError as error:
        return None, one_line(str(error))[:_SAID]
    except LumiimgError as error:
        return None, one_line(error.what)[:_SAID]
    except OSError as error:
        return None, f"{error.strerror}: {error.filename}"[:_SAID]


@dataclass(frozen=True, slots=True)
class _Bench:
    """An engine with an image, and a folder of its own."""

    engine: Engine
    image: Path
    folder: Path
    environment: Mapping[str, str]
    ends: float

    def run(self, *words: str | Path, told: Mapping[str, str] | None = None, cwd: Path | None = None) -> Completed:
        limit_s = min(_TRY_S, self.ends - time.monotonic())
        if limit_s <= 0:
            raise _CannotTellError(f"not begun: the tries have {_ALL_S:.0f} s together")
        done = run(words, env={**self.environment, **(told or {})}, cwd=cwd, timeout_s=limit_s)
        if done.timed_out:
            raise _CannotTellError(f"no end within {limit_s:.0f} s")
        return done

    def inside(
        self, script: str, *options: str | Path, told: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> Completed:
        """Run a script of sh in the image."""
        words = (self.engine.path, "exec", *options, self.image, "/bin/sh", "-c", script)
        return self.run(*words, told=told, cwd=cwd or self.folder)

    def folder_with_mark(self, name: str) -> Path:
        """Return a new folder with a file `mark`."""
        made = self.folder / name
        made.mkdir()
        (made / "mark").write_text("")
        return made

    def squashfs(self, source: Path, compression: str) -> Path:
        """Return a folder as a squashfs file."""
        program = which("mksquashfs", self.environment.get("PATH"))
        if program is None:
            raise _CannotTellError("no mksquashfs here")
        packed = source.with_suffix(f".{compression}")
        words = (program, source, packed, "-comp", compression, "-processors", "1", "-no-progress", "-quiet")
        done = self.run(*words)
        if not done.ok:
            raise _CannotTellError(f"mksquashfs: {done.last_line}")
        return packed

    def is_set_user_id(self) -> bool:
        """Return whether containers are not in a user namespace of their own: then the engine is set-user-id."""
        link = "/proc/self/ns/user"
        told = _said(self.inside(f"echo {_MARK} $(readlink {link})"))
        if not told:
            raise _CannotTellError("the image has no readlink")
        return told == f"{Path(link).readlink()}"


def _said(done: Completed) -> str:
    """Return what a script said."""
    lines = [line for line in done.output.splitlines() if line.startswith(_MARK)]
    if not lines:
        raise _CannotTellError(done.last_line or f"exit {done.exit_code}, without a word")
    return lines[-1].removeprefix(_MARK).strip()


def _told_variables(bench: _Bench, _: Row) -> str:
    ours, theirs = "SINGULARITYENV_", "APPTAINERENV_"
    told = {f"{ours}LI_S": "s", f"{theirs}LI_A": "a", f"{ours}LI_B": "s", f"{theirs}LI_B": "a"}
    found = _said(bench.inside(f'echo {_MARK} "S$LI_S A$LI_A B$LI_B"', told=told)).split()
    alone = [name for name, word in ((ours, "Ss"), (theirs, "Aa")) if word in found]
    both = {"Bs": ours, "Ba": theirs}
    return f"alone: {', '.join(alone) or 'none'}; of both: {next((both[w] for w in found if w in both), 'none')}"


def _option_variables(bench: _Bench, _: Row) -> str:
    first, second = (bench.folder_with_mark(name) for name in ("bind-1", "bind-2"))
    script = f"echo {_MARK}; " + "; ".join(f"[ ! -e {at}/mark ] || echo {_MARK} {at}" for at in _INSIDE)

    def appear(one: str, other: str) -> str:
        told = {one: f"{first}:{_INSIDE[0]}", other: f"{second}:{_INSIDE[1]}"}
        done = bench.inside(script, told=told)
        _said(done)
        lines = {line.removeprefix(_MARK).strip() for line in done.output.splitlines() if line.startswith(_MARK)}
        return " and ".join(name for name, at in zip(told, _INSIDE, strict=True) if at in lines) or "none"

    pairs = [(f"{prefix}_BIND", f"{prefix}_BINDPATH") for prefix in ("SINGULARITY", "APPTAINER")]
    return "; ".join(appear(*pair) for pair in (*pairs, ("SINGULARITY_BIND", "APPTAINER_BIND")))


def _variables_inside(bench: _Bench, _: Row) -> str:
    done = bench.inside(f"echo {_MARK}; export -p", "--cleanenv")
    _said(done)
    found = sorted({match.groups() for match in _OWN_VARIABLE.finditer(done.output)})
    prefixes = dict.fromkeys(prefix for prefix, _ in found)
    told = (f"{prefix}_: {' '.join(name for of, name in found if of == prefix)}" for prefix in prefixes)
    return "; ".join(told) or "none"


def _image_path(bench: _Bench, _: Row) -> str:
    if not bench.image.is_file():
        raise _CannotTellError("the image is a folder")
    if bench.is_set_user_id():
        raise _CannotTellError("the engine is set-user-id")
    told = _said(bench.inside(f'echo {_MARK} "$SINGULARITY_CONTAINER"'))
    its = {f"{bench.image}", os.path.realpath(bench.image)}
    return "the path of the SIF" if told in its else "another path" if told else "nothing"


def _options(bench: _Bench, row: Row) -> str:
    """Return which options of either engine this one has: `exec --oci, build --oci`."""
    asked = dict.fromkeys(
        text for shown in row["shows"].values() for text in shown.split(", ") if text != NO_SUCH_OPTION
    )
    helps: dict[str, set[str]] = {}
    for text in asked:
        command = text.rpartition(" ")[0]
        if command not in helps:
            done = bench.run(bench.engine.path, *command.split(), "--help")
            if not done.ok:
                raise _CannotTellError(f"{command} --help: {done.last_line}")
            helps[command] = set(_OPTION.findall(done.output))
    there = [text for text in asked if text.rpartition(" ")[2] in helps[text.rpartition(" ")[0]]]
    return ", ".join(there) or NO_SUCH_OPTION


def _fakeroot(bench: _Bench, _: Row) -> str:
    if os.getuid() == 0 or own_ranges(_SUBUID):
        raise _CannotTellError("root needs none" if os.getuid() == 0 else f"this user has ids in {_SUBUID}")
    done = bench.inside(f"echo {_MARK}", "--fakeroot")
    if "trying root-mapped namespace" in done.output or done.ok:
        return "goes on"
    if "subuid" in done.output:
        return "ends"
    raise _CannotTellError(done.last_line)


def _configuration(bench: _Bench, _: Row) -> str:
    done = bench.run(bench.engine.path, "buildcfg")
    found = _CONFIGURATION.search(done.output)
    if found is None:
        raise _CannotTellError(f"buildcfg: {done.last_line}")
    path = Path(found[1])
    path.stat()
    return "/".join(path.parts[-3:])


def _working_directory(bench: _Bench, _: Row) -> str:
    here = bench.folder_with_mark("nowhere")
    done = bench.inside(f"echo {_MARK} $PWD", "--no-mount", "home,cwd,tmp,bind-paths", cwd=here)
    place = _said(done)
    if place == f"{here}":
        raise _CannotTellError("the folder is in the container all the same")
    warned = any("working directory" in line for line in done.output.splitlines() if line.startswith("WARNING"))
    return f"starts in {place} {'with' if warned else 'without'} a warning"


def _bound_squashfs(bench: _Bench, _: Row) -> str:
    packed = bench.squashfs(bench.folder_with_mark("packed"), "gzip")
    script = f"[ ! -e {_INSIDE[0]}/mark ] || echo {_MARK} there"
    done = bench.inside(script, "--mount", f"type=bind,source={packed},destination={_INSIDE[0]},image-src=/,ro")
    if f"{_MARK} there" in done.output.splitlines():
        return "what it holds is there"
    if bench.engine.kind is EngineKind.SINGULARITY and not bench.is_set_user_id():
        raise _CannotTellError(f"without set-user-id: {done.last_line}")
    return "is not there" if done.ok else f"ends: {done.last_line}"


def _zstd(bench: _Bench, _: Row) -> str:
    """Start an image without programs, as gzip and as zstd: where both end alike, it was not the compression."""
    root = bench.folder / "root"
    for name in _ROOT:
        (root / name).mkdir(parents=True)
    plain, other = (
        bench.run(bench.engine.path, "exec", bench.squashfs(root, compression), "/none", cwd=bench.folder)
        for compression in ("gzip", "zstd")
    )
    if "/none" not in plain.last_line:
        raise _CannotTellError(f"as gzip: {plain.last_line}")
    if "unknown compression algorithm" in other.output:
        return "does not take it"
    return "starts it" if other.last_line == plain.last_line else f"ends: {other.last_line}"


TRIES: Mapping[str, tuple[bool, Callable[[_Bench, Row], str]]] = {
    "mksquashfs-args": (False, _options),
    "zstd": (False, _zstd),
    "oci-mode": (False, _options),
    "fakeroot-without-ids": (True, _fakeroot),
    "told-variables": (True, _told_variables),
    "option-variables": (True, _option_variables),
    "variables-inside": (True, _variables_inside),
    "configuration": (False, _configuration),
    "image-path": (True, _image_path),
    "working-directory": (True, _working_directory),
    "unpacking": (False, _options),
    "other-options": (False, _options),
    "bound-squashfs": (True, _bound_squashfs),
}
"""By the id of the row; whether an image must start for it."""


def main() -> int:
    engine, shown = behaviour_of(Path(sys.argv[1]).absolute(), os.environ)
    print(engine.name)
    others = 0
    for row in tried_differences():
        answer, why = shown[row["id"]]
        expected = row["shows"].get(engine.name.partition(" ")[0].lower())
        if answer is None or expected is None:
            print(f"open   {row['id']}: {answer or why}")
        elif answer == expected:
            print(f"same   {row['id']}: {answer}")
        else:
            others += 1
            print(f"other  {row['id']}: {answer}; expected: {expected}")
    return int(others > 0)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except LumiimgError as error:
        sys.exit(f"{error}")
