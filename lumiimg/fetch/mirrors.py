"""Where downloads really come from: `--mirror FROM=TO`, the settings, and this machine's own apt and pip."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from lumiimg.engine.process import Completed, run, which
from lumiimg.errors import BadInputError, MissingHereError
from lumiimg.files import read_beginning
from lumiimg.secret import has_key, has_login, hidden
from lumiimg.wording import engine_word

APT_FOLDER = Path("/etc/apt")
_APT_FILE_LIMIT_BYTES = 256 * 1024
PYPI = "pypi"
"""What --mirror, and `[mirrors]` in config.toml, call the index of Python packages."""
_PIP_S = 60.0
_PIPS_INDEX = re.compile(r"--index-url <url>\s+Base URL[^(]*\(default (\S+?)\)")
_PIPS_OWN = "from pip._internal.models.index import PyPI; print(PyPI.netloc, PyPI.file_storage_domain)"
_ONE_LINE = re.compile(r"\s*deb\s+(?:\[(?P<options>[^\]]*)\]\s+)?(?P<url>\S+)\s+\S+(?P<components>[^#]*)")
_FIELD = re.compile(r"(?m)^([^\s:]+)[ \t]*:(.*(?:\n[ \t]+\S.*)*)")
_OFF = frozenset({"0", "disable", "false", "no", "off", "without"})
"""What apt takes for a no (apt-pkg/contrib/strutl.cc StringToBool)."""


@dataclass(frozen=True, slots=True)
class Mirrors:
    """Replacements by prefix. A FROM without `://` is a name (`debian`) or a registry (`docker.io`)."""

    table: Mapping[str, str]

    def rewrite(self, url: str) -> str:
        """Return `url` with the longest FROM that begins it replaced."""
        for prefix in sorted(self.table, key=len, reverse=True):
            if "://" in prefix and url.startswith(prefix):
                return self.table[prefix] + url[len(prefix) :]
        return url

    def restore(self, url: str) -> str:
        """Return the address that `rewrite` would have made this one of, so that it holds without the mirror too.

        What is in the index that `pypi` names stays: one server may have that index below the mirror of another.
        """
        for prefix, target in sorted(self.table.items(), key=lambda pair: len(pair[1]), reverse=True):
            if (prefix == PYPI or "://" in prefix) and url.startswith(target):
                return url if prefix == PYPI else prefix + url[len(target) :]
        return url

    def named(self, name: str) -> str | None:
        """Return the address given for a name, checked: it will be written into the image.

        Raises BadInputError if it is not a plain http(s) address, or contains a password.
        """
        url = self.table.get(name)
        return None if url is None else validated_url(url, f"mirror {name!r}")


def parse_mirrors(settings: Mapping[str, str], words: Sequence[str]) -> Mirrors:
    """Return the mirrors of the settings with those of the command line on top.

    Raises BadInputError if a word is not FROM=TO.
    """
    named: dict[str, str] = {}
    for word in words:
        source, equals, target = word.partition("=")
        if not (source and equals and target):
            hint = "for example debian=https://host/debian"
            raise BadInputError(f"--mirror {hidden(word)!r} is not FROM=TO", hint=hint)
        if named.setdefault(source, target) != target:
            raise BadInputError(f"--mirror {hidden(source)} is given twice, with two values", hint="leave one out")
    table = {**settings, **named}
    for source, target in table.items():
        refuse_password(target, f"mirror {source!r}")
        if "://" in source:
            validated_url(target, f"mirror {source!r}")
    return Mirrors(table)


def apt_mirror(archive: str, folder: Path = APT_FOLDER) -> str | None:
    """Return the first mirror of a distribution (`debian`) in this machine's apt sources, or None.

    It is one that apt uses, whose path ends in the name, with packages of the part `main`; where a key is named for it,
    that of the distribution (`/usr/share/keyrings/debian-archive-keyring.gpg`): the archives of others, whose addresses
    end like this too, have keys of their own. Source: sources.list(5), both the one-line and the deb822 format.
    """
    for entry in _apt_entries(folder):
        key = entry.get("signed-by", "").rpartition("/")[2]
        if "main" not in entry["components"].split() or (key and not key.startswith(f"{archive}-archive-")):
            continue
        for url in entry["uris"].split():
            if re.fullmatch(rf"https?://[^\s\[\]]+/{re.escape(archive)}/*", url):
                return validated_url(url, f"the apt sources in {folder}")
    return None


def _apt_entries(folder: Path) -> Iterator[Mapping[str, str]]:
    """Yield what apt gets packages from, each with the fields of a deb822 stanza, by name in small letters."""
    parts = folder / "sources.list.d"
    for path in (*sorted(parts.glob("*.sources")), folder / "sources.list", *sorted(parts.glob("*.list"))):
        try:
            text = read_beginning(path, _APT_FILE_LIMIT_BYTES).decode("utf-8", "replace")
        except OSError:
            continue
        text = re.sub(r"(?m)^\s*#.*\n?", "", text)
        if path.suffix == ".sources":
            for stanza in re.split(r"\n\s*\n", text):
                fields = dict.fromkeys(("types", "uris", "components"), "")
                fields |= {name.lower(): value.strip() for name, value in _FIELD.findall(stanza)}
                if "deb" in fields["types"].split() and fields.get("enabled", "").lower() not in _OFF:
                    yield fields
        else:
            for line in filter(None, map(_ONE_LINE.match, text.splitlines())):
                options = dict(option.partition("=")[::2] for option in (line["options"] or "").split())
                yield {**options, "uris": line["url"], "components": line["components"]}


def general_index(mirrors: Mirrors, environment: Mapping[str, str] = os.environ) -> str:
    """Return the address of the index of Python packages: the one that is named, else the one that pip here would ask.

    As with apt's sources for Debian, what the machine is set to holds: an index behind a firewall, or everybody's.

    Raises MissingHereError where pip cannot be asked, BadInputError for an address that is not valid or contains a
    password.
    """
    named = mirrors.named(PYPI)
    if named is not None:
        return named
    # Its help names the index that its settings, files and variables, come to; one wide line, so that none is cut.
    for answer in _asked_of_pip("-m", "pip", "download", "--help", environment=environment):
        if found := _PIPS_INDEX.search(answer.output):
            return mirrors.rewrite(validated_url(found[1], "the index of pip's settings"))
    raise MissingHereError(
        "pip, which would say where Python packages are looked up, does not answer here",
        hint=f"name the index: --mirror {PYPI}=URL",
    )


def public_index(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the addresses of everybody's index of Python packages and of its files, as pip is made to know them.

    What a lock has from there is from the index, whatever index this machine asks. Where no pip answers, or one that
    does not say (its `models/index.py` is its own matter), there are none: a lock is then believed for less.
    """
    for answer in _asked_of_pip("-c", _PIPS_OWN, environment=environment):
        hosts = answer.last_line.split()
        if len(hosts) == 2:
            return tuple(f"https://{host}" for host in hosts)
    return ()


