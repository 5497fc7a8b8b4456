"""Elements of a page, and the one gate for text in them, so that text is never taken for markup."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from lumiimg.core.errors import one_safe_line

Node = ET.Element | str
"""An element, or text."""
LIMIT = 2000
"""Characters of one text, of a log whose line may have millions."""


def shown(text: str, limit: int = LIMIT) -> str:
    """Return a text as it may stand on a page: control characters spelled out, secrets left out, cut where it is long.

    Control characters are those of `errors.printable`: NUL, which HTML cannot carry, and marks that turn the direction
    of writing are among them. A secret is looked for in more than is shown: one that ends beyond is one, too.
    """
    printed = one_safe_line(text[: 4 * limit])
    return f"{printed[:limit]}… (cut)" if len(text) > limit else printed


def element(tag: str, *content: Node, **attributes: str) -> ET.Element:
    """Return an element; `_` in the name of an attribute is `-`, one at its end is dropped: `class_`, `aria_label`."""
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
