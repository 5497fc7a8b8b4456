"""A check on N nodes from where there are none: a job of Slurm runs it, and its result is read when it has ended."""

from __future__ import annotations

import math
import shlex
from typing import TYPE_CHECKING

from lumiimg.cluster.nodes.check import FIRST_LIMIT_S, TOGETHER_LIMIT_S, limit_s
from lumiimg.cluster.nodes.report import NodesReport
from lumiimg.cluster.nodes.slurm import is_job_number, own_command, run_job, shared_folder
from lumiimg.errors import BadInputError, ExitCode, LumiimgError, MissingHereError, UndecidedError, one_line
from lumiimg.files import read_beginning
from lumiimg.host.codec import FormError, from_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from lumiimg.engine.process import Completed

_REPORT = "report.json"
_OUTPUT = "job.out"
_PREPARE_S = 120.0
"""For the files of the image to be read, and the probe programs compiled."""
_MAX_BYTES = 64 << 20
_NAME = "lumiimg"
_ERRORS = {ExitCode.BAD_INPUT: BadInputError, ExitCode.MISSING_HERE: MissingHereError}
SO_FAR = "--so-far"
"""The option of `lumiimg check` that names where a report lies before it is whole."""
# --no-kill: a node that fails is a result. --exclusive: work of others, or few cores, would make a collective slow,
# which would be reported as a no; --oversubscribe, which can come from the user, takes it back. The report is there
# whole or not at all; one of the probes alone is there before the collective begins.
_SCRIPT = """\
#!/bin/bash
#SBATCH --job-name=lumiimg-check
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --time={minutes}
#SBATCH --no-kill
{command} >{report}.part
code=$?
[ ! -s {report}.part ] || mv {report}.part {report}
exit "$code"
"""


def check_by_job(
    words: Sequence[str],
    nodes: int,
    options: Sequence[str],
    environment: Mapping[str, str],
    on_submitted: Callable[[str], None],
) -> NodesReport:
    """Run `lumiimg WORDS` in a job on this number of nodes, and return its report; `options` are for sbatch.

    `words` name their files by absolute paths and ask for JSON. Raises MissingHereError without Slurm, UndecidedError
    if there is no job, or it ends without a report; and what the check raised in the job.
    """
    with shared_folder() as folder:
        script, report = folder / "job.sh", folder / _REPORT
        command = shlex.join([*own_command(), *words, SO_FAR, str(report)])
        place = shlex.quote(str(report))
        script.write_text(_SCRIPT.format(nodes=nodes, minutes=minutes(nodes), command=command, report=place))
        # the name of an output file is a pattern to Slurm; relative to --chdir it is ours
        done = run_job(script, [f"--chdir={folder}", f"--output={_OUTPUT}", *options], environment, on_submitted)
        try:
            return from_json(NodesReport, read_beginning(report, _MAX_BYTES))
        except FileNotFoundError as error:
            raise _without_report(done, _last_line(folder / _OUTPUT)) from error
        except (OSError, FormError) as error:
            raise UndecidedError(f"the report of the job cannot be read: {one_line(str(error))}") from error


def minutes(nodes: int) -> int:
    """Return the time limit of a job: all limits of the check, as if each were reached.

    Nodes that another has cut off are asked once more; they were there before, so that none has to be booted.
    """
    seconds = _PREPARE_S + limit_s(nodes) + (limit_s(nodes) - FIRST_LIMIT_S) + TOGETHER_LIMIT_S
    return math.ceil(seconds / 60)


def _without_report(done: Completed, said: str) -> LumiimgError:
    """Return what a job that ended without a report comes to: as lumiimg said in it, where it did."""
    # what sbatch says itself is the number of the job, as a rule
    what = said.removeprefix(f"{_NAME}: ") or ("" if is_job_number(done.last_line) else done.last_line)
    if said.startswith(f"{_NAME}: ") and done.exit_code in _ERRORS:
        return _ERRORS[ExitCode(done.exit_code)](what)
    return UndecidedError(
        f"the job ended without a report (exit code {done.exit_code}): {one_line(what) or 'it said nothing'}",
        hint="sacct shows whether it was cancelled, ran out of time or lost a node",
    )


def _last_line(path: Path) -> str:
    try:
        lines = read_beginning(path, _MAX_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    return next((line for line in reversed(lines) if line.strip()), "")
