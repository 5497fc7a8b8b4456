"""What `apptainer inspect` shows of an image, as the engine puts it into each SIF: `inspect-metadata.json`.

From it an engine answers without starting the image, which then needs no shell. Sources: apptainer 1.4.5,
`cmd/internal/cli/inspect.go`, `pkg/inspect/metadata.go`.
"""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from lumiimg.build.go_text import go_json
from lumiimg.errors import LumiimgError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lumiimg.image import RootFileSystem

INSPECTED = "inspect-metadata.json"
"""Its name in a SIF."""
_OWN, _APPS = "/.singularity.d", "/scif/apps"
_LIMIT_BYTES = 8 << 20


def inspected(root: RootFileSystem, definition: str) -> bytes:
    """Return what an engine says of an image, whose SIF has this definition."""
    apps = [name for name in _names(root, _APPS) if root.is_dir(f"{_APPS}/{name}/scif")]
    of_apps = {name: _attributes(root, f"{_APPS}/{name}/scif", "") for name in apps}
    own = _attributes(root, _OWN, "10-docker*.sh")
    attributes: dict[str, object] = {
        "apps": of_apps,
        **{name: own[name] for name in ("environment", "labels", "runscript", "test", "helpfile") if name in own},
        "deffile": definition.rstrip("\n"),
        "startscript": own.get("startscript", ""),
    }
    return go_json({"data": {"attributes": _full(attributes)}, "type": "container"}).encode()


def _attributes(root: RootFileSystem, folder: str, also: str) -> dict[str, object]:
    """Return what a folder of an image, or of an app in it, says; `also` is the pattern of more scripts."""
    scripts = [name for name in _names(root, f"{folder}/env") if fnmatchcase(name, "9*-environment.sh")]
    scripts += [name for name in _names(root, f"{folder}/env") if fnmatchcase(name, also)]
    return _full(
        {
            "environment": {f"{folder}/env/{name}": _text(root, f"{folder}/env/{name}") for name in sorted(scripts)},
            "labels": _labels(_text(root, f"{folder}/labels.json")),
            "runscript": _text(root, f"{folder}/runscript"),
            "startscript": _text(root, f"{folder}/startscript"),
            "test": _text(root, f"{folder}/test"),
            "helpfile": _text(root, f"{folder}/runscript.help"),
        }
    )


def _full(attributes: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in attributes.items() if value}


def _labels(text: str) -> dict[str, str]:
    try:
        labels = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(labels, dict):
        return {}
    return {name: value for name, value in sorted(labels.items()) if isinstance(value, str)}


def _text(root: RootFileSystem, path: str) -> str:
    try:
        content = root.read_bytes(path, _LIMIT_BYTES)
    except (OSError, LumiimgError):
        return ""
    return content.decode("utf-8", "surrogateescape").rstrip("\n")


def _names(root: RootFileSystem, folder: str) -> list[str]:
    """Return the names that a shell's `*` finds."""
    if not root.is_dir(folder):
        return []
    return [entry.name for entry in root.list_dir(folder) if not entry.name.startswith(".")]
