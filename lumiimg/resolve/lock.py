"""Request to lock: every name, argument, URL and digest settled, before anything is downloaded or built."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.catalog.layers import expand
from lumiimg.errors import BadInputError, FailedError
from lumiimg.resolve.bootstrap import LockedBootstrap, choose_bootstrap
from lumiimg.resolve.mirrors import refuse_password
from lumiimg.resolve.plan import Asked, Planner, command_of, name_of
from lumiimg.resolve.rules import Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lumiimg.catalog.catalogue import Catalogue
    from lumiimg.catalog.layers import Layer, Release, Source
    from lumiimg.catalog.sites import Site
    from lumiimg.resolve.mirrors import Mirrors
    from lumiimg.resolve.plan import Plan
    from lumiimg.resolve.rules import Fabric, RuleResult

_SHA256 = re.compile(r"[0-9a-f]{64}")
_CHUNK_BYTES = 1024 * 1024


class RefusedError(FailedError):
    """A combination of layers that cannot work; says which rule, and what would."""


@dataclass(frozen=True, slots=True)
class Request:
    """What the user asked for."""

    base: str
    add: tuple[str, ...] = ()
    arguments: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """Value by (layer, argument)."""
    fabric: Fabric | None = None
    """None: what fits the site."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """FILE or URL, with or without `#sha256=...`, by the source's name."""


@dataclass(frozen=True, slots=True)
class LockedSource:
    """An archive that a layer is built from: where from, and what it must be."""

    name: str
    variable: str
    file: str
    """Its name in the build, safe in a definition file."""
    sha256: str
    location: str
    """An http(s) URL or an absolute path."""
    note: str = ""
    """What a person should know of where the digest is from."""

    @property
    def is_local(self) -> bool:
        """Whether it is a file of this machine."""
        return not self.location.startswith(("http://", "https://"))


@dataclass(frozen=True, slots=True)
class LockedLayer:
    """A layer with its arguments and sources settled."""

    layer: Layer
    arguments: Mapping[str, str]
    sources: tuple[LockedSource, ...]

    @property
    def set_environment(self) -> dict[str, str]:
        """Variables that the layer sets, with arguments filled in."""
        return {name: expand(value, self.arguments) for name, value in self.layer.set_environment.items()}

    @property
    def prepend_environment(self) -> dict[str, str]:
        """Paths that the layer puts first, with arguments filled in."""
        return {name: expand(value, self.arguments) for name, value in self.layer.prepend_environment.items()}


@dataclass(frozen=True, slots=True)
class Lock:
    """A base and its layers, in the order in which they are built."""

    bootstrap: LockedBootstrap
    base: LockedLayer
    layers: tuple[LockedLayer, ...]
    rules: tuple[RuleResult, ...] = ()
    """What the compatibility rules said."""

    @property
    def stack(self) -> tuple[LockedLayer, ...]:
        """Base first."""
        return (self.base, *self.layers)


def resolve(
    request: Request, catalogue: Catalogue, mirrors: Mirrors, path: str | None, site: Site | None = None
) -> Lock:
    """Settle a request. `path` is the PATH in which bootstrap programs are looked for.

    Raises BadInputError for a wrong name, argument or source, RefusedError for what the rules refuse, MissingHereError
    if the base cannot be had on this machine.
    """
    _check_twice(request)
    plan = Planner(catalogue, site).plan(_asked(request, catalogue))
    if plan.stack is None or plan.refused:
        raise refusal_of(plan)
    layers = [chosen.layer for chosen in plan.stack.layers]
    _check_used(request, [plan.base, *layers])
    releases = {chosen.layer.name: chosen.release for chosen in plan.stack.layers}
    locked = [
        LockedLayer(layer, arguments, tuple(_lock_source(s, arguments, request, mirrors) for s in layer.sources))
        for layer in (plan.base, *layers)
        for arguments in [_arguments(layer, releases.get(layer.name), request)]
    ]
    return Lock(choose_bootstrap(plan.base, mirrors, path), locked[0], tuple(locked[1:]), plan.rules)


def refusal_of(plan: Plan) -> RefusedError:
    """Return what stands against a plan as an error: the rule, both numbers, and the nearest request that works."""
    against = next(rule for rule in plan.rules if rule.outcome is Outcome.REFUSED)
    nearest = f"the nearest that works: lumiimg build {command_of(plan.nearest)}" if plan.nearest else None
    return RefusedError(
        f"{against.because} (rule {against.id}: needs {against.need}, has {against.have})",
        hint=nearest or "`lumiimg explain` with the same words tells more",
    )


def _check_twice(request: Request) -> None:
    names = [name_of(text) for text in request.add]
    for name in names:
        if names.count(name) > 1:
            raise BadInputError(f"layer {name!r} is asked for twice")


