"""What `build`, `lock` and `explain` are asked for: options, and what they mean together."""

from __future__ import annotations

import argparse
import datetime as dt
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TypeVar

from lumiimg.catalog.age import OLD_AFTER_DAYS
from lumiimg.catalog.catalogue import Catalogue, open_catalogue
from lumiimg.catalog.layers import Layer
from lumiimg.catalog.settings import read_settings
from lumiimg.catalog.site_choice import site_to_make_for
from lumiimg.catalog.sites import Site, find_site
from lumiimg.cli.inputs import choose_site, mirrors_of
from lumiimg.definition.writer import write_chain
from lumiimg.errors import BadInputError, MissingHereError, printable
from lumiimg.fabric.path import Fabric
from lumiimg.host.snapshot_file import read_snapshot
from lumiimg.resolve.decide import decide
from lumiimg.resolve.network.mirrors import general_index
from lumiimg.resolve.network.web import Web
from lumiimg.resolve.observed_node import seen
from lumiimg.resolve.own_requirements import OwnPackages, read_own
from lumiimg.resolve.plan import Ground, Plan
from lumiimg.resolve.releases.indexes import ReleaseIndexes
from lumiimg.resolve.request import Request, as_exact, name_of, refuse_secrets, words_of
from lumiimg.resolve.stack import PACKAGE
from lumiimg.secret import known_secrets

K = TypeVar("K", str, tuple[str, str])


def resolve_request(
    arguments: argparse.Namespace, *, images: Mapping[str, Layer] | None = None
) -> tuple[Request, Plan]:
    """Return what is asked for, and the answer. Raises as `decide_request` does.

    `images` are bases that were read before.
    """
    catalogue = open_catalogue(os.environ, arguments.layers)
    request = read_request(arguments, catalogue)
    ground = replace(resolve_context(arguments, request, catalogue), images=images or {})
    return request, decide_request(request, ground)


def decide_request(request: Request, ground: Ground) -> Plan:
    """Return the answer to a request. A plan whose definitions cannot be written is none.

    Raises BadInputError for what is wrong with the request; a refusal is an answer (`locked` makes an error of it).
    """
    plan = decide(request, ground)
    if plan.lock is not None:
        write_chain(plan.lock)
    return plan


def resolve_context(arguments: argparse.Namespace, request: Request, catalogue: Catalogue) -> Ground:
    """Return what a request is judged on, by the options of every command that takes one. Raises BadInputError."""
    mirrors = mirrors_of(arguments)
    site = read_site(request.site, request.host)
    indexes = indexes_of(arguments)
    return Ground(catalogue, mirrors, os.environ.get("PATH"), site, indexes=indexes, pull=image_fetcher(arguments))


def indexes_of(arguments: argparse.Namespace, *, kept_days: int | None = None) -> ReleaseIndexes:
    """Return where releases without a row are looked for. Raises BadInputError."""
    mirrors = mirrors_of(arguments)

    def general() -> str:
        if arguments.offline:
            raise MissingHereError("--offline forbids a request to the package index")
        return general_index(mirrors)

    def tell(line: str) -> None:
        if not arguments.quiet:
            print(f"  {printable(line)}", file=sys.stderr)

    return ReleaseIndexes(
        cache(general),
        mirrors,
        Web(offline=arguments.offline, patient=False),
        read_settings(os.environ),
        tell,
        dt.datetime.now(tz=dt.UTC).date(),
        OLD_AFTER_DAYS if kept_days is None else kept_days,
    )


