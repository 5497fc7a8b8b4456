"""Read from the package index the newest releases without a row in the catalogue, with their requirements.

python -m tools.refresh                          reads all layers that can be read
python -m tools.refresh vllm jax --into layers   adds the rows to the layer.toml files there, for review

The exit code is 0 if everything was read, 1 if something was not, 4 if nothing was.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tomli_w
from packaging.version import Version

from lumiimg.catalog.catalogue import open_catalogue
from lumiimg.catalog.layers import read_layer
from lumiimg.catalog.needs import NO_VERSION
from lumiimg.cli.choices import mirrors_of
from lumiimg.cli.commands import add_options
from lumiimg.core.decode import encode
from lumiimg.core.errors import BadInputError, ExitCode, FailedError, LumiimgError, MissingHereError
from lumiimg.core.files import write_text
from lumiimg.core.text import count
from lumiimg.fetch.http import Http
from lumiimg.fetch.mirrors import general_index
from lumiimg.resolve.unlisted import read_pages, read_releases

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lumiimg.catalog.catalogue import Catalogue
    from lumiimg.catalog.layers import Layer
    from lumiimg.catalog.releases import Release
    from lumiimg.fetch.mirrors import Mirrors

MOST = 8
"""Maximum number of releases read per layer, the newest first."""
_MOST_FAULTS = 3


@dataclass(frozen=True, slots=True)
class Refreshed:
    """The result of reading one layer."""

    layer: Layer
    newest: str
    """The newest readable version in the index."""
    rows: tuple[Release, ...]
    """New rows, the newest first; a version may have several."""
    faults: tuple[str, ...]
    """Reasons why versions could not be read."""


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layer", metavar="LAYER", nargs="*")
    parser.add_argument("--into", metavar="DIR", type=Path, help="folder with layer folders")
    add_options(parser, ["--mirror", "--layers"])
    parser.set_defaults(offline=False, quiet=False)
    arguments = parser.parse_args(words)
    mirrors, web = mirrors_of(arguments), Http(retry=False)
    found, unread = [], dict[str | None, LumiimgError]()
    for layer in _layers(open_catalogue(os.environ, arguments.layers), arguments.layer):
        index = layer.unlisted.index if layer.unlisted else None
        if isinstance(unread.get(index), MissingHereError):
            continue  # another attempt would wait for it again
        try:
            refreshed = refresh(layer, mirrors, web)
        except (FailedError, MissingHereError) as error:
            unread[index] = error
            print(f"{layer.name}: {error}", file=sys.stderr)
            continue
        found.append(refreshed)
        show(refreshed)
        if arguments.into:
            add_rows(arguments.into / layer.name / "layer.toml", refreshed.rows)
    if not found and all(isinstance(error, MissingHereError) for error in unread.values()):
        return ExitCode.MISSING_HERE
    return ExitCode.NO if unread or any(one.faults for one in found) else ExitCode.GOOD


def show(found: Refreshed) -> None:
    print(f"{found.layer.name}: {count(len(found.rows), 'row')} read; the newest release is {found.newest}")
    for row in found.rows:
        needs = [*map(str, row.requires), *(f"made for {need}" for need in row.expects)]
        print(f"    {row.version:<10}  {row.date!s:<10}  {'; '.join([', '.join(needs), *row.doubts])}")
    for fault in found.faults:
        print(f"    {fault}")


def _layers(catalogue: Catalogue, names: Sequence[str]) -> Iterator[Layer]:
    for name in names or catalogue.layer_names():
        entry = catalogue.layer(name) if names else catalogue.entry(name)
        if entry.unlisted is not None:
            yield entry
        elif names:
            raise BadInputError(f"{name} has no table [unlisted], so its releases cannot be read", where=name)


def add_rows(path: Path, rows: Sequence[Release]) -> None:
    """Append rows to a layer.toml."""
    there = {row.version for row in read_layer(path.parent).releases}
    if new := [row for row in rows if row.version not in there]:
        rows_text = tomli_w.dumps({"release": [encode(row) for row in new]}, multiline_strings=False)
        write_text(path, path.read_text(encoding="utf-8") + "\n" + rows_text)


def refresh(layer: Layer, mirrors: Mirrors, web: Http) -> Refreshed:
    """Read the newest releases of a layer for which it has no row.

    Raises FailedError or MissingHereError if the index cannot be read.
    """
    rule = layer.unlisted
    if rule is None:
        raise ValueError(layer.name)
    pages = read_pages(rule, mirrors.rewrite(rule.index) if rule.index else general_index(mirrors), web)
    known = [version for version in rule.range.filter(pages.versions(good=True)) if version.post is None]
    if not known:
        raise FailedError(f"the package index has no release of {' or '.join(rule.projects)} that can be read")
    listed = {Version(row.version) for row in layer.releases}
    after = [version for version in known if version > min(listed, default=NO_VERSION) and version not in listed]
    rows: list[Release] = []
    faults: list[str] = []
    for version in after[:MOST]:
        try:
            rows += read_releases(layer, version, pages, web)
        except FailedError as error:
            faults.append(f"not read: {error}")
            if len(faults) == _MOST_FAULTS:
                break
    return Refreshed(layer, str(known[0]), tuple(rows), tuple(faults))


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except BadInputError as error:
        sys.exit(f"{error}")
