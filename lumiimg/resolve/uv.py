"""uv, which resolves what Python packages require: where it is, what it is asked, and its answer in our words."""

from __future__ import annotations

import os
import platform
import re
import sys
import tomllib
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lumiimg.engine.process import Completed, run, which
from lumiimg.engine.workspace import scratch_folder
from lumiimg.errors import FailedError, MissingHereError, one_line
from lumiimg.host.codec import own_table
from lumiimg.secret import hidden

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lumiimg.resolve.python_target import PythonTarget

_LIMIT_S = 900.0
_PIP_S = 300.0
# A page of an index that goes on for ever ends here, and not with the machine's memory; 4 s of resolving take 0.4 GiB.
_MEMORY_KIB = 4 << 20
_SHOWN = 900
# What a person's own settings of uv would change; these three are of their network.
_KEPT = frozenset({"UV_HTTP_TIMEOUT", "UV_HTTP_RETRIES", "UV_CONCURRENT_DOWNLOADS"})
_FOREIGN = ("UV_", "PIP_", "VIRTUAL_ENV", "CONDA_")
_NO_SOLUTION = "No solution found when resolving dependencies"
_NO_TIMES = "missing an upload date"
_ADVICE = re.compile(
    r"Consider (?:using|adding) .*?(?:\.(?=\s)|$)|The latest version satisfying the requirement is \S+"
)
_BY_ADDRESS = re.compile(
    r"dependencies for package `([^`]{1,200})` Package `([^`]{1,200})` was included as a URL dependency"
)
_AND = re.compile(
    r",? and (?=(?:all versions of|only|there (?:are|is)|because)\s|\S+(?: \S+)? (?:depends? on|was not found) )"
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
            done = run(argv, env=dict(environ), cwd=Path("/"), timeout_s=_PIP_S)
            if done.ok and (folder / "uv/bin/uv").is_file():
                with suppress(OSError):  # another process was as quick
                    (folder / "uv").rename(kept)
                return str(kept / "bin/uv")
    return None


def compile_lock(
    folder: Path, target: PythonTarget, cache: Path, environ: Mapping[str, str] = os.environ
) -> tuple[list[dict[str, Any]], str]:
    """Resolve `pyproject.toml` of a folder under its `uv.toml`; `held.txt` has versions that stay where they fit.

    Returns the packages as PEP 751 has them, and `held.txt` as uv then writes it: who requires what. Raises FailedError
    for what does not go together or cannot be had, NoTimesError where a date is to bound what has none.
    """
    uv, words = (
        find_uv(cache.parent / "tools", environ),
        ["--python-version", target.full_version, "--python-platform", target.platform],
    )
    # Any Python will do, as nothing is built; to look for that of the image would take seconds.
    words += ["--python", sys.executable, "--config-file", "uv.toml", "--cache-dir", str(cache), "--no-header"]
    noted = _run(uv, [*words, "--annotation-style", "line", "--output-file", "held.txt"], folder, environ)
    _check(noted)
    try:
        requirers = (folder / "held.txt").read_text(encoding="utf-8")
        found = "".join(f"{line.partition('#')[0].strip()}\n" for line in requirers.splitlines() if "==" in line)
        (folder / "found.txt").write_text(found, encoding="utf-8")
        _check(_run(uv, [*words, "--constraints", "found.txt", "--output-file", "pylock.toml"], folder, environ))
        return tomllib.loads((folder / "pylock.toml").read_text(encoding="utf-8"))["packages"], requirers
    except (OSError, ValueError, KeyError) as error:
        raise FailedError(f"uv wrote no lock that can be read: {one_line(str(error))[:200]}") from error


def _run(uv: str, words: Sequence[str], folder: Path, environ: Mapping[str, str]) -> Completed:
    kept = {name: value for name, value in environ.items() if name in _KEPT or not name.startswith(_FOREIGN)}
    kept |= {"NO_COLOR": "1", "UV_PYTHON_DOWNLOADS": "never", "UV_SYSTEM_CERTS": "1"}
    # The name that requests, and so everything else here, has for a site's own certificates.
    if "REQUESTS_CA_BUNDLE" in kept:
        kept.setdefault("SSL_CERT_FILE", kept["REQUESTS_CA_BUNDLE"])
    limited = ["/bin/sh", "-c", f'ulimit -v {_MEMORY_KIB}; exec "$@"', "uv", uv]
    return run([*limited, "pip", "compile", "pyproject.toml", *words], env=kept, cwd=folder, timeout_s=_LIMIT_S)


def _check(completed: Completed) -> None:
    if completed.ok:
        return
    if completed.timed_out:
        raise FailedError(f"the wheels were not resolved within {_LIMIT_S:.0f} s", hint="is the index slow? try again")
    if _NO_TIMES in completed.output:
        raise NoTimesError("an index gives no times of upload")
    raise FailedError(in_one_line(completed.output) or f"uv ended with status {completed.exit_code}")


def in_one_line(output: str) -> str:
    """Return what uv says of a failure: without its frame, its warnings, its advice, and what it concludes."""
    kept = [line for line in output.splitlines() if not line.startswith("warning:")]
    text = " ".join(_FRAME.sub("", "\n".join(kept)).split())
    if by_address := _BY_ADDRESS.search(text):
        requirer, name = by_address.groups()
        return hidden(
            one_line(f"{name} is required from an address of its own, by {requirer}; wheels come from indexes")
        )
    _, conflict, proof = text.partition(_NO_SOLUTION)
    if not conflict:
        return hidden(one_line(_ADVICE.sub("", text)))[:_SHOWN].strip()
    facts: list[str] = []
    for sentence in re.split(r"\.(?=\s|$)", _ADVICE.sub("", proof).lstrip(": ")):
        known = re.sub(r",? we can conclude that .*", "", sentence.strip())
        known = re.sub(r"^(?:And because|Because|So, because)\s+", "", known, flags=re.IGNORECASE)
        facts += [fact for fact in _AND.split(known) if fact and fact not in facts]
    return hidden(one_line(f"these do not go together: {'; '.join(facts)}"))[:_SHOWN]
