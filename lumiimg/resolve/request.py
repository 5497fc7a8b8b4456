"""What somebody asks for, as a value and as options of a command line."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement

from lumiimg.errors import BadInputError
from lumiimg.secret import hidden, is_secret_name

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Collection, Iterable, Iterator, Mapping
    from pathlib import Path

    from packaging.specifiers import SpecifierSet

    from lumiimg.catalog.catalogue import Catalogue, FabricOption
    from lumiimg.fabric.path import Fabric
    from lumiimg.resolve.own_requirements import OwnPackages

_LIMIT = 300
"""Characters of a layer and its versions."""
_LAYER_HINT = "a name (the newest that fits), or a name with a version: 'vllm==0.10.1'; one --add for each layer"


_ONE_EQUALS = re.compile(r"(?<=[\w.-]) ?= ?(?=\d)")


_LEAST_CHARS_OF_SECRET = 16
"""Of one that is looked for in options: a shorter one, such as `AWS_REGION=eu-north-1`, stands in honest words too."""


@dataclass(frozen=True, slots=True)
class Request:
    """What the user asked for."""

    base: str
    """For --base."""
    add: tuple[str, ...] = ()
    """For --add, each: layers, with versions where the user names them: `vllm==0.10.1`."""
    arguments: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """Value by (layer, argument)."""
    fabric: Fabric | None = None
    """None: what fits the site."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """FILE or URL, with or without `#sha256=...`, by the source's name."""
    site: str | None = None
    """The site as it was named: a name, or the path of a file."""
    host: Path | None = None
    """The snapshot of one of its nodes."""
    until: dt.date | None = None
    """The last day of what is taken from a package index; None: the day of the newest release."""
    mirrors: tuple[str, ...] = ()
    """FROM=TO, those of the command line."""
    layers: tuple[Path, ...] = ()
    """The user's folders of layers, those of the command line."""
    own: OwnPackages | None = None
    """Python packages of the user's own, which go on top."""

    @property
    def unpinned(self) -> tuple[str, ...]:
        """The layers without their versions."""
        return tuple(map(name_of, self.add))

    @property
    def fabric_choice(self) -> FabricOption:
        """For --fabric."""
        return self.fabric.value if self.fabric else "auto"

    def plainly(self) -> Request:
        """Return the request without arguments and sources, which can be what is at fault."""
        return replace(self, arguments={}, sources={})


def wanted(text: str) -> tuple[str, SpecifierSet]:
    """Return layer and versions of `vllm==0.10.1`. Raises BadInputError for what is not a layer."""
    if len(text) > _LIMIT:
        raise BadInputError(f"{text[:40]!r}… is not a layer", hint=_LAYER_HINT)
    try:
        requirement = Requirement(text)
    except InvalidRequirement as error:
        raise BadInputError(f"{text!r} is not a layer", hint=_LAYER_HINT) from error
    if requirement.extras or requirement.url or requirement.marker:
        raise BadInputError(f"{text!r} is not a layer", hint=_LAYER_HINT)
    return requirement.name, requirement.specifier


def as_exact(text: str) -> str:
    """Return `vllm=0.33.0`, as conda and apt write it, as `vllm==0.33.0`; anything else as it is."""
    return _ONE_EQUALS.sub("==", text)


def name_of(text: str) -> str:
    """Return the layer of `vllm==0.10.1`. Raises BadInputError for what is not a layer."""
    return wanted(text)[0]


def with_releases(request: Request, catalogue: Catalogue) -> Request:
    """Return the request with its arguments VERSION as the releases that they ask for.

    Raises BadInputError where one is not the release that `--add` names.
    """
    add = list(request.add)
    for (layer, name), version in request.arguments.items():
        if name != "VERSION" or not catalogue.knows(layer) or not catalogue.layer(layer).releases:
            continue
        at = next((at for at, text in enumerate(add) if name_of(text) == layer), None)
        if at is None:
            add.append(f"{layer}=={version}")
        elif add[at] == layer:
            add[at] = f"{layer}=={version}"
        elif add[at] != f"{layer}=={version}":
            raise BadInputError(f"--add {add[at]} and --arg {layer}.VERSION={version}", hint="name one of them")
    return replace(request, add=tuple(add))


def refuse_secrets(request: Request, known: Collection[str] = ()) -> None:
    """Refuse what looks like a secret, or holds one that is known, without repeating it. Raises BadInputError."""
    known = [secret for secret in known if len(secret) >= _LEAST_CHARS_OF_SECRET]
    for option, values in (("--source", request.sources.values()), ("--mirror", request.mirrors)):
        if any("://" in value and secret in value for value in values for secret in known):
            raise BadInputError(
                f"{option} holds a secret of the environment, and would be in the lock and the log",
                hint="a login for a server goes into ~/.netrc",
            )
    for (layer, name), value in request.arguments.items():
        if value and (is_secret_name(name) or hidden(value, known) != value):
            raise BadInputError(
                f"{layer}.{name} looks like a secret, and would be in the image, the lock and the log",
                hint="give it to the job that runs the image, as a variable there",
            )


def in_short(request: Request) -> str:
    """Return base, layers and fabric as options, for a shell."""
    return options_of(Request(request.base, request.add, own=request.own, fabric=request.fabric))


def options_of(request: Request) -> str:
    """Return the whole request as options of `lumiimg build`, for a shell."""
    return words_of(
        ("--base", (request.base,)),
        ("--add", request.add),
        ("-r", request.own.files if request.own else ()),
        ("--add", request.own.words if request.own else ()),
        ("--arg", (f"{layer}.{name}={value}" for (layer, name), value in request.arguments.items())),
        ("--source", (f"{name}={location}" for name, location in request.sources.items())),
        ("--mirror", request.mirrors),
        ("--layers", request.layers),
        ("--fabric", (request.fabric,)),
        ("--site", (request.site,)),
        ("--host", (request.host,)),
        ("--exclude-newer", (request.until,)),
    )


def words_of(*options: tuple[str, Iterable[object]]) -> str:
    """Return options with their values, None for one that is not given, for a shell."""
    return shlex.join(_words(options))


def _words(options: Iterable[tuple[str, Iterable[object]]]) -> Iterator[str]:
    for option, values in options:
        for value in values:
            if str(value).startswith("-"):  # argparse would take it for an option
                yield f"{option}={value}"
            elif value is not None:
                yield from (option, str(value))
