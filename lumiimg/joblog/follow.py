"""A log that is still written: its new lines, as they come."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from lumiimg.core.errors import BadInputError
from lumiimg.core.files import open_regular
from lumiimg.joblog.files import BLOCK_BYTES, HEAD_BYTES, LineSplitter, packer_of, refuse_no_log
from lumiimg.joblog.reader import LogReader

if TYPE_CHECKING:
    from lumiimg.joblog.report import LogReport

_POLL_SECONDS = 1.0


class WrittenAgainError(Exception):
    """What was read of a file is not in it any more."""


class Tail:
    """The growing end of a file."""

    def __init__(self, file: str) -> None:
        self.file = file
        self._offset = 0
        self._inode = -1
        self._lines = LineSplitter()

    def read(self) -> Iterator[bytes]:
        """Yield what was added, as blocks of whole lines; nothing while there is no file.

        Raises WrittenAgainError for a file that became shorter, or another one under the name, and BadInputError for
        one that is not text, or cannot be read.
        """
        try:
            with open_regular(self.file) as stream:
                status = os.fstat(stream.fileno())
                if self._offset and (status.st_size < self._offset or status.st_ino != self._inode):
                    raise WrittenAgainError
                if not self._offset:
                    self._inode = status.st_ino
                    self._refuse_other_files(stream.peek(HEAD_BYTES))
                stream.seek(self._offset)
                while block := stream.read1(BLOCK_BYTES):
                    self._offset += len(block)
                    if lines := self._lines.push(block):
                        yield lines
        except FileNotFoundError:
            return
        except OSError as error:
            raise BadInputError(f"cannot be read: {error.strerror or error}", where=self.file) from error

    def _refuse_other_files(self, head: bytes) -> None:
        """Raise BadInputError for a file that starts as no text does: what is compressed does not grow line by line."""
        if packer_of(head) is not None:
            hint = "leave --follow out"
            raise BadInputError("is compressed, and --follow follows text", where=self.file, hint=hint)
        refuse_no_log(self.file, head)


def follow(files: Sequence[str], sleep: Callable[[float], None] = time.sleep) -> Iterator[LogReport]:
    """Yield the answer about nothing, then about what is written to the files, after each look that showed more.

    A file that is written again makes it start again with all of them. Does not
    end by itself: a job that is silent may still run. Raises BadInputError if a file cannot be read.
    """
    reader = LogReader()
    tails = [Tail(file) for file in files]
    seen = reader.changes
    yield reader.report()
    while True:
        try:
            for tail in tails:
                for block in tail.read():
                    reader.feed(tail.file, block)
        except WrittenAgainError:
            reader.restart()
            tails = [Tail(file) for file in files]
            continue
        if reader.changes != seen:
            seen = reader.changes
            yield reader.report()
        sleep(_POLL_SECONDS)
