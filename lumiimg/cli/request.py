"""What `build`, `lock` and `explain` are asked for: options, and what they mean together."""

from __future__ import annotations

import os
import shlex
import sys
from typing import TYPE_CHECKING

from lumiimg.cli.options import add_layers, add_node, add_site
from lumiimg.errors import BadInputError, one_line

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from pathlib import Path

    from lumiimg.catalog.catalogue import Catalogue
    from lumiimg.catalog.settings import UserSettings
    from lumiimg.catalog.sites import Site
    from lumiimg.report.plan import RequestWords
    from lumiimg.resolve.network.mirrors import Mirrors
    from lumiimg.resolve.observed_node import ObservedNode
    from lumiimg.resolve.pin import Sources
    from lumiimg.resolve.request import Request


def add_request(parser: argparse.ArgumentParser, title: str = "what") -> None:
    """Add the options that tell which image is wanted."""
    what = parser.add_argument_group(title)
    what.add_argument(
        "--base", metavar="NAME|IMAGE", help="what to start from: a name (`lumiimg list`), or an image, read first"
    )
    what.add_argument("--recipe", metavar="NAME|FILE", help="a named stack; --base and --add change or extend it")
    add_layers_and_sources(what)


def add_layers_and_sources(what: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add the options that tell what comes on a base."""
    what.add_argument(
        "--add",
        metavar="LAYER",
        action="append",
        default=[],
        help="a layer to add, with a version if need be: vllm==0.10.1 (may be repeated)",
    )
    what.add_argument(
        "--arg",
        metavar="LAYER.NAME=VALUE",
        action="append",
        default=[],
        help="set an argument: of a layer (`lumiimg show`)",
    )
    what.add_argument(
        "--source",
        metavar="NAME=FILE|URL",
        action="append",
        default=[],
        help="take a source archive from here; #sha256=HEX behind it says what it must be",
    )
    add_mirror(what)
    add_site(what)  # type: ignore[arg-type]  # a group takes options as a parser does
    add_node(what)  # type: ignore[arg-type]
    add_layers(what)  # type: ignore[arg-type]


def add_mirror(what: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add --mirror."""
    what.add_argument(
        "--mirror",
        metavar="FROM=TO",
        action="append",
        default=[],
        help="fetch from TO instead: debian=URL, pypi=URL, docker.io=HOST, https://github.com=URL (may be repeated)",
    )


def read_request(arguments: argparse.Namespace, catalogue: Catalogue) -> Request:
    """Return what is asked for. Raises BadInputError."""
    from lumiimg.fabric.path import Fabric
    from lumiimg.resolve.plan import name_of
    from lumiimg.resolve.request import Request

    recipe = catalogue.recipe(arguments.recipe) if arguments.recipe else None
    base = arguments.base or (recipe.base if recipe else None)
    if base is None:
        raise BadInputError("no base", hint="give --base NAME or --recipe NAME; see `lumiimg list`")
    values = dict(recipe.arguments) if recipe else {}
    for word in arguments.arg:
        name, equals, value = word.partition("=")
        layer, dot, argument = name.rpartition(".")
        if not (equals and dot and layer and argument):
            raise BadInputError(
                f"--arg {word!r} is not LAYER.NAME=VALUE", hint="for example aws-ofi-nccl.PREFIX=/opt/x"
            )
        values[layer, argument] = value
    sources = {}
    for word in arguments.source:
        name, equals, location = word.partition("=")
        if not (name and equals and location):
            raise BadInputError(f"--source {word!r} is not NAME=FILE or NAME=URL")
        sources[name] = location
    fabric = None if arguments.fabric == "auto" else Fabric(arguments.fabric)
    if fabric is None and recipe is not None and recipe.fabric is not None:
        # to add the layer of a fabric is to name one, too
        layers = {f"fabric-{other.value}" for other in Fabric}
        fabric = None if layers & {name_of(text) for text in arguments.add} else Fabric(recipe.fabric)
    site = arguments.site or (recipe.site if recipe else None)
    own = recipe.add if recipe else ()
    named = {name_of(text): text for text in arguments.add if text not in own}
    add = [named.get(name_of(text), text) for text in own]
    add += [text for text in arguments.add if text not in add]
    return Request(base, tuple(add), values, fabric, sources, site, arguments.host)


def words_of(arguments: argparse.Namespace, of_recipe: str | None = None) -> RequestWords:
    """Return the request as it was written, for the commands that are proposed.

    `of_recipe` is the site that a recipe names: with --recipe it goes without saying, with --base it does not.
    """
    from lumiimg.report.plan import RequestWords

    node = ("--host", arguments.host)
    pairs = [("--base", arguments.base), ("--recipe", arguments.recipe)]
    pairs += [
        (f"--{name}", value)
        for name in ("add", "arg", "source", "mirror", "layers")
        for value in getattr(arguments, name)
    ]
    pairs += [("--fabric", None if arguments.fabric == "auto" else arguments.fabric)]
    same = [
        word
        for option, value in (*pairs, ("--site", arguments.site), node)
        if value is not None
        for word in (option, str(value))
    ]
    machine = (("--site", arguments.site or of_recipe), node)
    site = [word for option, value in machine if value is not None for word in (option, str(value))]
    return RequestWords(shlex.join(same), f" {shlex.join(site)}" if site else "")


def read_site(name: str | None, host: Path | None) -> tuple[Site | None, ObservedNode | None]:
    """Return the site of that name, and its node whose snapshot is given: the site is then as it was seen there.

    Raises BadInputError.
    """
    from lumiimg.catalog.sites import find_site

    site = find_site(name, os.environ) if name else None
    if host is None:
        return site, None
    if site is None:
        raise BadInputError(
            "--host tells of one node of a site, and none is named",
            hint="add --site lumi, a site file, or --site generic",
        )
    from lumiimg.host.snapshot_file import read_snapshot
    from lumiimg.resolve.observed_node import seen

    node = seen(site, read_snapshot(host), str(host))
    return node.site, node


def headers_of(node: ObservedNode | None, settings: UserSettings, *, quiet: bool) -> Callable[[], Path] | None:
    """Return what makes an archive of the node's libfabric; None, and why is said, where none can be made here."""
    if node is None:
        return None
    if node.no_headers is not None:
        if not quiet:
            print(f"lumiimg: {one_line(str(node.no_headers))}", file=sys.stderr)
        return None
    return lambda: node.archive(settings.cache / "host")


def puller(arguments: argparse.Namespace) -> Callable[[str], Path]:
    """Return what brings a base out of a registry here, to be read."""
    from lumiimg.catalog.settings import read_settings
    from lumiimg.resolve.network.mirrors import parse_mirrors

    def pull(base: str) -> Path:
        from lumiimg.resolve.pin import pulled

        settings = read_settings(os.environ)
        mirrors = parse_mirrors(settings.mirrors, getattr(arguments, "mirror", []))
        offline, quiet = getattr(arguments, "offline", False), getattr(arguments, "quiet", False)
        return pulled(base, sources_of(settings, mirrors, offline=offline, quiet=quiet), settings.cache)

    return pull


def sources_of(settings: UserSettings, mirrors: Mirrors, *, offline: bool, quiet: bool, jobs: int = 1) -> Sources:
    """Return where downloads, up to `jobs` at once, and answers come from."""
    from lumiimg.resolve.network.web import Web
    from lumiimg.resolve.pin import Sources
    from lumiimg.resolve.store import Store

    def tell(line: str) -> None:
        if not quiet:
            print(f"  {one_line(line)}", file=sys.stderr)

    web = Web(offline=offline)
    return Sources(web, Store(settings.cache / "sources", web, mirrors, jobs), mirrors, tell)
