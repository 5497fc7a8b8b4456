"""Write the pages made from the program and its data (`make docs`, `make dist`): docs/man, most of docs/reference.

These pages are not in git (.gitignore names them).
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tools import compatibility, manpages, reference, schemas

DOCS = Path(__file__).parents[1] / "docs"
PAGES = reference.PAGES | compatibility.PAGES | schemas.PAGES
"""Functions that yield the lines of each page of docs/reference."""


def main() -> None:
    os.environ["COLUMNS"] = "80"
    for name, lines in PAGES.items():
        (DOCS / "reference" / name).write_text("\n".join(lines()) + "\n")
    shutil.rmtree(DOCS / "man", ignore_errors=True)
    (DOCS / "man").mkdir()
    for name, text in manpages.pages().items():
        (DOCS / "man" / name).write_text(text)


if __name__ == "__main__":
    main()