def _asked_of_pip(*words: str, environment: Mapping[str, str]) -> Iterator[Completed]:
    """Yield the answers of this Python and of the machine's, where each has a pip.

    The Python that uv makes for a tool has none; that of the machine reads the same settings.
    """
    for python in dict.fromkeys((sys.executable, which("python3", environment.get("PATH")))):
        if python is None:
            continue
        # From `/`: a pip.py of the current folder is none of ours (-P, which says so, is not known before Python 3.11).
        completed = run([python, *words], env={**environment, "COLUMNS": "10000"}, cwd=Path("/"), timeout_s=_PIP_S)
        if completed.ok:
            yield completed


def refuse_password(address: str, where: str) -> None:
    """Refuse an address with credentials in it, or a key to its file, which would reach definitions, output and image.

    Raises BadInputError, which does not repeat them.
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
            "the query of its address (after `?`) looks like a key, which would be written into lock and image",
            where=where,
            hint="fetch the file and name that, or an address without the key (downloads use ~/.netrc)",
        )


def validated_url(url: str, where: str) -> str:
    """Return an address. Raises BadInputError if it is not a plain http(s) one, or contains a password."""
    refuse_password(url, where)
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in {"http", "https"} and bool(parts.hostname)
    except ValueError:
        is_address = False
    if not is_address or not re.fullmatch(r"[!-~]+", url):
        raise BadInputError(f"{url!r} is not a valid http(s) address", where=where)
    return url
