"""A module for an image: what it binds, sets and adds to PATH, each with its reason."""

from __future__ import annotations

import datetime as dt
import errno
import os
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lumiimg import __version__
from lumiimg.catalog.launch import Jobs
from lumiimg.check.context import open_for_check
from lumiimg.check.static.files import check_libraries
from lumiimg.cluster.binds import (
    NOTHING_BOUND,
    JobVariable,
    SetIn,
    blocking_settings,
    caches_of,
    manifest_for,
    refuse_unsafe,
    site_binds,
    variables_of_engine,
)
from lumiimg.cluster.quoting import NOT_IN_PATHS, UNSAFE, without_names
from lumiimg.core.errors import BadInputError, FailedError, one_line
from lumiimg.core.files import today
from lumiimg.core.toml import package_toml
from lumiimg.fabric.path import HOST_LIB_DIR
from lumiimg.host.container_view import undetermined_variables
from lumiimg.host.engine_rules import refuse_not_runnable
from lumiimg.host.image_manifest import MANIFEST_PATH
from lumiimg.host.manifest import Variable
from lumiimg.image import NoImageError
from lumiimg.inventory.python import Program, Python, find_program, search_path, version_of_program
from lumiimg.resolve.stack import job_variables, stack_of
from lumiimg.resolve.venv import BIN, Venv, notes_of_venv

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from lumiimg.catalog.sites import Site
    from lumiimg.check.static.files import HostFit
    from lumiimg.host.manifest import Bind, BindManifest
    from lumiimg.host.snapshot import Snapshot
    from lumiimg.image import Image
    from lumiimg.inventory.components import Inventory


SHELL = "start-shell"
"""LUMI's own container modules have a wrapper of this name."""
_NAME = re.compile(r"(?!default\b)[A-Za-z0-9][A-Za-z0-9._+-]{0,127}(?<!\.lua)")
_NOT_FOR_FOLDERS = re.compile(r"[^\w./+,=@%~^-]")
"""A colon ends a path in MODULEPATH and PATH; Tcl modules treat some characters as patterns (seen with 5.2.0), and Lmod
8.6 evaluates file names in Tcl."""
_NAMED_IN_TITLE = ("torch", "vllm", "sglang", "jax", "deepspeed", "transformers", "rocm", "python")
_WRITTEN = {"rocm": "ROCm", "python": "Python"}
_LAST_LINKS = 40
_NO_USER_SITE = Variable("PYTHONNOUSERSITE", "1", "packages in ~/.local do not belong to an image: they are hidden")


@dataclass(frozen=True, slots=True)
class ModuleFiles:
    """The files of a module."""

    modulefile: Path
    """The module file, for Tcl modules and Lmod."""
    wrappers: Path
    """Folder of the wrappers."""


@dataclass(frozen=True, slots=True)
class ImageModule:
    """Everything that a module of an image and its wrappers are written from."""

    name: str
    version: str
    image: Path
    """Absolute path of the image; a symlink at its end is resolved, so that the module keeps using the same file."""
    folder: Path
    """Absolute path of the modules folder."""
    title: str
    """Title for people."""
    engine: str
    """Prefix of the engine's variables on the machine."""
    boundary: HostFit | None
    """How the image fits the host; None without a snapshot."""
    binds: tuple[Bind, ...]
    """All binds."""
    container_variables: tuple[Variable, ...]
    """Variables that are set only in the container, overriding its own: for the binds and for its Python."""
    variables: tuple[JobVariable, ...]
    """Variables that jobs on the site need."""
    caches: str | None
    """A job's folder on its node that some of these variables point into; None if none does."""
    programs: tuple[Program, ...]
    python: Python | None
    venv: Path | None
    """The Python environment that is bound."""
    shell: str | None
    origin: tuple[str, ...]
    """The sources of the module: image, snapshot, site."""
    notes: tuple[str, ...]
    """Limits of the module, for the user."""
    taken: str | None

    @property
    def home(self) -> Path:
        """The folder of the module's wrappers and record."""
        return self.folder / "software" / self.name / self.version

    @property
    def use(self) -> Path:
        """The path for `module use`."""
        return self.folder / "modulefiles"

    @property
    def files(self) -> ModuleFiles:
        """The paths to write."""
        return ModuleFiles(self.use / self.name / self.version, self.home / "bin")

    @property
    def full_name(self) -> str:
        """`NAME/VERSION`."""
        return f"{self.name}/{self.version}"

    @property
    def host_files(self) -> tuple[str, ...]:
        """Host libraries that are bound."""
        return tuple(bind.source for bind in self.binds if bind.target.startswith(f"{HOST_LIB_DIR}/"))

    @property
    def commands(self) -> tuple[str, ...]:
        """Names of the wrappers."""
        return (*(program.name for program in self.programs), *([SHELL] if self.shell else []))

    @property
    def wrappers(self) -> dict[str, str]:
        """Paths in the image by wrapper name."""
        return {program.name: program.path for program in self.programs}

    @property
    def by_module(self) -> tuple[JobVariable, ...]:
        """Variables that are set when the module is loaded."""
        return tuple(item for item in self.variables if not item.names)

    @property
    def by_wrappers(self) -> tuple[JobVariable, ...]:
        """Variables that a wrapper sets when it starts: their values refer to others, which may differ by rank."""
        return tuple(item for item in self.variables if item.names)


