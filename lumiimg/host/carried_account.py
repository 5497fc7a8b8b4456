"""What an image's own bind manifest comes to, held against what the files of the image and a node show.

Nothing that a manifest says makes an answer better. Without a node, a job takes its paths from one that was settled
with a snapshot, where the files of the image agree with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg.fabric.names import PRIVATE
from lumiimg.fabric.path import Fabric
from lumiimg.fabric.provider import PROVIDER_PATH
from lumiimg.host.bind_trial import BindPlan, Demand, attempt
from lumiimg.host.carried_manifest import Basis, CarriedManifest, ManifestError, SettledBy, differences, read_manifest
from lumiimg.host.manifest import Bind, BindManifest, Variable
from lumiimg.host.wanted import by_itself, settled

if TYPE_CHECKING:
    from lumiimg.elf.rules import LoaderSettings
    from lumiimg.host.snapshot import Snapshot
    from lumiimg.image import RootFileSystem

_PATHS = ("LD_LIBRARY_PATH", PROVIDER_PATH)


@dataclass(frozen=True, slots=True)
class CarriedAccount:
    """The manifest that an image carries, and what is to be said of it."""

    manifest: CarriedManifest | None
    """None where the image carries none, or one that cannot be read."""
    against: tuple[str, ...] = ()
    """Why it cannot be read, or in what it differs from what was found: clauses."""

    @property
    def sentence(self) -> str | None:
        """What a person should know; None of an image that carries none."""
        if self.manifest is None:
            return f"the bind manifest that the image carries is not used: {self.against[0]}" if self.against else None
        how = f"settled with {self.manifest.machine}" if self.manifest.machine else "not settled with any machine"
        how += ", planned before the build" if self.manifest.basis is Basis.PLAN else ""
        if self.against:
            return f"the bind manifest that the image carries ({how}) differs: {'; '.join(self.against)}"
        return f"the bind manifest that the image carries ({how}) agrees with what is found"


def account_of(
    root: RootFileSystem,
    settings: LoaderSettings,
    demand: Demand | None,
    found: BindManifest | None = None,
    snapshot: Snapshot | None = None,
) -> CarriedAccount:
    """Return the manifest of an image beside what its files show, and with `found` what a node gives it."""
    try:
        carried = read_manifest(root)
    except ManifestError as error:
        return CarriedAccount(None, (str(error),))
    if carried is None or demand is None:
        return CarriedAccount(carried)
    if found is not None and snapshot is not None:
        return CarriedAccount(carried, tuple(differences(carried, settled(found, snapshot))))
    alone = by_itself(attempt(root, settings, demand, root, BindPlan("the image's own files")))
    # that nothing of a node fits, or that it gives what the image lacks, the files alone do not show
    known = carried.settled_by is SettledBy.HOST and Fabric.NONE in {carried.fabric, alone.fabric}
    return CarriedAccount(carried, () if known else tuple(differences(carried, alone)))


def binds_of(account: CarriedAccount) -> BindManifest | None:
    """Return the binds of a manifest for a job on a machine that is not seen; None where it has none to be trusted.

    Only shared libraries, and only into the folder that nothing else uses (`carried_manifest.read_manifest`).
    """
    manifest = account.manifest
    if manifest is None or account.against or manifest.fabric is not Fabric.HOST or manifest.basis is Basis.PLAN:
        return None
    binds = [Bind(one.host_path, one.target, one.reason, one.chain) for one in manifest.libraries if one.host_path]
    if not binds or len(binds) != len(manifest.libraries):
        return None
    variables = [
        Variable(one.name, one.value, one.reason)
        for one in manifest.variables
        if one.name in _PATHS and one.value is not None and one.value.split(":")[0].startswith(PRIVATE)
    ]
    return BindManifest(Fabric.HOST, tuple(binds), tuple(variables))


def without_node(account: CarriedAccount) -> tuple[BindManifest | None, str | None]:
    """Return what to bind where no node is seen, and what a person should know of it."""
    manifest = binds_of(account)
    if manifest is None or account.manifest is None:
        return None, account.sentence if account.against else None
    why = (
        "no node was looked at: the libraries that are bound are those of the bind manifest that the image carries, "
        f"settled with {account.manifest.machine}. --host FILE settles them with a node of today"
    )
    return manifest, why
