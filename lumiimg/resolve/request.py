"""A user's request: as a value, and as command-line options."""

from __future__ import annotations

import datetime as dt
import re
import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec
from msgspec import Struct, structs

from lumiimg.catalog.catalogue import FabricOption
from lumiimg.catalog.needs import Need
from lumiimg.core.decode import AnyText, Text
from lumiimg.core.errors import BadInputError
from lumiimg.core.redact import is_secret_name, redact
from lumiimg.core.text import count, shell_join
from lumiimg.fabric.path import Fabric
from lumiimg.resolve.requirements import OF_OPTION, PYTHON, UserRequirement, read_own
from lumiimg.resolve.stack import PACKAGE

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from lumiimg.catalog.catalogue import Catalogue
    from lumiimg.resolve.conda_environment import HasProject

_LIMIT = 300
"""Most characters of a layer with its versions."""
_SHOWN = 200
_LAYER_HINT = "a name (the newest that fits), or a name with a version: 'vllm==0.10.1'; one --add for each layer"
_ONE_EQUALS = re.compile(r"(?<=[\w.-]) ?= ?(?=\d)")
_MIN_SECRET_CHARS = 16
"""Shorter values, such as `AWS_REGION=eu-north-1`, are not searched for: they are also part of harmless words."""
AUTO: FabricOption = "auto"
"""The fabric that fits the site."""


