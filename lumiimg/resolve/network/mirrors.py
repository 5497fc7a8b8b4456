"""Where downloads really come from: `--mirror FROM=TO`, the settings, and this machine's own apt sources."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from lumiimg.errors import BadInputError
from lumiimg.secret import has_key, hidden

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

APT_FOLDER = Path("/etc/apt")
_APT_FILE_LIMIT_BYTES = 256 * 1024
_ONE_LINE = re.compile(r"^\s*deb\s+(?:\[[^\]]*\]\s+)?(\S+)\s", re.MULTILINE)
_DEB822 = re.compile(r"^URIs:\s*(\S+)", re.MULTILINE | re.IGNORECASE)


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
        """Return the address that `rewrite` would have made this one of, so that it holds without the mirror too."""
        for prefix, target in sorted(self.table.items(), key=lambda pair: len(pair[1]), reverse=True):
            if "://" in prefix and url.startswith(target):
                return prefix + url[len(target) :]
        return url

    def named(self, name: str) -> str | None:
        """Return the address given for a name, checked: it will be written into the image.

        Raises BadInputError if it is no plain http(s) address, or carries a password.
        """
        url = self.table.get(name)
        return None if url is None else checked(url, f"mirror {name!r}")


def parse_mirrors(settings: Mapping[str, str], words: list[str]) -> Mirrors:
    """Return the mirrors of the settings with those of the command line on top.

    Raises BadInputError if a word is not FROM=TO.
    """
    table = dict(settings)
    for word in words:
        source, equals, target = word.partition("=")
        if not (source and equals and target):
            raise BadInputError(
                f"--mirror {hidden(word)!r} is not FROM=TO", hint="for example debian=https://host/debian"
            )
        table[source] = target
    for source, target in table.items():
        refuse_password(target, f"mirror {source!r}")
        if "://" in source:
            checked(target, f"mirror {source!r}")
    return Mirrors(table)


def apt_mirror(archive: str, folder: Path = APT_FOLDER) -> str | None:
    """Return the first mirror in this machine's apt sources whose path ends in `archive` (`debian`), or None.

    Source: sources.list(5), both the one-line and the deb822 format.
    """
    for text in _apt_sources(folder):
        for url in (*_DEB822.findall(text), *_ONE_LINE.findall(text)):
            try:
                parts = urlsplit(url)
            except ValueError:  # `http://[`: apt could not use it either
                continue
            if parts.scheme in {"http", "https"} and parts.path.rstrip("/").endswith(f"/{archive}"):
                return checked(url, f"the apt sources in {folder}")
    return None


def _apt_sources(folder: Path) -> Iterator[str]:
    parts = folder / "sources.list.d"
    for path in (*sorted(parts.glob("*.sources")), folder / "sources.list", *sorted(parts.glob("*.list"))):
        try:
            with path.open("rb") as stream:
                text = stream.read(_APT_FILE_LIMIT_BYTES).decode("utf-8", "replace")
        except OSError:
            continue
        yield "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))


def refuse_password(address: str, where: str) -> None:
    """Refuse an address with credentials in it, or a key to its file, which would reach definitions, output and image.

    Raises BadInputError, which does not repeat them.
    """
    address = re.sub(r"@sha256:[0-9a-f]{64}$", "", address)
    host = re.split(r"[/?#]", address.rpartition("://")[2], maxsplit=1)[0]
    if "@" in host:
        raise BadInputError(
            "its address carries a password, which would be written into the image",
            where=where,
            hint="leave it out: ~/.netrc serves downloads, `apptainer registry login` a registry",
        )
    if has_key(address):
        raise BadInputError(
            "what is behind the `?` of its address looks like a key, which would be written into lock and image",
            where=where,
            hint="fetch the file, and name that; or an address without the key (~/.netrc serves downloads)",
        )


def checked(url: str, where: str) -> str:
    """Return an address. Raises BadInputError if it is no plain http(s) one, or carries a password."""
    refuse_password(url, where)
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise BadInputError(f"{url!r} is no http(s) address", where=where) from error
    if parts.scheme not in {"http", "https"} or not parts.hostname or not re.fullmatch(r"[!-~]+", url):
        raise BadInputError(f"{url!r} is no http(s) address", where=where)
    return url
