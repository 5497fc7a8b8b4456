"""Read the logs of a job, and report which network carried the traffic."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.check.run.log_answer import LogAnswer, answer_of_log
from lumiimg.cli.output import Output
from lumiimg.core.errors import BadInputError, ExitCode, say, write_note
from lumiimg.core.files import is_named_as_data, read_beginning
from lumiimg.core.text import address_of, as_operand, shell_join, shell_quote, with_folder
from lumiimg.joblog import Job, LogReport, follow, jobs_of, log_files, names_differ, read_files, vocabulary
from lumiimg.report.read_progress import ReadProgress
from lumiimg.report.views.log import log_document, signatures_document

if TYPE_CHECKING:
    from lumiimg.catalog.sites import Site

_MAX_NAMED = 4
"""Maximum number of files and folders that a suggested command repeats."""


def execute(arguments: argparse.Namespace) -> int:
    if arguments.signatures:
        known = vocabulary()
        return Output.from_arguments(arguments).deliver(signatures_document(known), "signatures", known)
    if not arguments.paths:
        raise BadInputError("no log to read", hint="name a job's output, or - for standard input")
    if image := next(filter(_is_image, arguments.paths), None):
        raise BadInputError("is an image", where=image, hint=f"lumiimg check {shell_quote(as_operand(image))}")
    output = Output.from_arguments(arguments, [arguments.image, *map(Path, arguments.paths)])
    site = None
    if arguments.site:  # a log does not contain its site
        from lumiimg.catalog.sites import find_site  # imported only with --site, as it costs time

        site = find_site(arguments.site, os.environ)
    if arguments.follow:
        report = _follow(arguments.paths)
    else:
        files = log_files(arguments.paths, write_note)
        if "-" not in files:
            if len(jobs := jobs_of(files)) > 1:
                return _several(jobs, arguments, output, site)
            if not jobs[0].number and names_differ(arguments.paths):
                write_note("read as one job, as nothing in these files says otherwise; if there are several, name each")
        report = _read(files, quiet=arguments.quiet)
    _refuse_other_files(arguments.paths, report)
    answer = answer_of_log(report, site, _names(arguments) | _names_of_log(arguments.paths))
    return output.deliver(log_document(arguments.paths, answer), "log", answer, answer.exit_code)


def _is_image(name: str) -> bool:
    try:
        head = read_beginning(name, 64) if Path(name).is_file() else b""
    except (OSError, ValueError):
        return False
    if b"\0" not in head:
        return False
    from lumiimg.image.sif import is_sif  # imported only for images
    from lumiimg.image.squashfs.format import MAGIC

    return is_sif(head) or head.startswith(MAGIC)


def _several(jobs: Sequence[Job], arguments: argparse.Namespace, output: Output, site: Site | None) -> ExitCode:
    """Answer for several jobs, one after the other."""
    if arguments.junit:
        raise BadInputError("is for one job", where="--junit", hint="leave it out, or name the files of one job")
    by_title = {Path(job.title): job for job in jobs}
    names = _names(arguments)

    def answer(title: Path) -> LogAnswer:
        job = by_title[title]
        found = answer_of_log(read_files(job.files, write_note), site, names | _names_of_log(job.files))
        return replace(found, job=job.number or str(title))

    return output.each("log", "log", [*by_title], answer, noun="job")


def _names(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the names of the image and the site, for use in suggested commands."""
    names = {}
    if arguments.image:
        image = str(arguments.image)
        image = address_of(image) or with_folder(image)
        if address_of(image) or os.path.lexists(image):
            names["image"] = names["base"] = shlex.quote(image)
        else:
            write_note(f"{image} does not exist here: replace image.sif below with its path")
    if arguments.site:
        names["site"] = shlex.quote(arguments.site)
    return names


def _names_of_log(paths: Sequence[str]) -> dict[str, str]:
    """Return the names of the log and its job, for use in suggested commands."""
    names = {}
    if len(paths) <= _MAX_NAMED and all(map(os.path.lexists, paths)):
        names["log"] = shell_join(map(as_operand, paths))
    if (of_slurm := re.fullmatch(r"slurm-(\d{1,12})\.out", Path(paths[0]).name, re.ASCII)) is not None:
        names["job_id"] = of_slurm[1]
    return names


def _refuse_other_files(names: list[str], report: LogReport) -> None:
    """Refuse data files and programs that contain no job output. Raises BadInputError."""
    found = report.ranks or report.progress or report.measurements or any(cause.evidence for cause in report.causes)
    if not found and all(map(is_named_as_data, names)):
        raise BadInputError(
            "contains no output of a job, and is not a known dump",
            where=names[0],
            hint="lumiimg log reads the output of a job, such as slurm-123.out",
        )


def _read(files: list[str], *, quiet: bool) -> LogReport:
    """Read all files, and show the progress on a terminal."""
    reading = ReadProgress(quiet=quiet)
    try:
        return read_files(files, write_note, reading)
    finally:
        reading.close()


def _follow(names: list[str]) -> LogReport:
    """Read until the user stops it; each change of the answer is one line on standard error."""
    if "-" in names:
        raise BadInputError("standard input is always read to its end", where="--follow -", hint="omit --follow")
    if folders := [name for name in names if Path(name).is_dir()]:
        raise BadInputError("is a folder, and --follow follows files", where=folders[0])
    if len(jobs := jobs_of(names)) > 1:
        last = shell_join(map(as_operand, jobs[-1].files[:_MAX_NAMED]))
        what = f"follows one job, but these are files of {len(jobs)}"
        raise BadInputError(what, where="--follow", hint=f"lumiimg log --follow {last}")
    if waiting := [name for name in names if not Path(name).exists()]:
        write_note(f"waiting for {', '.join(waiting)}")
    reports = follow(names)
    report = next(reports)
    last = report.headline
    try:
        for report in reports:
            if (now := report.headline) != last:
                say(now)
                last = now
    except KeyboardInterrupt:
        print(file=sys.stderr)
    return report
