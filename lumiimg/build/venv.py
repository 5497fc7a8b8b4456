"""`lumiimg venv`: a Python environment on top of an image, made in a container of the image, and packed.

The image's packages stay unchanged: others are resolved beside them before any is fetched (`resolve/own_packages`),
pip in the container gets exactly those wheels and no index, and the image's distributions are compared afterwards.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from lumiimg import __version__
from lumiimg.build.build_host import GET_MKSQUASHFS, mksquashfs_at
from lumiimg.build.layer_build import pack
from lumiimg.core.decode import DecodeError, decode_json, to_json
from lumiimg.core.errors import BadInputError, FailedError, RefusedError, one_line
from lumiimg.core.files import atomic_file, refuse_places
from lumiimg.core.text import count, shell_quote
from lumiimg.engine.engine import Engine, clean_environment, exec_words, find_engine
from lumiimg.engine.failures import explain, not_started
from lumiimg.engine.process import Completed, run
from lumiimg.engine.workspace import scratch_folder, written_by_rename
from lumiimg.host.engine_rules import refuse_not_runnable
from lumiimg.host.python_build import NoPythonError
from lumiimg.host.python_process import start_process
from lumiimg.image import open_image, refuse_empty
from lumiimg.inventory.components import Inventory, versions_in
from lumiimg.resolve.context import PlanContext
from lumiimg.resolve.own_packages import brought_by_layers, resolve_own
from lumiimg.resolve.python_project import LayerRequirements
from lumiimg.resolve.python_target import PythonTarget
from lumiimg.resolve.request import Request
from lumiimg.resolve.requirements import read_own
from lumiimg.resolve.venv import BIN, MOUNT, RECORD, VenvRecord, image_fingerprint

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Collection, Sequence

    from lumiimg.catalog.catalogue import Catalogue
    from lumiimg.fetch.store import Sources
    from lumiimg.resolve.conda_environment import HasProject
    from lumiimg.resolve.lock import LockedSource

_WHEELS, _SCRIPT = "/lumiimg-wheels", "/lumiimg-venv.py"
_PIP = (
    "--isolated",
    "--no-index",
    "--no-deps",
    "--no-cache-dir",
    "--disable-pip-version-check",
    "--no-input",
    "--no-warn-script-location",
)
_LIMIT_S = 3600.0
_SHOWN = 8


@dataclass(frozen=True, slots=True)
class VenvPlan:
    """The plan of an environment on top of an image."""

    record: VenvRecord
    python: str
    """Path of the Python in the image."""
    wheels: tuple[LockedSource, ...]
    doubt: str | None
    """Why the image may have packages that are not known."""


@dataclass(frozen=True, slots=True)
class WrittenVenv:
    """An environment that was made on top of an image."""

    record: VenvRecord
    path: Path
    """Absolute path of the file or folder."""
    doubt: str | None
    """Why the image may have packages that are not known."""


def refuse_venv(output: Path, image: Path, *, as_folder: bool, force: bool) -> None:
    """Raise BadInputError for an output that would destroy files, before anything is fetched."""
    if output.is_dir() and not as_folder:
        raise BadInputError(
            "is a folder", where=str(output), hint=f"for a folder, end its name with a slash: {output}/"
        )
    refuse_places({"-o": output}, (image,))
    if os.path.lexists(output) and (as_folder or not force):
        hint = "remove it, or name a new folder" if as_folder else "--force replaces it"
        raise BadInputError("exists already", where=str(output), hint=hint)


def request_for_venv(
    image: Path,
    files: Sequence[str],
    words: Sequence[str],
    *,
    replaced: Sequence[str] = (),
    has_project: HasProject | None = None,
) -> Request:
    """Return the request for an environment's packages. Raises BadInputError, also if there are none."""
    own = read_own(files, words, "the command line", replaced=replaced, has_project=has_project)
    asked = Request(str(image), own=own)
    if not asked.own_texts:
        raise BadInputError("no packages", hint="name them, or a file of them: -r requirements.txt")
    return asked


