"""Make the pictures of the documents from a real image: `python -m tools.picture IMAGE`.

docs/check.svg, in the README, shows a real check; docs/report-light.png and docs/report-dark.png are for
docs/howto/report.md. The job whose nodes differ is invented (tests/shared/joblog.py), but its log is really read.
"""

from __future__ import annotations

import io
import os
import re
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path

from rich.console import Console
from rich.text import Text

from lumiimg.build.provenance import asked_for
from lumiimg.check.context import open_for_check
from lumiimg.check.pipeline import check_image
from lumiimg.report.terminal import WIDEST
from lumiimg.report.text import show
from lumiimg.report.views.check import check_document
from tests.shared.browser import browser
from tests.shared.joblog import job_log
from tests.shared.pages import written

DOCS = Path(__file__).parents[1] / "docs"
WIDTH, SCALE = 1160, 0.75


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def main() -> None:
    image = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as work, tempfile.TemporaryDirectory() as profile:
        folder = Path(work)
        (folder / image.name).symlink_to(image)
        (folder / "slurm-123.out").write_bytes(b"".join(job_log(512, 1 << 20, sick=frozenset({3, 17, 18, 19, 40}))))
        os.chdir(folder)  # so that names do not contain folders of this machine
        of_a_check(Path(image.name))
        light = written(folder, "light", "check", image.name)
        dark = written(folder, "dark", "log", "slurm-123.out")
        with browser(Path(profile)) as one:
            one.open(light, width=WIDTH)
            one.screenshot(DOCS / "report-light.png", height=840, scale=SCALE)
            one.open(dark, width=WIDTH, dark=True)
            one.screenshot(DOCS / "report-dark.png", height=840, scale=SCALE)


def of_a_check(image: Path) -> None:
    with open_for_check(image, os.environ, built_with=asked_for(image)) as context:
        report = check_image(context, None)
    recording = Console(record=True, width=WIDEST, file=io.StringIO(), markup=False, emoji=False, highlight=False)
    with redirect_stdout(_Terminal()) as shown:
        show(check_document(report))
    recording.print(Text.from_ansi(shown.getvalue()))
    svg = recording.export_svg(title=f"lumiimg check {image.name}")
    # The picture must not make a browser fetch anything: no web fonts, only the machine's monospace font.
    svg = re.sub(r"@font-face \{[^}]*\}\s*", "", svg).replace("Fira Code, monospace", "monospace")
    (DOCS / "check.svg").write_text(svg)


if __name__ == "__main__":
    main()
