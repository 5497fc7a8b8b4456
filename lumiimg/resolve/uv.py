"""uv, the resolver of Python requirements: its location, its input and its errors."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from packaging.utils import canonicalize_name

from lumiimg.core.decode import decode_toml, read_text
from lumiimg.core.errors import FailedError, MissingHereError, one_line, shortened
from lumiimg.core.redact import redact
from lumiimg.engine.process import NO_NETRC, Completed, run, which

if TYPE_CHECKING:
    from lumiimg.resolve.python_target import PythonTarget

_LIMIT_S = 900.0
# An endless page of an index ends here, before it takes the machine's memory; 4 s of resolving take 0.4 GiB.
_MEMORY_KIB = 4 << 20
_SHOWN = 900
"""Most characters of uv's message in one line."""
_MAX_FILE_BYTES = 64 << 20
"""Size limit of a file that uv writes."""
# The user's own uv settings would change the result; these three only describe the network.
_OF_NETWORK = frozenset({"UV_HTTP_TIMEOUT", "UV_HTTP_RETRIES", "UV_CONCURRENT_DOWNLOADS"})
_FOREIGN = ("UV_", "PIP_", "VIRTUAL_ENV", "CONDA_")
_NO_SOLUTION = "No solution found when resolving dependencies"
_FETCHING = "Failed to fetch: "
_CERTIFICATE = "invalid peer certificate"
_OFFLINE = "the network was disabled"
_FAILED = 2
"""The highest exit status that uv itself uses; a higher one means a crash, usually from lack of memory."""
_NO_TIMES = "missing an upload date"
_FRAME = re.compile(r"^\s*(?:error:|cause:|\u00d7|╰─▶|├─▶|│)\s*")
_WARNING = re.compile(
    r"^warning: (`.{1,200}` is yanked .{0,400}|.{1,400} does not have an extra .{1,200})$", re.MULTILINE
)


class LockedWheel(Struct, frozen=True):
    """A wheel in a PEP 751 lock."""

    url: str = ""
    hashes: Mapping[str, str] = {}
    size: int | None = None


class LockedPackage(Struct, frozen=True):
    """A package in a PEP 751 lock."""

    name: str
    version: str = ""
    wheels: tuple[LockedWheel, ...] = ()


class _PackageLock(Struct, frozen=True):
    packages: tuple[LockedPackage, ...] = ()


@dataclass(frozen=True, slots=True)
class ResolvedVersions:
    """Versions that are compatible."""

    versions: Mapping[str, str]
    """Version by project."""
    requirers: Mapping[str, frozenset[str]]
    """Requirers of each project."""
    warnings: tuple[str, ...]
    """Warnings for people: withdrawn releases, and extras that do not exist."""


class NoSolutionError(FailedError):
    """The requirements conflict, in uv's words; its whole output is in `more`."""


class NoTimesError(FailedError):
    """An index has no upload times, so no date can limit what is used from it."""


def find_uv(environ: Mapping[str, str] = os.environ) -> str:
    """Return the path of the program, installed beside lumiimg or on PATH. Raises MissingHereError."""
    with suppress(ImportError, FileNotFoundError):
        from uv import find_uv_bin

        return find_uv_bin()
    if found := which("uv", environ.get("PATH")):
        return found
    raise MissingHereError(
        "uv, which resolves Python requirements, was not found",
        hint="pip install uv, or put the program on PATH; `build --locked` does not need it",
    )


def compile_versions(folder: Path, target: PythonTarget, cache: Path) -> ResolvedVersions:
    """Resolve `pyproject.toml` of a folder with its `uv.toml`; versions in `held.txt` are used where they still fit.

    Raises NoSolutionError for a conflict, NoTimesError if there is a date and an index has no upload times, FailedError
    for a failed download, MissingHereError if only the network has what is needed.
    """
    output = _run(folder, target, cache, "--annotation-style", "line", "--output-file", "held.txt")
    noted = read_text(folder / "held.txt", _MAX_FILE_BYTES)
    pinned = (line.partition("#")[0].strip().partition("==") for line in noted.splitlines() if "==" in line)
    warnings = (redact(one_line(found[1])) for found in _WARNING.finditer(output))
    return ResolvedVersions({name: version for name, _, version in pinned}, requirers_in(noted), tuple(warnings))


