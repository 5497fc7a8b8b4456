"""The modules folder: wrappers below software/NAME/VERSION, which the module files below modulefiles/NAME point to.

A version exists once its module file does, which is written last. Files that lumiimg did not make are never replaced.
"""

from __future__ import annotations

import errno
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lumiimg.cluster.module.texts import module_text, wrapper_texts
from lumiimg.core.errors import BadInputError, FailedError
from lumiimg.core.files import atomic_file, make_folder, read_beginning
from lumiimg.engine.workspace import own_folder

if TYPE_CHECKING:
    from lumiimg.cluster.module.plan import ImageModule

RECORD = "lumiimg.json"
"""Records which image the folder of a version is for, and marks the folder as lumiimg's."""
_SCHEMA = 1
_MAX_RECORD_BYTES = 1 << 20


def write_module(module: ImageModule, *, force: bool) -> None:
    """Write wrappers and module file.

    Raises BadInputError if the name belongs to another image (unless `force`) or to files that are not lumiimg's,
    FailedError if it cannot be written.
    """
    file, folder = module.files.modulefile, module.folder
    _refuse_foreign_files(module, file, force=force)
    record = {"schema": _SCHEMA, "kind": "module", "module": module.full_name}
    record |= {"image": str(module.image), "origin": list(module.origin)}
    texts = {**wrapper_texts(module), RECORD: json.dumps(record, indent=1, sort_keys=True) + "\n"}
    made: list[Path] = []
    try:
        for part in ("software", "modulefiles"):
            made.extend(make_folder(folder, below) for below in (part, f"{part}/{module.name}"))
        with atomic_file(file) as written:
            written.write(module_text(module).encode())
            written.flush()  # so that a full disk is noticed before the folder is made
            _replace(module.home, texts)
    except OSError as error:
        raise FailedError(
            f"cannot be written: {error.strerror or error}", where=str(error.filename or folder)
        ) from error
    finally:
        for empty in reversed(made):
            with suppress(OSError):  # usually it is not empty
                empty.rmdir()


def _refuse_foreign_files(module: ImageModule, file: Path, *, force: bool) -> None:
    home, hint = module.home, "use another --name NAME/VERSION"
    record = _record_in(home)
    if record is None:
        for there in filter(os.path.lexists, (home, file)):
            raise BadInputError("exists, and was not written by lumiimg", where=str(there), hint=hint)
        return
    if (schema := record["schema"]) != _SCHEMA:
        what = f"was written by a newer lumiimg (schema {schema})"
        raise BadInputError(what, where=str(home), hint=f"use that lumiimg, or {hint}")
    if (image := record["image"]) != str(module.image) and not force:
        what = f"module {module.full_name} is for another image, {image}"
        raise BadInputError(what, where=str(home), hint=f"{hint}, or --force to replace it")
    for inner in (*home.glob("*"), *home.glob("bin/*")):
        if inner != home / "bin" and inner.is_dir() and not inner.is_symlink():
            raise BadInputError("was not written by lumiimg", where=str(inner), hint="move it away")


def _record_in(home: Path) -> dict[str, Any] | None:
    """Return the record in a folder; None if the folder is not lumiimg's."""
    try:
        data = json.loads(read_beginning(home / RECORD, _MAX_RECORD_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    is_ours = isinstance(data, dict) and data.get("kind") == "module"
    return data if is_ours and type(data.get("schema")) is int and isinstance(data.get("image"), str) else None


def _replace(home: Path, texts: dict[str, str]) -> None:
    """Put a new folder in place by rename; an old one is removed only once the new one is complete."""
    with own_folder(home.parent, ".lumiimg-") as scratch:
        new = scratch / "new"
        (new / "bin").mkdir(parents=True)
        for name, text in texts.items():
            (new / name).touch(0o666 if name == RECORD else 0o777)  # the user's umask applies
            (new / name).write_text(text, encoding="utf-8")
        if not os.path.lexists(home):
            new.rename(home)
            return
        old = home.rename(scratch / "old")
        try:
            if _record_in(old) is None:
                raise PermissionError(errno.EPERM, "it was replaced by another folder", str(home))
            new.rename(home)
        except OSError:
            old.rename(home)
            raise
