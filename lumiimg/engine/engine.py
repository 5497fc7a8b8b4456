"""The container engine of this machine: SingularityCE or Apptainer, found by running it, else the kernel's namespaces.

Both programs may be called `singularity`, both exit with 255 for every failure, and flags depend on the version; so the
kind is read from `--version`, and the flags from `build --help`.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.core.errors import MissingHereError, one_line
from lumiimg.core.files import read_beginning
from lumiimg.engine import namespaces
from lumiimg.engine.binds import BindSpec
from lumiimg.engine.process import NO_NETRC, run, which

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

_PROBE_TIMEOUT_S = 20.0
_PROGRAMS = ("apptainer", "singularity")
PACKED = ("-comp", "gzip", "-Xcompression-level", "4")
"""Options of mksquashfs for everything in an image, with every engine (docs/decisions.md#everything-is-gzip)."""
_NAMELESS_LOGINS = ("_DOCKER_USERNAME", "_DOCKER_PASSWORD")
_LOGINS = (*_NAMELESS_LOGINS, "_AUTHFILE", "_AUTH_FILE")
_OF_REGISTRIES = ("_CACHEDIR", "_CONFIGDIR", "_DISABLE_CACHE", "_NOHTTPS", "_KEYSDIR", "_SYPGPDIR")
_FAKEROOT = "--fakeroot"
_ISOLATION = ("--no-home", "--cleanenv", "--no-mount", "bind-paths", "--pwd", "/")
_HINT = (
    "install Apptainer (apptainer.org/docs), load your site's module, or name the program "
    "in LUMIIMG_ENGINE; --dry-run, --definitions and `check --level static` need no engine"
)
# `singularity-ce version 4.1.3-150500.10.7`, `apptainer version 1.4.5`, `singularity version 3.8.7`
_VERSION = re.compile(r"^(apptainer|singularity-ce|singularity)(?:-pro)? version v?(\d+(?:\.\d+)*)", re.MULTILINE)


class EngineKind(StrEnum):
    """Engine families, which read different variables."""

    APPTAINER = "apptainer"
    SINGULARITY = "singularity"
    NAMESPACES = "namespaces"
    """No installed engine: lumiimg has the kernel make containers, and reads the variables of Apptainer."""


@dataclass(frozen=True, slots=True)
class Engine:
    """A container engine that was seen to run."""

    path: Path
    """Path of the program."""
    kind: EngineKind
    """Engine family; `singularity` is SingularityCE."""
    version: str
    """Version that it prints, as `1.4.2`."""
    build_flags: frozenset[str]
    """Long options of its `build`, with the dashes."""

    @property
    def family(self) -> str:
        """The common name of the family, as in a node snapshot."""
        return _DISPLAY_NAMES[self.kind]

    @property
    def name(self) -> str:
        """Family and version, for messages and logs."""
        return f"{self.family} {self.version}"

    @property
    def prefix(self) -> str:
        """Prefix of this engine's variables."""
        return "SINGULARITY" if self.kind is EngineKind.SINGULARITY else "APPTAINER"

    def setting(self, variables: Iterable[tuple[str, str]]) -> dict[str, str]:
        """Return the environment that makes it set variables in a container, overriding those of the image."""
        return {f"{self.prefix}ENV_{name}": value for name, value in variables}

    @property
    def words(self) -> tuple[str | Path, ...]:
        """The start of its commands, before options."""
        return namespaces.PROGRAM if self.kind is EngineKind.NAMESPACES else (self.path,)

    @property
    def without_fakeroot(self) -> Engine:
        """The same engine, for a machine on which it cannot start programs as root."""
        return replace(self, build_flags=self.build_flags - {_FAKEROOT})


_DISPLAY_NAMES = {
    EngineKind.APPTAINER: "Apptainer",
    EngineKind.SINGULARITY: "SingularityCE",
    EngineKind.NAMESPACES: "namespaces of Linux",
}


def find_engine(environment: Mapping[str, str]) -> Engine:
    """Return the first of `available_engines`, which jobs use to start containers, so its behaviour is evidence.

    It is returned even if it starts no container: a check must use the same engine as jobs.
    """
    return next(available_engines(environment))


def available_engines(environment: Mapping[str, str]) -> Iterator[Engine]:
    """Yield only the engine that LUMIIMG_ENGINE names; if unset, each engine on PATH that runs, then the kernel's.

    Raises MissingHereError if there is none, with the names that were tried and how each failed.
    """
    named = environment.get("LUMIIMG_ENGINE")
    if named == EngineKind.NAMESPACES:
        yield kernel_engine()
        return
    try:
        yield from container_engines(environment)
    except MissingHereError as error:
        if named:
            raise
        if why := _why_no_namespaces(environment):
            raise MissingHereError(f"{error.what}; namespaces of Linux: {why}", hint=error.hint) from error
    if not named:
        yield kernel_engine()


def engine_word() -> str:
    """Return the program for a suggested command: the engine that a command would find here, else Apptainer."""
    names = filter(None, (os.environ.get("LUMIIMG_ENGINE"), *_PROGRAMS))
    found = (name for name in names if which(name, os.environ.get("PATH")))
    return shlex.quote(next(found, _PROGRAMS[0]))


def kernel_engine() -> Engine:
    """Return the kernel's own engine, which is `lumiimg.engine.namespaces`."""
    release = re.match(r"\d+(\.\d+)*", platform.release())
    flags = frozenset((_FAKEROOT,))
    return Engine(Path(sys.executable), EngineKind.NAMESPACES, release[0] if release else "", flags)


def container_engines(environment: Mapping[str, str]) -> Iterator[Engine]:
    """Yield the engine that LUMIIMG_ENGINE names, else each on PATH that runs; one with two names only once.

    Raises MissingHereError if there is none, with the names that were tried and how each failed.
    """
    found: list[Engine] = []
    refused: list[str] = []
    named, clean = environment.get("LUMIIMG_ENGINE"), clean_environment(environment)
    for name in (named,) if named else _PROGRAMS:
        path = which(name, environment.get("PATH"))
        if path is None:
            refused.append(f"{name}: not found")
        elif not any(engine.path.samefile(path) for engine in found):
            done = run([path, "--version"], env=clean, timeout_s=_PROBE_TIMEOUT_S)
            match = _VERSION.search(done.output)
            if done.ok and match is not None:
                kind = EngineKind.APPTAINER if match[1] == "apptainer" else EngineKind.SINGULARITY
                help_text = run([path, "build", "--help"], env=clean, timeout_s=_PROBE_TIMEOUT_S).output
                found.append(Engine(Path(path), kind, match[2], frozenset(re.findall(r"--[a-z][a-z-]+", help_text))))
                yield found[-1]
            else:
                why = "neither Apptainer nor SingularityCE" if done.ok else f"exit {done.exit_code}"
                refused.append(f"{path}: {why}, {one_line(done.last_line) or 'no output'}")
    if not found:
        raise MissingHereError(f"no working container engine here ({'; '.join(refused)})", hint=_HINT)


def _why_no_namespaces(environment: Mapping[str, str]) -> str:
    """Return why the kernel makes no containers here; empty if it does."""
    words = [*namespaces.PROGRAM, "root", "--mounts", "/bin/true"]
    tried = run(words, env=clean_environment(environment), timeout_s=_PROBE_TIMEOUT_S)
    why = one_line(tried.last_line).removeprefix("FATAL:").strip() or f"exit {tried.exit_code}"
    return "" if tried.ok else why


def clean_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return `environment` without the container settings of a bindings module or a user's profile.

    `SINGULARITY_BIND` of a site's bindings module makes `build` fail (the mount points are not in a new image), and
    `SINGULARITYENV_LD_LIBRARY_PATH` would leak into the image's own build. Settings for the engine's downloads, keys
    and registry logins are preserved.
    """
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith(("SINGULARITY", "APPTAINER")) or name.endswith((*_LOGINS, *_OF_REGISTRIES))
    }


def without_logins(environment: Mapping[str, str], home: Path) -> dict[str, str]:
    """Return `environment` with another home that has none of the user's logins, for programs that may use plain http.

    debootstrap's wget, or an engine that uses a registry without TLS, would send a login.
    """
    logins = (*_LOGINS, "_CONFIGDIR", "DOCKER_CONFIG")
    without_logins = {name: value for name, value in environment.items() if not name.endswith(logins)}
    return without_logins | NO_NETRC | {"HOME": os.fspath(home)}


def without_passwords(environment: Mapping[str, str]) -> dict[str, str]:
    """Return `environment` without logins that name no registry: an engine sends them to any registry that it uses."""
    return {name: value for name, value in environment.items() if not name.endswith(_NAMELESS_LOGINS)}


def build_words(engine: Engine, definition: str, target: Path, *, plain_http: bool = False) -> list[str | Path]:
    """Return the command by which the engine itself builds a definition file in the current folder into a folder.

    `plain_http`: the registry of the definition's header has no TLS.
    """
    options = [*_flags(engine), *(["--no-https"] if plain_http else [])]
    return [engine.path, "build", "--sandbox", *options, target, definition]


def script_words(
    engine: Engine,
    root: Path,
    argv: Sequence[str],
    *,
    binds: Sequence[BindSpec] = (),
    writable: bool = False,
    has_pid_namespace: bool = False,
) -> list[str | Path]:
    """Return the command that runs a program in an image like `%post`: isolated, and as root if the engine can do that.

    `root` is an image, or with `writable` a folder. `has_pid_namespace`: none of its processes outlives it, as in
    the engine's own `build`.
    """
    options = [*_ISOLATION, *_flags(engine)]
    options += ["--writable"] if writable else []
    options += ["--pid"] if has_pid_namespace else []
    return _container(engine, options, binds, root, argv)


def unpacking_in(scratch: Path, engine: Engine, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for such a command, in which the engine unpacks into `scratch`."""
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
    """Return the command that runs a program in the image; only the binds in `writable` can be written to.

    It is for the user's own environment, unchanged: a bindings module's SINGULARITY_BIND is part of what is tested.
    `apart`: without the user's home and environment, and without the binds of a configuration.
    """
    shown = [BindSpec(f"{source}", target, read_only=True) for source, target in binds]
    shown += [BindSpec(f"{source}", target) for source, target in writable]
    return _container(engine, [*_ISOLATION, *_flags(engine, as_root=False)] if apart else [], shown, image, argv)


def _flags(engine: Engine, *, as_root: bool = True) -> list[str]:
    """Return options that make an engine run programs as root, and one with an OCI mode follow a definition file."""
    is_root = os.geteuid() == 0 and engine.kind is not EngineKind.NAMESPACES
    wanted = ["--no-oci", *([_FAKEROOT] if as_root and not is_root else [])]
    return [flag for flag in wanted if flag in engine.build_flags]


def _container(
    engine: Engine, options: Sequence[str], binds: Sequence[BindSpec], image: Path, argv: Sequence[str]
) -> list[str | Path]:
    mounts = [word for bind in binds for word in ("--mount", _mount(bind))]
    return [*engine.words, "exec", *options, *mounts, image, *argv]


def _mount(bind: BindSpec) -> str:
    """Return the value of `--mount` as CSV, so that a comma, a colon or a quote in a path stays part of it.

    For a squashfs file, its content is bound, which the kernel's own engine does not support.
    """
    from lumiimg.image.squashfs.format import MAGIC  # here, as a plan names an engine but opens no image

    fields = ["type=bind", f"source={bind.source}", f"destination={bind.target}"]
    with suppress(OSError, ValueError):  # a folder; the engine reports anything else
        fields += ["image-src=/"] if read_beginning(bind.source, len(MAGIC)) == MAGIC else []
    fields += ["ro"] if bind.read_only else []
    return ",".join(
        f'"{field.replace(chr(34), chr(34) * 2)}"' if set(field) & set(',"\n') else field for field in fields
    )
