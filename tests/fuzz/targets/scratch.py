"""What targets need to hand bytes to a parser: a file, a small root file system, a child that answered."""

from __future__ import annotations

import atexit
import contextlib
import io
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from lumiimg.engine.process import Completed
from lumiimg.image import FolderTree, RootFileSystem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

FIXTURES = Path(__file__).parents[2] / "fixtures"
PACKAGE = Path(__file__).parents[3] / "lumiimg"
BORDER = b"\n=====\n"
"""Between the parts of an input that stands for several files."""


@cache
def scratch() -> Path:
    """Return a folder of this process, in memory where there is such a place; gone at its end."""
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="lumiimg-fuzz-", dir=memory if memory.is_dir() else None))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def written(data: bytes, name: str = "input") -> Path:
    """Return a file with these bytes, the same file each time."""
    path = scratch() / name
    if len(path.relative_to(scratch()).parts) > 1:
        path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def root_of(place: str, files: dict[str, bytes]) -> RootFileSystem:
    """Return a root file system with these files, under the same paths at each call."""
    for path, data in files.items():
        written(data, f"{place}{path}")
    return RootFileSystem(FolderTree(scratch() / place))


def parts(data: bytes, count: int) -> list[bytes]:
    """Return so many parts of an input; those that are not there are empty."""
    found = data.split(BORDER, count - 1)
    return found + [b""] * (count - len(found))


def text_of(data: bytes) -> str:
    """Return what a child printed, as `engine.process` decodes it."""
    return data.decode("utf-8", "replace")


@contextlib.contextmanager
def answering(module: ModuleType, output: bytes, exit_code: int = 0) -> Iterator[None]:
    """Have what `module` runs print this: a stand-in for the child process alone."""
    completed = Completed(("program",), exit_code, text_of(output))
    with mock.patch.object(module, "run", return_value=completed):
        yield


def printed(show: Callable[..., Any], *arguments: Any, **more: Any) -> str:
    """Return what a function of `report/` prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        show(*arguments, **more)
    return out.getvalue()
