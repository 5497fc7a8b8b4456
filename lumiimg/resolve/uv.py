"""uv, which resolves what Python packages require: where it is, what it is asked, and what it says where it cannot."""

from __future__ import annotations

import os
import re
import signal
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from lumiimg.engine.process import NO_NETRC, Completed, run, which
from lumiimg.errors import FailedError, MissingHereError, one_line, shortened
from lumiimg.files import read_beginning
from lumiimg.secret import hidden
from lumiimg.toml import parse_toml

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lumiimg.resolve.python_target import PythonTarget

_LIMIT_S = 900.0
# A page of an index that goes on for ever ends here, and not with the machine's memory; 4 s of resolving take 0.4 GiB.
_MEMORY_KIB = 4 << 20
_SHOWN = 900
"""Characters of what uv says, in one line."""
_MOST_BYTES = 64 << 20
"""Of a file that uv writes."""
# What a person's own settings of uv would change; these three are of their network.
_OF_NETWORK = frozenset({"UV_HTTP_TIMEOUT", "UV_HTTP_RETRIES", "UV_CONCURRENT_DOWNLOADS"})
_FOREIGN = ("UV_", "PIP_", "VIRTUAL_ENV", "CONDA_")
_NO_SOLUTION = "No solution found when resolving dependencies"
_FETCHING = "Failed to fetch: "
_CERTIFICATE = "invalid peer certificate"
_OFFLINE = "the network was disabled"
_KILLED = frozenset({128 + signal.SIGKILL, 128 + signal.SIGSEGV})
"""By the kernel, where a machine or a job has no memory left, and of itself, where it cannot even begin."""
_NO_MEMORY = re.compile(r"memory allocation of \d+ bytes failed|spawn (?:worker )?thread|Cannot allocate memory")
_ADDRESS = re.compile(r'\burl = "([^"]+)"')
_NO_TIMES = "missing an upload date"
_BY_DATE = "exclude-newer"
_FRAME = re.compile(r"^\s*(?:error:|cause:|\u00d7|╰─▶|├─▶|│)\s*")
_WITHDRAWN = re.compile(r"^warning: `([^`]{1,200})` is yanked \(reason: \"?(.{0,300}?)\"?\)$", re.MULTILINE)
_NO_EXTRA = re.compile(
    r"^warning: The package `([^`]{1,400})` does not have an extra named `([^`]{1,100})`$", re.MULTILINE
)


class NoSolutionError(FailedError):
    """What is asked for does not go together, in uv's words; the whole of them in `more`."""

    @property
    def is_by_date(self) -> bool:
        """Whether something was left out for the day on which it was uploaded."""
        return any(_BY_DATE in line for line in self.more)


class NoTimesError(FailedError):
    """An index says of no file when it was uploaded, so that no date can bound what is taken from it."""


def find_uv(environ: Mapping[str, str] = os.environ) -> str:
    """Return the program: that beside lumiimg, or that on PATH. Raises MissingHereError."""
    try:
        for file in distribution("uv").files or ():
            path = Path(str(file.locate()))
            if file.name == "uv" and path.is_file() and os.access(path, os.X_OK):
                return str(path.resolve())
    except PackageNotFoundError:
        pass
    if found := which("uv", environ.get("PATH")):
        return found
    raise MissingHereError(
        "uv, which resolves what Python packages require, is not here",
        hint="pip install uv, or put the program on PATH; `build --locked` needs none",
    )


def compile_versions(
    folder: Path, target: PythonTarget, cache: Path, environ: Mapping[str, str] = os.environ
) -> tuple[dict[str, str], str, tuple[str, ...]]:
    """Resolve `pyproject.toml` of a folder under its `uv.toml`; `held.txt` has versions that stay where they fit.

    Returns the versions by project, `held.txt` as uv then writes it (who requires what), and what a person should know
    of them, each a sentence. Raises NoSolutionError for what does not go together, NoTimesError where a date is to
    bound what has none, FailedError for what cannot be had, MissingHereError for what only a network would have.
    """
    done = _run(["--annotation-style", "line", "--output-file", "held.txt"], folder, target, cache, environ)
    _check(done, folder)
    try:
        requirers = read_beginning(folder / "held.txt", _MOST_BYTES).decode()
    except (OSError, ValueError) as error:
        raise FailedError(f"uv wrote nothing that can be read: {one_line(str(error))[:200]}") from error
    pinned = (line.partition("#")[0].strip().partition("==") for line in requirers.splitlines() if "==" in line)
    return {name: version for name, _, version in pinned}, requirers, tuple(_warnings(done.output))


def _warnings(output: str) -> Iterator[str]:
    """Yield what uv warns of: releases that were withdrawn, extras that there are not."""
    for found in _WITHDRAWN.finditer(output):
        yield hidden(one_line(f"{found[1]} was withdrawn (yanked): {found[2]}"))[:_SHOWN]
    for found in _NO_EXTRA.finditer(output):
        name = found[1].partition(" @ ")[0]
        yield hidden(one_line(f"{name} has no extra {found[2]} here, so nothing is put in for it"))


