"""Writes docs/check.svg, the picture in the README, from a real check: `python -m tools.picture IMAGE`, on a terminal's terms."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from lumiimg.build.provenance import asked_for
from lumiimg.check.pipeline import check_image
from lumiimg.report import check as report

PICTURE = Path(__file__).parents[1] / "docs" / "check.svg"


class _Recording(Console):
    def print(self, *texts: Any, **options: Any) -> None:
        super().print(*texts, **options, soft_wrap=True)


def main() -> None:
    image = Path(sys.argv[1])
    recording = _Recording(record=True, width=118, force_terminal=True, markup=False, emoji=False, highlight=False)
    vars(report)["console"] = lambda **_: recording
    os.chdir(image.parent)
    checked = check_image(Path(image.name), os.environ, None, built_with=asked_for(Path(image.name)))
    report.print_check(checked, verbose=False)
    svg = recording.export_svg(title=f"lumiimg check {image.name}")
    # A reader's browser should fetch nothing for it: no web fonts, the machine's own monospace.
    svg = re.sub(r"@font-face \{[^}]*\}\s*", "", svg).replace("Fira Code, monospace", "monospace")
    PICTURE.write_text(svg)


if __name__ == "__main__":
    main()