def plan_venv(image: Path, asked: Request, catalogue: Catalogue, sources: Sources, until: dt.date | None) -> VenvPlan:
    """Resolve packages beside those of an image.

    Raises BadInputError if `image` is not an image with a Python, RefusedError or FailedError if the packages conflict,
    MissingHereError without an index.
    """
    with open_image(image) as opened:
        refuse_empty(image, opened)
        refuse_not_runnable(image, opened)
        contents = Inventory(opened)
        of_image = contents.has
        if contents.python is None:
            raise BadInputError("has no Python to build an environment on", where=str(image))
        try:
            python = start_process(opened.root, contents.python.path, opened.environment)
        except NoPythonError as error:
            raise BadInputError(str(error), where=str(image)) from error
        has = versions_in(opened.root, python.path)
    if (target := PythonTarget.from_versions(of_image)) is None:
        raise BadInputError("its Python or C library is not known, so wheels cannot be chosen", where=str(image))
    asked = structs.replace(asked, brought=brought_by_layers(PlanContext(catalogue).layers()))
    sources.on_line(f"resolving {count(len(asked.own), 'requirement')} on top of {image.name}, for {target}")
    there = LayerRequirements("image", "", has=has)
    try:
        wheels = resolve_own([there], asked, target, sources, until=until, beside=() if "pip" in has else ("pip",))
    except FailedError as error:
        if error.hint:  # a layer is added to an image, not to an environment
            error.hint = error.hint.replace("--add ", f"lumiimg adapt {shell_quote(str(image))} --add ")
        raise
    if not any(wheel.name != "pip" for wheel in wheels):
        named = dict.fromkeys(one.name for one in asked.own)
        there_already = [f"{name} {has[name]}" for name in named if name in has]
        raise RefusedError(
            f"no environment is needed: the image already has everything ({', '.join(there_already[:_SHOWN])})",
            where=str(image),
        )
    record = VenvRecord(
        image=str(image.absolute()),
        image_mark=image_fingerprint(image),
        python=target.python,
        torch=of_image.get("torch"),
        requirements=asked.own_texts,
        packages={one.name: one.version for one in wheels},
        replaces={name: has[name] for name in sorted(asked.replaced)},
        made_by=f"lumiimg {__version__}",
    )
    doubt = next((f"{each.file} {each.what}" for each in python.questions), None)
    return VenvPlan(record, python.program, wheels, doubt)


def make_venv(
    plan: VenvPlan, output: Path, sources: Sources, environment: Mapping[str, str], *, as_folder: bool
) -> WrittenVenv:
    """Make the environment, under a temporary name until it is complete.

    Raises FailedError if it cannot be made, MissingHereError without an engine or mksquashfs.
    """
    engine = find_engine(environment)
    hint = f"{GET_MKSQUASHFS}; -o FOLDER/ needs none"
    mksquashfs = None if as_folder else mksquashfs_at(environment.get("PATH"), hint)
    files = sources.store.sources(plan.wheels, sources.on_line)
    with scratch_folder(output.absolute().parent if as_folder else sources.cache / "venv") as scratch:
        folder, wheels = scratch / "venv", scratch / "wheels"
        folder.mkdir()
        folder.chmod(0o755)
        wheels.mkdir()
        for source, path in files.items():
            shutil.copyfile(path, wheels / source.file)
        image = Path(plan.record.image)
        sources.on_line(f"making the environment in a container of {image.name}: {len(files)} packages")
        _fill(plan, engine, folder, wheels, environment)
        with atomic_file(folder / RECORD) as file:  # replaces a link that the image's Python may have put there
            file.write(to_json(plan.record).encode())
        (folder / RECORD).chmod(0o644)
        if mksquashfs is None:
            try:
                folder.rename(output)
            except OSError as error:
                raise FailedError(f"cannot be written: {error.strerror}", where=str(output)) from error
        else:
            with written_by_rename(output) as partial:
                pack(
                    *(mksquashfs, folder, partial, "-all-root", "-no-xattrs"),
                    within=lambda argv: run(argv, env=dict(environment), timeout_s=_LIMIT_S),
                )
    return WrittenVenv(plan.record, output.absolute(), plan.doubt)


