"""Where a build writes (the image, the log beside it, the folder of definitions), and what it does not overwrite."""

from __future__ import annotations

from pathlib import Path

from lumiimg.build.provenance import is_ours
from lumiimg.core.errors import BadInputError
from lumiimg.core.files import read_beginning, refuse_bad_name

ANOTHER_NAME = "-o names another file, --force replaces it"


def log_path(output: Path) -> Path:
    """Return the path of the log with the engine's output."""
    return output.with_name(output.name + ".log")


def refuse_output(output: Path, *, force: bool, may_be_the_same: bool) -> None:
    """Raise BadInputError for an output that would destroy a file, before anything is fetched or written.

    `may_be_the_same`: an image of lumiimg may already be the requested one, which the builder checks.
    """
    refuse_bad_name(output)
    if output.is_dir():
        raise BadInputError("is a folder", where=str(output), hint="-o names the image file")
    if not output.parent.is_dir():
        raise BadInputError("no such folder", where=str(output.parent), hint="make it first")
    if output.exists() and not output.is_file():
        raise BadInputError("is not a file, but would be replaced by one", where=str(output))
    if output.exists() and not force and not (may_be_the_same and is_ours(output)):
        raise BadInputError("exists already", where=str(output), hint=ANOTHER_NAME)
    log = log_path(output)
    refuse_bad_name(log)
    if log.exists() and not log.is_file():
        raise BadInputError("is not a file, but the log would be written there", where=str(log), hint="remove it")
    if log.exists() and not force and read_beginning(log, 3) not in {b"== ", b""}:
        raise BadInputError("exists already, but is not a build log", where=str(log), hint="--force replaces it")


def refuse_folder(folder: Path, *, force: bool) -> None:
    """Raise BadInputError if a folder for definitions is not empty."""
    if folder.exists() and not folder.is_dir():
        raise BadInputError("is not a folder", where=str(folder))
    if folder.is_dir() and any(folder.iterdir()) and not force:
        raise BadInputError("is not empty", where=str(folder), hint="--force writes into it anyway")
