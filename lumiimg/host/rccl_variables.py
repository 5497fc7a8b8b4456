"""Variables as RCCL's process has them in the container.

RCCL itself sets some: what stands in its own file and is not set yet (`fabric/rccl.py`).
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lumiimg.errors import BadInputError, one_line
from lumiimg.fabric.rccl import CONF, read_conf
from lumiimg.findings import Remedy
from lumiimg.host.container_view import TO_ENGINE, variable_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lumiimg.image import Image


@dataclass(frozen=True, slots=True)
class Variables:
    """What RCCL, its plugin and libfabric get for a variable in an image."""

    image: Image
    environment: Mapping[str, str]
    """The user's."""
    of_conf: Mapping[str, str] = field(default_factory=dict)
    """What RCCL's own file sets, where nothing else does."""
    unread: str | None = None
    """Why that file, which is there, could not be read."""

    def get(self, name: str) -> str | None:
        value = variable_of(name, self.image, self.environment)
        return self.of_conf.get(name) if value is None else value

    def is_unsure(self, name: str) -> bool:
        """Whether the image's scripts decide a variable, in a way that only a shell knows."""
        return name in self.image.unsure and not self._given_as(name)

    def shown(self, name: str) -> str:
        """Return `NAME=value` for a finding, and the file that sets it."""
        return f"{name}={self.get(name)}" + (f" in {CONF}" if self._is_of_conf(name) else "")

    def without(self, name: str) -> Remedy:
        """Return what takes a variable away, by what sets it: RCCL's file, the engine, the image, the user."""
        if self._is_of_conf(name):
            return Remedy(f"take {name} out of the image's {CONF}")
        given = self._given_as(name)
        if not given and self.image.environment.get(name) is not None:
            return Remedy(
                f"start the program with `env -u {name} …`: the image sets it, and `unset` outside does not reach it"
            )
        return Remedy(command=f"unset {' '.join(given or [name])}")

    def set_to(self, name: str, value: str) -> Remedy:
        """Return the command that gives a variable a value in the container, whoever sets it now."""
        return Remedy(command=f"export {next(iter(self._given_as(name)), f'SINGULARITYENV_{name}')}={value}")

    def _given_as(self, name: str) -> list[str]:
        """Return the variables that pass this one to the engine."""
        return [prefix + name for prefix in TO_ENGINE if prefix + name in self.environment]

    def _is_of_conf(self, name: str) -> bool:
        return name in self.of_conf and variable_of(name, self.image, self.environment) is None


def read_variables(image: Image, environment: Mapping[str, str]) -> Variables:
    """Return the variables of RCCL's process; the user's home, and what is in it, is not of the image."""
    unread: str | None = None
    try:
        return Variables(image, environment, read_conf(image.root))
    except BadInputError as error:
        unread = one_line(str(error))
    except OSError:  # RCCL cannot open it either, unless it is a link to what is bound
        with contextlib.suppress(OSError):
            unread = f"it is a link to {image.root.readlink(CONF)}, which is not in the image"
    return Variables(image, environment, unread=unread)
