"""The engine of this machine: SingularityCE or Apptainer, found by asking it, else the kernel's own namespaces.

Both programs may be called `singularity`, both answer 255 to every failure, and flags come and go with versions; so the
kind is read from `--version`, and each flag from `build --help`.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.engine import namespaces
from lumiimg.engine.process import NO_NETRC, Completed, run, which
from lumiimg.errors import MissingHereError, one_line
from lumiimg.files import read_beginning
from lumiimg.image.squashfs.superblock import MAGIC as _SQUASHFS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import IO

    from lumiimg.engine.binds import BindSpec

NAMES = ("apptainer", "singularity")
PROBE_TIMEOUT_S = 20.0
PACKED = ("-comp", "gzip", "-Xcompression-level", "4")
"""How mksquashfs packs all that goes into an image, for every engine (docs/decisions/0026-images-are-gzip.md)."""
_NAMELESS_LOGINS = ("_DOCKER_USERNAME", "_DOCKER_PASSWORD")
_LOGINS = (*_NAMELESS_LOGINS, "DOCKER_CONFIG", "_AUTHFILE", "_AUTH_FILE", "_CONFIGDIR")
_FAKEROOT, _NO_OCI = "--fakeroot", "--no-oci"
_APART = ("--no-home", "--cleanenv", "--no-mount", "bind-paths", "--pwd", "/")
_HINT = (
    "install Apptainer (apptainer.org/docs), load your site's module, or name the program "
    "in LUMIIMG_ENGINE; --dry-run, --definitions and `check --level static` need no engine"
)
# `singularity-ce version 4.1.3-150500.10.7`, `apptainer version 1.4.5`, `singularity version 3.8.7`
_VERSION = re.compile(r"^(apptainer|singularity-ce|singularity)(?:-pro)? version v?(\d+(?:\.\d+)*)", re.MULTILINE)


class EngineKind(StrEnum):
    """Which family; they read different variables."""

    APPTAINER = "apptainer"
    SINGULARITY = "singularity"
    NAMESPACES = "namespaces"
    """None is installed: lumiimg has the kernel make containers, and reads the variables of Apptainer."""


@dataclass(frozen=True, slots=True)
class Engine:
    """A container engine that answered."""

    path: Path
    """Of the program."""
    kind: EngineKind
    """Which family; SingularityCE is `singularity`."""
    version: str
    """As it says itself: `1.4.2`."""
    build_flags: frozenset[str]
    """Long options that its `build` knows, with the dashes."""

    @property
    def family(self) -> str:
        """As people call it, and as a node snapshot does."""
        return _PEOPLE_SAY[self.kind]

    @property
    def name(self) -> str:
        """Kind and version, for people and logs."""
        return f"{self.family} {self.version}"

    @property
    def prefix(self) -> str:
        """What this engine's variables begin with."""
        return "SINGULARITY" if self.kind is EngineKind.SINGULARITY else "APPTAINER"

    def setting(self, variables: Iterable[tuple[str, str]]) -> dict[str, str]:
        """Return the environment by which it sets variables in a container, over what the image sets."""
        return {f"{self.prefix}ENV_{name}": value for name, value in variables}

    @property
    def words(self) -> tuple[str | Path, ...]:
        """The command, to which its own options are added."""
        return namespaces.PROGRAM if self.kind is EngineKind.NAMESPACES else (self.path,)

    @property
    def without_fakeroot(self) -> Engine:
        """The same, for a machine on which it starts nothing as root."""
        return replace(self, build_flags=self.build_flags - {_FAKEROOT})


_PEOPLE_SAY = {
    EngineKind.APPTAINER: "Apptainer",
    EngineKind.SINGULARITY: "SingularityCE",
    EngineKind.NAMESPACES: "namespaces of Linux",
}


def find_engine(environment: Mapping[str, str]) -> Engine:
    """Return the first of `engines_here`: the one by which jobs start containers, so that what it does is evidence.

    Whether it starts any is not asked: a check is not made by another engine than jobs have.
    """
    return next(engines_here(environment))


