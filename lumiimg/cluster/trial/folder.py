"""The folder of a trial: its plan, a record for each step, what the nodes showed, and what its jobs have taken.

All nodes share it. Each file is there whole or not at all; what a killed process leaves half done is done again.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from lumiimg.cluster.trial.values import SCHEMA, Record, TrialPlan
from lumiimg.core.decode import DecodeError, decode_json, encode, to_json
from lumiimg.core.errors import BadInputError, FailedError
from lumiimg.core.files import read_beginning, write_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

T = TypeVar("T")
PLAN = "plan.json"
BEGAN = ".began"
"""Ends the name of a file that a job leaves first of all: its nodes, and the minutes that it has asked for."""
_ASKED, _MOST_ASKED = re.compile(rb"(\d{1,6}) (\d{1,6})\n"), 20
_OUTPUT = ".out"
_NAME = re.compile(r"\w[\w.-]{0,200}", re.ASCII)
MAX_BYTES = 16 << 20
_TRIES = 3
"""A job that dies in a step may have died of something else; after three, the step is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTime:
    """What one job has taken, as it says itself."""

    job: str
    nodes: int
    began: float
    """Seconds since 1970."""
    until: float
    """The same: it has taken no more than until then, and is longer there only if it is still seen."""
    hosts: tuple[str, ...] = ()
    """Its nodes. They, and the account, do not leave this folder."""
    account: str = ""


class TrialFolder:
    """One trial on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.steps, self.looks, self.jobs = path / "steps", path / "looks", path / "jobs"

    def make(self, plan: TrialPlan) -> None:
        """Write the plan into a new folder. Raises BadInputError where something is there already, FailedError."""
        try:
            self.path.mkdir(parents=True)
        except FileExistsError as error:
            raise BadInputError(
                "is there already", where=str(self.path), hint="name a new folder; `trial run` goes on with an old one"
            ) from error
        except OSError as error:
            raise BadInputError(f"cannot be made: {error.strerror}", where=str(self.path)) from error
        for folder in (self.steps, self.looks, self.jobs):
            folder.mkdir()
        write_text(self.path / PLAN, json.dumps(encode(plan), indent=1))

    def plan(self) -> TrialPlan:
        """Return the plan. Raises BadInputError."""
        plan = self._read(TrialPlan, self.path / PLAN)
        if plan is None:
            hint = "`lumiimg trial plan IMAGE -o FOLDER` makes one"
            raise BadInputError("is not the folder of a trial", where=str(self.path), hint=hint)
        names = (plan.id, *(step.name for step in plan.steps))
        if plan.nodes < 1 or not all(map(_NAME.fullmatch, names)):
            raise BadInputError("is not what a trial writes", where=str(self.path / PLAN))
        if plan.schema != SCHEMA:
            raise BadInputError(
                f"is a trial of format {plan.schema}; this lumiimg reads {SCHEMA}", where=str(self.path)
            )
        return plan

    def refuse_others(self) -> None:
        """Raise BadInputError for a trial of another user: its steps are commands, and would run as the caller."""
        if (self.path / PLAN).stat().st_uid != os.getuid():
            hint = "plan one of your own: `lumiimg trial plan`"
            raise BadInputError("is the trial of another user", where=str(self.path), hint=hint)

    def record(self, step: str) -> Record | None:
        """Return what a step came to; None where it was not done."""
        return self._read(Record, self.steps / f"{step}.json")

    def keep(self, record: Record) -> None:
        """Keep what a step came to. Raises FailedError."""
        write_text(self.steps / f"{record.step}.json", to_json(record))

    def output(self, step: str) -> dict[str, Any]:
        """Return the JSON that a step printed; nothing where it is not there, or is something else."""
        try:
            found = json.loads(read_beginning(self.output_file(step), MAX_BYTES))
        except (OSError, ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def output_file(self, step: str) -> Path:
        """Return where a step's output lies once it is whole."""
        return self.steps / f"{step}{_OUTPUT}"

    def tried(self, step: str) -> bool:
        """Note that a step begins; whether it was begun too often already."""
        with contextlib.suppress(FileExistsError):
            for number in range(_TRIES):
                mark = self.steps / f"{step}.try-{number}"
                if not mark.exists():
                    mark.touch(exist_ok=False)
                    return False
        return True

    def stopped(self, step: str) -> None:
        """Take back that a step began: it was stopped from outside, and does not count as a try."""
        marks = sorted(self.steps.glob(f"{step}.try-*"))
        for mark in marks[-1:]:
            mark.unlink(missing_ok=True)

    def note(self, taken: JobTime) -> None:
        """Note what a job takes. Raises FailedError."""
        # one for each time that the trial is run in a job: salloc's shell can run it twice
        write_text(self.jobs / f"{taken.job}-{taken.began:.0f}.json", to_json(taken))

    def job_times(self) -> Iterator[JobTime]:
        """Yield what the jobs have taken; one that began and noted nothing has taken all that it had asked for."""
        noted = set()
        for path in sorted(self.jobs.glob("*.json")):
            if (taken := self._read(JobTime, path)) is not None:
                noted.add(taken.job)
                yield taken
        for path in sorted(self.jobs.glob(f"*{BEGAN}")):
            if path.stem not in noted and (asked := _asked(path)) is not None:
                yield asked

    def spent(self) -> float:
        """Return the node minutes that the jobs have taken; of one that was killed in a step, at most."""
        return sum(one.nodes * max(one.until - one.began, 0.0) / 60 for one in self.job_times())

    def _read(self, kind: type[T], path: Path) -> T | None:
        try:
            data = read_beginning(path, MAX_BYTES + 1)
            if len(data) > MAX_BYTES:
                raise BadInputError(f"has more than {MAX_BYTES} bytes", where=str(path))
            return decode_json(data, kind)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise BadInputError(f"cannot be read: {error.strerror}", where=str(path)) from error
        except DecodeError as error:
            raise BadInputError(f"is not what a trial writes: {error}", where=str(path)) from error


def _asked(path: Path) -> JobTime | None:
    try:
        found, began = _ASKED.fullmatch(read_beginning(path, _MOST_ASKED)), path.stat().st_mtime
    except OSError:
        return None
    if found is None:
        return None
    return JobTime(job=path.stem, nodes=int(found[1]), began=began, until=began + int(found[2]) * 60)


@contextlib.contextmanager
def alone(folder: Path, part: str) -> Iterator[bool]:
    """Take a part of a trial for this process, that of jobs or that of login nodes; yields whether nobody else has it.

    A lock on a file that the kernel lets go when the process ends, however it ends (flock(2)): it holds on
    all nodes where their file system is mounted so (Lustre: `-o flock`), else on this one.

    Raises FailedError where there are no locks.
    """
    with contextlib.ExitStack() as stack:
        try:
            file = os.open(folder / f".{part}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            stack.callback(os.close, file)
            is_ours = _locked(file)
        except OSError as error:
            hint = "plan the trial in a folder on a file system with locks"
            raise FailedError(f"cannot be locked: {error.strerror}", where=str(folder), hint=hint) from error
        yield is_ours


def _locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
