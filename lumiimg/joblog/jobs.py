"""Group files by job: by the Slurm or PBS job number in the file name, else in the folder name or in the text.

A job number has at least four digits in all names of one form; ranks and nodes are counted from 0 or 1. `HOST.PID` is
a file name of NCCL_DEBUG_FILE. Array elements (`ID_TASK`) are separate jobs unless they share a communicator.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import PurePath
from typing import NamedTuple

from lumiimg.core.files import read_beginning

_HEAD_BYTES = 65_536
"""Bytes read from a file whose name does not show its job."""
_MAX_FILES_READ = 256
"""Maximum number of such files that are read; if there are more, one per rank, the folder is enough."""
_SLURM = re.compile(r"slurm-(\d+(?:_\d+)?)(?![A-Za-z\d])")
_NUMBER = re.compile(r"(?:(?<![A-Za-z\d])|(?<=\.[oe]))\d+(?![A-Za-z\d])")
_DIGITS = re.compile(r"\d+")
_DAY_OR_YEAR = re.compile(r"(?:19|20)\d\d(?:[01]\d[0-3]\d(?:\d{4}|\d{6})?)?")
_FEWEST_DIGITS = 4
_STATED_NUMBER = re.compile(rb"\bSLURM_JOB_?ID[ =:]+(\d{1,12})\b")
_COMMUNICATOR = re.compile(rb"\bcommId (0x[0-9a-f]{6,16})\b")


class Job(NamedTuple):
    """A job and its files."""

    number: str
    """Number assigned by Slurm or PBS; if none is known, a folder, the first file of the job, or empty."""
    files: list[str]

    @property
    def title(self) -> str:
        """Title for people: its file if there is only one, else its number."""
        return self.files[0] if len(self.files) == 1 else f"{self.number or self.files[0]} ({len(self.files)} files)"


def jobs_of(files: Sequence[str]) -> list[Job]:
    """Return the jobs that these files belong to; files without a number form one job, or one per folder."""
    named = {file: number for file, number in zip(files, _in_names(files), strict=True) if number}
    folders = {os.path.dirname(file): "" for file in files}  # noqa: PTH120
    common = os.path.commonpath(map(os.path.abspath, folders))
    numbered = {folder: _in_folders(os.path.relpath(folder or ".", common)) for folder in folders}
    left = []
    for file in files:
        if file not in named:
            if number := numbered[os.path.dirname(file)]:  # noqa: PTH120
                named[file] = number
            else:
                left.append(file)
    for file in left if len(left) <= _MAX_FILES_READ else ():
        if number := next((found[1].decode() for found in _STATED_NUMBER.finditer(_head(file))), None):
            named[file] = number
    named = _joined(named)
    named |= _files_by_communicator([file for file in left if file not in named])
    numbers = dict.fromkeys(named.values())
    jobs: dict[str, list[str]] = {}
    for file in files:
        alone = next(iter(numbers)) if len(numbers) == 1 else os.path.dirname(file) if numbers else ""  # noqa: PTH120
        jobs.setdefault(named.get(file, alone), []).append(file)
    return [Job(number, of) for number, of in jobs.items()]


def _in_names(files: Sequence[str]) -> Iterator[str | None]:
    """Yield the job number in each file name, or None."""
    forms: dict[tuple[str, ...], list[str]] = {}
    paths = [PurePath(file) for file in files]
    for path in paths:
        forms.setdefault((str(path.parent), *_DIGITS.split(path.name)), []).append(path.name)
    at = {form: _place(form[0], names) for form, names in forms.items()}
    for path in paths:
        if found := _SLURM.search(path.name):
            yield found[1]
        else:
            place = at[str(path.parent), *_DIGITS.split(path.name)]
            yield None if place is None else _numbers(path.name)[place]


def _numbers(name: str) -> list[str]:
    return [found[0] for found in _NUMBER.finditer(name)]


def _place(folder: str, names: Sequence[str]) -> int | None:
    """Return the index of the job number in names of one form; a date counts only if nothing else qualifies."""
    columns = [*zip(*map(_numbers, names), strict=False)]
    able = [place for place, column in enumerate(columns) if min(map(len, column)) >= _FEWEST_DIGITS]
    able.sort(key=lambda place: all(map(_DAY_OR_YEAR.fullmatch, columns[place])))
    first = _head(str(PurePath(folder, names[0]))) if able else b""
    return next((place for place in able if f":{columns[place][0]}:".encode() not in first), None)


def _in_folders(below: str) -> str | None:
    """Return the job number in the innermost folder that has one, below the folder common to all files."""
    numbers = (n for part in reversed(PurePath(below).parts) for n in _numbers(part) if len(n) >= _FEWEST_DIGITS)
    return next((number for number in numbers if not _DAY_OR_YEAR.fullmatch(number)), None)


def _joined(named: dict[str, str]) -> dict[str, str]:
    """Return the job numbers, merging array elements that share a communicator."""
    of: dict[bytes, set[str]] = {}
    elements = [file for file, number in named.items() if "_" in number]
    for file in elements[:_MAX_FILES_READ]:
        for found in _COMMUNICATOR.finditer(_head(file)):
            of.setdefault(found[1], set()).add(named[file])
    shared = set().union(*(numbers for numbers in of.values() if len(numbers) > 1))
    return {file: number.partition("_")[0] if number in shared else number for file, number in named.items()}


def _files_by_communicator(files: Sequence[str]) -> dict[str, str]:
    """Return, for each file, the first file of its job, if the files belong to several jobs.

    That is the case if their names differ in words, as people name files, and each names communicators of its own.
    """
    if len(files) > _MAX_FILES_READ or not names_differ(files):
        return {}
    jobs: list[tuple[set[bytes], list[str]]] = []
    for file in files:
        known = {found[1] for found in _COMMUNICATOR.finditer(_head(file))}
        if not known:
            return {}
        same = [job for job in jobs if not known.isdisjoint(job[0])]
        jobs = [job for job in jobs if job not in same]
        jobs.append((known.union(*(ids for ids, _ in same)), [*(one for _, of in same for one in of), file]))
    return {file: of[0] for _, of in jobs for file in of} if len(jobs) > 1 else {}


def names_differ(files: Sequence[str]) -> bool:
    """Return whether names differ in more than numbers and the part after the last dot."""
    return len({_DIGITS.sub("", os.path.splitext(path)[0]) for path in map(os.path.abspath, files)}) > 1  # noqa: PTH122 - of thousands


def _head(file: str) -> bytes:
    with suppress(OSError, ValueError):
        return read_beginning(file, _HEAD_BYTES)
    return b""
