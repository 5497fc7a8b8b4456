"""uv, which resolves what Python packages require: where it is, what it is asked, and its answer in our words."""

from __future__ import annotations

import os
import platform
import re
import signal
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from lumiimg.engine.process import NO_NETRC, Completed, run, which
from lumiimg.engine.workspace import scratch_folder
from lumiimg.errors import FailedError, MissingHereError, one_line
from lumiimg.files import read_beginning
from lumiimg.secret import hidden
from lumiimg.toml import own_table, parse_toml

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lumiimg.resolve.python_target import PythonTarget

_LIMIT_S = 900.0
_PIP_S = 300.0
# A page of an index that goes on for ever ends here, and not with the machine's memory; 4 s of resolving take 0.4 GiB.
_MEMORY_KIB = 4 << 20
_SHOWN = 8000
_MOST_BYTES = 64 << 20
"""Of a file that uv writes."""
# What a person's own settings of uv would change; these three are of their network.
_KEPT = frozenset({"UV_HTTP_TIMEOUT", "UV_HTTP_RETRIES", "UV_CONCURRENT_DOWNLOADS"})
_FOREIGN = ("UV_", "PIP_", "VIRTUAL_ENV", "CONDA_")
APART = "these do not go together: "
"""How what cannot be resolved begins; after that each fact, apart by `; `."""
_NO_SOLUTION = "No solution found when resolving dependencies"
_FETCHING = "Failed to fetch: "
_CERTIFICATE = "invalid peer certificate"
_OFFLINE = "the network was disabled"
_KILLED = frozenset({128 + signal.SIGKILL, 128 + signal.SIGSEGV})
"""By the kernel, where a machine or a job has no memory left, and of itself, where it cannot even begin."""
_NO_MEMORY = re.compile(r"memory allocation of \d+ bytes failed|spawn (?:worker )?thread|Cannot allocate memory")
_ADDRESS = re.compile(r'\burl = "([^"]+)"')
_NO_TIMES = "missing an upload date"
_LIST = re.compile(
    r"(?:(?:all|one) of|(only) the following versions of \S+ are available):((?:\s+(?!we )\S+[<>=!]\S+)+)"
)
_DATED = re.compile(
    r"`([^`]+)` was filtered by `exclude-newer` to only include packages uploaded before \S+\. "
    r"The (?:latest version satisfying the requirement is|requested version,) v([^\s,]+), "
    r"(?:was )?published at (\d{4}-\d\d-\d\d)\S*"
)
_ADVICE = re.compile(
    r"Consider (?:using|adding) .*?(?:\.(?=\s)|$)|`[^`]+` was filtered by `exclude-newer` .*?\.(?=\s|$)"
    r"|The `--python-version` value .*?only supports? [^)]*\)\.?|Wheels are required for `[^`]+` because .*?`\)\.?"
)
_BY_ADDRESS = re.compile(
    r"dependencies for package `([^`]{1,200})` Package `([^`]{1,200})` was included as a URL dependency"
)
_WITHDRAWN = re.compile(r"^warning: `([^`]{1,200})` is yanked \(reason: \"?(.{0,300}?)\"?\)$", re.MULTILINE)
_NO_EXTRA = re.compile(
    r"^warning: The package `([^`]{1,400})` does not have an extra named `([^`]{1,100})`$", re.MULTILINE
)
_AND = re.compile(
    r",? and (?=(?:all (?:versions )?of|only|there (?:are|is)|because|we know|the requested)\s"
    r"|\S+(?: \S+)? (?:depends? on|was not found|ha(?:s|ve) no) )"
)
_SENTENCE = re.compile(r"\.(?=\s|$)|\s(?=(?:And|So,) because\s)")
_CONCLUSION = re.compile(r",?(?:^| )we can conclude that .*")
_WORDS = (
    (r"^(?:\(\d+\)\s*)?(?:(?:And|So,)? ?[Bb]ecause\s+)?", ""),
    (r"the requested Python version \(>=(\d+\.\d+)[.\d]*\) does not satisfy Python\S+", r"the image has Python \1"),
    (r"there (?:is|are) no versions? of ", "there is no "),
    (
        r"You require [^,]{1,80}, but we only found wheels for `([^`]{1,200})` \(v([^)]{1,80})\)[^:]+: ",
        r"\1 \2 has wheels for ",
    ),
    ("was published after the exclude newer time", "was uploaded later"),
    (r"(\S+) was not found in the package registry", r"no package index has \1"),
    (r"\bdepend(s?) on\b", r"require\1"),
)
_FRAME = re.compile(r"^(?:\s*(?:error:|cause:|hint:|\u00d7|╰─▶|├─▶|│))+\s*", re.MULTILINE)


class NoTimesError(FailedError):
    """An index says of no file when it was uploaded, so that no date can bound what is taken from it."""


def find_uv(cache: Path, environ: Mapping[str, str] = os.environ) -> str:
    """Return the program: that beside lumiimg, that on PATH, or one that pip fetches. Raises MissingHereError."""
    try:
        for file in distribution("uv").files or ():
            path = Path(str(file.locate()))
            if file.name == "uv" and path.is_file() and os.access(path, os.X_OK):
                return str(path.resolve())
    except PackageNotFoundError:
        pass
    found = which("uv", environ.get("PATH")) or _fetched(cache, environ)
    if found is None:
        raise MissingHereError(
            "uv, which resolves what Python packages require, is not here, and pip does not fetch it",
            hint="pip install uv, or put the program on PATH; `build --locked` needs none",
        )
    return found


