"""For which GPUs the wheels of a lock have code, found before anything is built: on the node it is too late.

A wheel is read where it lies: in the cache if it was fetched, else in parts at its index. What an index does not give
in parts is fetched where its name says that it is for ROCm: builds fetch it anyway.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.errors import BadInputError, FailedError, MissingHereError, RefusedError
from lumiimg.gpu.rule import node_gpu
from lumiimg.resolve.gpu_rules import GPU_CODE, of_components
from lumiimg.resolve.gpu_verdict import gpu_verdicts
from lumiimg.resolve.network.parallel import at_once
from lumiimg.resolve.network.ranges import RemoteFile
from lumiimg.resolve.rules import RuleOutcome, RuleResult
from lumiimg.resolve.wheel_code import wheel_code
from lumiimg.wording import count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lumiimg.catalog.sites import Site
    from lumiimg.gpu.target import GpuTarget
    from lumiimg.resolve.gpu_code import GpuCode
    from lumiimg.resolve.lock import Lock, LockedSource
    from lumiimg.resolve.pin import Sources

_ANY = "-any.whl"
_ROCM = "rocm"
_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class _Unread:
    """A wheel that could not be read, and so may have code for any GPU or none."""

    why: str


def with_gpus(lock: Lock, site: Site | None, sources: Sources) -> Lock:
    """Return the lock with the GPUs of its wheels, and what follows for the GPU of the site.

    Raises RefusedError where jobs would find no code.
    """
    wheels = {wheel for layer in lock.stack for wheel in layer.wheels if not wheel.file.endswith(_ANY)}
    if site is None or site.arch is None or not wheels:
        return lock
    gpu = node_gpu(site.arch)
    sources.on_line(f"looking into {count(len(wheels), 'wheel')} for GPU code")
    tasks = {wheel: partial(_read, wheel, gpu, sources) for wheel in sorted(wheels, key=lambda wheel: wheel.file)}
    found = at_once(tasks, _AT_ONCE, on_line=sources.on_line, stop=sources.web.stop)
    results = [result for wheel, read in found.items() for result in _results(wheel, read, gpu, site)]
    for result in results:
        if result.outcome is RuleOutcome.REFUSED:
            layer = next(layer for layer in lock.stack if any(result.have.startswith(_named(w)) for w in layer.wheels))
            hint = f"the releases of this layer, and where their wheels come from: lumiimg show {layer.name}"
            raise RefusedError(f"{result.because} (rule {result.id}: {result.sides})", hint=hint)
    stack = [
        replace(layer, wheels=tuple(replace(wheel, gpus=_gpus(found.get(wheel))) for wheel in layer.wheels))
        for layer in lock.stack
    ]
    return replace(lock, base=stack[0], layers=tuple(stack[1:]), rules=(*lock.rules, *results))


def _read(wheel: LockedSource, gpu: GpuTarget, sources: Sources, on_line: Callable[[str], None]) -> GpuCode | _Unread:
    try:
        path = _at_hand(wheel, sources)
        if path is None:
            try:
                return wheel_code(RemoteFile(sources.mirrors.rewrite(wheel.location), sources.web), gpu)
            except FailedError as error:
                if _ROCM not in wheel.file.lower():
                    return _Unread(error.what)
                path = sources.store.get(wheel.location, f"{wheel.sha256}", on_line)
        with path.open("rb") as file:
            return wheel_code(file, gpu)
    except (FailedError, MissingHereError, BadInputError) as error:
        return _Unread(error.what)
    except OSError as error:
        return _Unread(error.strerror or str(error))


def _at_hand(wheel: LockedSource, sources: Sources) -> Path | None:
    """Return the wheel as a file of this machine: its own, or in the cache."""
    if wheel.is_local:
        return Path(wheel.location)
    return sources.store.get(wheel.location, f"{wheel.sha256}") if sources.store.has(wheel) else None


def _results(wheel: LockedSource, read: GpuCode | _Unread, gpu: GpuTarget, site: Site) -> Iterator[RuleResult]:
    if not isinstance(read, _Unread):
        yield from of_components(gpu_verdicts(read, gpu), site, _named(wheel))
    elif _ROCM in wheel.file.lower():  # of others nobody expects GPU code of AMD's
        because = f"the GPU code of {_named(wheel)} was not read: {read.why}"
        yield RuleResult(GPU_CODE, RuleOutcome.UNKNOWN, f"code for {site.arch}", _named(wheel), because, "read by lock")


def _named(wheel: LockedSource) -> str:
    return f"{wheel.name} {wheel.version}"


def _gpus(read: GpuCode | _Unread | None) -> tuple[str, ...]:
    if read is None or isinstance(read, _Unread):
        return ()
    targets = {target.processor for file in read.files for each in file.bundles for target in each.targets}
    return tuple(sorted(targets, key=lambda name: (len(name), name)))
