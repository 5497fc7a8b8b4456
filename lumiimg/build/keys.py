"""What results depend on: the keys of layers, of wheels that a layer compiled, and of images."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lumiimg.build.cache import CacheKey
from lumiimg.definition.definition import VERSION_LABEL, Definition, Sections, export
from lumiimg.engine.engine import EngineKind
from lumiimg.files import file_sha256
from lumiimg.resolve.base_digest import stamp
from lumiimg.resolve.lock import LockedSource

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lumiimg.build.build_host import BuildHost

_LAYER_FORMAT = "lumiimg-layer-12"
_KEPT_FORMAT = "lumiimg-kept-2"


def layer_inputs(definition: Definition, exports: Sequence[str], machine: BuildHost) -> dict[str, Any]:
    """Return what the result of a layer depends on, but the content of what is below it.

    `exports` set the variables of the layers below. The day is not part of it: a base from a moving archive stays as it
    was until its result is removed from the cache, or `build --fresh`. What a definition only says of the image, as its
    own variables, is not in the layer.
    """
    sections, kind = definition.sections, machine.engine.kind
    return {
        "format": _LAYER_FORMAT,
        # what Apptainer writes, lumiimg writes to the byte
        "engine": (EngineKind.APPTAINER if kind is EngineKind.NAMESPACES else kind).value,
        **({} if definition.parent else _maker(machine, definition)),
        "owners": "kept" if machine.maps_ids else "lost",
        # another packs the same files into other bytes
        "mksquashfs": machine.mksquashfs_version,
        "definition": f"{sections.post}\0{sections.test}" if definition.parent else _without_version(sections),
        # what it is made of is looked through for their code
        "gpus": " ".join(filter(None, (*definition.gpus, definition.gpu_of_wheels))),
        "environment": "\n".join(exports),
        "files": _digests(definition),
        **({"origin": stamp(definition.origin)} if definition.origin else {}),
        # without TLS anybody on the way may have put in another base
        **({"plain_http": True} if definition.plain_http else {}),
    }


def layer_key(inputs: Mapping[str, Any], content: str) -> CacheKey:
    """Return the key of a layer with such inputs over such a content (`steps.content_with`); over nothing for a base.

    Where a layer below is built again and comes to the same bytes, the key is the same.
    """
    return CacheKey({**inputs, "content": content})


def _maker(machine: BuildHost, definition: Definition) -> dict[str, str]:
    """Return who makes a base, where that is to be seen in its files.

    Apptainer, where it does, gives the files of a registry's image to root.
    """
    agent, kind = definition.sections.header.agent, machine.engine.kind
    is_alike = machine.makes_base(agent) or (kind is EngineKind.APPTAINER and agent != "docker")
    return {} if is_alike else {"base": kind.value}


def kept_key(chain: Sequence[Definition], at: int, base: str) -> CacheKey:
    """Return the key of what a layer's script keeps between builds, its compiled wheels.

    It is made of the layer, of those below that it needs, of what the base came to (`base`: its digest), and of the
    environment in which the script runs, which all layers below set: others may come between, or go, and nothing is
    compiled again.
    """
    below = [one for one in chain[:at] if one.name in chain[at].needs or one.parent is None]
    return CacheKey(
        {
            "format": _KEPT_FORMAT,
            "layer": _own(chain[at]),
            "needs": [_own(one) for one in below],
            "base": base,
            "environment": _environment(chain[:at]),
        }
    )


def _environment(below: Sequence[Definition]) -> list[str]:
    """Return the commands that set variables, by name; the order counts only among those of one variable."""
    variables = [variable for definition in below for variable in definition.sections.environment]
    return [export(variable) for variable in sorted(variables, key=lambda variable: variable[0])]


def _without_version(sections: Sections) -> str:
    """Return a definition without the version of the lumiimg that wrote it: a newer one need not build it again."""
    labels = tuple((key, value) for key, value in sections.labels if key != VERSION_LABEL)
    return replace(sections, labels=labels).body


def _own(definition: Definition) -> dict[str, object]:
    """Return what a layer is by itself. Its number in the chain is left out, the head of a base is not."""
    head = "" if definition.parent else definition.sections.header.text
    origin = stamp(definition.origin) if definition.origin else ""
    return {"head": head, "origin": origin, "post": definition.sections.post, "files": _digests(definition)}


def _digests(definition: Definition) -> dict[str, str]:
    return {
        file.path: f"{file.origin.sha256}" if isinstance(file.origin, LockedSource) else file_sha256(file.origin)
        for file in definition.files
    }


def image_number(
    chain: Sequence[Definition], inputs: Sequence[Mapping[str, Any]], documents: Mapping[str, bytes]
) -> str:
    """Return what an image is made of, as one word, before any of it is built: definitions, inputs, and documents.

    Its number in the file stands for it.
    """
    parts = [_without_version(definition.sections) for definition in chain]
    parts += [CacheKey(one).digest for one in inputs]
    parts += [f"{name}:{hashlib.sha256(data).hexdigest()}" for name, data in sorted(documents.items())]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
