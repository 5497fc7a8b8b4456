"""How far bases and layers were tried, in words for people (catalog/ledger.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.catalog.folders import shipped_layers
from lumiimg.catalog.ledger import REACHES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumiimg.resolve.stack import ReleasedLayer

MEANING = {
    "documented": "written down from what others publish",
    "resolved": "Python packages fit together",
    "rehearsed": "scripts ran, on stand-ins for what is not available",
    "built": "built into an image, and tested there without a GPU",
    "run": "run on the machine",
}
LEGEND = "; ".join(f"{word}: {meaning}" for word, meaning in MEANING.items())


def never_built(stack: Sequence[ReleasedLayer]) -> str | None:
    """Return a sentence on a base and layers that were never built; None: there is none.

    It speaks of what comes with lumiimg. Of a layer of the user's own, and of an image, the user knows more.
    """
    parts = []
    for word in REACHES[: REACHES.index("built")]:
        found = [one.title for one in stack if one.status == word and one.layer.folder.parent == shipped_layers()]
        if found:
            parts.append(f"{', '.join(found)} {'are' if len(found) > 1 else 'is'} {word} only ({MEANING[word]})")
    return f"nobody has built this yet: {'; '.join(parts)}" if parts else None
