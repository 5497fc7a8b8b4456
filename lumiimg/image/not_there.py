"""What was meant by the name of an image that is not there."""

from __future__ import annotations

import difflib
import itertools
import os
import re
from pathlib import Path

from lumiimg.core.text import as_operand, engine_word, shell_quote

_IN_REGISTRY = re.compile(r"[a-z0-9][a-z0-9._-]*(/[a-z0-9._-]+)+(:[\w.-]+|@sha256:[0-9a-f]{64})?", re.ASCII)
_IMAGES = (".sif", ".img", ".sqsh", ".sqfs", ".squashfs", ".tar")
_PATTERN = re.compile(r"[*?\[]")
_MOST = 4096
"""Names of a folder that are looked at."""


def hint_for(path: Path) -> str:
    """Return what to do about a name that no file or folder has."""
    name = str(path)
    if _PATTERN.search(name):
        return f"no file has a name like that; the images here: {word_list(path)}"
    beside = _images_beside(path)
    near = [other for other in beside if other in {f"{path.name}{end}" for end in _IMAGES}]
    if near := near or difflib.get_close_matches(path.name[:80], beside, n=1, cutoff=0.7):
        return f"did you mean {shell_quote(as_operand(str(path.with_name(near[0]))))}?"
    if _IN_REGISTRY.fullmatch(name) and not path.parent.exists():
        return f"if it is an image of a registry: {engine_word()} pull image.sif docker://{name}"
    return f"the images there: {word_list(path)}"


def word_list(path: Path) -> str:
    """Return a few names of images beside a path, or that there is none and how to get one."""
    names = [shell_quote(as_operand(str(path.with_name(name)))) for name in _images_beside(path)]
    if not names:
        return "none; `lumiimg build --recipe demo -o image.sif` makes a small one"
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")


def _images_beside(path: Path) -> list[str]:
    try:
        with os.scandir(path.parent) as entries:
            return sorted(entry.name for entry in itertools.islice(entries, _MOST) if entry.name.endswith(_IMAGES))
    except OSError:
        return []