def engines_here(environment: Mapping[str, str]) -> Iterator[Engine]:
    """Yield the engine that LUMIIMG_ENGINE names, and no other; else each on PATH that answers, then the kernel's.

    Raises MissingHereError where there is none, which names what was tried and how each failed.
    """
    named = environment.get("LUMIIMG_ENGINE")
    if named == EngineKind.NAMESPACES:
        yield of_kernel()
        return
    refused: list[str] = []
    engine = None
    for engine in _container_engines(environment, refused):
        yield engine
    if engine is None:
        error = _no_engine(refused)
        if named:
            raise error
        tried = run(
            [*namespaces.PROGRAM, "root", "--mounts", "/bin/true"],
            env=clean_environment(environment),
            timeout_s=PROBE_TIMEOUT_S,
        )
        if not tried.ok:
            why = one_line(tried.last_line).removeprefix("FATAL:").strip() or f"exit {tried.exit_code}"
            raise MissingHereError(f"{error.what}; namespaces of Linux: {why}", hint=error.hint)
    if not named:
        yield of_kernel()


def of_kernel() -> Engine:
    """Return the engine of the kernel's own, which `lumiimg.engine.namespaces` is."""
    release = re.match(r"\d+(\.\d+)*", platform.release())
    flags = frozenset((_FAKEROOT,))
    return Engine(Path(sys.executable), EngineKind.NAMESPACES, release[0] if release else "", flags)


def find_container_engine(environment: Mapping[str, str]) -> Engine:
    """Return the container engine named by LUMIIMG_ENGINE, else the first on PATH that answers.

    Raises MissingHereError, which names what was tried and how each failed.
    """
    refused: list[str] = []
    for engine in _container_engines(environment, refused):
        return engine
    raise _no_engine(refused)


def _no_engine(refused: Sequence[str]) -> MissingHereError:
    return MissingHereError(f"no container engine answers here ({'; '.join(refused)})", hint=_HINT)


def _container_engines(environment: Mapping[str, str], refused: list[str]) -> Iterator[Engine]:
    """Yield those that answer; what is said of the others is added to `refused`."""
    for name, found in _programs(environment).items():
        if found is None:
            refused.append(f"{name}: not found")
            continue
        completed = run([found, "--version"], env=clean_environment(environment), timeout_s=PROBE_TIMEOUT_S)
        match = _VERSION.search(completed.output)
        if not completed.ok or match is None:
            refused.append(f"{found}: exit {completed.exit_code}, {one_line(completed.last_line) or 'no output'}")
            continue
        help_text = run([found, "build", "--help"], env=clean_environment(environment), timeout_s=PROBE_TIMEOUT_S)
        yield Engine(
            path=Path(found),
            kind=EngineKind.APPTAINER if match[1] == "apptainer" else EngineKind.SINGULARITY,
            version=match[2],
            build_flags=frozenset(re.findall(r"--[a-z][a-z-]+", help_text.output)),
        )


def _programs(environment: Mapping[str, str]) -> dict[str, str | None]:
    """Return the program of each name of a container engine; one that has two names is there once."""
    named = environment.get("LUMIIMG_ENGINE")
    programs: dict[str, str | None] = {}
    for name in (named,) if named else NAMES:
        found = which(name, environment.get("PATH"))
        if found is None or not any(other and Path(found).samefile(other) for other in programs.values()):
            programs[name] = found
    return programs


