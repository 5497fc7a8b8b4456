"""JSON documents of an image: read with a bound, and taken apart with a check of each value."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from lumiimg.image.tree import ImageError

if TYPE_CHECKING:
    from lumiimg.image.byte_source import ByteSource

# registries take manifests of 4 MiB; a config with a long history is of the same order
_MAX_BYTES = 8 << 20


def read_document(data: ByteSource, name: str) -> Any:  # noqa: ANN401, JSON is anything
    """Return what a document says. Raises ImageError."""
    if data.size > _MAX_BYTES:
        raise ImageError(f"{name} has {data.size} bytes, {_MAX_BYTES} are the limit", where=data.name)
    try:
        return json.loads(data.read_at(0, data.size))
    except (ValueError, RecursionError) as error:
        raise ImageError(f"{name} is no JSON", where=data.name) from error


def an_object(value: object, name: str, where: str) -> dict[str, Any]:
    """Return a JSON object; an empty one for null. Raises ImageError for anything else."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ImageError(f"{name} is no JSON object", where=where)
    return value


def a_list(value: object, name: str, where: str) -> list[Any]:
    """Return a JSON list; an empty one for null. Raises ImageError for anything else."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise ImageError(f"{name} is no JSON list", where=where)
    return value


def a_text(value: object, name: str, where: str) -> str:
    """Return a JSON string; an empty one for null. Raises ImageError for anything else."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ImageError(f"{name} is no text", where=where)
    return value
