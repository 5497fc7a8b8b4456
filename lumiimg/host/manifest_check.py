"""A list of binds that was made for a host as it was, tried with the host as it is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lumiimg.fabric.names import LIBFABRIC
from lumiimg.fabric.path import Fabric
from lumiimg.host import refusals
from lumiimg.host.bind_trial import BindPlan, attempt
from lumiimg.host.container_view import PRIVATE

if TYPE_CHECKING:
    from lumiimg.elf.rules import LoaderSettings
    from lumiimg.host.manifest import BindManifest, Refusal
    from lumiimg.image import RootFileSystem


@dataclass(frozen=True, slots=True)
class ManifestCheck:
    """What became of such a list, in a module or a job script that nobody wrote anew."""

    gone: tuple[str, ...]
    """Files that it names and that the host's snapshot does not have."""
    refusal: Refusal | None
    """Why what is left of it does not load; None where it does."""

    @property
    def holds(self) -> bool:
        """Whether it does today what it did. An engine that skips a bind may lack a library."""
        return not self.gone and self.refusal is None


def try_saved(
    manifest: BindManifest, root: RootFileSystem, settings: LoaderSettings, host: RootFileSystem
) -> ManifestCheck:
    """Return what a manifest for an earlier host comes to; `root` is the image's, `host` has today's files."""
    if manifest.fabric is not Fabric.HOST or manifest.trial is None:
        return ManifestCheck((), None)
    libraries = [bind for bind in manifest.binds if bind.target.startswith(f"{PRIVATE}/")]
    gone = tuple(bind.source for bind in libraries if not host.is_file(bind.source))
    names = {bind.target.removeprefix(f"{PRIVATE}/"): bind for bind in libraries if bind.source not in gone}
    plan = BindPlan("the binds made before", of_host=LIBFABRIC in names)
    for name, bind in names.items():
        plan.add(name, bind.source, bind.reason)
    trial = attempt(root, settings, manifest.trial.demand, host, plan)
    if trial.outcome.missing:
        refusal = refusals.missing(plan, trial, trial.outcome.missing[0]).refusal
        return ManifestCheck(gone, replace(refusal, have="neither the image nor the list has it"))
    if not trial.loads:
        return ManifestCheck(gone, refusals.cannot_load(plan, trial).refusal)
    return ManifestCheck(gone, None if trial.provider else refusals.no_provider(plan, trial).refusal)
