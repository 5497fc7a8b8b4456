"""The requests of `build`, `lock`, `adapt` and `explain`, and their sources of downloads and server answers."""

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
from lumiimg.catalog.sites import target_site
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
    """Return the plan for a request; `images` are bases that were already read.

    Raises BadInputError for faults of the request; a refusal is an answer (`require_lock` turns it into an error).
    """
    catalogue = open_catalogue(os.environ, arguments.layers)
    request = read_request(arguments, catalogue)
    context = replace(context_with_servers(arguments, request, catalogue), images=images or {})
    return decide(request, context)


def options_of(arguments: argparse.Namespace) -> RequestOptions:
    given = vars(arguments)
    return RequestOptions(**{one.name: given[one.name] for one in fields(RequestOptions) if one.name in given})


def read_request(arguments: argparse.Namespace, catalogue: Catalogue, *, needs_base: bool = True) -> Request:
    """Return the request of a command line. Raises BadInputError."""

    def choose() -> str | None:
        if not arguments.host:
            return choose_site(arguments, None, target_site)
        from lumiimg.host.snapshot import read_snapshot  # imports ELF code, which no other request needs

        return choose_site(arguments, read_snapshot(arguments.host), target_site)

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
    """Propose the current commit for a requirement that names a branch, a tag or nothing, if its server answers."""
    try:
        yield
    except NoCommitError as error:
        if not arguments.offline and (commit := commit_at(error.address, mirrors_of(arguments))):
            error.propose(commit)
        raise


def index_of(arguments: argparse.Namespace) -> Callable[[str], bool]:
    """Return a function that asks the package index whether it has a project. That function raises LumiimgError."""
    from lumiimg.fetch.mirrors import general_index
    from lumiimg.fetch.package_index import has_project

    general = cache(lambda: general_index(mirrors_of(arguments)))
    web = Http(offline=arguments.offline, retry=False)
    return lambda project: has_project(general(), project, web)


def context_with_servers(arguments: argparse.Namespace, request: Request, catalogue: Catalogue) -> PlanContext:
    """Return the context in which a request is decided, with the servers that may be asked. Raises BadInputError."""
    context = PlanContext.from_request(request, catalogue, os.environ)
    return replace(
        context,
        web=Http(offline=arguments.offline, retry=False),
        on_line=_line_of(arguments),
        pull=lambda base: fetch_image(base, arguments),
    )


def open_sources(arguments: argparse.Namespace) -> Sources:
    """Return the sources of downloads and server answers, according to --offline, --downloads and --mirror.

    Raises BadInputError.
    """
    from lumiimg.fetch.store import (
        Sources,
        Store,  # a plan without servers needs neither
    )

    offline, folder = vars(arguments).get("offline", False), read_settings(os.environ).cache
    mirrors, web = mirrors_of(arguments), Http(offline=offline)
    store = Store(folder / "sources", web, mirrors, vars(arguments).get("downloads", 1))
    return Sources(web, store, mirrors, folder, _line_of(arguments))


def fetch_image(base: str, arguments: argparse.Namespace) -> Path:
    """Pull a base from a registry for reading, and return its path."""
    from lumiimg.fetch.pull import pull_image

    sources = open_sources(arguments)
    return pull_image(base, sources.web, sources.mirrors, sources.cache, sources.on_line)


def _line_of(arguments: argparse.Namespace) -> Callable[[str], None]:
    """Return a function that prints a line about a download."""

    def print_line(line: str) -> None:
        if not arguments.quiet:
            say(f"  {line}")

    return print_line
