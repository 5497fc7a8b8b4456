"""Looks over the built site (`python -m tools.site docs/_build/html`): a page fetches nothing, and each link within it leads somewhere."""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_FETCHED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "object": "data"}


class _Page(HTMLParser):
    """What a page fetches, where it leads, and the places in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.links: list[str] = []
        self.places: set[str] = {""}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.places |= {given[name] for name in ("id", "name") if name in given}
        if tag in _FETCHED and given.get(_FETCHED[tag]):
            self.fetched.append(given[_FETCHED[tag]])
        if tag == "link" and given.get("rel") in {"stylesheet", "preload", "icon"}:
            self.fetched.append(given.get("href", ""))
        if tag == "a" and "href" in given:
            self.links.append(given["href"])


def faults(site: Path) -> list[str]:
    """Return what is wrong in the pages of a folder."""
    pages = {path.resolve(): _Page(path.read_text()) for path in site.rglob("*.html")}
    found = []
    for path, page in pages.items():
        found += [f"{path.name}: fetches {url}" for url in page.fetched if urlsplit(url).netloc]
        for link in [*page.fetched, *page.links]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.exists():
                found.append(f"{path.name}: {link} leads nowhere")
            elif target in pages and unquote(parts.fragment) not in pages[target].places:
                found.append(f"{path.name}: {link}: no such place in the page")
    for sheet in site.rglob("*.css"):
        text = sheet.read_text()
        found += [f"{sheet.name}: fetches {word}" for word in ("url(http", "url(//", "@import") if word in text]
    return found


def main() -> int:
    found = faults(Path(sys.argv[1]))
    sys.stderr.writelines(f"{fault}\n" for fault in found)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