def clean_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return `environment` without what a bindings module or a user's profile sets for containers.

    `SINGULARITY_BIND` of a site's bindings module makes `build` fail (the mount points are not in a new image), and
    `SINGULARITYENV_LD_LIBRARY_PATH` would leak into the image's own build. Where the engine keeps its downloads and its
    keys, and how it logs in to a registry, stays.
    """
    login = (*_NAMELESS_LOGINS, "_AUTHFILE", "_AUTH_FILE")
    kept = (*login, "_CACHEDIR", "_CONFIGDIR", "_DISABLE_CACHE", "_NOHTTPS", "_KEYSDIR", "_SYPGPDIR")
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith(("SINGULARITY", "APPTAINER")) or name.endswith(kept)
    }


def without_logins(environment: Mapping[str, str], home: Path) -> dict[str, str]:
    """Return `environment` with another home, so that no login of the user's is found: for what may go over plain http.

    debootstrap's wget, and an engine that asks a registry without TLS, would send it.
    """
    kept = {name: value for name, value in environment.items() if not name.endswith(_LOGINS)}
    return kept | NO_NETRC | {"HOME": os.fspath(home)}


def without_passwords(environment: Mapping[str, str]) -> dict[str, str]:
    """Return `environment` without a login that names no registry: an engine shows it to whichever it asks."""
    return {name: value for name, value in environment.items() if not name.endswith(_NAMELESS_LOGINS)}


def build(
    engine: Engine,
    definition: Path,
    target: Path,
    *,
    environment: Mapping[str, str],
    scratch: Path,
    plain_http: bool = False,
    timeout_s: float | None = None,
    log: IO[bytes] | None = None,
    on_line: Callable[[str], None] | None = None,
) -> Completed:
    """Run the engine's own `build` of a definition file, in the folder of that file; the target is a folder.

    `scratch` takes what the engine unpacks. `plain_http`: the registry of the definition's header has no TLS.
    """
    argv: list[str | Path] = [engine.path, "build", "--sandbox", *_native(engine), *_as_root(engine)]
    argv += ["--no-https"] if plain_http else []
    argv += [target, definition.name]
    env = _unpacking_in(scratch, engine, environment)
    return run(argv, env=env, cwd=definition.parent, timeout_s=timeout_s, log=log, on_line=on_line)


def run_script(
    engine: Engine,
    root: Path,
    argv: Sequence[str],
    *,
    environment: Mapping[str, str],
    scratch: Path,
    writable: bool = False,
    own_processes: bool = False,
    binds: Sequence[BindSpec] = (),
    within: Callable[[list[str | Path]], list[str | Path]] | None = None,
    timeout_s: float | None = None,
    log: IO[bytes] | None = None,
    on_line: Callable[[str], None] | None = None,
) -> Completed:
    """Run a program in an image as `%post` is run: root where the engine can, without the user's home and environment.

    `root` is an image, or with `writable` a folder; `own_processes`: none that it starts outlives it, as none does that
    `build` runs; `within` makes the command one that is run as root of a namespace.
    """
    words: list[str | Path] = [*engine.words, "exec", *_APART, *_native(engine), *_as_root(engine)]
    words += ["--writable"] if writable else []
    words += ["--pid"] if own_processes else []
    for bind in binds:
        words += ["--mount", _mount(bind.source, bind.target, *(["ro"] if bind.read_only else []))]
    words += [root, *argv]
    env = _unpacking_in(scratch, engine, environment)
    return run(within(words) if within else words, env=env, timeout_s=timeout_s, log=log, on_line=on_line)


def _as_root(engine: Engine) -> list[str]:
    needs_word = os.geteuid() != 0 or engine.kind is EngineKind.NAMESPACES
    return [_FAKEROOT] if needs_word and _FAKEROOT in engine.build_flags else []


def _native(engine: Engine) -> list[str]:
    """Return what has an engine of OCI containers, by its configuration, do what a definition file says."""
    return [_NO_OCI] if _NO_OCI in engine.build_flags else []


def _unpacking_in(scratch: Path, engine: Engine, environment: Mapping[str, str]) -> dict[str, str]:
    return clean_environment(environment) | dict.fromkeys((f"{engine.prefix}_TMPDIR", "TMPDIR"), os.fspath(scratch))


def exec_words(
    engine: Engine,
    image: Path,
    argv: Sequence[str],
    *,
    binds: Sequence[tuple[Path | str, str]] = (),
    writable: Sequence[tuple[Path | str, str]] = (),
    apart: bool = False,
) -> list[str | Path]:
    """Return the command that runs a program in the image; of what is bound only `writable` can be written to.

    A user's own environment goes to it as it is: a bindings module's SINGULARITY_BIND is part of what is tested.

    Of a squashfs file what it holds is bound; the kernel's own engine takes none.

    `apart`: without the user's home and environment, and without what a configuration binds.
    """
    words: list[str | Path] = [*engine.words, "exec"]
    words += [*_APART, *_native(engine)] if apart else []
    for (source, target), options in [*((bind, ["ro"]) for bind in binds), *((bind, []) for bind in writable)]:
        whole = ["image-src=/"] if _is_squashfs(source) else []
        words += ["--mount", _mount(source, target, *whole, *options)]
    return [*words, image, *argv]


def _is_squashfs(source: Path | str) -> bool:
    try:
        return read_beginning(source, len(_SQUASHFS)) == _SQUASHFS
    except (OSError, ValueError):  # a folder; the engine says what else it is
        return False


def _mount(source: Path | str, target: str, *options: str) -> str:
    """Return the value of `--mount`: CSV, so that a comma, a colon or a quote in a path stays part of it."""
    fields = ("type=bind", f"source={source}", f"destination={target}", *options)
    return ",".join(
        f'"{field.replace(chr(34), chr(34) * 2)}"' if set(field) & set(',"\n') else field for field in fields
    )
