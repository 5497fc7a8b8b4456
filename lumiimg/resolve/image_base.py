"""Somebody else's image as a base: read first, so that its software is neither installed again nor shadowed.

Rule 7 is about it: whether its GPU code is for the site. Known troubles of layers with the same names apply to it, too.
"""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from lumiimg.catalog.layers import Bootstrap, Layer
from lumiimg.core.errors import BadInputError
from lumiimg.engine.engine import engine_word
from lumiimg.fetch.mirrors import refuse_password
from lumiimg.fetch.registry import DAEMON_SCHEME
from lumiimg.gpu import XNACK, GpuFit, role_of
from lumiimg.resolve.rules import RuleOutcome, RuleResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from lumiimg.catalog.catalogue import Catalogue
    from lumiimg.catalog.layers import KnownTrouble
    from lumiimg.catalog.sites import Site
    from lumiimg.inventory.components import Inventory
    from lumiimg.inventory.gpu_fit import ComponentFit

LOCAL = "localimage"
_AGENTS = {
    "sif": LOCAL,
    "squashfs": LOCAL,
    "folder": LOCAL,
    "oci-layout": "oci",
    "oci-archive": "oci-archive",
    "docker-archive": "docker-archive",
}
"""Bootstrap agent for each kind of image. Source: Apptainer user guide, definition files."""
LOCAL_AGENTS = frozenset(_AGENTS.values())
"""Agents that read a file or a folder of this machine."""
_IN_REGISTRY = re.compile(r"[a-z0-9][a-z0-9._-]*(/[a-z0-9._-]+)+(:[\w.-]+|@sha256:[0-9a-f]{64})", re.ASCII)
_REMOTE = re.compile(r"[a-z-]+://")


_OUTCOMES = {
    GpuFit.RUNS: RuleOutcome.OK,
    GpuFit.PART: RuleOutcome.OK,
    GpuFit.UNKNOWN: RuleOutcome.UNKNOWN,
    GpuFit.XNACK: RuleOutcome.WARNING,
    GpuFit.NO: RuleOutcome.REFUSED,
}
_GPU_SOURCE = "read in the image; LLVM AMDGPUUsage, target ID (lumiimg/gpu/targets.toml, roles.toml)"
_KERNELS = {"sglang": "sgl-kernel", "vllm": "vLLM _C"}
"""Name of a layer's GPU code, if that differs from the layer's name."""


class ForeignBase(Layer, frozen=True, kw_only=True):
    """An image as a base."""

    gpu: tuple[ComponentFit, ...] = ()
    """Whether the site's GPU runs its code, by component; empty if no GPU is known or the image is not here."""


def read_foreign(base: str, pull: Callable[[str], Path], site: Site | None = None) -> ForeignBase:
    """Return an image as a base, with its contents; `pull` fetches one from a registry, `site` has the GPU.

    Raises BadInputError for anything that is not an image, and what `pull` raises.
    """
    refuse_password(base, "--base")
    if not base.isprintable():
        raise BadInputError(
            "its name has unprintable characters, and a definition must name it", where=base, hint="rename it"
        )
    if (scheme := _REMOTE.match(base)) is not None and scheme[0] not in {"docker://", DAEMON_SCHEME}:
        raise BadInputError(
            "this kind of address is not supported",
            where=base,
            hint=f"fetch it first: {engine_word()} pull image.sif {base}; then name image.sif",
        )
    if scheme is None and _IN_REGISTRY.fullmatch(base) and not Path(base).exists():
        raise BadInputError("no such file", where=base, hint=f"for an image in a registry: docker://{base}")
    from lumiimg.catalog.settings import user_cache
    from lumiimg.image import ImageError, open_image, refuse_empty  # 70 ms, not for a base of the catalogue
    from lumiimg.inventory.components import Inventory

    path = Path(base) if scheme is None else pull(base)
    try:
        with open_image(path, user_cache) as image:
            refuse_empty(path, image)
            found = local_base(path, Inventory(image), site)
    except ImageError as error:
        if scheme is None:
            raise
        from lumiimg.fetch.pull import drop_damaged  # loads HTTP, which a file does not need

        drop_damaged(path)
        raise ImageError(error.what, where=base, hint=error.hint or "fetch or build the image again") from error
    if scheme is None:
        return found
    name = base.removeprefix(scheme[0])
    if scheme[0] == DAEMON_SCHEME:
        return structs.replace(found, name=_name_of(name))
    # build on the image that was read, whatever the tag means by then
    origin = name if "@" in name else f"{name}@sha256:{path.name}"
    return foreign_layer("docker", origin, found.has, found.provides, found.gpu)


