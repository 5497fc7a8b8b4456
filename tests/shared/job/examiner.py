"""Images with one thing planted, drawn by number: what the files say of each, beside what a process then does.

A kind of changes is a letter, an image a kind and a number: `A-17` is the same image each time.
"""

from __future__ import annotations

import os
import random
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.core.findings import Answer
from tests.shared.job.bases import BASES, make
from tests.shared.job.changes import NotHereError
from tests.shared.job.kinds import (
    binding,
    cuda,
    frameworks,
    imports,
    lacking,
    settings,
    startup_code,
    strangers,
    torch_forms,
)
from tests.shared.job.pairs import Pair, pair_of
from tests.shared.job.world import World, clone

if TYPE_CHECKING:
    from tests.shared.job.kinds.place import Kind, Planted
    from tests.shared.job.system import SystemFiles

KINDS: dict[str, dict[str, Kind]] = {
    "A": {"startup code": startup_code.startup_code},
    "B": {"pth order": imports.pth_order},
    "C": {"site folders": imports.site_folders, "virtual environments": imports.virtual_environments, "variables of Python": imports.python_variables, "ways to Python": imports.ways_to_python},
    "D": {"which Python": imports.which_python, "lacking": lacking.lacking},
    "E": {"forms of torch": torch_forms.forms_of_torch},
    "F": {"RECORD": frameworks.record_of_torch},
    "G": {"other frameworks": frameworks.other_frameworks, "a named RCCL": frameworks.named_rccl, "beside torch": frameworks.other_python_beside},
    "H": {"interposed": binding.interposed, "other RCCL": binding.other_rccl, "the C library's": binding.other_functions},
    "I": {"symbols of the plugin": binding.plugin_symbols},
    "J": {"FI_PROVIDER": settings.providers, "plugin names": settings.plugin_names},
    "K": {"modes": strangers.modes, "modes at the start": strangers.modes_of_startup, "umask": strangers.umask_of_builder, "closed folders": strangers.closed_folders},
    "L": {"plugin for CUDA": cuda.plugin_for_cuda},
    "M": {"environment scripts": settings.environment_scripts, "files of settings": settings.settings_files, "loops": settings.loops},
}  # fmt: skip
"""By the letter, and by name within it."""

_OURS = "_struct|_heapq|types|warnings|collections|os|torch|rocm_sdk|_C|vllm|sglang|jax_plugins|tensorflow|cupy|not_here|own_|_virtualenv|encodings|ctypes|_ctypes|struct|heapq|tokenize"
_LACKS = re.compile(rf"No module named '(?!{_OURS})([^']*)'")
"""The generator's fault: a part of the standard library that images do not have."""


class Mark(StrEnum):
    """How an answer compares with what happened."""

    RIGHT = "right"
    FAIR = "fair question"
    """Files cannot say it, and the open question names the file."""
    WRONG_GREEN = "wrong green"
    FALSE_NO = "false no"
    NEEDLESS = "needless question"
    """All is well, and the files say so."""
    LATE = "question for a no"
    """All is not well, and the files say so."""
    OTHER_FILES = "other files"
    """A yes that is right, and names other files than those of the process."""
    CRASH = "crash"


WRONG = {Mark.WRONG_GREEN, Mark.FALSE_NO, Mark.OTHER_FILES, Mark.CRASH}


@dataclass(frozen=True)
class Examined:
    """One image."""

    name: str
    base: str
    planted: Planted
    pair: Pair

    @property
    def mark(self) -> Mark:
        pair, planted = self.pair, self.planted
        if pair.findings and pair.findings[0].startswith("crash: "):
            return Mark.CRASH
        if pair.answer is Answer.UNDECIDED:
            named = planted.question or (None if pair.is_fast else planted.cause)
            is_fair = named is not None and named.rpartition("/")[2] in pair.asked
            # which of its other libraries a job opens, a Python without a torch does not say
            is_fair |= not pair.is_fast and "has no torch and no jax" in pair.asked
            # RCCL takes the plugin, whose libfabric does not know the memory of GPUs
            is_fair |= any(each.network.startswith("doubt") for each in pair.happened)
            return Mark.FAIR if is_fair else Mark.NEEDLESS if pair.is_fast else Mark.LATE
        if pair.answer is Answer.NO_OBSTACLE:
            if not pair.is_fast:
                return Mark.WRONG_GREEN
            return Mark.OTHER_FILES if pair.difference else Mark.RIGHT
        return Mark.FALSE_NO if pair.is_fast else Mark.RIGHT

    def __str__(self) -> str:
        return f"{self.mark.value}: {self.name} [{self.base}] {self.planted.variant} :: {self.pair}"


class Examiner:
    """Makes images on the files of a system, and examines what is reported of them."""

    def __init__(self, folder: Path, system: SystemFiles) -> None:
        self._folder = folder
        self._system = system
        self._bases: dict[str, World] = {}

    @contextmanager
    def image(self, name: str) -> Iterator[tuple[World, str, Planted] | None]:
        """Make the image of a name such as `A-17`; None where three bases have nothing that it could be done to."""
        letter, _, number = name.partition("-")
        draw = random.Random(f"{letter} {number}")  # noqa: S311 - the same each time
        kind = KINDS[letter][draw.choice([*KINDS[letter]])]
        target = self._folder / "image"
        made: tuple[World, str, Planted] | None = None
        try:
            for base in draw.sample([*BASES], 4):
                _remove(target)
                world = clone(self._base(base), target)
                try:
                    made = world, base, kind(world, draw)
                except (NotHereError, FileNotFoundError, FileExistsError):
                    continue
                except Exception as error:
                    raise RuntimeError(f"{name} could not be made") from error
                break
            yield made
        finally:
            _remove(target)

    def _base(self, name: str) -> World:
        if name not in self._bases:
            self._bases[name] = make(name, self._folder / name, self._system)
        return self._bases[name]

    def examined(self, names: Iterator[str] | list[str]) -> Iterator[Examined]:
        for name in names:
            with self.image(name) as made:
                if made is None:
                    continue
                world, base, planted = made
                try:
                    pair = pair_of(name, world, {}, None)
                except Exception as error:  # noqa: BLE001 - a traceback is an answer, too, and the worst
                    pair = Pair(name, Answer.UNDECIDED, (f"crash: {error!r}",), ())
                ends = " ".join(each.network for each in pair.happened)
                if found := _LACKS.search(ends):
                    raise RuntimeError(f"{name}: the system lacks {found[1]}")
                yield Examined(name, base, planted, pair)


def _remove(root: Path) -> None:
    """Take an image away, whose owner may not enter all its folders."""
    if root.exists():
        _open(root)
        shutil.rmtree(root)
    shutil.rmtree(root.with_name(f"{root.name}.parts"), ignore_errors=True)


def _open(folder: Path) -> None:
    folder.chmod(0o700)
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False):
            _open(Path(entry.path))
