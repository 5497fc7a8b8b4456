"""What `log` takes into account beside the logs, where it is named: the site, and the image of the job."""

from __future__ import annotations

import os
from pathlib import Path

from lumiimg.catalog.sites import find_site
from lumiimg.check.run.job_log import ImageOfJob, compare
from lumiimg.host.snapshot_file import read_snapshot
from lumiimg.nccl.report import LogReport

__all__ = ["compare_image", "find_site"]


def compare_image(report: LogReport, image: Path, host: Path | None) -> ImageOfJob:
    return compare(report, image, os.environ, read_snapshot(host) if host else None)
