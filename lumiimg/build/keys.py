"""The steps of a build; what their results, compile caches and images depend on; why a result is not in the cache.

Making the files of a base takes lumiimg minutes before the base's script runs. They are a separate step, cached like a
layer: if the script fails or changes, the next build begins with the script.
"""

from __future__ import annotations

import difflib
import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lumiimg.build.cache import CacheEntry, CacheKey, LayerCache
from lumiimg.core.errors import BadInputError, ExitCode
from lumiimg.core.files import file_sha256
from lumiimg.definition.definition import VERSION_LABEL, Definition, Sections, export
from lumiimg.image import ImageError
from lumiimg.image.sif import read_sif
from lumiimg.resolve.bootstrap import file_stamp
from lumiimg.resolve.lock import LockedSource

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from lumiimg.build.build_host import BuildHost

_LAYER_FORMAT = "lumiimg-layer-14"
_COMPILE_CACHE_FORMAT = "lumiimg-kept-3"
_BOOTSTRAP = "00-bootstrap"
"""Name of the first step if the base is made in two."""
NOT_YET = "not known until the layers below are built"


@dataclass(frozen=True, slots=True)
class BuildStep:
    """One step of a build: a base, the files of one before its script, or a layer."""

    definition: Definition
    inputs: Mapping[str, Any]
    """Everything that its result depends on, except the content below it."""

    @property
    def name(self) -> str:
        """The name of its definition."""
        return self.definition.name

    def key(self, content: str) -> CacheKey:
        """Return the key of its result over this content (`content_after`), which is empty for a base.

        If a layer below is rebuilt to the same bytes, the key stays the same.
        """
        return CacheKey({**self.inputs, "content": content})


def steps_of(chain: Sequence[Definition], machine: BuildHost | None = None) -> tuple[BuildStep, ...]:
    """Return the steps of a chain: the definitions, preceded by the files of the base if lumiimg makes these.

    Without a machine, lumiimg is assumed to make the files, and inputs that depend on the machine are missing.

    Raises BadInputError if a base that is a file cannot be read.
    """
    base, exports = chain[0], list[str]()
    by_engine = is_by_engine(base, machine)
    found = []
    if not content_below(base) and not by_engine:
        names = tuple(f"{name} (bootstrap)" for name in base.layers)
        files = replace(base, name=_BOOTSTRAP, layers=names, sections=Sections(base.sections.header), files=())
        found.append(BuildStep(files, layer_inputs(files, exports, machine)))
    for definition in chain:
        found.append(BuildStep(definition, layer_inputs(definition, exports, machine)))
        if definition is not base or not by_engine:  # a base built by an engine has its variables in the image
            exports = [*exports, *map(export, definition.sections.environment)]
    return tuple(found)


def is_by_engine(base: Definition, machine: BuildHost | None) -> bool:
    """Return whether the engine builds a base, which then contains the metadata of its definition."""
    return machine is not None and not content_below(base) and not machine.builds_base(base.sections.header.agent)


def layer_inputs(definition: Definition, exports: Sequence[str], machine: BuildHost | None) -> dict[str, Any]:
    """Return everything that the result of a layer depends on, except the content below it.

    `exports` set the variables of the layers below. The date is not included: a base from a moving archive stays the
    same until its result is removed from the cache, or `build --fresh`. Metadata of the image in a definition, such as
    the layer's own variables, is not in the layer.
    """
    sections = definition.sections
    made_by = {}
    if machine is not None:
        made_by["engine"] = machine.kind.value
        made_by["owners"] = "kept" if machine.has_subids else "lost"
        made_by["mksquashfs"] = machine.mksquashfs_version  # another version packs the same files into other bytes
        if definition.parent is None:  # when Apptainer makes a base, it gives the files of a registry image to root
            made_by["base"] = machine.kind.value if is_by_engine(definition, machine) else "lumiimg"
    return {
        "format": _LAYER_FORMAT,
        **made_by,
        "definition": f"{sections.post}\0{sections.test}" if definition.parent else _without_version(sections),
        # the result is checked for code for these
        "gpus": " ".join(filter(None, (*definition.gpus, definition.gpu_of_wheels))),
        "environment": "\n".join(exports),
        "files": {
            file.path: f"{file.origin.sha256}" if isinstance(file.origin, LockedSource) else file_sha256(file.origin)
            for file in definition.files
        },
        **({"origin": file_stamp(definition.origin)} if definition.origin else {}),
        # without TLS, anyone on the network path may have substituted another base
        **({"plain_http": True} if definition.plain_http else {}),
    }


def _without_version(sections: Sections) -> str:
    """Return a definition without the version of the lumiimg that wrote it: an upgrade need not rebuild it."""
    labels = tuple((key, value) for key, value in sections.labels if key != VERSION_LABEL)
    return replace(sections, labels=labels).body


# -- what is below --


def content_below(first: Definition) -> str:
    """Return the content of a base that is a local file over which layers are built as it is; empty for another base.

    It identifies the file on this machine: a copy elsewhere differs. Raises BadInputError if it cannot be read.
    """
    return file_stamp(first.origin) if first.origin is not None and _can_be_below(first.origin) else ""


def _can_be_below(image: Path) -> bool:
    """Return whether layers can be built over an image as it is: a SIF with one squashfs."""
    try:
        found = read_sif(image)
        found.root_partition()
    except ImageError:
        return False
    return not found.overlays()


def content_after(content: str, entry: CacheEntry) -> str:
    """Return the content below the next layer; `content` is that below this one."""
    return hashlib.sha256(f"{content}{entry.sha256}".encode()).hexdigest()


