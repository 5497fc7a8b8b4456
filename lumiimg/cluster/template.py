"""Scripts that lie as files beside the code that fills them in: `@NAME@` in them stands for a value."""

from __future__ import annotations

import re
from importlib import resources

_PLACE = re.compile(r"^@([A-Z]+)@\n|@([A-Z]+)@", re.MULTILINE)


def filled(name: str, **values: str) -> str:
    """Return a file of this room with its values; a line for a value alone goes where the value is empty."""

    def value(match: re.Match[str]) -> str:
        text = values[match[1] or match[2]]
        return f"{text}\n" if match[1] and text and not text.endswith("\n") else text

    return _PLACE.sub(value, resources.files(__package__).joinpath(name).read_text("utf-8"))