def plan_module(
    path: Path,
    folder: Path,
    name: str | None,
    snapshot: Snapshot | None,
    site: Site | None,
    environment: Mapping[str, str],
    venv: Venv | None = None,
) -> ImageModule:
    """Return the module of an image in a modules folder; `name` is NAME or NAME/VERSION.

    `venv`: a Python environment to bind, whose programs come first.

    Raises BadInputError for an image that engines do not run, or an invalid name; FailedError for unsafe text.
    """
    file = _image_file(path)
    own, version = _names(name, file)
    if NOT_IN_PATHS.search(str(file)):
        raise FailedError("a path with such characters cannot be in a module", where=str(file))
    if (sign := _NOT_FOR_FOLDERS.search(str(folder.absolute()))) is not None:
        what = f"module systems interpret {sign[0]!r}, and would not find the file"
        raise BadInputError(what, where=str(folder), hint="name another folder")
    with open_for_check(file, environment, snapshot, site, venv=venv) as context:
        image, whole = context.plain, context.image
        refuse_not_runnable(path, image)
        alone = replace(context, image=image)  # without the files of the environment
        fit = None
        if snapshot is not None or image.root.exists(MANIFEST_PATH):
            fit = check_libraries(alone, with_site=True, with_gpu=False).with_remedies(alone)
        manifest, doubt = manifest_for(fit, snapshot, site)
        binds = manifest.binds if manifest else site_binds(site)
        contents, python = alone.contents, alone.contents.python
        folders = (
            *([BIN] if venv else []),
            *([python.folder] if python and python.folder else []),
            *search_path(image),
        )
        bash = find_program(image.root, "bash", folders) or find_program(image.root, "sh", folders)
        variables, left_out = _variables(image, contents, site)
        module = ImageModule(
            name=own,
            version=version,
            image=file,
            folder=folder.absolute(),
            title=": ".join(filter(None, (file.name, _components(contents)))),
            engine=variables_of_engine(snapshot, site),
            boundary=fit if snapshot else None,
            binds=(*binds, *([venv.bind(read_only=False)] if venv else [])),
            container_variables=(*(manifest.variables if manifest else ()), *([_NO_USER_SITE] if python else [])),
            variables=tuple(variables),
            caches=caches_of(site, variables),
            programs=tuple(_programs(whole, folders, python)),
            python=_of_venv(python) if venv else python,
            venv=venv.path if venv else None,
            shell=bash.path if bash else None,
            origin=_origin_of(str(file), snapshot, site),
            notes=(
                *(notes_of_venv(venv, file, contents.has) if venv else []),
                *filter(None, [doubt]),
                *(blocking_settings(alone) if fit is None else []),
                *_notes(image, manifest, snapshot, site),
                *left_out,
            ),
            taken=f"{snapshot.day}" if snapshot else None,
        )
    refuse_unsafe(module.binds, module.container_variables, "module")
    return module


def _of_venv(python: Python | None) -> Python:
    """Return the Python of an environment, whose folder comes before the folder of the image's Python."""
    return Python(f"{BIN}/python", ":".join([BIN, *([python.folder] if python and python.folder else [])]))


def _origin_of(image: str, snapshot: Snapshot | None, site: Site | None) -> tuple[str, ...]:
    lines = [f"made by lumiimg {__version__} on {today()} for {image}"]
    if snapshot is not None:
        lines.append(f"machine: {snapshot.host} as it was on {snapshot.day}")
    if site is not None:
        lines.append(f"site: {site.name}, {site.title} (facts of {site.date})")
    return tuple(lines)


