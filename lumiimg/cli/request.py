"""What `build`, `lock`, `adapt` and `explain` are asked for, and where downloads and answers of servers come from."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.catalog.catalogue import Catalogue, open_catalogue
from lumiimg.catalog.layers import Layer
from lumiimg.catalog.settings import read_settings
from lumiimg.catalog.sites import site_to_make_for
from lumiimg.cli.choices import choose_site, mirrors_of
from lumiimg.core.errors import say
from lumiimg.core.redact import known_secrets
from lumiimg.fetch.git import commit_at
from lumiimg.fetch.http import Http
from lumiimg.resolve.context import PlanContext
from lumiimg.resolve.plan import Plan
from lumiimg.resolve.planner import decide
from lumiimg.resolve.request import Request, RequestOptions, request_of
from lumiimg.resolve.requirements import NoCommitError

if TYPE_CHECKING:
    from lumiimg.fetch.store import Sources


def resolve_request(arguments: argparse.Namespace, *, images: Mapping[str, Layer] | None = None) -> Plan:
    """Return the answer to what is asked for; `images` are bases that were read before.

    Raises BadInputError for what is wrong with the request; a refusal is an answer (`locked` makes an error of it).
    """
    catalogue = open_catalogue(os.environ, arguments.layers)
    request = read_request(arguments, catalogue)
    context = replace(context_with_servers(arguments, request, catalogue), images=images or {})
    return decide(request, context)


def options_of(arguments: argparse.Namespace) -> RequestOptions:
    given = vars(arguments)
    return RequestOptions(**{one.name: given[one.name] for one in fields(RequestOptions) if one.name in given})


def read_request(arguments: argparse.Namespace, catalogue: Catalogue, *, needs_base: bool = True) -> Request:
    """Return what is asked for. Raises BadInputError."""

    def choose() -> str | None:
        if not arguments.host:
            return choose_site(arguments, None, site_to_make_for)
        from lumiimg.host.snapshot import read_snapshot  # ELF data, which no other request needs

        return choose_site(arguments, read_snapshot(arguments.host), site_to_make_for)

    with naming_commits(arguments):
        return request_of(
            options_of(arguments),
            catalogue,
            choose,
            known_secrets(os.environ),
            needs_base=needs_base,
            has_project=index_of(arguments),
        )


@contextmanager
def naming_commits(arguments: argparse.Namespace) -> Iterator[None]:
    """Say of a requirement that names a branch, a tag or nothing which commit that is now, where its server answers."""
    try:
        yield
    except NoCommitError as error:
        if not arguments.offline and (commit := commit_at(error.address, mirrors_of(arguments))):
            error.propose(commit)
        raise


def index_of(arguments: argparse.Namespace) -> Callable[[str], bool]:
    """Return what asks the package index of a command whether it has a project. Raises LumiimgError when asked."""
    from lumiimg.fetch.mirrors import general_index
    from lumiimg.fetch.package_index import has_project

    general = cache(lambda: general_index(mirrors_of(arguments)))
    web = Http(offline=arguments.offline, retry=False)
    return lambda project: has_project(general(), project, web)


def context_with_servers(arguments: argparse.Namespace, request: Request, catalogue: Catalogue) -> PlanContext:
    """Return what a request is decided on, with the servers that a command may ask. Raises BadInputError."""
    context = PlanContext.from_request(request, catalogue, os.environ)
    return replace(
        context,
        web=Http(offline=arguments.offline, retry=False),
        on_line=_line_of(arguments),
        pull=lambda base: fetch_image(base, arguments),
    )


def open_sources(arguments: argparse.Namespace) -> Sources:
    """Return where downloads and answers come from, by --offline, --downloads and --mirror of a command.

    Raises BadInputError.
    """
    from lumiimg.fetch.store import (
        Sources,
        Store,  # a plan that asks no server needs neither
    )

    offline, folder = vars(arguments).get("offline", False), read_settings(os.environ).cache
    mirrors, web = mirrors_of(arguments), Http(offline=offline)
    store = Store(folder / "sources", web, mirrors, vars(arguments).get("downloads", 1))
    return Sources(web, store, mirrors, folder, _line_of(arguments))


def fetch_image(base: str, arguments: argparse.Namespace) -> Path:
    """Bring a base out of a registry here, to be read."""
    from lumiimg.fetch.pull import pull_image

    sources = open_sources(arguments)
    return pull_image(base, sources.web, sources.mirrors, sources.cache, sources.on_line)


def _line_of(arguments: argparse.Namespace) -> Callable[[str], None]:
    """Return what prints a line of what is fetched."""

    def print_line(line: str) -> None:
        if not arguments.quiet:
            say(f"  {line}")

    return print_line
