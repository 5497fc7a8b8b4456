"""The machine and the environment over an image, read once from a command's options."""

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
from lumiimg.host.container_view import without_host_binds
from lumiimg.host.snapshot import Snapshot, read_snapshot
from lumiimg.resolve.venv import Venv, open_venv


def image_here(name: str, arguments: argparse.Namespace) -> tuple[Path, str | None]:
    """Return the local path of an image, and its address if it was fetched.

    Raises BadInputError for an image that is not available, because exit code 1 would be an answer about the image.
    """
    address = None if os.path.lexists(name) else address_of(name)
    if address is None:
        return Path(name), None
    from lumiimg.cli.request import fetch_image  # imports HTTP code, which local files do not need

    try:
        return fetch_image(address, arguments), address
    except FailedError as error:
        raise BadInputError(error.what, where=error.where, hint=error.hint) from error


@dataclass(frozen=True, slots=True)
class Inputs:
    """The inputs of a command."""

    site: Site | None
    snapshot: Snapshot | None
    venv: Venv | None
    site_name: str | None
    """Argument of --site that is valid in any folder: a name or an absolute path."""
    host: Path | None

    @classmethod
    def from_arguments(cls, arguments: argparse.Namespace, choose: Choose | None = site_here) -> Inputs:
        """Read the files that --site, --host and --venv name. Raises BadInputError.

        Without --site, the site is that of the settings or of this machine: facts about LUMI may not be true elsewhere.
        """
        given = vars(arguments)
        if arguments.site:
            find_site(arguments.site, os.environ)  # a wrong name is reported before an unreadable file
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
        """The site that something is made for. Raises BadInputError if none is chosen."""
        if self.site is None:
            raise BadInputError("no site is named", hint="--site NAME")
        return self.site

    def open(
        self, image: Path, arguments: argparse.Namespace, *, as_here: bool = True
    ) -> AbstractContextManager[ImageInContext]:
        """Open an image in the context of the machine; `as_here`: with the shell's variables that reach a container."""
        image, address = image_here(str(image), arguments)
        return open_for_check(
            image,
            os.environ if as_here else without_host_binds(os.environ),
            self.snapshot,
            self.site,
            program=arguments.starts,
            venv=self.venv,
            machine=self.words(),
            built_with=asked_for(image),
            address=address,
        )

    def words(self) -> tuple[str, ...]:
        """Return the effective --site and --host as arguments, valid in this folder."""
        words = ["--site", self.site_name] if self.site_name else []
        words += ["--host", str(self.host)] if self.host else []
        return tuple(words)