def cached_prefix(steps: Sequence[BuildStep], find: Callable[[CacheKey], CacheEntry | None]) -> list[CacheEntry]:
    """Return the cached results of the lowest steps, up to the first missing one; `find` is that of a cache.

    The result of a missing step is unknown, and so are the keys of the steps above it.
    """
    found: list[CacheEntry] = []
    content = content_below(steps[0].definition)
    for step in steps:
        entry = find(step.key(content))
        if entry is None:
            break
        found.append(entry)
        content = content_after(content, entry)
    return found


def sources_of(definition: Definition) -> list[LockedSource]:
    """Return the sources of a layer that have to be fetched."""
    return [file.origin for file in definition.files if isinstance(file.origin, LockedSource)]


# -- keys of compile caches, and of images --


def compile_cache_key(steps: Sequence[BuildStep], at: int, base: str) -> CacheKey:
    """Return the key of a layer's compile cache, which preserves its compiled wheels between builds.

    It consists of the layer, the layers below that it needs, the result of the base (`base`: its digest), and the
    environment of the script, which all layers below set: other layers may be added or removed without recompiling.
    The order of variables counts only among those of one name.
    """

    def own(step: BuildStep) -> dict[str, object]:
        return {"post": step.definition.sections.post, "files": step.inputs["files"]}

    variables = [variable for step in steps[:at] for variable in step.definition.sections.environment]
    return CacheKey(
        {
            "format": _COMPILE_CACHE_FORMAT,
            "layer": own(steps[at]),
            "needs": [own(step) for step in steps[:at] if step.name in steps[at].definition.needs],
            "base": base,
            "environment": [export(variable) for variable in sorted(variables, key=lambda variable: variable[0])],
        }
    )


def image_number(chain: Sequence[Definition], steps: Sequence[BuildStep], documents: Mapping[str, bytes]) -> str:
    """Return a digest, known before the build, over everything an image is made from: definitions, inputs, documents.

    The UUID in the image file is derived from it.
    """
    parts = [_without_version(definition.sections) for definition in chain]
    parts += [CacheKey(step.inputs).digest for step in steps]
    parts += [f"{name}:{hashlib.sha256(data).hexdigest()}" for name, data in sorted(documents.items())]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


# -- why a result is not there --


@dataclass(frozen=True, slots=True)
class Difference:
    """One part in which two keys differ."""

    part: str
    """`content` (of what is below it), `engine`, `owners`, `mksquashfs`, `origin`, `files/…`, `environment` (of the
    layers below), `definition`."""
    lines: tuple[str, ...]
    """What changed, as a unified diff if the part is text of several lines."""


@dataclass(frozen=True, slots=True)
class CacheLookup:
    """Whether a layer would be built again, and why."""

    layers: tuple[str, ...]
    """Catalogue layers that the step makes."""
    entry: CacheEntry | None
    """The result, if it is cached."""
    nearest: CacheEntry | None = None
    """If there is no result: the most similar entry."""
    differences: tuple[Difference, ...] = ()
    """Differences from that entry, in the order of the key."""
    base: CacheEntry | None = None
    """The result of the lowest step, if it is cached."""
    below: str | None = None
    """The layer below; null for a base."""

    @property
    def hit(self) -> bool:
        """Whether the result is in the cache."""
        return self.entry is not None

    @property
    def exit_code(self) -> ExitCode:
        """Good for a hit."""
        return ExitCode.GOOD if self.hit else ExitCode.NO


def require_layer(layer: str, chain: Sequence[Definition]) -> None:
    """Raise BadInputError if the image does not have the layer."""
    names = [definition.layers[0] for definition in chain]
    if layer not in names:
        raise BadInputError(f"{layer!r} is not a layer of this image", hint=f"it has: {', '.join(names)}")


def why_rebuilt(layer: str, steps: Sequence[BuildStep], cache: LayerCache) -> CacheLookup:
    """Compare the step of a layer with the cache's entries for that layer; the nearest has the fewest changed lines."""
    steps = steps[: [step.definition.layers[0] for step in steps].index(layer) + 1]
    *lower, step = steps
    layers = step.definition.layers
    found = cached_prefix(steps, cache.find)
    lookup = CacheLookup(
        layers,
        entry=found[-1] if len(found) == len(steps) else None,
        base=next(iter(found), None),
        below=lower[-1].definition.layers[0] if lower else None,
    )
    if lookup.hit:
        return lookup
    content = content_below(steps[0].definition)
    for entry in found:
        content = content_after(content, entry)
    wanted = step.key(content if len(found) == len(lower) else NOT_YET).parts
    others = [(differences(cache.key_of(entry), wanted), entry) for entry in cache.entries() if entry.layers == layers]
    if not others:
        return lookup
    nearest, entry = min(others, key=lambda other: sum(len(one.lines) for one in other[0]))
    return replace(lookup, nearest=entry, differences=tuple(nearest))


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Difference]:
    """Return the parts in which two keys differ."""
    before, after = _texts(old), _texts(new)
    found = []
    for part in dict.fromkeys((*after, *before)):
        was, will = before.get(part, ""), after.get(part, "")
        lines = [f"- {was or 'nothing'}", f"+ {will or 'nothing'}"]
        if "\n" in f"{was}{will}":
            diff = difflib.unified_diff(was.splitlines(), will.splitlines(), lineterm="", n=1)
            lines = [line for line in diff if line[:3] not in {"---", "+++"}]
        if was != will:
            found.append(Difference(part, tuple(lines)))
    return found


def _texts(key: Mapping[str, Any]) -> dict[str, str]:
    """Return the parts of a key, with each file as a separate part."""
    files = key["files"] if isinstance(key.get("files"), dict) else {}
    parts = {part: str(value) for part, value in key.items() if part != "files"}
    return parts | {f"files/{name.removeprefix('files/')}": str(digest) for name, digest in files.items()}
