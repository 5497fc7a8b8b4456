"""From a plan to a lock: the stack with every argument and source that needs no network."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from lumiimg.catalog.layers import SHA256, Layer, LayerSource
from lumiimg.catalog.releases import Release, expand
from lumiimg.core.errors import BadInputError
from lumiimg.core.files import file_sha256
from lumiimg.core.redact import is_secret_name, redact
from lumiimg.fabric.path import Fabric
from lumiimg.fetch.mirrors import is_address, validated_url
from lumiimg.resolve.bootstrap import choose_bootstrap
from lumiimg.resolve.lock import MADE_HERE, Lock, LockedLayer, LockedSource
from lumiimg.resolve.stack import HEADERS, LONGEST, Stack, values_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lumiimg.resolve.context import PlanContext
    from lumiimg.resolve.plan import Plan
    from lumiimg.resolve.request import Request

Released = tuple[Layer, Release | None]
"""A layer in one release, if it has releases."""


def make_lock(plan: Plan, stack: Stack, context: PlanContext) -> Lock:
    """Return the lock of a plan that the rules accept.

    Raises BadInputError for an invalid or unused argument or source; MissingHereError if the base is not available.
    """
    request, site = plan.asked, plan.site
    if plan.fabric is not Fabric.HOST and HEADERS in request.sources:
        raise BadInputError(
            f"the host's libfabric is not used: the fabric is {plan.fabric.value}",
            where=f"--source {HEADERS}",
            hint="leave it out, or use --fabric host",
        )
    released: list[Released] = [(plan.base, None), *((chosen.layer, chosen.release) for chosen in stack.layers)]
    check_used(request, released)
    sources = {
        source.name: _with_digest(source, values_of(layer, release, request.arguments), request.sources[source.name])
        for layer, release in released
        for source in layer.sources_of(release)
        if source.name in request.sources
    }
    request = structs.replace(request, sources=sources)
    base, *layers = (lock_layer(layer, release, request) for layer, release in released)
    return Lock(
        request=request,
        bootstrap=choose_bootstrap(plan.base, context.mirrors, context.path),
        base=base,
        layers=tuple(layers),
        fabric=plan.fabric,
        site=site.name if site else None,
        gpu=site.arch if site else None,
        rules=plan.rules,
    )


def check_used(request: Request, released: Sequence[Released]) -> None:
    """Refuse an argument or a source that no layer uses: it is a typing error, not a wish. Raises BadInputError."""
    arguments = [f"{layer.name}.{name}" for layer, _ in released for name in layer.arguments]
    sources = [source.name for layer, release in released for source in layer.sources_of(release)]
    wrong = [(f"the argument {name}", arguments) for name in request.arguments if name not in arguments]
    wrong += [(f"a source named {name!r}", sources) for name in request.sources if name not in sources]
    for what, known in wrong:
        raise BadInputError(f"no layer of this image uses {what}", hint=f"known: {', '.join(known) or 'none'}")


def lock_layer(layer: Layer, release: Release | None, request: Request) -> LockedLayer:
    """Return a layer with its arguments and archives, by catalogue and request; unpublished digests stay open.

    Raises BadInputError for an argument or a source that is not valid, or would put a secret into the image.
    """
    arguments = values_of(layer, release, request.arguments)
    for name, argument in layer.arguments.items():
        value, where = arguments[name], f"argument {layer.name}.{name}"
        if len(value) > LONGEST:
            what = f"{where} has {len(value)} characters; at most {LONGEST} are allowed"
            raise BadInputError(what, hint="give long text to a layer as a file")
        if "\0" in value:
            raise BadInputError(f"{where} contains a NUL byte")
        if argument.pattern is not None and not argument.pattern.fullmatch(value):
            raise BadInputError(
                f"{where} is {value[:80]!r}, which does not match {argument.pattern.pattern}",
                hint=f"{name}: {argument.help}; default {argument.default!r}",
            )
    wanted = (one for one in layer.sources_of(release) if not one.optional or one.name in request.sources)
    sources = tuple(_lock_source(one, arguments, request.sources.get(one.name)) for one in wanted)
    locked = LockedLayer(layer, release, arguments, sources)
    # everyone who has the image could read it
    for name, value in (*locked.set_environment.items(), *locked.prepend_environment.items()):
        if value and (is_secret_name(name) or redact(value) != value):
            raise BadInputError(
                f"{name} in [environment] looks like a secret, which would end up in the image and its definition",
                where=str(layer.folder / "layer.toml"),
                hint="remove it, and set it as a variable in the job that runs the image",
            )
    return locked


def _lock_source(source: LayerSource, arguments: Mapping[str, str], given: str | None) -> LockedSource:
    """Return one locked archive, with the given or published digest; a given file always has one (`_with_digest`)."""
    published = source.sha256.get(expand(source.key, arguments))
    file = expand(source.file, arguments)
    if given is None:
        location, digest = expand(source.url, arguments), published
    else:
        location, digest = split_digest(source.name, given)
    note = ""
    if not (digest and Path(location).is_absolute()):
        validated_url(location, f"the source {source.name}")
        digest = digest or published
        note = "" if digest else MADE_HERE
    elif not source.optional:
        file = Path(location).name
        note = "" if digest == published else "your own archive, not a release whose digest lumiimg knows"
    return LockedSource(source.name, source.variable, _plain_name(file), digest, location, note)


def _with_digest(source: LayerSource, arguments: Mapping[str, str], given: str) -> str:
    """Return what was given for a source; a file of this machine as its absolute path, with its digest.

    A file whose *name* is that of a known release must be that release: else it is damaged or was tampered with.
    """
    location, digest = split_digest(source.name, given)
    if is_address(location):
        return given
    key, path = expand(source.key, arguments), Path(location)
    actual = file_sha256(path)
    known = {expand(source.file, arguments), Path(expand(source.url, arguments)).name}
    expected = digest or (source.sha256.get(key) if path.name in known else None)
    if expected not in {None, actual}:
        raise BadInputError(
            f"has the wrong digest: sha256 is {actual}, not {expected}" + ("" if digest else f" ({source.name} {key})"),
            where=location,
            hint=f"fetch it again, or confirm the new digest: --source '{source.name}={location}#sha256={actual}'",
        )
    return f"{path.absolute()}#sha256={actual}"


def split_digest(name: str, given: str) -> tuple[str, str | None]:
    """Return the location given for a source, and its digest, if any. Raises BadInputError for an invalid digest."""
    location, mark, digest = given.rpartition("#sha256=")
    if not mark:
        return given, None
    if not SHA256.fullmatch(digest.lower()):
        raise BadInputError(f"--source {name}: the digest must be 64 hexadecimal digits, not {digest!r}")
    return location, digest.lower()


def _plain_name(name: str) -> str:
    """Return a file name that never needs quoting; the extension stays, because tools rely on it."""
    cleaned = re.sub(r"[^A-Za-z0-9._-]+", "_", name)[-100:]
    return cleaned.lstrip(".-") or "source"
