"""A request as the options of a command line say it: with a recipe, and as a lock has it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

from lumiimg.errors import BadInputError
from lumiimg.fabric.path import Fabric
from lumiimg.resolve.request import Request, as_exact, name_of, refuse_secrets
from lumiimg.resolve.stack import PACKAGE

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from lumiimg.catalog.catalogue import Catalogue
    from lumiimg.resolve.own_requirements import OwnPackages

K = TypeVar("K", str, tuple[str, str])
_AUTO = "auto"


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """What options say, under their names and in their words."""

    base: str | None = None
    recipe: str | None = None
    add: Sequence[str] = ()
    requirements: Sequence[str] = ()
    arg: Sequence[str] = ()
    source: Sequence[str] = ()
    mirror: Sequence[str] = ()
    layers: Sequence[Path] = ()
    fabric: str = _AUTO
    site: str | None = None
    host: Path | None = None
    exclude_newer: dt.date | None = None

    @classmethod
    def of_words(cls, words: Sequence[str]) -> Self:
        """Return what options of a command ask for, each with a value; those that are not of a request are left out."""
        values: dict[str, list[str]] = defaultdict(list)
        for option, value in zip(words[::2], words[1::2], strict=False):
            values["--requirements" if option == "-r" else option].append(value)
        last = {option: each[-1] for option, each in values.items()}
        return cls(
            base=last.get("--base"),
            recipe=last.get("--recipe"),
            add=tuple(values["--add"]),
            requirements=tuple(values["--requirements"]),
            arg=tuple(values["--arg"]),
            source=tuple(values["--source"]),
            mirror=tuple(values["--mirror"]),
            layers=tuple(map(Path, values["--layers"])),
            fabric=last.get("--fabric", _AUTO),
            site=last.get("--site"),
            host=Path(last["--host"]) if "--host" in last else None,
        )

    def given(self, *names: str) -> str | None:
        """Return the first of these options that was given, as it is written."""
        values = ((name, getattr(self, name)) for name in names)
        found = next((name for name, value in values if value and value != _AUTO), None)
        return found and f"--{found.replace('_', '-')}"


def request_of(
    options: RequestOptions,
    catalogue: Catalogue,
    choose_site: Callable[[], str | None],
    secrets: Collection[str],
    *,
    needs_base: bool = True,
) -> Request:
    """Return what is asked for; `choose_site` names the site where they do not. Raises BadInputError.

    A recipe is changed by what stands beside it: a layer of the same name replaces its version, others come behind.
    """
    recipe = catalogue.recipe(options.recipe) if options.recipe else None
    base = catalogue.meant_by(options.base) if options.base else recipe.base if recipe else ""
    options = replace(options, add=[as_exact(text) for text in options.add])
    own = _own_packages(options.requirements, (*(recipe.add if recipe else ()), *options.add))
    given = [text for text in options.add if not text.startswith(PACKAGE)]
    if needs_base and not base:
        raise BadInputError("no base", hint="give --base NAME or --recipe NAME; see `lumiimg list`")
    fabric = None if options.fabric == _AUTO else Fabric(options.fabric)
    site = options.site or (recipe.site if recipe else None)
    if not site:
        site = choose_site()
    if fabric is None and recipe is not None and recipe.fabric is not None:
        # to add the layer of a fabric is to name one, too
        layers = {f"fabric-{other.value}" for other in Fabric}
        fabric = None if layers & {name_of(text) for text in given} else Fabric(recipe.fabric)
    of_recipe = [text for text in recipe.add if not text.startswith(PACKAGE)] if recipe else []
    named = {name_of(text): text for text in given if text not in of_recipe}
    add = [named.get(name_of(text), text) for text in of_recipe]
    add += [text for text in given if text not in add]
    request = Request(
        base=base,
        add=tuple(add),
        own=own,
        arguments=dict(recipe.given if recipe else {}) | _once("--arg", _values(options.arg), ".".join),
        fabric=fabric,
        sources=_once("--source", _sources(options.source), str),
        site=site,
        host=options.host,
        mirrors=tuple(options.mirror),
        layers=tuple(options.layers),
        until=options.exclude_newer,
    )
    refuse_secrets(request, secrets)
    return request


def request_again(options: RequestOptions, before: Request | None, path: Path) -> Request:
    """Return what the lock at `path` was made from. Raises BadInputError, also for options that would change it."""
    if before is None:
        raise BadInputError("no base", hint=f"give --base NAME or --recipe NAME; there is no {path} yet")
    if given := options.given("add", "requirements", "arg", "source", "site", "host", "fabric"):
        raise BadInputError(f"{given} without --base or --recipe", hint="name the whole request to change it")
    until = options.exclude_newer or before.until
    return replace(before, mirrors=tuple(options.mirror), layers=tuple(options.layers), until=until)


def _own_packages(files: Sequence[str], words: Iterable[str]) -> OwnPackages | None:
    """Return the packages of the user's own; None where nobody names any. Raises BadInputError."""
    packages = [word for word in words if word.startswith(PACKAGE)]
    if not files and not packages:
        return None
    from lumiimg.resolve.own_requirements import read_own

    return read_own(files, packages)


def _once(option: str, pairs: Iterable[tuple[K, str]], shown: Callable[[K], str]) -> dict[K, str]:
    """Return pairs as a table. Raises BadInputError where one is there with two values: the last may not be meant."""
    table: dict[K, str] = {}
    for name, value in pairs:
        if table.setdefault(name, value) != value:
            raise BadInputError(f"{option} {shown(name)} is given twice, with two values", hint="leave one of them out")
    return table


def _values(words: Iterable[str]) -> Iterator[tuple[tuple[str, str], str]]:
    """Yield what --arg says. A word that is wrong is not repeated behind its `=`: it may be a secret."""
    for word in words:
        name, equals, value = word.partition("=")
        layer, dot, argument = name.rpartition(".")
        if not (equals and dot and layer and argument):
            raise BadInputError(
                f"--arg {name!r}{equals and ' with a value'} is not LAYER.NAME=VALUE",
                hint="for example aws-ofi-nccl.PREFIX=/opt/x",
            )
        yield (layer, argument), value


def _sources(words: Iterable[str]) -> Iterator[tuple[str, str]]:
    for word in words:
        name, equals, location = word.partition("=")
        if not (name and equals and location):
            raise BadInputError(f"--source {word!r} is not NAME=FILE or NAME=URL")
        yield name, location