def _notes(image: Image, manifest: BindManifest | None, snapshot: Snapshot | None, site: Site | None) -> Iterator[str]:
    if snapshot is None and manifest is None:
        yield "no node snapshot was given (--host): no fabric library of the machine is bound"
    elif snapshot is not None and manifest is not None:
        yield from manifest.notes
        if not manifest.binds:
            yield NOTHING_BOUND
    if snapshot is not None or site is not None:
        yield "computed from files, never run on that machine: `lumiimg check` there tests it"
    if site is None:
        yield "no site was given (--site): no site file system is bound, and no job variable is set"
    yield from (*image.description.warnings, *undetermined_variables(image))


def _image_file(path: Path) -> Path:
    """Resolve symlinks only at the end of a path: `latest.sif` gets new targets, a project's folder does not."""
    if not os.path.lexists(path):
        raise NoImageError(f"cannot be opened: {os.strerror(errno.ENOENT)}", where=str(path))
    path = path.absolute()
    for _ in range(_LAST_LINKS):
        if not path.is_symlink():
            return path
        path = path.parent / path.readlink()
    raise BadInputError("is a symlink loop", where=str(path))


def _names(name: str | None, image: Path) -> tuple[str, str]:
    """Return name and version; if none are given, they come from the image file's name and date."""
    stem = re.sub(r"[^A-Za-z0-9._+-]+", "-", image.stem.lower()).strip("-._+") or "image"
    own, slash, version = (name if name is not None else stem).partition("/")
    if not slash:
        try:
            changed = image.stat().st_mtime
        except OSError as error:
            raise BadInputError(f"cannot be read: {error.strerror}", where=str(image)) from error
        version = dt.datetime.fromtimestamp(changed, dt.UTC).strftime("%Y%m%d")
    if not (_NAME.fullmatch(own) and _NAME.fullmatch(version)):
        hint = "letters, digits, dots, dashes: --name vllm/0.10.1"
        raise BadInputError(
            "is not a valid NAME or NAME/VERSION of a module", where=f"--name {name or stem}", hint=hint
        )
    return own, version


def _components(contents: Inventory) -> str:
    has = contents.has
    return ", ".join(f"{_WRITTEN.get(name, name)} {one_line(has[name])}" for name in _NAMED_IN_TITLE if name in has)


# -- programs --


def _programs(image: Image, folders: Sequence[str], python: Python | None) -> Iterator[Program]:
    python3 = find_program(image.root, "python3", folders)
    version = version_of_program(image.root, python3.path) if python3 else None
    for known in package_toml(__package__, "programs.toml")["program"]:
        name = known["name"]
        suffixes = ("", "3", *([version] if version else [])) if known.get("numbered") else ("",)
        # the system's pip installs for the system's Python
        places = (python.folder,) if name == "pip" and python is not None and python.folder else folders
        found = list(filter(None, (find_program(image.root, f"{name}{suffix}", places) for suffix in suffixes)))
        if name == "pip" and python is not None and not found:
            # otherwise the user's own pip would start, outside the image; the image's Python reports that it has none
            found = [Program(f"pip{suffix}", python.path) for suffix in ("", "3")]
        if found and found[0].name != name:
            yield replace(found[0], name=name)  # else the name alone would start the user's own, outside the image
        yield from found


# -- variables for jobs --


def _variables(image: Image, contents: Inventory, site: Site | None) -> tuple[list[JobVariable], list[str]]:
    """Return a site's variables for jobs with an image, and the reasons why others are left out."""
    used: list[JobVariable] = []
    left_out: list[str] = []
    for item in job_variables(stack_of(contents), site) if site is not None else ():
        because = f"{item.because}{' (matters on several nodes)' if item.nodes is Jobs.SEVERAL else ''}"
        variable = replace(JobVariable.from_site(item), why=because)
        _refuse_evaluated(variable)
        is_set = item.name in image.environment and not image.is_in_doubt(item.name)
        if is_set and variable.set_in is not SetIn.BATCH:
            why = f"the image sets {one_line(image.environment[item.name])!r} itself"
        elif item.nodes is Jobs.ONE:
            why = "for jobs on one node only: set it in their scripts"
        else:
            used.append(variable)
            continue
        left_out.append(f"{item.name}={item.value} is left out, {why} ({because})")
    return used, left_out


def _refuse_evaluated(item: JobVariable) -> None:
    for written in (item.value, item.folder or ""):
        if UNSAFE.search(without_names(written)):
            hint = "correct the site file: only plain text, and $NAME for values of each rank"
            raise FailedError("contains a character that shells evaluate", where=f"{item.name}={written}", hint=hint)
