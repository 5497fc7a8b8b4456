"""Which site is meant where none is named: what the settings say, else the machine that this is, else LUMI."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from lumiimg.catalog.settings import read_settings
from lumiimg.catalog.sites import SiteIdentity, find_site, site_names
from lumiimg.core.errors import BadInputError, shortened

DEFAULT = "lumi"


@dataclass(frozen=True, slots=True)
class ChosenSite:
    """A site that nobody named on the command line, and why it is this one."""

    name: str
    """A name, or the path of a file."""
    because: str
    """The end of a sentence: "as SLURM_CLUSTER_NAME is lumi"."""


def site_here(environment: Mapping[str, str], node: str, *, elsewhere: bool = False) -> ChosenSite | None:
    """Return the site of the settings, else the one whose machine this is; None where neither says one.

    `node` is the name of the node in question; `elsewhere`: it is not the one that this runs on, so the variables here
    say nothing about it. Raises DecodeError if the settings are wrong.
    """
    settings = read_settings(environment)
    if settings.site is not None:
        if not settings.site.endswith(".toml") and settings.site not in (known := site_names(environment)):
            what = f"names a site {shortened(settings.site)!r}, which does not exist"
            raise BadInputError(what, where=settings.site_of, hint=f"known: {', '.join(known)}")
        return ChosenSite(settings.site, f"as {settings.site_of} says")
    found = dict(_recognised({} if elsewhere else environment, node, environment))
    if len(found) != 1:  # of several, none is certain
        return None
    [(name, sign)] = found.items()
    return ChosenSite(name, f"as {sign}")


def site_to_make_for(environment: Mapping[str, str], node: str, *, elsewhere: bool = False) -> ChosenSite:
    """Return the site that something is made for where none is named: as `site_here`, else LUMI. Raises as it does."""
    found = site_here(environment, node, elsewhere=elsewhere)
    return found or ChosenSite(DEFAULT, "because nothing here names another machine")


def _recognised(signs: Mapping[str, str], node: str, environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name in site_names(environment):
        try:
            identity = find_site(name, environment).identity
        except BadInputError:  # a broken file of the user's must not hide the others
            continue
        sign = _sign_of(identity, signs, node) if identity else None
        if sign is not None:
            yield name, sign


def _sign_of(identity: SiteIdentity, environment: Mapping[str, str], node: str) -> str | None:
    for variable in identity.variables:
        name, _, value = variable.partition("=")
        if environment.get(name) == value:
            return f"{name} is {value}"
    return f"this is {node}" if any(fnmatchcase(node, pattern) for pattern in identity.nodes) else None
