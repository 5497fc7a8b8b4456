"""Where downloads and answers of servers come from, by the options of a command."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from lumiimg.catalog.settings import read_settings
from lumiimg.cli.inputs import mirrors_of
from lumiimg.errors import printable
from lumiimg.resolve.network.web import Web
from lumiimg.resolve.pin import Sources, pulled
from lumiimg.resolve.store import Store


def fetch_image(base: str, arguments: argparse.Namespace) -> Path:
    return pulled(base, open_sources(arguments), read_settings(os.environ).cache)


def open_sources(arguments: argparse.Namespace) -> Sources:
    """Return where downloads and answers come from, by --offline, --jobs and --mirror of a command.

    Raises BadInputError.
    """

    def tell(line: str) -> None:
        if not arguments.quiet:
            print(f"  {printable(line)}", file=sys.stderr)

    mirrors = mirrors_of(arguments)
    web = Web(offline=arguments.offline)
    cache = read_settings(os.environ).cache
    store = Store(cache / "sources", web, mirrors, vars(arguments).get("jobs", 1))
    return Sources(web, store, mirrors, cache, tell)