def _fill(plan: VenvPlan, engine: Engine, folder: Path, wheels: Path, environment: Mapping[str, str]) -> None:
    """Make the environment, and compare it with the image. Raises FailedError."""
    image = Path(plan.record.image)
    with resources.as_file(resources.files("lumiimg.build").joinpath("venv_inside.py")) as script:

        def inside(*argv: str) -> Completed:
            binds, writable = ((wheels, _WHEELS), (script, _SCRIPT)), ((folder, MOUNT),)
            words = exec_words(engine, image, argv, binds=binds, writable=writable, apart=True)
            # files in the squashfs belong to root: nobody could read what only the owner may read
            masked = ["/bin/sh", "-c", 'umask 022; exec "$@"', "sh", *words]
            return run(masked, env=clean_environment(environment), timeout_s=_LIMIT_S)

        names = sorted(path.name for path in wheels.iterdir() if path.suffix == ".whl")
        commits = [one for one in plan.wheels if one.is_commit]
        pip = next(([f"{_WHEELS}/{name}/pip"] for name in names if name.startswith("pip-")), ["-m", "pip"])
        own_python = (f"{BIN}/python", "-s")
        first = inside(plan.python, "-s", _SCRIPT, "list")
        if not first.ok and not inside("/usr/bin/env").ok:  # an engine's exit status alone proves nothing
            raise not_started(engine, first.output, where=str(image))
        before = _listed(first)
        install = (*own_python, *pip, "install", *_PIP)
        steps: list[tuple[str, ...]] = [(plan.python, "-s", _SCRIPT, "make", MOUNT)]
        steps += [(*install, *(f"{_WHEELS}/{name}" for name in names))] if names else []
        for one in commits:  # their build tools are among the wheels
            variables = ("/usr/bin/env", f"SETUPTOOLS_SCM_PRETEND_VERSION={one.version}")
            steps.append((*variables, *install, "--no-build-isolation", f"{_WHEELS}/{one.file}"))
        for words in steps:
            if not (done := inside(*words)).ok:
                known = explain(done.output)
                what = known.meaning if known else one_line(done.last_line)[:300]
                hint = known.remedy if known else None
                raise FailedError(f"in the container: {what}", where=str(image), hint=hint)
        after = _listed(inside(*own_python, _SCRIPT, "list"))
        checked = inside(*own_python, *pip, "check", "--disable-pip-version-check")
    _refuse_wrong(plan.record, before, after, checked.output, {one.name for one in commits})


def _refuse_wrong(
    record: VenvRecord, before: _Listing, after: _Listing, checked: str, built: Collection[str] = ()
) -> None:
    """Raise FailedError unless a new environment has all packages of the image and all new ones, with their
    requirements.

    `checked` is the output of `pip check`; packages in `built` may have another version than their archive's name.
    """
    there = after.there
    if record.python != after.python:
        what = f"its Python is {after.python}, and its files are those of Python {record.python}"
        raise FailedError(what, where=record.image)
    before_it = {name: was for name, was in before.there.items() if name not in record.replaces}
    lost = [f"{name} {was} ({there.get(name, 'gone')})" for name, was in before_it.items() if there.get(name) != was]
    if lost:
        hint = "leave out the package that requires it: the image's packages must not change"
        raise FailedError(f"these packages of the image would be replaced: {', '.join(lost[:_SHOWN])}", hint=hint)
    own = record.packages
    known = own.items() - {(name, own[name]) for name in there.keys() & {*built}}
    if unseen := [f"{name} {version}" for name, version in sorted(known) if there.get(name) != version]:
        hint = "perhaps the image sets PYTHONHOME or PYTHONPATH"
        raise FailedError(f"its Python does not see the new packages: {', '.join(unseen[:_SHOWN])}", hint=hint)
    lines = [one_line(line) for line in checked.splitlines()]
    if unmet := [line for line in lines if any(f", but you have {name} " in line.lower() for name in record.replaces)]:
        hint = "name a version that fits the image's packages, or replace those too"
        raise FailedError("; ".join(unmet[:_SHOWN]), hint=hint)
    if unmet := [line for line in lines if line.partition(" ")[0] in own]:
        hint = "the index and the wheel itself disagree: name another version"
        raise FailedError("; ".join(unmet[:_SHOWN]), hint=hint)


@dataclass(frozen=True, slots=True)
class _Listing:
    """The packages that the Python in a container finds."""

    python: str
    """Its version, as `3.12`."""
    there: Mapping[str, str]
    """Versions of packages by name."""


def _listed(done: Completed) -> _Listing:
    """Return the listing printed by the Python in the container. Raises FailedError if there is none."""
    if done.ok:
        with suppress(DecodeError):
            return decode_json(done.last_line.encode(), _Listing)
    raise FailedError(f"cannot run the image's Python: {one_line(done.last_line)[:300]}")
