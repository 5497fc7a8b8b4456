"""A log that is still written: its new lines, as they come."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from lumiimg.core.errors import BadInputError
from lumiimg.core.files import open_regular
from lumiimg.joblog.sources import HEAD_BYTES, LineSplitter, opener_of, refuse_no_text, written

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lumiimg.joblog.reader import LogReader

POLL_SECONDS = 1.0


def _refuse_packed(file: str, head: bytes) -> None:
    """Raise BadInputError for a file that starts as no text does: what is compressed does not grow line by line."""
    if opener_of(head) is not None:
        raise BadInputError("is compressed, and --follow follows text", where=file, hint="leave --follow out")
    refuse_no_text(file, head)


class Tail:
    """The growing end of a file."""

    def __init__(self, file: str) -> None:
        self.file = file
        self._offset = 0
        self._inode = -1
        self._lines = LineSplitter()

    def read(self) -> Iterator[bytes]:
        """Yield what was added, as blocks of whole lines; nothing while there is no file.

        Raises WrittenAnewError for a file that became shorter, or another one under the name, and BadInputError for
        one that is not text, or cannot be read.
        """
        try:
            with open_regular(self.file) as stream:
                status = os.fstat(stream.fileno())
                if self._offset and (status.st_size < self._offset or status.st_ino != self._inode):
                    raise WrittenAnewError
                if not self._offset:
                    self._inode = status.st_ino
                    _refuse_packed(self.file, os.pread(stream.fileno(), HEAD_BYTES, 0))
                for end, block in written(stream, self._offset):
                    self._offset = end
                    if lines := self._lines.push(block):
                        yield lines
        except FileNotFoundError:
            return
        except OSError as error:
            raise BadInputError(f"cannot be read: {error.strerror or error}", where=self.file) from error


class WrittenAnewError(Exception):
    """What was read of a file is not in it any more."""


def follow(reader: LogReader, files: Sequence[str], sleep: Callable[[float], None] = time.sleep) -> Iterator[None]:
    """Feed the reader with what is written to the files; yields after each look that showed something new.

    A file that is written again makes the reader start again with all of them. Does not end by itself: a job that is
    silent may still run. Raises BadInputError if a file cannot be read.
    """
    tails = [Tail(file) for file in files]
    seen = 0
    while True:
        try:
            for tail in tails:
                for block in tail.read():
                    reader.feed(tail.file, block)
        except WrittenAnewError:
            reader.restart()
            tails[:] = [Tail(file) for file in files]
            continue
        if reader.changes != seen:
            seen = reader.changes
            yield
        sleep(POLL_SECONDS)
