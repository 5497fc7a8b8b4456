"""Where RCCL finds its net plugin among the files, and where it finds none: why not."""

from __future__ import annotations

import contextlib
import errno
import posixpath
import re
import shlex
from typing import TYPE_CHECKING

from lumiimg.elf.facts import read_elf
from lumiimg.errors import BadInputError
from lumiimg.fabric.names import PLUGIN_FILES, part_of
from lumiimg.fabric.path import FabricPath, Part
from lumiimg.fabric.rccl import PLUGIN_VARIABLE, Rccl
from lumiimg.findings import Code, Remedy, Severity
from lumiimg.host.container_view import ENGINE_LIBRARIES

if TYPE_CHECKING:
    from lumiimg.check.registry import Findings
    from lumiimg.check.static.variables import Variables
    from lumiimg.elf.loader import Process
    from lumiimg.elf.objects import LoadedObject, LoadOutcome
    from lumiimg.elf.rules import LoaderSettings
    from lumiimg.image import Image

_LEFT_OUT = re.compile(r"[^ ]+: left out, beyond a plain export: (?:(?:then|else|do|export) )*[A-Za-z_]\w*=[^;&|]*")
_SUFFIXED = re.compile(r"lib[nr]ccl-net-(.+)\.so")
_OF_THE_SEARCH = ("LD_LIBRARY_PATH", "LD_PRELOAD", "NCCL_NET_PLUGIN")


def load_plugin(
    variables: Variables,
    process: Process,
    rccl: LoadedObject,
    files: list[str],
    path: FabricPath,
    library: Rccl,
    found: Findings,
) -> LoadOutcome | None:
    """Follow RCCL's dlopen of its plugin; where nothing is found, say why: another folder, name, or nothing at all.

    `library` is what the bytes of `rccl` say.
    """
    image, names = variables.image, path.plugin_files
    if not names:
        return None
    absent: list[str] = []
    broken: tuple[str, LoadOutcome] | None = None
    for name in names:
        outcome = process.dlopen(name, rccl)
        if outcome.root is not None:
            return outcome
        if outcome.finds_nothing(name):
            absent += outcome.errors
        elif broken is None:
            broken = name, outcome  # RCCL goes on with the next name
    if broken is not None:
        name, outcome = broken
        what, lines = f"{name} is found, but is not a library that can be loaded", outcome.errors[:4]
        found.add(Code.PLUGIN_LOADS, Severity.PROBLEM, what, reason="not-a-library", evidence=lines)
        return None
    severity, so_far, lines = Severity.PROBLEM, "", tuple(absent[:4])
    if _hides_a_search(image):
        severity, so_far = Severity.UNKNOWN, ", as far as the image is seen"
    plugins = [file for file in files if part_of(file) is Part.PLUGIN]
    dangling = [file for file in plugins if not image.root.exists(file)]
    dangling.sort(key=lambda file: posixpath.basename(file) not in names)
    elsewhere = [file for file in plugins if file not in dangling]
    same_name = [file for file in elsewhere if posixpath.basename(file) in names]
    passed_over = next((why for file in same_name if (why := _passed_over(image, process, file))), None)
    if dangling and not same_name:
        first, target = dangling[0], image.root.readlink(dangling[0])
        what = f"{first} is a link to {target}, which is not in the image{so_far}"
        found.add(Code.PLUGIN_DANGLING, severity, what, where=first, evidence=lines)
    elif passed_over is not None:
        first = same_name[0]
        what = f"{first} is passed over by the loader: {passed_over}"
        found.add(Code.PLUGIN_LOADS, Severity.PROBLEM, what, reason="passed-over", where=first, evidence=lines)
    elif same_name:
        first, folder = same_name[0], posixpath.dirname(same_name[0])
        searched, wanted = str(process.settings.library_path), _prepended(folder, process.settings)
        what = f"{first} is in the image, but not where the loader looks{so_far}"
        values = {"searched": searched, "folder": folder, "wanted": wanted}
        found.add(Code.PLUGIN_NOT_ON_PATH, severity, what, names=values, where=first, evidence=lines)
    elif elsewhere:
        first = elsewhere[0]
        what = f"this RCCL looks for {' or '.join(names)}; the image has {first}{so_far}"
        renamed = "renamed" if posixpath.basename(first) in PLUGIN_FILES else "suffixed"
        reason = "named" if path.named_by else renamed
        ways = _remedies_for_a_name(variables, process, first, path, library)
        found.add(Code.PLUGIN_OTHER_NAME, severity, what, reason=reason, where=first, evidence=lines, remedy=ways)
    else:
        what = f"no net plugin: nothing called {' or '.join(names)} is in the image{so_far}"
        found.add(Code.PLUGIN_ABSENT, severity, what, evidence=lines, chain=(rccl.path, names[0]))
    return None


def _hides_a_search(image: Image) -> bool:
    """Whether what is not seen of an image may lead the loader to a plugin: all but an export of another variable."""
    return any(
        not _LEFT_OUT.fullmatch(warning) or any(name in warning for name in _OF_THE_SEARCH)
        for warning in image.warnings
    )


def _passed_over(image: Image, process: Process, file: str) -> str | None:
    """Return why the loader goes past a file as if it were not there; None where it would take it."""
    try:
        with contextlib.closing(image.root.open(file)) as opened:
            facts = read_elf(opened)
    except OSError as error:
        return error.strerror if error.errno == errno.EACCES else None
    except BadInputError:
        return None
    own = process.objects[0].facts
    is_alike = (facts.machine, facts.elf_class) == (own.machine, own.elf_class)
    return None if is_alike else "it is for another architecture"


def _remedies_for_a_name(
    variables: Variables, process: Process, file: str, path: FabricPath, library: Rccl
) -> tuple[Remedy, ...]:
    """Return what leads RCCL to a plugin of another name, each tried: the variable taken away, or naming it; a link."""

    def leads(names: tuple[str, ...]) -> bool:
        return any(process.dlopen(name).root is not None for name in names)

    own, (folder, base) = library.names(None), posixpath.split(file)
    without = (variables.without(PLUGIN_VARIABLE),) if path.named_by else ()
    if without and (leads(own) or base in own):  # in a folder that is not searched, which is said next
        return without
    suffixed = _SUFFIXED.fullmatch(base)
    values = (*([suffixed[1]] if suffixed else []), file)
    leading = [variables.set_to(PLUGIN_VARIABLE, shlex.quote(value)) for value in values if leads(library.names(value))]
    asked = [name for name in path.plugin_files if "/" not in name]
    if leading and not asked:
        return (leading[0],)
    # of a name and its suffixed form, the second
    link = f"ln -s {shlex.quote(file)} {shlex.quote(posixpath.join(folder, (asked or own)[-1 if without else 0]))}"
    return (*leading[:1], *(() if asked else without), Remedy(f"{link}   (in the image's %post)"))


def _prepended(folder: str, settings: LoaderSettings) -> str:
    """Return LD_LIBRARY_PATH with a folder in front: what the engine is given replaces what the image says."""
    rest = [part for part in (settings.library_path or "").split(":") if part and part != ENGINE_LIBRARIES]
    return ":".join([folder, *rest])
