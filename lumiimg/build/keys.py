"""What a build does, step by step; what results depend on (of steps, compilers, images); why one is not in the cache.

A base that lumiimg makes takes minutes before its script runs. Its files are a step of their own, kept as a layer is:
where the script fails, or is changed, the next build begins with the script.
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
"""The name of the first step, where a base is made in two."""
NOT_YET = "not known before the layers below are built"


@dataclass(frozen=True, slots=True)
class BuildStep:
    """One step of a build: a base, the files of one before its script, or a layer."""

    definition: Definition
    inputs: Mapping[str, Any]
    """What its result depends on, but the content of what is below it."""

    @property
    def name(self) -> str:
        """Of its definition."""
        return self.definition.name

    def key(self, content: str) -> CacheKey:
        """Return the key of its result over such a content (`content_after`); over nothing for a base.

        Where a layer below is built again and comes to the same bytes, the key is the same.
        """
        return CacheKey({**self.inputs, "content": content})


def steps_of(chain: Sequence[Definition], machine: BuildHost | None = None) -> tuple[BuildStep, ...]:
    """Return the steps of a chain: the definitions, with the files of the base before them where lumiimg makes these.

    Without a machine their inputs lack what is of that; lumiimg makes the files then.

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
        if definition is not base or not by_engine:  # an engine's base has its variables in the image
            exports = [*exports, *map(export, definition.sections.environment)]
    return tuple(found)


def is_by_engine(base: Definition, machine: BuildHost | None) -> bool:
    """Whether the engine builds a base, which then has what the definition says of it."""
    return machine is not None and not content_below(base) and not machine.builds_base(base.sections.header.agent)


def layer_inputs(definition: Definition, exports: Sequence[str], machine: BuildHost | None) -> dict[str, Any]:
    """Return what the result of a layer depends on, but the content of what is below it.

    `exports` set the variables of the layers below. The day is not part of it: a base from a moving archive stays as it
    was until its result is removed from the cache, or `build --fresh`. What a definition only says of the image, as its
    own variables, is not in the layer.
    """
    sections = definition.sections
    made_by = {}
    if machine is not None:
        made_by["engine"] = machine.kind.value
        made_by["owners"] = "kept" if machine.has_subids else "lost"
        made_by["mksquashfs"] = machine.mksquashfs_version  # another packs the same files into other bytes
        if definition.parent is None:  # Apptainer, where it makes a base, gives the files of a registry's image to root
            made_by["base"] = machine.kind.value if is_by_engine(definition, machine) else "lumiimg"
    return {
        "format": _LAYER_FORMAT,
        **made_by,
        "definition": f"{sections.post}\0{sections.test}" if definition.parent else _without_version(sections),
        # what it is made of is looked through for their code
        "gpus": " ".join(filter(None, (*definition.gpus, definition.gpu_of_wheels))),
        "environment": "\n".join(exports),
        "files": {
            file.path: f"{file.origin.sha256}" if isinstance(file.origin, LockedSource) else file_sha256(file.origin)
            for file in definition.files
        },
        **({"origin": file_stamp(definition.origin)} if definition.origin else {}),
        # without TLS anybody on the way may have put in another base
        **({"plain_http": True} if definition.plain_http else {}),
    }


def _without_version(sections: Sections) -> str:
    """Return a definition without the version of the lumiimg that wrote it: a newer one need not build it again."""
    labels = tuple((key, value) for key, value in sections.labels if key != VERSION_LABEL)
    return replace(sections, labels=labels).body


# -- what is below --


def content_below(first: Definition) -> str:
    """Return the content of what layers are laid over as it is: a base that is a file here; nothing for another base.

    It is that of this machine's file: a copy of it, elsewhere, is another. Raises BadInputError if it cannot be read.
    """
    return file_stamp(first.origin) if first.origin is not None and _can_be_below(first.origin) else ""


def _can_be_below(image: Path) -> bool:
    """Whether layers can be laid over an image as it is: a SIF of one squashfs."""
    try:
        found = read_sif(image)
        found.root_partition()
    except ImageError:
        return False
    return not found.overlays()


def content_after(content: str, entry: CacheEntry) -> str:
    """Return the content of what is below the next layer; `content` is that of what is below this one."""
    return hashlib.sha256(f"{content}{entry.sha256}".encode()).hexdigest()


def cached_prefix(steps: Sequence[BuildStep], find: Callable[[CacheKey], CacheEntry | None]) -> list[CacheEntry]:
    """Return the results of the lowest steps, up to the first that is not there; `find` is that of a cache.

    What a step that is not there will come to, and so what the keys of those above it are, nobody knows.
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
    """Return what a layer needs that is fetched."""
    return [file.origin for file in definition.files if isinstance(file.origin, LockedSource)]


# -- of what scripts compile, and of images --


def compile_cache_key(steps: Sequence[BuildStep], at: int, base: str) -> CacheKey:
    """Return the key of what a layer's script keeps between builds, its compiled wheels.

    It is made of the layer, of those below that it needs, of what the base came to (`base`: its digest), and of the
    environment in which the script runs, which all layers below set: others may come between, or go, and nothing is
    compiled again. The order of variables counts only among those of one name.
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
    """Return what an image is made of, as one word, before any of it is built: definitions, inputs, and documents.

    Its number in the file stands for it.
    """
    parts = [_without_version(definition.sections) for definition in chain]
    parts += [CacheKey(step.inputs).digest for step in steps]
    parts += [f"{name}:{hashlib.sha256(data).hexdigest()}" for name, data in sorted(documents.items())]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


# -- why a result is not there --


@dataclass(frozen=True, slots=True)
class Difference:
    """One part of a key that is another."""

    part: str
    """`content` (of what is below it), `engine`, `owners`, `mksquashfs`, `origin`, `files/…`, `environment` (of the
    layers below), `definition`."""
    lines: tuple[str, ...]
    """What changed, as a unified diff where it is a text."""


@dataclass(frozen=True, slots=True)
class CacheLookup:
    """Why a layer would be built again, or that it would not."""

    layers: tuple[str, ...]
    """Of the catalogue, that the step makes."""
    entry: CacheEntry | None
    """The result, where it is there."""
    nearest: CacheEntry | None = None
    """Where there is none: the entry that is most like it."""
    differences: tuple[Difference, ...] = ()
    """In the order of the key."""
    base: CacheEntry | None = None
    """What all of it stands on, where that is there."""
    below: str | None = None
    """The layer that it lies on; null for a base."""

    @property
    def hit(self) -> bool:
        """Whether it is in the cache."""
        return self.entry is not None

    @property
    def exit_code(self) -> ExitCode:
        """The same."""
        return ExitCode.GOOD if self.hit else ExitCode.NO


def require_layer(layer: str, chain: Sequence[Definition]) -> None:
    """Raise BadInputError for a layer that the image lacks."""
    names = [definition.layers[0] for definition in chain]
    if layer not in names:
        raise BadInputError(f"{layer!r} is not a layer of this image", hint=f"it has: {', '.join(names)}")


def why_rebuilt(layer: str, steps: Sequence[BuildStep], cache: LayerCache) -> CacheLookup:
    """Compare the step of a layer with what the cache has of the same layer; the nearest has the fewest other lines."""
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
    """Return the parts of a key, each file as a part of its own."""
    files = key["files"] if isinstance(key.get("files"), dict) else {}
    parts = {part: str(value) for part, value in key.items() if part != "files"}
    return parts | {f"files/{name.removeprefix('files/')}": str(digest) for name, digest in files.items()}
