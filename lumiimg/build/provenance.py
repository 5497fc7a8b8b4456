"""What an image says about how it was made."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from lumiimg import __version__
from lumiimg.image import ImageError
from lumiimg.image.sif import DataType, read_sif
from lumiimg.image.source import ByteSource

if TYPE_CHECKING:
    from pathlib import Path

    from lumiimg.resolve.lock import Lock

PLAN = "lumiimg.json"
"""The JSON object of an image of lumiimg."""


def documents(lock: Lock) -> dict[str, bytes]:
    """Return what an image carries about itself, by name: the base, every layer with its arguments and sources."""
    plan = {
        "lumiimg": __version__,
        "site": lock.site,
        "fabric": lock.fabric.value,
        "base": {"agent": lock.bootstrap.agent, "from": f"{lock.bootstrap.image or lock.bootstrap.origin}"},
        "layers": [
            {
                "name": layer.layer.name,
                "version": layer.release.version if layer.release else None,
                "arguments": dict(layer.arguments),
                "sources": [
                    {"name": source.name, "file": source.file, "sha256": source.sha256, "from": source.location}
                    for source in (*layer.sources, *layer.wheels)
                ],
            }
            for layer in lock.stack
        ],
    }
    return {PLAN: json.dumps(plan, indent=1, sort_keys=True).encode()}


def is_ours(image: Path) -> bool:
    """Whether a file is an image that lumiimg has written."""
    try:
        source = ByteSource.open(image)
    except ImageError:
        return False
    try:
        return read_sif(source).first(DataType.JSON, PLAN) is not None
    except ImageError:
        return False
    finally:
        source.close()
