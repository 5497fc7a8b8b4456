"""Read from an image what its jobs depend on: its stack, its Python, its binds, and notes for the user."""

from __future__ import annotations

import os
import posixpath
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from msgspec import structs

from lumiimg.check.context import open_for_check
from lumiimg.check.static.files import check_files
from lumiimg.cluster.binds import blocking_settings, manifest_for, refuse_unsafe, site_binds
from lumiimg.cluster.quoting import NOT_IN_PATHS
from lumiimg.core.errors import BadInputError, FailedError, RefusedError
from lumiimg.engine.binds import parse_binds
from lumiimg.fabric.path import Fabric
from lumiimg.gpu import GpuFit, role_of
from lumiimg.host.container_view import gpu_of_machine, without_host_binds, wrong_processors
from lumiimg.host.image_manifest import MANIFEST_PATH
from lumiimg.host.jobs import loaded_in_jobs
from lumiimg.host.manifest import Bind
from lumiimg.inventory.gpu_fit import account_of_gpu
from lumiimg.inventory.python import note_of_program
from lumiimg.resolve.driver_rule import driver_of_node
from lumiimg.resolve.stack import stack_of
from lumiimg.resolve.venv import notes_of_venv

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from lumiimg.catalog.sites import Site
    from lumiimg.check.context import ImageInContext
    from lumiimg.check.static.files import HostFit
    from lumiimg.cluster.job.shape import JobRequest
    from lumiimg.host.manifest import BindManifest
    from lumiimg.host.snapshot import Snapshot
    from lumiimg.inventory.python import Python
    from lumiimg.resolve.stack import Stack

_MOUNTED = ("/dev", "/proc", "/sys", "/tmp", "/var/tmp")  # noqa: S108 - names, nothing is made there
"""Paths that engines mount by default (apptainer.conf: mount dev, mount proc, mount sys, mount tmp)."""


@dataclass(frozen=True, slots=True)
class JobImage:
    """What an image, and a scanned node, mean for a job."""

    stack: Stack
    site: Site
    """The site, with the driver of the node if one was scanned."""
    python: Python | None
    variables: Mapping[str, str]
    """Environment variables set by the image."""
    manifest: BindManifest | None
    """Binds and variables that its fabric path requires; None: nothing is known about that."""
    fit: HostFit | None
    """Result of checking those binds, if any."""
    binds: tuple[Bind, ...]
    """All binds of the job."""
    notes: tuple[str, ...]
    """Notes for the user."""


def read_image(
    request: JobRequest, path: Path, site: Site, snapshot: Snapshot | None, environment: Mapping[str, str]
) -> JobImage:
    """Read an image for a job.

    Raises RefusedError for an image for other processors, FailedError if nothing that could be bound loads,
    BadInputError for a bind of the request that no engine accepts.
    """
    venv = request.venv
    with open_for_check(path, without_host_binds(environment), snapshot, site, venv=venv) as context:
        alone = replace(context, image=context.plain, venv=None) if venv else context
        if (lacking := wrong_processors(alone.image, (), None, site)) is not None:
            raise RefusedError(lacking, where=str(path), hint="build the image, or pull it, for them")
        is_looked_at = snapshot is not None or alone.image.root.exists(MANIFEST_PATH)
        fit = check_files(alone, with_site=True).with_remedies(alone) if is_looked_at else None
        manifest, doubt = manifest_for(fit, snapshot, site)
        _refuse_without_fabric(path, manifest)
        binds = _with_own(manifest.binds if manifest else site_binds(site), request)
        refuse_unsafe(binds, (), "job")
        python = alone.contents.python
        of_venv = notes_of_venv(venv, context.path, alone.contents.has) if venv else ()
        programs = [*request.command[:1], *(["taskset"] if request.torchrun else [])]
        of_programs = (note_of_program(program, context.image, python) for program in programs)
        return JobImage(
            stack=stack_of(alone.contents, venv.packages if venv else None),
            site=structs.replace(site, driver=driver_of_node(site.driver, snapshot)) if snapshot else site,
            python=python,
            variables=alone.image.environment,
            manifest=manifest,
            fit=fit if manifest is not None else None,
            binds=binds,
            notes=(
                *_notes_of_gpu(alone),
                *(blocking_settings(alone) if fit is None and request.nodes > 1 else ()),
                *of_venv,
                *filter(None, (*of_programs, doubt)),
                *_unbound(context, [*request.command, *filter(None, [request.caches])], binds),
            ),
        )


