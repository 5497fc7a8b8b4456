"""What the options of a command say of the machine and of the environment over an image, read once."""

from __future__ import annotations

import argparse
import os
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from lumiimg.build.provenance import asked_for
from lumiimg.catalog.sites import Site, find_site, site_here
from lumiimg.check.context import ImageInContext, open_for_check
from lumiimg.cli.choices import Choose, choose_site
from lumiimg.core.errors import BadInputError, FailedError
from lumiimg.core.text import address_of
from lumiimg.host.container_view import without_ours
from lumiimg.host.snapshot import Snapshot, read_snapshot
from lumiimg.resolve.venv import Venv, open_venv


def image_here(name: str, arguments: argparse.Namespace) -> tuple[Path, str | None]:
    """Return where an image is on this machine, and its address where it was fetched.

    Raises BadInputError for one that cannot be had: an exit code of 1 would be an answer about an image.
    """
    address = None if os.path.lexists(name) else address_of(name)
    if address is None:
        return Path(name), None
    from lumiimg.cli.request import fetch_image  # HTTP, which no file needs

    try:
        return fetch_image(address, arguments), address
    except FailedError as error:
        raise BadInputError(error.what, where=error.where, hint=error.hint) from error


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a command works with."""

    site: Site | None
    snapshot: Snapshot | None
    venv: Venv | None
    site_name: str | None
    """As --site takes it in any folder: a name, or the path of a file."""
    host: Path | None

    @classmethod
    def from_arguments(cls, arguments: argparse.Namespace, choose: Choose | None = site_here) -> Inputs:
        """Read what --site, --host and --venv name. Raises BadInputError.

        Without --site it is the site of the settings or of this machine: what holds on LUMI may not hold elsewhere.
        """
        given = vars(arguments)
        if arguments.site:
            find_site(arguments.site, os.environ)  # a wrong name before a file that cannot be read
        host, venv = given.get("host"), given.get("venv")
        snapshot = read_snapshot(host) if host else None
        name: str | None = choose_site(arguments, snapshot, choose) if choose else arguments.site
        return cls(
            find_site(name, os.environ) if name else None,
            snapshot,
            open_venv(venv) if venv else None,
            str(Path(name).absolute()) if name and name.endswith(".toml") else name,
            host,
        )

    @property
    def target(self) -> Site:
        """The site that something is made for. Raises BadInputError where none is chosen."""
        if self.site is None:
            raise BadInputError("no site is named", hint="--site NAME")
        return self.site

    def open(
        self, image: Path, arguments: argparse.Namespace, *, as_here: bool = True
    ) -> AbstractContextManager[ImageInContext]:
        """Open an image beside the machine; `as_here`: with the variables of this shell that reach a container."""
        image, address = image_here(str(image), arguments)
        return open_for_check(
            image,
            os.environ if as_here else without_ours(os.environ),
            self.snapshot,
            self.site,
            program=arguments.starts,
            venv=self.venv,
            machine=self.words(),
            built_with=asked_for(image),
            address=address,
        )

    def words(self) -> tuple[str, ...]:
        """Return --site and --host as they are in force, as they are found from this folder."""
        words = ["--site", self.site_name] if self.site_name else []
        words += ["--host", str(self.host)] if self.host else []
        return tuple(words)