def _asked(request: Request, catalogue: Catalogue) -> Asked:
    """Return the request as the planner takes it: an argument VERSION is a release that is wished for."""
    add = []
    for text in request.add:
        version = request.arguments.get((text, "VERSION"))
        has_releases = version is not None and catalogue.layer(text).releases
        add.append(f"{text}=={version}" if has_releases else text)
    return Asked(request.base, tuple(add), request.fabric)


def _check_used(request: Request, stack: Sequence[Layer]) -> None:
    """Refuse an argument or a source that nothing takes: it is a typing error, not a wish."""
    known_arguments = [f"{layer.name}.{name}" for layer in stack for name in layer.arguments]
    for layer_name, name in request.arguments:
        if f"{layer_name}.{name}" not in known_arguments:
            raise BadInputError(
                f"no layer of this image takes the argument {layer_name}.{name}",
                hint=f"known: {', '.join(known_arguments) or 'none'}",
            )
    known_sources = [source.name for layer in stack for source in layer.sources]
    for name in request.sources:
        if name not in known_sources:
            raise BadInputError(
                f"no layer of this image takes a source called {name!r}",
                hint=f"known: {', '.join(known_sources) or 'none'}",
            )


def _arguments(layer: Layer, release: Release | None, request: Request) -> dict[str, str]:
    values = {}
    of_release = {"VERSION": release.version, **release.arguments} if release else {}
    for argument in layer.arguments.values():
        default = of_release.get(argument.name, argument.default)
        value = request.arguments.get((layer.name, argument.name), default)
        if argument.pattern is not None and not argument.pattern.fullmatch(value):
            raise BadInputError(
                f"{layer.name}.{argument.name}={value[:80]!r} does not match {argument.pattern.pattern}",
                hint=f"{argument.name}: {argument.help}; default {argument.default!r}",
            )
        if "\0" in value:
            raise BadInputError(f"{layer.name}.{argument.name} holds a NUL byte")
        values[argument.name] = value
    return values


def _lock_source(source: Source, arguments: Mapping[str, str], request: Request, mirrors: Mirrors) -> LockedSource:
    """Settle one archive: pinned digest for a known release; a file that the user names is taken at its own digest.

    A file whose *name* is that of a known release must be that release: a download that broke, or was tampered with, is
    the likely reason why it is not.
    """
    key = expand(source.key, arguments)
    file = expand(source.file, arguments)
    pinned = source.sha256.get(key)
    given = request.sources.get(source.name)
    if given is None:
        if pinned is None:
            raise BadInputError(
                f"no digest is known for {source.name} {key}",
                hint=f"known: {', '.join(source.sha256) or 'none'}; or --source {source.name}=FILE",
            )
        return LockedSource(
            source.name, source.variable, _safe(file), pinned, mirrors.rewrite(expand(source.url, arguments))
        )
    location, digest = _split_digest(source.name, given)
    if location.startswith(("http://", "https://")):
        refuse_password(location, f"--source {source.name}")
        expected = digest or pinned
        if expected is None:
            raise BadInputError(
                f"--source {source.name}={location} names no digest", hint="add #sha256=<64 hexadecimal digits>"
            )
        return LockedSource(source.name, source.variable, _safe(file), expected, mirrors.rewrite(location))
    path = Path(location)
    actual = file_sha256(path)
    expected = digest or (pinned if path.name in {file, Path(expand(source.url, arguments)).name} else None)
    if expected is not None and actual != expected:
        raise BadInputError(
            f"has another digest: sha256 is {actual}, not {expected}" + ("" if digest else f" ({source.name} {key})"),
            where=location,
            hint=f"fetch it again, or say that you mean it: --source '{source.name}={location}#sha256={actual}'",
        )
    note = "" if actual == pinned else "your own archive, none of the releases that lumiimg has a digest of"
    return LockedSource(source.name, source.variable, _safe(path.name), actual, str(path.absolute()), note)


def _split_digest(name: str, given: str) -> tuple[str, str | None]:
    location, mark, digest = given.rpartition("#sha256=")
    if not mark:
        return given, None
    if not _SHA256.fullmatch(digest.lower()):
        raise BadInputError(f"--source {name}: the digest should be 64 hexadecimal digits, is {digest!r}")
    return location, digest.lower()


def _safe(name: str) -> str:
    """Return a file name that needs no quoting anywhere; the extension stays, tools go by it."""
    cleaned = re.sub(r"[^A-Za-z0-9._-]+", "_", name)[-100:]
    return cleaned.lstrip(".-") or "source"


def file_sha256(path: Path) -> str:
    """Return the digest of a file.

    Raises BadInputError if it is not a file that can be read.
    """
    digest = hashlib.sha256()
    try:
        if not path.is_file():
            raise BadInputError("is not a file", where=str(path))
        with path.open("rb") as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                digest.update(chunk)
    except (OSError, ValueError) as error:
        raise BadInputError(f"cannot be read: {error}", where=str(path)) from error
    return digest.hexdigest()
