"""Writes docs/report-light.png and docs/report-dark.png, the pictures of docs/howto/report.md: `python -m tools.shots IMAGE FOLDER`.

IMAGE is the demo image, checked for real, FOLDER is docs; the job whose nodes differ is made up (tests/shared/joblog.py), and read for real.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from tests.shared.browser import browser
from tests.shared.joblog import job_log
from tests.shared.pages import written

WIDTH, SCALE = 1160, 0.75


def main() -> None:
    image, docs = (Path(argument).resolve() for argument in sys.argv[1:])
    with tempfile.TemporaryDirectory() as work, tempfile.TemporaryDirectory() as profile:
        folder = Path(work)
        (folder / image.name).symlink_to(image)
        (folder / "slurm-123.out").write_bytes(b"".join(job_log(512, 1 << 20, sick=frozenset({3, 17, 18, 19, 40}))))
        os.chdir(folder)  # names without the folders of this machine
        light = written(folder, "light", "check", image.name)
        dark = written(folder, "dark", "log", "slurm-123.out")
        with browser(Path(profile)) as one:
            one.open(light, width=WIDTH)
            one.screenshot(docs / "report-light.png", height=840, scale=SCALE)
            one.open(dark, width=WIDTH, dark=True)
            one.screenshot(docs / "report-dark.png", height=840, scale=SCALE)


if __name__ == "__main__":
    main()
