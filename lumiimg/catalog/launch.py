"""How jobs come to run on a site, beside the program: modules, options of the scheduler, annotations of the engine."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Struct

from lumiimg.decode import Text, matching

_Module = Annotated[str, matching(r"[A-Za-z0-9][A-Za-z0-9_.+/-]{0,127}", "a name of a module")]
_Option = Annotated[str, matching(r"-[A-Za-z0-9_.,:=/+@ -]{1,199}", "an option like `-l place=scatter`")]
"""What a comment of a script hands to a scheduler: a word or two, nothing that a shell or a scheduler would expand."""
_Key = Annotated[str, matching(r"[A-Za-z0-9_-]{1,64}(\.[A-Za-z0-9_-]{1,64}){1,9}", "a key like com.hooks.cxi.enabled")]


class Jobs(StrEnum):
    """For which jobs something is."""

    ANY = "any"
    ONE = "one"
    """Those on one node."""
    SEVERAL = "several"
    """Those on several nodes."""

    @property
    def note(self) -> str:
        """For which jobs, as a comment of a shell behind a line; nothing where it is for all."""
        return {Jobs.ONE: "  # on one node", Jobs.SEVERAL: "  # on several nodes"}.get(self, "")

    def fit(self, nodes: int) -> bool:
        """Whether a job on this number of nodes is one of them."""
        return self is not (Jobs.SEVERAL if nodes == 1 else Jobs.ONE)


class SiteModule(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A module that job scripts load there."""

    name: _Module
    """For `module load`."""
    because: Text
    """Why."""
    source: Text
    """Where that is from."""


class SiteOption(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An option of the scheduler that jobs want there: `-l place=scatter`."""

    value: _Option
    """As the scheduler takes it."""
    nodes: Jobs
    """For which jobs it is."""
    because: Text
    """Why."""
    source: Text
    """Where that is from."""


class SiteAnnotation(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What an engine's file says of a container to the engine's hooks: `com.hooks.cxi.enabled = "true"`."""

    key: _Key
    """Of the environment definition file."""
    value: Text
    """Of it."""
    nodes: Jobs
    """For which jobs it is."""
    because: Text
    """Why."""
    source: Text
    """Where that is from."""
