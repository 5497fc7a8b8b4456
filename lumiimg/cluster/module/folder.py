"""The folder of modules: wrappers below software/NAME/VERSION, found by the module files below modulefiles/NAME.

A version is there once its module file is; that is written last. What was not made by lumiimg is never replaced.
"""

from __future__ import annotations

import errno
import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lumiimg.cluster.module.modulefile import module_text
from lumiimg.cluster.module.wrappers import wrapper_texts
from lumiimg.core.errors import BadInputError, FailedError
from lumiimg.core.files import make_folder, read_beginning, replaced
from lumiimg.engine.workspace import own_folder

if TYPE_CHECKING:
    from lumiimg.cluster.module.plan import ImageModule

RECORD = "lumiimg.json"
"""Says which image the folder of a version is for, and that it is ours."""
_SCHEMA = 1
_MAX_RECORD_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ModuleFiles:
    """What was written."""

    modulefile: Path
    """For Tcl modules and Lmod."""
    wrappers: Path
    """Folder of the wrappers."""


@dataclass(frozen=True, slots=True)
class WrittenModule:
    """The module that was written, with all that it sets."""

    of: ImageModule
    use: Path
    """For `module use`."""
    files: ModuleFiles
    """What was written."""


def write_module(module: ImageModule, folder: Path, *, force: bool) -> WrittenModule:
    """Write wrappers and module files.

    Raises BadInputError where the name is that of another image (unless `force`) or of what is not ours, FailedError
    if it cannot be written.
    """
    use = folder.absolute() / "modulefiles"
    file = use / module.name / module.version
    in_lua = file.with_name(f"{module.version}.lua")  # Lmod takes it before the one in Tcl; of 0.1.0, or somebody's
    _refuse_others(module, (file, in_lua), force=force)
    record: dict[str, Any] = {"schema": _SCHEMA, "kind": "module", "module": module.full_name}
    record |= {"image": str(module.image), "origin": list(module.origin)}
    texts = {**wrapper_texts(module), RECORD: json.dumps(record, indent=1, sort_keys=True) + "\n"}
    made: list[Path] = []
    try:
        for part in ("software", "modulefiles"):
            made.extend(make_folder(folder, below) for below in (part, f"{part}/{module.name}"))
        with replaced(file) as written:
            written.write(module_text(module).encode())
            written.flush()  # where the disk is full, before there is a folder
            _replace(module.home, texts)
        in_lua.unlink(missing_ok=True)
    except OSError as error:
        raise FailedError(
            f"cannot be written: {error.strerror or error}", where=str(error.filename or folder)
        ) from error
    finally:
        for empty in reversed(made):
            with suppress(OSError):  # as a rule it is not empty
                empty.rmdir()
    return WrittenModule(module, use, ModuleFiles(file, module.home / "bin"))


def _refuse_others(module: ImageModule, files: tuple[Path, ...], *, force: bool) -> None:
    home = module.home
    there = [path for path in (home, *files) if os.path.lexists(path)]
    record = _record_in(home)
    if record is not None and type(schema := record.get("schema")) is int and schema > _SCHEMA:
        hint = "use that lumiimg, or --name NAME/VERSION for another"
        raise BadInputError(f"was written by a newer lumiimg (schema {schema})", where=str(home), hint=hint)
    if record is not None and record.get("schema") == _SCHEMA and record.get("image") is not None:
        if (image := str(record["image"])) != str(module.image) and not force:
            hint = "--name NAME/VERSION is another, --force replaces it"
            what = f"module {module.full_name} is for another image, {image}"
            raise BadInputError(what, where=str(home), hint=hint)
        for inner in (*home.glob("*"), *home.glob("bin/*")):
            if inner != home / "bin" and inner.is_dir() and not inner.is_symlink():
                raise BadInputError("was not written by lumiimg", where=str(inner), hint="move it away")
    elif there:
        hint = "--name NAME/VERSION is another"
        raise BadInputError("exists, and was not written by lumiimg", where=str(there[0]), hint=hint)


def _record_in(home: Path) -> dict[str, Any] | None:
    """Return what a folder of ours says of itself; None where it is not ours."""
    try:
        data = json.loads(read_beginning(home / RECORD, _MAX_RECORD_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) and data.get("kind") == "module" else None


def _replace(home: Path, texts: dict[str, str]) -> None:
    """Put a folder in its place by rename; the one that was there goes when the new one is whole."""
    with own_folder(home.parent, ".lumiimg-") as beside:
        new = beside / "new"
        (new / "bin").mkdir(parents=True)
        for name, text in texts.items():
            (new / name).touch(0o666 if name == RECORD else 0o777)  # as far as the user's umask lets it
            (new / name).write_text(text, encoding="utf-8")
        if not os.path.lexists(home):
            new.rename(home)
            return
        old = home.rename(beside / "old")
        try:
            if _record_in(old) is None:
                raise PermissionError(errno.EPERM, "somebody has put another folder in its place", str(home))
            new.rename(home)
        except OSError:
            old.rename(home)
            raise