def compile_wheels(
    folder: Path, target: PythonTarget, cache: Path, versions: Mapping[str, str]
) -> tuple[LockedPackage, ...]:
    """Return the packages of a folder in the versions that `compile_versions` found, with their wheels."""
    (folder / "found.txt").write_text("".join(f"{name}=={one}\n" for name, one in versions.items()), encoding="utf-8")
    _run(folder, target, cache, "--constraints", "found.txt", "--output-file", "pylock.toml")
    return decode_toml(read_text(folder / "pylock.toml", _MAX_FILE_BYTES), _PackageLock, where="uv's lock").packages


def requirers_in(noted: str) -> dict[str, frozenset[str]]:
    """Return the requirers of each project, from uv's annotations: `numpy==2.2.6  # via numba, scipy`."""
    found: dict[str, frozenset[str]] = {}
    for line in noted.splitlines():
        what, _, via = line.partition("# via ")
        name = re.split(r"[=\[ ;]", what.strip())[0]
        if name:
            by = (canonicalize_name(one.split()[0]) for one in via.split(", ") if one)
            found[canonicalize_name(name)] = frozenset(by)
    return found


def _run(folder: Path, target: PythonTarget, cache: Path, *words: str) -> str:
    """Run `uv pip compile` in a folder and return its output. Raises as `compile_versions` does."""
    asked = ["--python-version", target.full_version, "--python-platform", target.platform]
    # Any Python will do, as nothing is built; looking for the image's would take seconds.
    asked += ["--python", sys.executable, "--config-file", "uv.toml", "--cache-dir", str(cache), "--no-header"]
    env = {name: value for name, value in os.environ.items() if name in _OF_NETWORK or not name.startswith(_FOREIGN)}
    env |= {"NO_COLOR": "1", "UV_PYTHON_DOWNLOADS": "never", "UV_SYSTEM_CERTS": "1"} | NO_NETRC
    # The variables that requests, and so the rest of lumiimg, reads for a site's own certificates come first.
    if bundle := env.get("REQUESTS_CA_BUNDLE") or env.get("CURL_CA_BUNDLE"):
        env["SSL_CERT_DIR" if Path(bundle).is_dir() else "SSL_CERT_FILE"] = bundle
    limited = ["/bin/sh", "-c", f'ulimit -v {_MEMORY_KIB}; exec "$@"', "uv", find_uv()]
    done = run([*limited, "pip", "compile", "pyproject.toml", *asked, *words], env=env, cwd=folder, timeout_s=_LIMIT_S)
    if not done.ok:
        raise _failure(done)
    return done.output


def _failure(done: Completed) -> FailedError | MissingHereError:
    """Return the error for a failed run, in uv's own words unless those are of no use to a person."""
    output = done.output
    if done.timed_out:
        return FailedError(f"the wheels were not resolved within {_LIMIT_S:.0f} s", hint="is the index slow? try again")
    if done.exit_code > _FAILED:
        what = f"uv crashed with status {done.exit_code}; it may use {_MEMORY_KIB >> 20} GiB of memory"
        advice = "check that the machine or job has that much, and that the index returns finite pages"
        return FailedError(what, hint=advice, more=output.splitlines())
    if _OFFLINE in output:
        what = "the requirements cannot be resolved from earlier downloads, and --offline forbids asking the index"
        return MissingHereError(what, hint="run it once without --offline")
    if _NO_TIMES in output:
        return NoTimesError("an index gives no upload times")
    what = first_paragraph(output) or f"uv ended with status {done.exit_code}"
    if _NO_SOLUTION in output:
        return NoSolutionError(what, more=output.splitlines())
    hint = "try again: downloads so far are cached" if what.startswith(_FETCHING) else None
    if _CERTIFICATE in what:
        hint = "if the site has its own certificates, name their file in SSL_CERT_FILE or REQUESTS_CA_BUNDLE"
    return FailedError(what, hint=hint, more=output.splitlines())


def first_paragraph(output: str) -> str:
    """Return the first part of uv's error message in one line, without warnings and hints."""
    lines = output[max(output.find("error: "), 0) :].splitlines()
    hints = (at for at, line in enumerate(lines) if not line.strip() or line.strip().startswith("hint:"))
    words = [_FRAME.sub("", line).strip() for line in lines[: next(hints, len(lines))]]
    # its proposals are for a project, not for an image
    text = " ".join(words).partition(" Consider ")[0]
    text = re.sub(rf"^{_NO_SOLUTION}:? ", "no solution: ", text)
    return shortened(redact(one_line(text)).removesuffix("."), _SHOWN)