def compile_lock(
    folder: Path, target: PythonTarget, cache: Path, environ: Mapping[str, str] = os.environ
) -> tuple[list[dict[str, Any]], str, tuple[str, ...]]:
    """Return the packages as PEP 751 has them, and the rest as `compile_versions`, which raises the same."""
    versions, requirers, warned = compile_versions(folder, target, cache, environ)
    try:
        found = "".join(f"{name}=={version}\n" for name, version in versions.items())
        (folder / "found.txt").write_text(found, encoding="utf-8")
        words = ["--constraints", "found.txt", "--output-file", "pylock.toml"]
        _check(_run(words, folder, target, cache, environ), folder)
        return parse_toml(read_beginning(folder / "pylock.toml", _MOST_BYTES).decode())["packages"], requirers, warned
    except (OSError, ValueError, KeyError) as error:
        raise FailedError(f"uv wrote no lock that can be read: {one_line(str(error))[:200]}") from error


def _run(
    words: Sequence[str], folder: Path, target: PythonTarget, cache: Path, environ: Mapping[str, str]
) -> Completed:
    asked = ["--python-version", target.full_version, "--python-platform", target.platform]
    # Any Python will do, as nothing is built; to look for that of the image would take seconds.
    asked += ["--python", sys.executable, "--config-file", "uv.toml", "--cache-dir", str(cache), "--no-header"]
    env = {name: value for name, value in environ.items() if name in _OF_NETWORK or not name.startswith(_FOREIGN)}
    env |= {"NO_COLOR": "1", "UV_PYTHON_DOWNLOADS": "never", "UV_SYSTEM_CERTS": "1"} | NO_NETRC
    # The names that requests, and so everything else here, has for a site's own certificates come first.
    if bundle := env.get("REQUESTS_CA_BUNDLE") or env.get("CURL_CA_BUNDLE"):
        env["SSL_CERT_DIR" if Path(bundle).is_dir() else "SSL_CERT_FILE"] = bundle
    limited = ["/bin/sh", "-c", f'ulimit -v {_MEMORY_KIB}; exec "$@"', "uv", find_uv(environ)]
    return run([*limited, "pip", "compile", "pyproject.toml", *asked, *words], env=env, cwd=folder, timeout_s=_LIMIT_S)


def _check(completed: Completed, folder: Path) -> None:
    output = completed.output
    if completed.ok:
        return
    if completed.exit_code in _KILLED or _NO_MEMORY.search(output):
        settings = "".join(
            read_beginning(folder / name, _MOST_BYTES).decode() for name in ("uv.toml", "pyproject.toml")
        )
        hosts = dict.fromkeys(str(urlsplit(url).hostname) for url in _ADDRESS.findall(settings))
        raise FailedError(
            f"uv had not enough memory to resolve the wheels; it may use {_MEMORY_KIB >> 20} GiB, and asked "
            f"{', '.join(hosts)}",
            hint="does the job or the machine have that much? is the address an index, whose pages end?",
        )
    if completed.timed_out:
        raise FailedError(f"the wheels were not resolved within {_LIMIT_S:.0f} s", hint="is the index slow? try again")
    if _OFFLINE in output:
        what = (
            "the requirements cannot be resolved from earlier downloads alone, and --offline forbids to ask the index"
        )
        raise MissingHereError(what, hint="once without --offline")
    if _NO_TIMES in output:
        raise NoTimesError("an index gives no times of upload")
    what = first_paragraph(output) or f"uv ended with status {completed.exit_code}"
    if _NO_SOLUTION in output:
        raise NoSolutionError(what, more=output.splitlines())
    hint = "try again: what was fetched is kept" if what.startswith(_FETCHING) else None
    if _CERTIFICATE in what:
        hint = "SSL_CERT_FILE, or REQUESTS_CA_BUNDLE, names a file of the certificates that a site has of its own"
    raise FailedError(what, hint=hint, more=output.splitlines())


def first_paragraph(output: str) -> str:
    """Return what uv says first of a failure, in one line: not its warnings, nor what it hints at."""
    lines = output[max(output.find("error: "), 0) :].splitlines()
    hints = (at for at, line in enumerate(lines) if not line.strip() or line.strip().startswith("hint:"))
    words = [_FRAME.sub("", line).strip() for line in lines[: next(hints, len(lines))]]
    # what it proposes is for who has a project, not an image
    text = " ".join(words).partition(" Consider ")[0]
    text = re.sub(rf"^{_NO_SOLUTION}:? ", "no solution: ", text)
    return shortened(hidden(one_line(text)).removesuffix("."), _SHOWN)