def _fetched(cache: Path, environ: Mapping[str, str]) -> str | None:
    """Return the release of uv.toml, kept in a folder; pip fetches it once, by its digest, where it is set to."""
    known = own_table("lumiimg.resolve", "uv.toml")
    kept = cache / f"uv-{known['version']}"
    digests = known["sha256"].get(platform.machine(), [])
    if not digests or (kept / "bin/uv").is_file():
        return str(kept / "bin/uv") if digests else None
    cache.mkdir(parents=True, exist_ok=True)
    with scratch_folder(cache) as folder:
        wanted = " ".join([f"uv=={known['version']}", *(f"--hash=sha256:{digest}" for digest in digests)])
        (folder / "uv.txt").write_text(f"{wanted}\n", encoding="utf-8")
        for python in filter(None, dict.fromkeys((sys.executable, which("python3", environ.get("PATH"))))):
            argv = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:"]
            argv += ["--require-hashes", "--target", str(folder / "uv"), "--requirement", str(folder / "uv.txt")]
            done = run(argv, env={**environ, **NO_NETRC}, cwd=Path("/"), timeout_s=_PIP_S)
            if done.ok and (folder / "uv/bin/uv").is_file():
                with suppress(OSError):  # another process was as quick
                    (folder / "uv").rename(kept)
                return str(kept / "bin/uv")
    return None


def compile_versions(
    folder: Path, target: PythonTarget, cache: Path, environ: Mapping[str, str] = os.environ
) -> tuple[dict[str, str], str, tuple[str, ...]]:
    """Resolve `pyproject.toml` of a folder under its `uv.toml`; `held.txt` has versions that stay where they fit.

    Returns the versions by project, `held.txt` as uv then writes it (who requires what), and what a person should know
    of them, each a sentence. Raises FailedError for what does not go together or cannot be had, NoTimesError where a
    date is to bound what has none, MissingHereError for what only a network would have.
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
    uv = find_uv(cache.parent / "tools", environ)
    asked = ["--python-version", target.full_version, "--python-platform", target.platform]
    # Any Python will do, as nothing is built; to look for that of the image would take seconds.
    asked += ["--python", sys.executable, "--config-file", "uv.toml", "--cache-dir", str(cache), "--no-header"]
    kept = {name: value for name, value in environ.items() if name in _KEPT or not name.startswith(_FOREIGN)}
    kept |= {"NO_COLOR": "1", "UV_PYTHON_DOWNLOADS": "never", "UV_SYSTEM_CERTS": "1"} | NO_NETRC
    # The names that requests, and so everything else here, has for a site's own certificates come first.
    if bundle := kept.get("REQUESTS_CA_BUNDLE") or kept.get("CURL_CA_BUNDLE"):
        kept["SSL_CERT_DIR" if Path(bundle).is_dir() else "SSL_CERT_FILE"] = bundle
    limited = ["/bin/sh", "-c", f'ulimit -v {_MEMORY_KIB}; exec "$@"', "uv", uv]
    return run([*limited, "pip", "compile", "pyproject.toml", *asked, *words], env=kept, cwd=folder, timeout_s=_LIMIT_S)


def _check(completed: Completed, folder: Path) -> None:
    if completed.ok:
        return
    if completed.exit_code in _KILLED or _NO_MEMORY.search(completed.output):
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
    if _OFFLINE in completed.output:
        what = (
            "the requirements cannot be resolved from earlier downloads alone, and --offline forbids to ask the index"
        )
        raise MissingHereError(what, hint="once without --offline")
    if _NO_TIMES in completed.output:
        raise NoTimesError("an index gives no times of upload")
    what = in_one_line(completed.output) or f"uv ended with status {completed.exit_code}"
    hint = "try again: what was fetched is kept" if what.startswith(_FETCHING) else None
    if _CERTIFICATE in what:
        hint = "SSL_CERT_FILE, or REQUESTS_CA_BUNDLE, names a file of the certificates that a site has of its own"
    raise FailedError(what, hint=hint)


def in_one_line(output: str) -> str:
    """Return what uv says of a failure: without its frame, its warnings, its advice, and what it concludes."""
    kept = [line for line in output.splitlines() if not line.startswith("warning:")]
    text = " ".join(_FRAME.sub("", "\n".join(kept)).split())
    if by_address := _BY_ADDRESS.search(text):
        requirer, name = by_address.groups()
        return hidden(
            one_line(f"{name} is required from an address of its own, by {requirer}; wheels come from indexes")
        )
    text = _ADVICE.sub("", _DATED.sub(r"\1 \2 was uploaded on \3", text))
    _, conflict, proof = text.partition(_NO_SOLUTION)
    if not conflict:
        return hidden(one_line(re.sub(r" for url \(\S+\)", "", text)))[:_SHOWN].strip()
    facts: list[str] = []
    for sentence in _SENTENCE.split(_LIST.sub(_joined, proof).lstrip(": ")):
        for part in _AND.split(_CONCLUSION.sub("", sentence.strip())):
            fact = part
            for pattern, words in _WORDS:
                fact = re.sub(pattern, words, fact)
            if fact and fact not in facts and not fact.startswith("we know from"):
                facts.append(fact)
    return hidden(one_line(f"{APART}{'; '.join(facts)}"))[:_SHOWN]


def _joined(found: re.Match[str]) -> str:
    """Return a list of versions, which uv gives a line each, as words."""
    return f"{'there is only ' if found[1] else ''}{', '.join(found[2].split())}"