class LockedRequest(Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """The user's request, as a lock records it: there, paths of files are absolute."""

    base: Text
    """As for --base."""
    add: tuple[str, ...] = ()
    """As for --add: layers, with versions if the user names them: `vllm==0.10.1`."""
    own_files: tuple[str, ...] = ()
    """As for -r."""
    own: tuple[UserRequirement, ...] = ()
    """Requirements from these files and from `--add pip:…`."""
    arguments: Mapping[str, AnyText] = {}
    """Values by `LAYER.NAME`."""
    sources: Mapping[str, str] = {}
    """As for --source, by name: FILE or URL, with or without `#sha256=...`; in a lock, a file has it."""
    fabric: FabricOption = AUTO
    """As for --fabric."""
    site: str = ""
    """As for --site: a name, or the path of a file."""
    host: str = ""
    """As for --host: the snapshot of a node of that site."""
    until: dt.date | None = msgspec.field(default=None, name="exclude-newer")
    """As for --exclude-newer; null: the day of the newest release."""


class Request(LockedRequest, frozen=True):
    """The same, with what belongs to this machine and is in no lock."""

    mirrors: tuple[str, ...] = ()
    """FROM=TO, from the command line."""
    layers: tuple[Path, ...] = ()
    """The user's folders of layers, from the command line."""
    brought: Mapping[str, str] = {}
    """Distributions that layers of the catalogue make for the image, each with its layer."""

    @property
    def unpinned(self) -> tuple[str, ...]:
        """The layers without their versions."""
        return tuple(map(name_of, self.add))

    @property
    def own_texts(self) -> tuple[str, ...]:
        """The user's own requirements, except one of Python, which the image has."""
        return tuple(one.text for one in self.own if one.name != PYTHON)

    @property
    def replaced(self) -> frozenset[str]:
        """Names of the packages in the image that are replaced."""
        return frozenset(one.name for one in self.own if one.replaces)

    @property
    def own_words(self) -> tuple[str, ...]:
        """Own requirements given as words of `--add`."""
        return tuple(f"{PACKAGE}{one.text}" for one in self.own if one.where == OF_OPTION)

    @property
    def own_summary(self) -> str:
        """All own requirements, in a few words."""
        words = (*self.own_words, *(f"{one.text} replacing another" for one in self.own if one.replaces))
        where = ", ".join([*(file.rpartition("/")[2] for file in self.own_files), *words])[:_SHOWN]
        return f"{count(len(self.own), 'requirement')} of yours ({where})"


@cache
def wanted(text: str) -> Need:
    """Return layer and versions of `vllm==0.10.1`. Raises BadInputError for text that does not name a layer."""
    with suppress(ValueError):
        if len(text) <= _LIMIT:
            return Need.decoded(text)
    raise BadInputError(f"{text[:_LIMIT]!r} is not a layer", hint=_LAYER_HINT)


def name_of(text: str) -> str:
    """Return the layer of `vllm==0.10.1`. Raises BadInputError for text that does not name a layer."""
    return wanted(text).component


def with_releases(request: Request, catalogue: Catalogue) -> Request:
    """Return the request with its VERSION arguments as releases in `add`. Raises BadInputError for contradictions."""
    add = dict(zip(request.unpinned, request.add, strict=True))
    if len(add) < len(request.add):
        twice = next(name for name in add if request.unpinned.count(name) > 1)
        raise BadInputError(f"layer {twice!r} is named twice")
    for key, version in request.arguments.items():
        layer, _, name = key.rpartition(".")
        if name == "VERSION" and catalogue.knows(layer) and catalogue.layer(layer).releases:
            release = f"{layer}=={version}"
            if add.get(layer, layer) not in {layer, release}:
                raise BadInputError(f"--add {add[layer]} and --arg {layer}.VERSION={version}", hint="name one of them")
            add[layer] = release
    return structs.replace(request, add=tuple(add.values()))


def refuse_secrets(request: Request, known: Collection[str] = ()) -> None:
    """Refuse values that look like or contain a secret, without repeating them. Raises BadInputError."""
    known = [secret for secret in known if len(secret) >= _MIN_SECRET_CHARS]
    for option, values in (("--source", request.sources.values()), ("--mirror", request.mirrors)):
        if any("://" in value and secret in value for value in values for secret in known):
            raise BadInputError(
                f"{option} contains a secret from the environment, which would end up in the lock and the log",
                hint="a login for a server goes into ~/.netrc",
            )
    for key, value in request.arguments.items():
        if value and (is_secret_name(key.rpartition(".")[2]) or redact(value, known) != value):
            raise BadInputError(
                f"{key} looks like a secret, which would end up in the image, the lock and the log",
                hint="set it as a variable in the job that runs the image",
            )


# -- as options of a command line --


def main_options(request: Request) -> str:
    """Return base, layers, own packages and fabric as options, for a shell."""
    return options_of(Request(request.base, request.add, request.own_files, request.own, fabric=request.fabric))


def options_of(request: Request) -> str:
    """Return the whole request as options of `lumiimg build`, for a shell."""
    return words_of(
        ("--base", (request.base,)),
        ("--add", request.add),
        ("-r", request.own_files),
        ("--add", request.own_words),
        ("--replace", (one.text for one in request.own if one.replaces)),
        ("--arg", (f"{name}={value}" for name, value in request.arguments.items())),
        ("--source", (f"{name}={location}" for name, location in request.sources.items())),
        ("--mirror", request.mirrors),
        ("--layers", request.layers),
        ("--fabric", () if request.fabric == AUTO else (request.fabric,)),
        ("--site", (request.site,)),
        ("--host", (request.host,)),
        ("--exclude-newer", (request.until,)),
    )


def words_of(*options: tuple[str, Iterable[object]]) -> str:
    """Return options with their values for a shell; an option whose value is None or "" is left out."""
    words: list[str] = []
    for option, values in options:
        for value in values:
            if str(value).startswith("-"):  # argparse would read it as an option
                words.append(f"{option}={value}")
            elif value:
                words += option, str(value)
    return shlex.join(words)


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """The options of a request, by name and as written."""

    base: str | None = None
    recipe: str | None = None
    add: Sequence[str] = ()
    requirements: Sequence[str] = ()
    replace: Sequence[str] = ()
    arg: Sequence[str] = ()
    source: Sequence[str] = ()
    mirror: Sequence[str] = ()
    layers: Sequence[Path] = ()
    fabric: FabricOption = AUTO
    site: str | None = None
    host: Path | None = None
    exclude_newer: dt.date | None = None

    @classmethod
    def from_words(cls, words: Sequence[str]) -> Self:
        """Return the options in a command's words, each with a value; options that a request lacks are left out."""
        found: dict[str, Any] = {}
        defaults = {one.name: one.default for one in fields(cls)}
        for option, word in zip(words[::2], words[1::2], strict=False):
            name = "requirements" if option == "-r" else option.removeprefix("--")
            value = Path(word) if name in {"layers", "host"} else word
            if name in defaults:
                found[name] = (*found.get(name, ()), value) if defaults[name] == () else value
        return cls(**found)

    def given(self, *names: str) -> str | None:
        """Return the first of these options that was given, as it is written."""
        values = ((name, getattr(self, name)) for name in names)
        found = next((name for name, value in values if value and value != AUTO), None)
        return found and f"--{found.replace('_', '-')}"


def request_of(
    options: RequestOptions,
    catalogue: Catalogue,
    choose_site: Callable[[], str | None],
    secrets: Collection[str],
    *,
    needs_base: bool = True,
    has_project: HasProject | None = None,
) -> Request:
    """Return the request of options; `choose_site` names the site if they do not. Raises BadInputError.

    Layers beside a recipe replace its versions of them, or are appended.
    """
    recipe = catalogue.recipe(options.recipe) if options.recipe else None
    base = catalogue.resolve_base_name(options.base) if options.base else recipe.base if recipe else ""
    # a version may be written as conda and apt write it: vllm=0.33.0
    (of_recipe, recipe_packages), (given, packages) = map(
        _split_packages, (recipe.add if recipe else (), [_ONE_EQUALS.sub("==", text) for text in options.add])
    )
    if needs_base and not base:
        words = [word for text in options.add for word in ("--add", text)]
        look = shell_join(["lumiimg", "explain", *words]) if words else "lumiimg list"
        raise BadInputError("no base", hint=f"give --base NAME or --recipe NAME; see `{look}`")
    names_fabric = not {f"fabric-{one}" for one in Fabric}.isdisjoint(map(name_of, given))  # by its layer
    fabric = recipe.fabric if recipe and options.fabric == AUTO and not names_fabric else options.fabric
    named = {name_of(text): text for text in given}
    add = [named.get(name_of(text), text) for text in of_recipe]
    request = Request(
        base=base,
        add=(*add, *(text for text in given if text not in add)),
        own_files=tuple(options.requirements),
        own=read_own(
            options.requirements,
            [*recipe_packages, *packages],
            replaced=options.replace,
            has_project=has_project,
        ),
        arguments=(recipe.options if recipe else {}) | _once("--arg", map(_argument, options.arg)),
        fabric=fabric,
        sources=_once("--source", map(_source, options.source)),
        site=options.site or (recipe.site if recipe else None) or choose_site() or "",
        host=str(options.host or ""),
        mirrors=tuple(options.mirror),
        layers=tuple(options.layers),
        until=options.exclude_newer,
    )
    refuse_secrets(request, secrets)
    return request


def request_again(options: RequestOptions, before: Request | None, path: Path) -> Request:
    """Return the request behind the lock at `path`. Raises BadInputError, also for options that would change it."""
    if before is None:
        raise BadInputError("no base", hint=f"give --base NAME or --recipe NAME; there is no {path} yet")
    if given := options.given("add", "requirements", "replace", "arg", "source", "site", "host", "fabric"):
        raise BadInputError(f"{given} without --base or --recipe", hint="name the whole request to change it")
    until = options.exclude_newer or before.until
    return structs.replace(before, mirrors=tuple(options.mirror), layers=tuple(options.layers), until=until)


def _split_packages(texts: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return layers, and the words for the user's own packages."""
    words = list(texts)
    return [w for w in words if not w.startswith(PACKAGE)], [w for w in words if w.startswith(PACKAGE)]


def _once(option: str, pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return pairs as a table. Raises BadInputError for a name with two values: the last may not be meant."""
    table: dict[str, str] = {}
    for name, value in pairs:
        if table.setdefault(name, value) != value:
            raise BadInputError(f"{option} {name} is given twice, with two values", hint="use only one of them")
    return table


def _argument(word: str) -> tuple[str, str]:
    """Return name and value of --arg. Errors do not repeat the part after `=`, which may be a secret."""
    name, equals, value = word.partition("=")
    layer, _, argument = name.rpartition(".")
    if not (equals and layer and argument):
        raise BadInputError(
            f"--arg {name!r}{equals and ' with a value'} is not LAYER.NAME=VALUE",
            hint="for example aws-ofi-nccl.PREFIX=/opt/x",
        )
    return name, value


def _source(word: str) -> tuple[str, str]:
    name, _, location = word.partition("=")
    if not (name and location):
        raise BadInputError(f"--source {word!r} is not NAME=FILE or NAME=URL")
    return name, location
