"""A log that is still written: its new lines, as they come."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.errors import BadInputError
from lumiimg.nccl.sources import BLOCK_BYTES, LINE_LIMIT_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lumiimg.nccl.reader import LogReader

POLL_SECONDS = 1.0


class Tail:
    """The growing end of a file."""

    def __init__(self, file: str) -> None:
        self.file = file
        self._offset = 0
        self._inode = -1
        self._rest = b""

    def read(self) -> Iterator[bytes]:
        """Yield what was added, as blocks of whole lines; nothing while there is no file.

        A file that became shorter, or another one under the name, is read from its start.
        """
        try:
            stream = Path(self.file).open("rb")  # noqa: SIM115 - what is not there yet is no error
        except FileNotFoundError:
            return
        with stream:
            status = Path(self.file).stat()
            if status.st_size < self._offset or status.st_ino != self._inode:
                self._offset, self._inode, self._rest = 0, status.st_ino, b""
            stream.seek(self._offset)
            while block := stream.read(BLOCK_BYTES):
                self._offset += len(block)
                self._rest += block
                end = self._rest.rfind(b"\n") + 1 or (len(self._rest) if len(self._rest) > LINE_LIMIT_BYTES else 0)
                if end:
                    yield self._rest[:end]
                    self._rest = self._rest[end:]


def follow(reader: LogReader, files: Sequence[str], sleep: Callable[[float], None] = time.sleep) -> Iterator[None]:
    """Feed the reader with what is written to the files; yields after each look that showed something new.

    Does not end by itself: a job that is silent may still run. Raises BadInputError if a file cannot be read.
    """
    tails = [Tail(file) for file in files]
    seen = 0
    while True:
        for tail in tails:
            try:
                for block in tail.read():
                    reader.feed(tail.file, block)
            except OSError as error:
                raise BadInputError(f"cannot be read: {error.strerror or error}", where=tail.file) from error
        if reader.changes != seen:
            seen = reader.changes
            yield
        sleep(POLL_SECONDS)
