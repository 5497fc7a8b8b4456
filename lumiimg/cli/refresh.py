"""Read from the package index the newest releases that the catalogue has no row
for, and their requirements. The rows go to the cache, with today's date.
`explain` and `lock` use them when such a version is named.

examples:
  lumiimg refresh                   # of all layers that can be read
  lumiimg refresh vllm jax
  lumiimg refresh vllm --into layers   # for a change of the project's own rows

exit codes: 0 all of it was read
            1 something could not be read or written; the rest is kept
            2 not a layer, or one whose releases cannot be read
            4 no package index can be reached here
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.cli.options import add_json, add_layers, add_quiet
from lumiimg.cli.request import add_mirror, indexes_of
from lumiimg.errors import BadInputError, ExitCode, FailedError, LumiimgError, MissingHereError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from lumiimg.catalog.catalogue import Catalogue
    from lumiimg.catalog.layers import Layer, Release


def configure_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "layer", metavar="LAYER", nargs="*", help="layers to read (default: all whose releases can be read)"
    )
    add_mirror(parser)
    add_layers(parser)
    into = "folder with layer folders; the rows are added to each layer.toml there, for you to review"
    parser.add_argument("--into", metavar="DIR", type=Path, help=into)
    add_quiet(parser)
    add_json(parser)


def execute(arguments: argparse.Namespace) -> int:
    from lumiimg.catalog.catalogue import open_catalogue
    from lumiimg.report.releases import print_fault, print_refreshed
    from lumiimg.resolve.releases.refresh import refresh

    layers = list(_layers(open_catalogue(os.environ, arguments.layers), arguments.layer))
    indexes = indexes_of(arguments)
    found, faults = [], dict[str | None, LumiimgError]()
    for layer in layers:
        index = layer.unlisted.index if layer.unlisted else None
        if index in faults and isinstance(faults[index], MissingHereError):
            continue  # it would be waited for again
        try:
            refreshed = refresh(layer, indexes)
        except (FailedError, MissingHereError) as error:
            faults[index] = error
            print_fault(layer, error)
            continue
        found.append(refreshed)
        if arguments.into:
            _add_rows(arguments.into / layer.name / "layer.toml", refreshed.rows)
    if not found and all(isinstance(error, MissingHereError) for error in faults.values()):
        return ExitCode.MISSING_HERE
    print_refreshed(found, indexes.cache, as_json=arguments.json, quiet=arguments.quiet)
    return ExitCode.NO if faults or any(one.faults or one.lost for one in found) else ExitCode.GOOD


def _layers(catalogue: Catalogue, names: Sequence[str]) -> Iterator[Layer]:
    """Yield the layers that are asked for. Raises BadInputError for one whose releases cannot be read."""
    able = [name for name in catalogue.layer_names() if not names or name in names]
    for name in dict.fromkeys(names or able):
        entry = catalogue.layer(name) if names else catalogue.entry(name)
        if entry.unlisted is not None:
            yield entry
        elif names:
            raise BadInputError(f"{name} has no table [unlisted], so its releases cannot be read", where=name)


def _add_rows(path: Path, rows: Sequence[Release]) -> None:
    """Add rows behind those of a layer.toml. Raises BadInputError where it is not there, or is not a valid one then."""
    from lumiimg.catalog.layers import read_layer
    from lumiimg.files import write_text
    from lumiimg.resolve.releases.kept import rows_alone

    there = {row.version for row in read_layer(path.parent).releases}
    if new := [row for row in rows if row.version not in there]:
        write_text(path, path.read_text(encoding="utf-8") + "\n" + rows_alone(new))
