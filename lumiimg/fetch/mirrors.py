"""Mirrors for downloads: from `--mirror FROM=TO`, from the settings, and from this machine's apt and pip."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from lumiimg.core.errors import BadInputError, MissingHereError
from lumiimg.core.files import read_beginning
from lumiimg.core.redact import has_key, has_login, redact
from lumiimg.engine.engine import engine_word
from lumiimg.engine.process import run, which

APT_FOLDER = Path("/etc/apt")
_APT_FILE_LIMIT_BYTES = 256 * 1024
PYPI = "pypi"
"""Name of the Python package index in --mirror and in `[mirrors]` of config.toml."""
_PIP_S = 60.0
_PIP_SCRIPT = (
    "from pip._internal.commands import create_command; from pip._internal.models.index import PyPI; "
    "print(create_command('download').parser.get_default_values().index_url, PyPI.netloc, PyPI.file_storage_domain)"
)
"""Prints the index that pip's files and variables select, the host of the public index, and the host of its files."""
_OF_PACKAGES = re.compile(r"^\s*(?:types:(?:.*[ \t])?)?deb\s", re.IGNORECASE | re.MULTILINE)
_OFF = re.compile(r"^enabled:\s*(?:0|disable|false|no|off|without)\s*$", re.IGNORECASE | re.MULTILINE)
"""Values that apt reads as false (apt-pkg/contrib/strutl.cc StringToBool)."""
_MAIN = re.compile(r"\smain(?:\s|$)")
_KEY = re.compile(r"\bsigned-by\s*[:=]\s*([^\s\]]*)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Mirrors:
    """Replacement addresses by prefix. A FROM without `://` is a name (`debian`) or a registry (`docker.io`)."""

    table: Mapping[str, str]

    def rewrite(self, url: str) -> str:
        """Return `url` with its longest matching FROM prefix replaced."""
        for prefix in sorted(self.table, key=len, reverse=True):
            if "://" in prefix and url.startswith(prefix):
                return self.table[prefix] + url[len(prefix) :]
        return url

    def restore(self, url: str) -> str:
        """Return the address as it was before `rewrite`, which is valid without the mirror too.

        Files of the index named by `pypi` are left alone: one server may host that index below another mirror.
        """
        for prefix, target in sorted(self.table.items(), key=lambda pair: len(pair[1]), reverse=True):
            if (prefix == PYPI or "://" in prefix) and url.startswith(target):
                return url if prefix == PYPI else prefix + url[len(target) :]
        return url

    def named(self, name: str) -> str | None:
        """Return the address given for a name, validated because it is written into the image.

        Raises BadInputError if it is not a plain http(s) address, or contains a password.
        """
        url = self.table.get(name)
        return None if url is None else validated_url(url, f"mirror {name!r}")


def parse_mirrors(settings: Mapping[str, str], words: Sequence[str]) -> Mirrors:
    """Return the mirrors of the settings, overridden by those of the command line.

    Raises BadInputError for a word that is not FROM=TO, two values for one FROM, or an address that is not allowed.
    """
    named: dict[str, str] = {}
    for word in words:
        source, equals, target = word.partition("=")
        if not (source and equals and target):
            hint = "for example debian=https://host/debian"
            raise BadInputError(f"--mirror {redact(word)!r} is not FROM=TO", hint=hint)
        if named.setdefault(source, target) != target:
            raise BadInputError(f"--mirror {redact(source)} is given twice, with two values", hint="use only one")
    table = {**settings, **named}
    for source, target in table.items():
        refuse_password(target, f"mirror {source!r}")
        if "://" in source:
            validated_url(target, f"mirror {source!r}")
    return Mirrors(table)


def apt_mirror(archive: str, folder: Path = APT_FOLDER) -> str | None:
    """Return the first mirror of a distribution (`debian`) in this machine's apt sources, or None.

    The entry must be enabled and have packages, the component `main`, and a path that ends in the name. If it names a
    key, that must be the distribution's (`/usr/share/keyrings/debian-archive-keyring.gpg`): third-party archives with
    similar addresses have keys of their own. Source: sources.list(5), both the one-line and the deb822 format.
    `apt-get indextargets` would give the same answer, but takes up to a second of CPU.
    """
    parts = folder / "sources.list.d"
    for path in (*sorted(parts.glob("*.sources")), folder / "sources.list", *sorted(parts.glob("*.list"))):
        try:
            text = read_beginning(path, _APT_FILE_LIMIT_BYTES).decode("utf-8", "replace")
        except OSError:
            continue
        text = re.sub(r"(?m)^[ \t]*#.*\n?", "", text)
        for entry in re.split(r"\n\s*\n" if path.suffix == ".sources" else r"\n", text):
            key = _KEY.search(entry)
            if not _OF_PACKAGES.search(entry) or _OFF.search(entry) or not _MAIN.search(entry):
                continue
            if key is None or key[1].rpartition("/")[2].startswith(f"{archive}-archive-"):
                found = re.search(rf"(?<!\S)https?://[^\s\[\]]+/{re.escape(archive)}/*(?!\S)", entry)
                if found is not None:
                    return validated_url(found[0], f"the apt sources in {folder}")
    return None


def general_index(mirrors: Mirrors, environment: Mapping[str, str] = os.environ) -> str:
    """Return the address of the Python package index: the one that the user named, else the one that pip uses here.

    As with apt's sources for Debian, the machine's configuration counts: an index behind a firewall, or the public one.

    Raises MissingHereError if pip does not answer, BadInputError for an address that is not valid or contains a
    password.
    """
    named = mirrors.named(PYPI)
    if named is not None:
        return named
    if found := _pip_settings(environment):
        return mirrors.rewrite(validated_url(found[0], "the index of pip's settings"))
    raise MissingHereError(
        "pip, which knows the package index, does not work here",
        hint=f"name the index: --mirror {PYPI}=URL",
    )


def public_index() -> tuple[str, ...]:
    """Return the addresses of the public Python package index and of its files, as built into pip.

    Wheels that a lock takes from there count as from the index, whatever index this machine uses. If no pip answers,
    the result is empty, and fewer wheels of a lock are trusted.
    """
    return tuple(f"https://{host}" for host in _pip_settings(os.environ)[1:])


def _pip_settings(environment: Mapping[str, str]) -> list[str]:
    """Return what this Python's pip answers, else python3's: environments that uv makes for tools have no pip."""
    for python in dict.fromkeys(filter(None, (sys.executable, which("python3", environment.get("PATH"))))):
        # Run in `/`, so that a pip.py in the current folder is not imported (-P does that only from Python 3.11 on).
        completed = run([python, "-c", _PIP_SCRIPT], env=environment, cwd=Path("/"), timeout_s=_PIP_S)
        words = completed.last_line.split() if completed.ok else []
        if len(words) == 3:
            return words
    return []


def refuse_password(address: str, where: str) -> None:
    """Refuse an address that contains credentials or a key to its file: they would reach definitions, output and image.

    Raises BadInputError, whose message does not repeat them.
    """
    plain = re.sub(r"@sha256:[0-9a-f]{64}$", "", address)
    host = re.split(r"[/?#]", plain.rpartition("://")[2], maxsplit=1)[0]
    if "@" in host or has_login(address):
        raise BadInputError(
            "its address contains a password, which would be written into the image",
            where=where,
            hint=f"leave it out: lumiimg reads ~/.netrc, and the engine uses `{engine_word()} registry login`",
        )
    if has_key(address):
        raise BadInputError(
            "its address has a query (after `?`) that looks like a key, and would be written into lock and image",
            where=where,
            hint="fetch the file and name its path, or use an address without the key (downloads use ~/.netrc)",
        )


def is_address(text: str) -> bool:
    """Return whether a text is meant as an address, not as a path."""
    return text.lower().startswith(("http://", "https://"))


def validated_url(url: str, where: str) -> str:
    """Return the address. Raises BadInputError unless it is a plain http(s) address without a password."""
    refuse_password(url, where)
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in {"http", "https"} and bool(parts.hostname)
    except ValueError:
        is_address = False
    if not is_address or not re.fullmatch(r"[!-~]+", url):
        raise BadInputError(f"{url!r} is not a valid http(s) address", where=where)
    return url