def local_base(path: Path, contents: Inventory, site: Site | None = None) -> ForeignBase:
    """Return an image on this machine as a base; the GPU of `site` is to run its code."""
    image, account = contents.image, None
    if site is not None and site.arch is not None:
        from lumiimg.host.container_view import gpu_of_machine
        from lumiimg.host.jobs import loaded_in_jobs
        from lumiimg.inventory.gpu_fit import account_of_gpu

        account = account_of_gpu(contents, gpu_of_machine(None, site), image.environment.get, loaded_in_jobs(image))
    gpu = account.parts if account else ()
    if image.is_in_doubt(XNACK):
        why = f"only a shell knows what scripts of the image set {XNACK} to"
        gpu = tuple(replace(part, fit=GpuFit.UNKNOWN, why=why) if part.fit is GpuFit.NO else part for part in gpu)
    return foreign_layer(_AGENTS[image.kind.value], str(path.absolute()), contents.has, contents.provides, gpu)


def read_bases(
    base: str, catalogue: Catalogue, pull: Callable[[str], Path], site: Site | None = None
) -> dict[str, Layer]:
    """Return the base by its name if it is an image to read: the user's own, or a file that a site has.

    A name in the catalogue takes precedence over a file of that name. Raises as `read_foreign` does.
    """
    if catalogue.knows(name := base.replace("/", "-")) and name != base and not Path(base).exists():
        raise BadInputError("no such file", where=base, hint=f"did you mean {name}?")
    if "/" in base or (not catalogue.knows(base) and Path(base).exists()):
        return {base: read_foreign(base, pull, site)}
    files = (one.origin for one in catalogue.base(base).bootstraps if one.agent == LOCAL and Path(one.origin).is_file())
    file = next(files, None)
    return {base: read_foreign(file, pull, site)} if file else {}


def foreign_layer(
    agent: str, origin: str, has: Mapping[str, str], provides: Sequence[str], gpu: tuple[ComponentFit, ...] = ()
) -> ForeignBase:
    """Return an image as a base, from what was read in it."""
    return ForeignBase(
        name=_name_of(origin),
        folder=Path(origin),
        summary="an image of yours",
        source="read in the image",
        date=dt.date.min,
        provides=tuple(provides),
        has=has,
        bootstraps=(Bootstrap(agent, origin),),
        is_foreign=True,
        gpu=gpu,
    )


def _name_of(origin: str) -> str:
    """Return the name of an image in a plan, from its path or address."""
    name = Path(origin).name.lower().partition("@")[0].removesuffix(".sif")
    return re.sub(r"[^a-z0-9.-]+", "-", name).strip("-.")[:48] or "image"


def gpu_code(base: ForeignBase, site: Site | None) -> Iterator[RuleResult]:
    """Rule 7: what jobs of an image call must have code for the site's GPU. Layers on top do not add it."""
    if site is None or site.arch is None:
        return
    need, gpu = f"code for {site.arch}", f"{site.arch}, the GPU of {site.name}"
    for fit, outcome in _OUTCOMES.items():
        if not (parts := [part for part in base.gpu if part.needed and part.fit is fit]):
            continue
        names = ", ".join(part.component for part in parts)
        have = ", ".join(f"{part.component}: {part.has}" for part in parts)
        if outcome is RuleOutcome.OK:
            have, because = names, f"{names}: {site.arch} takes it"
        elif fit is GpuFit.NO:
            because = f"no code for {gpu}: {'; '.join(f'{part.component}: {part.without}' for part in parts)}"
        else:
            because = f"{names}: {f'only with {XNACK}=1 in the job' if fit is GpuFit.XNACK else parts[0].why}"
        yield RuleResult("gpu-code", outcome, need, have, because, _GPU_SOURCE)
    for part in base.gpu:
        if not part.needed and part.fit is GpuFit.NO and not role_of(part.component).harmless:
            have, because = f"{part.component}: {part.has}", f"jobs run without {part.component}; {part.without}"
            yield RuleResult("gpu-code", RuleOutcome.WARNING, need, have, because, _GPU_SOURCE)


def known_troubles(base: ForeignBase, layers: Iterable[Layer]) -> Iterator[KnownTrouble]:
    """Yield the known troubles of an image's software, except those that a layer beside it would mend.

    What its own files show counts more, and trouble with software that no job needs is only a warning.
    """
    runs = {part.component for part in base.gpu if part.fit in {GpuFit.RUNS, GpuFit.PART}}
    for layer in layers:
        kernels = _KERNELS.get(layer.name, layer.name)
        is_there = layer.name in base.has or ("torch" in base.has and "torch" in layer.provides)
        for trouble in layer.troubles if is_there else ():
            if not trouble.unless and not (trouble.refused and kernels in runs):
                yield trouble if role_of(kernels).needed else structs.replace(trouble, outcome="warning")