def read_request(arguments: argparse.Namespace, catalogue: Catalogue, *, needs_base: bool = True) -> Request:
    """Return what is asked for. Raises BadInputError."""
    recipe = catalogue.recipe(arguments.recipe) if arguments.recipe else None
    base = catalogue.meant_by(arguments.base) if arguments.base else recipe.base if recipe else ""
    arguments.add = [as_exact(text) for text in arguments.add]
    words = (*(recipe.add if recipe else ()), *arguments.add)
    own = _own_packages(arguments.requirements, words)
    given = [text for text in arguments.add if not text.startswith(PACKAGE)]
    if needs_base and not base:
        raise BadInputError("no base", hint="give --base NAME or --recipe NAME; see `lumiimg list`")
    fabric = None if arguments.fabric == "auto" else Fabric(arguments.fabric)
    site = arguments.site or (recipe.site if recipe else None) or _chosen_site(arguments)
    written = _as_written(arguments)
    if fabric is None and recipe is not None and recipe.fabric is not None:
        # to add the layer of a fabric is to name one, too
        layers = {f"fabric-{other.value}" for other in Fabric}
        fabric = None if layers & {name_of(text) for text in given} else Fabric(recipe.fabric)
    of_recipe = [text for text in recipe.add if not text.startswith(PACKAGE)] if recipe else []
    named = {name_of(text): text for text in given if text not in of_recipe}
    add = [named.get(name_of(text), text) for text in of_recipe]
    add += [text for text in given if text not in add]
    request = Request(
        base=base,
        add=tuple(add),
        own=own,
        arguments=dict(recipe.arguments if recipe else {}) | _once("--arg", _values(arguments.arg), ".".join),
        fabric=fabric,
        sources=_once("--source", _sources(arguments.source), str),
        site=site,
        host=arguments.host,
        mirrors=tuple(arguments.mirror),
        layers=tuple(arguments.layers),
        until=arguments.exclude_newer,
        written=written,
    )
    refuse_secrets(request, known_secrets(os.environ))
    return request


def _chosen_site(arguments: argparse.Namespace) -> str | None:
    snapshot = read_snapshot(arguments.host) if arguments.host else None
    return choose_site(arguments, snapshot, site_to_make_for)


def _own_packages(files: Sequence[str], words: Sequence[str]) -> OwnPackages | None:
    """Return the packages of the user's own; None where nobody names any. Raises BadInputError."""
    packages = [word for word in words if word.startswith(PACKAGE)]
    if not files and not packages:
        return None

    return read_own(files, packages)


def _once(option: str, pairs: Iterable[tuple[K, str]], shown: Callable[[K], str]) -> dict[K, str]:
    """Return pairs as a table. Raises BadInputError where one is there with two values: the last may not be meant."""
    table: dict[K, str] = {}
    for name, value in pairs:
        if table.setdefault(name, value) != value:
            raise BadInputError(f"{option} {shown(name)} is given twice, with two values", hint="leave one of them out")
    return table


def _values(words: Iterable[str]) -> Iterator[tuple[tuple[str, str], str]]:
    """Yield what --arg says. A word that is wrong is not repeated behind its `=`: it may be a secret."""
    for word in words:
        name, equals, value = word.partition("=")
        layer, dot, argument = name.rpartition(".")
        if not (equals and dot and layer and argument):
            raise BadInputError(
                f"--arg {name!r}{equals and ' with a value'} is not LAYER.NAME=VALUE",
                hint="for example aws-ofi-nccl.PREFIX=/opt/x",
            )
        yield (layer, argument), value


def _sources(words: Iterable[str]) -> Iterator[tuple[str, str]]:
    for word in words:
        name, equals, location = word.partition("=")
        if not (name and equals and location):
            raise BadInputError(f"--source {word!r} is not NAME=FILE or NAME=URL")
        yield name, location


def _as_written(arguments: argparse.Namespace) -> str:
    """Return the options of a request as they were given, for a shell."""
    many = ("add", "requirements", "arg", "source", "mirror", "layers")
    return words_of(
        ("--base", (arguments.base,)),
        ("--recipe", (arguments.recipe,)),
        *((f"--{name}", getattr(arguments, name)) for name in many),
        ("--fabric", (None if arguments.fabric == "auto" else arguments.fabric,)),
        ("--site", (arguments.site,)),
        ("--host", (arguments.host,)),
        ("--exclude-newer", (arguments.exclude_newer,)),
    )


def read_site(name: str | None, host: Path | None) -> Site | None:
    """Return the site of that name; with the snapshot of one of its nodes, as it was seen there.

    A lock of an older release may be for none. Raises BadInputError.
    """
    site = find_site(name, os.environ) if name else None
    if host is None or site is None:
        return site
    return seen(site, read_snapshot(host), str(host))


def image_fetcher(arguments: argparse.Namespace) -> Callable[[str], Path]:
    """Return what brings a base out of a registry here, to be read."""

    def fetch(base: str) -> Path:
        from lumiimg.cli.sources import fetch_image  # HTTP and registries

        return fetch_image(base, arguments)

    return fetch
