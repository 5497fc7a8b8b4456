"""Elements of a page, and the only entry for text into them, so that text is never mistaken for markup."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from lumiimg.core.errors import one_safe_line

Node = ET.Element | str
"""An element or text."""
LIMIT = 2000
"""Maximum number of characters of one text; a log line may have millions."""


def shown(text: str, limit: int = LIMIT) -> str:
    """Return a text in a form fit for a page: control characters spelled out, secrets removed, truncated if long.

    Control characters are those of `errors.printable`; they include NUL, which HTML cannot contain, and marks that
    change the writing direction. More text is searched for secrets than is shown, as one may extend beyond the limit.
    """
    printed = one_safe_line(text[: 4 * limit])
    return f"{printed[:limit]}… (cut)" if len(text) > limit else printed


def element(tag: str, *content: Node, **attributes: str) -> ET.Element:
    """Return an element; in attribute names, `_` becomes `-`, and is dropped at the end: `aria_label`, `class_`."""
    names = {name.rstrip("_").replace("_", "-"): shown(value) for name, value in attributes.items() if value}
    made = ET.Element(tag, names)
    for node in content:
        if isinstance(node, ET.Element):
            made.append(node)
        elif len(made):
            made[-1].tail = (made[-1].tail or "") + shown(node)
        else:
            made.text = (made.text or "") + shown(node)
    return made
