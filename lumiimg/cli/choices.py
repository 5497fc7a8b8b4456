"""Defaults from the settings that commands use without the option: the site and the mirrors."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from lumiimg.catalog.settings import read_settings
from lumiimg.catalog.sites import ChosenSite
from lumiimg.fetch.mirrors import Mirrors, parse_mirrors

if TYPE_CHECKING:
    from lumiimg.host.snapshot import Snapshot

Choose = Callable[..., ChosenSite | None]


def choose_site(arguments: argparse.Namespace, snapshot: Snapshot | None, choose: Choose) -> str | None:
    """Return the name of the site: from --site, else the chosen one, which is stored as if --site had named it.

    `main` reports which site and why, once there is an answer.
    """
    if not arguments.site:
        node = snapshot.host if snapshot else os.uname().nodename
        chosen = choose(os.environ, node, elsewhere=snapshot is not None)
        if chosen is not None:
            arguments.site, arguments.site_note = chosen.name, chosen.note
    named: str | None = arguments.site
    return named


def mirrors_of(arguments: argparse.Namespace) -> Mirrors:
    """Return the mirrors from the settings and --mirror. Raises BadInputError."""
    return parse_mirrors(read_settings(os.environ).mirrors, vars(arguments).get("mirror", ()))