def _refuse_without_fabric(image: Path, manifest: BindManifest | None) -> None:
    if manifest is not None and manifest.fabric is Fabric.NONE:
        why = f": {manifest.refusals[-1]}" if manifest.refusals else ""
        raise FailedError(
            f"no libfabric with the cxi provider loads in it{why}",
            where=str(image),
            hint="`lumiimg explain IMAGE --host FILE` lists everything tried; without --host, a job stays on TCP",
        )


def _with_own(binds: tuple[Bind, ...], request: JobRequest) -> tuple[Bind, ...]:
    """Return binds together with the user's own, which win where both have the same target."""
    wanted: dict[str, Bind] = {}
    for text in request.binds:
        for one in parse_binds(text):
            target = one.target.rstrip("/")
            if NOT_IN_PATHS.search(one.source + target):
                raise BadInputError("a path with such characters cannot be bound", where=f"--bind {text}")
            if not target:
                raise BadInputError("would hide the whole image", where=f"--bind {text}")
            bind = Bind(one.source, target, "as you asked (--bind)", read_only=one.read_only)
            if wanted.setdefault(target, bind) != bind:
                hint = "name each target once"
                raise BadInputError("another bind has this target", where=f"--bind {text}", hint=hint)
    if wanted:
        both = (*(bind for bind in binds if bind.target not in wanted), *wanted.values())
        # bind a folder before anything below it, which it would hide otherwise
        binds = tuple(sorted(both, key=lambda bind: bind.target.count("/")))
    return (*binds, request.venv.bind(read_only=True)) if request.venv else binds


def _notes_of_gpu(context: ImageInContext) -> Iterator[str]:
    """Yield notes on what the GPU code of an image means for its jobs."""
    machine = gpu_of_machine(context.snapshot, context.site)
    account = account_of_gpu(context.contents, machine, context.variable, loaded_in_jobs(context.image))
    if account is None:
        return
    gpu = f"{account.processor}, the GPU of {account.machine},"
    for part in account.parts:
        if part.needed and part.fit is GpuFit.NO:
            yield f"this job will fail: no code for {gpu} in {part.component} ({part.has}): {part.without}"
        elif part.needed and part.fit is GpuFit.XNACK:
            yield f"this job will fail unless it sets HSA_XNACK=1: {part.component} has code for {gpu} only with it"
        elif part.needed and part.fit is GpuFit.UNKNOWN:
            yield f"whether {part.component} has code for {gpu} is not known: {part.why}"
        elif part.fit is GpuFit.NO and not role_of(part.component).harmless:
            yield f"no code for {gpu} in {part.component} ({part.has}): {part.without}"


def _unbound(context: ImageInContext, words: Iterable[str], binds: Iterable[Bind]) -> Iterator[str]:
    """Yield a note for each absolute path, a word or after a `=`, that is neither in the image nor under a bind.

    The note names the topmost missing folder on that path: a bind there hides no file of the image.
    """
    mounted = os.getcwd(), os.path.expanduser("~")  # noqa: PTH109, PTH111 - engines mount these by default
    known = [*_MOUNTED, *(folder for folder in mounted if folder != "/"), *(bind.target for bind in binds)]
    said: set[str] = set()
    for word in words:
        path = word if word.startswith("/") else word.partition("=")[2]
        if not path.startswith("/") or path.startswith("//"):
            continue
        parts = posixpath.normpath(path).split("/")
        above = ["/".join(parts[:depth]) for depth in range(2, len(parts) + 1)]
        if not any(folder in known for folder in above):
            folder = next((folder for folder in above if not context.image.root.exists(folder)), None)
            if folder is not None and folder not in said:
                said.add(folder)
                yield f"{above[-1]} is neither in the image nor under a bind of the job: add --bind {folder}"
