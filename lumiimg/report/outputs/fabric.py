"""What is printed of an image beside a machine: binds, the account, drift, the loader."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, UnsetType, field

from lumiimg.check.drift import Fate
from lumiimg.check.static.comparisons import Outcome
from lumiimg.elf.objects import MissingVersion
from lumiimg.fabric.path import Fabric
from lumiimg.findings import Advice
from lumiimg.host.carried_manifest import CarriedManifest
from lumiimg.host.node_change import NodeChange
from lumiimg.host.snapshot import Snapshot
from lumiimg.report.outputs.gpu import CodeOnGpu
from lumiimg.report.outputs.shape import Output, Shape
from lumiimg.resolve.rules import RuleOutcome, RuleResult


class Loaded(Shape):
    """One file of the process, in the loader's order."""

    name: str
    """The name that it was first asked for by."""
    path: str
    """Where it is in the container."""
    host_path: str | None
    """Where it lies on the host; null for a file of the image."""


class Refusal(Shape):
    """Why one attempt to bind fails."""

    attempt: str
    """What was tried: the libfabric of the image, or one of the host by its path."""
    library: str
    """Path of the library that cannot be loaded, and whose it is."""
    need: str
    """What it needs: a version, a name."""
    have: str
    """What there is instead."""
    chain: tuple[str, ...]
    """Names from the program to this library, each needed by the one before."""
    words: str
    """What shows it: ld.so's own words, where it would print any."""


class Decision(Shape):
    """What the account of the image comes to."""

    decision: Outcome
    """Whether the fabric path loads."""
    fabric: Fabric
    """Where its libraries come from."""


class Bound(Shape):
    """One file or folder of the host in the container."""

    source: str
    """On the host."""
    target: str
    """In the container."""
    reason: str
    """Why, a sentence."""


class FabricBind(Bound):
    """A bind with what needs it."""

    chain: tuple[str, ...]
    """Names from the program to this library, each needed by the one before."""


class Environment(Shape):
    """Of one variable."""

    value: str
    """To set."""
    reason: str
    """Why, a sentence."""


class Bind(Output):
    """The least list of binds and variables for an image on a machine, or why there is none."""

    printed_by = "lumiimg bind IMAGE --host host.json --json"

    image: str
    """As it was named."""
    host: str
    """Node of the snapshot."""
    decision: Outcome
    """About the binds: `ok`, each library that is opened is found, in versions that fit."""
    fabric: Fabric
    """Where the fabric's libraries come from; `none`: no set of binds loads."""
    binds: tuple[FabricBind, ...]
    """What is to be bound."""
    environment: dict[str, Environment]
    """Variables to set for the container, by name."""
    loaded: tuple[Loaded, ...]
    """What the loader would have in the process of RCCL and its plugin."""
    refusals: tuple[Refusal, ...]
    """Of the attempts that do not work, in the order in which they were made."""
    notes: tuple[str, ...]
    """What is worth knowing and changes nothing."""
    doubts: tuple[str, ...]
    """What stands, or may stand, against RCCL's using what is bound; then `explain` does not say `ok`."""


class Glibc(Shape):
    """Versions of the C library."""

    image: str | None
    """The image's; null where it is not known."""
    host: str | None
    """The host's; null where it is not known, or there is no snapshot."""


class Margin(Shape):
    """Of one family of versions between two libraries."""

    library: str
    """Name of the one that needs."""
    from_: Literal["host", "image"] = field(name="from")
    """Whose it is."""
    provider: str
    """Name of the one that it is needed of."""
    provider_from: Literal["host", "image"]
    """Whose that is."""
    need: str
    """The newest that is needed: `GLIBC_2.34`."""
    have: str
    """The newest that is there."""


class ExplainImage(Output, kw_only=True):
    """What comes from where in the process of RCCL and its plugin, which versions meet, what margin is left."""

    printed_by = "lumiimg explain IMAGE [--host host.json] --json"

    image: str
    """As it was named."""
    host: str | None
    """Node of the snapshot; null without one."""
    decision: Outcome
    """The exit code says the same: `ok` 0, `refused` 1, `unknown` 3."""
    fabric: Fabric
    """Where the fabric's libraries come from."""
    plugin: str | None
    """Path of the net plugin; null where there is none."""
    torch: str | None
    """Its version with the local part; null where there is none."""
    glibc: Glibc
    """Versions of the C library."""
    rules: tuple[RuleResult, ...]
    """All comparisons."""
    nearest: None = None
    """Always null: of a request, see explain-request."""
    remedies: tuple[str, ...]
    """What to do, a command or a sentence each."""
    advice: Advice
    """One command of these; why is a part of the answer."""
    loaded: tuple[Loaded, ...]
    """The process, in the loader's order."""
    missing: tuple[str, ...]
    """Names that nothing serves."""
    margins: tuple[Margin, ...]
    """Pairs of versions that meet."""
    notes: tuple[str, ...]
    """What is worth knowing and changes nothing."""
    gpu: CodeOnGpu | None
    """Whether the GPU of --host, else of --site, takes the image's code; null where none of AMD's is known."""


class Taken(Shape):
    """By what a snapshot is known."""

    host: str
    """Node of the snapshot."""
    taken: str
    """UTC, ISO 8601."""


class Obstacle(Shape):
    """Why what is left of them does not load; null where it does."""

    need: str
    """What is needed."""
    have: str
    """What there is."""
    chain: tuple[str, ...]
    """Names from the program to the library, each needed by the one before."""


class SavedBinds(Shape):
    """What becomes of the binds that were made with the older snapshot."""

    hold: bool
    """Whether the image starts and loads with them."""
    gone: tuple[str, ...]
    """Paths that they name and the host does not have any more."""
    lack: tuple[str, ...]
    """What must be bound now, and was not before."""
    refusal: Obstacle | None
    """Why what is left of them does not load; null where it does."""


class Refused(Shape):
    """One rule."""

    id: str
    """Of the rule."""
    need: str
    """What is needed."""
    have: str
    """What there is."""


class Driver(Shape):
    """One rule."""

    outcome: RuleOutcome
    """What it says."""
    need: str
    """What is needed."""
    have: str
    """What there is."""
    because: str
    """Why."""


class ImageDrift(Shape):
    """One image."""

    image: str
    """As it was named."""
    fate: Fate
    """What becomes of it."""
    before: Decision
    """With the older snapshot."""
    now: Decision
    """With the newer snapshot and new binds."""
    saved_binds: SavedBinds
    """What becomes of the binds that were made with the older snapshot."""
    refused: tuple[Refused, ...]
    """What stands against it now; where it did not before, only that."""
    driver: tuple[Driver, ...]
    """What a GPU driver that changed makes of its ROCm."""
    notes: tuple[str, ...]
    """What was not seen."""
    remedies: tuple[str, ...]
    """What to do, a command or a sentence each."""


class UnreadImage(Shape):
    """An image that cannot be read."""

    image: str
    """As it was named."""
    why: str
    """What is wrong with it."""


class Drift(Output):
    """What a host update changed, and what that does to images."""

    printed_by = "lumiimg drift before.json [now.json] --json"

    answer: Literal["fine", "breaks", "undecided"]
    """The exit code says the same: `fine` 0, `breaks` 1, `undecided` 3, or 2 where an image cannot be read."""
    sentence: str
    """The answer for a person."""
    before: Taken
    """The older snapshot."""
    now: Taken
    """The newer snapshot, or this machine."""
    kinds: tuple[NodeChange, ...]
    """What shows that these are nodes of different kinds, and no drift."""
    changes: tuple[NodeChange, ...]
    """In the order in which they bear on images."""
    notes: tuple[str, ...]
    """What is worth knowing and changes nothing."""
    images: tuple[ImageDrift, ...]
    """Each image that was named and can be read."""
    unread: tuple[UnreadImage, ...]
    """Each other one."""


class File(Shape):
    """What the loader makes of this file."""

    closure: dict[str, str | None]
    """Needed name to path in the image, as ld.so prints them; null where nothing serves it."""
    errors: tuple[str, ...]
    """In ld.so's words: why it would not start."""
    warnings: tuple[str, ...]
    """In ld.so's words: what it would print and go on."""
    missing_versions: tuple[MissingVersion, ...]
    """Symbol versions that are not there."""


class Host(Output):
    """What a node offers to a container: the snapshot that --host takes."""

    printed_by = "lumiimg host scan -o host.json (or --json)"
    made_of = Snapshot
    omits = True


class Ldd(Output):
    """Which libraries files of an image would load, and what is missing."""

    printed_by = "lumiimg ldd IMAGE PATH… --json"

    files: dict[str, File]
    """What `ld.so FILE` loads, by the path in the image as it was named, or was found by `--all`."""
    by_kernel: dict[str, File] | UnsetType = UNSET
    """What a program loads that is started by its name, where that is something else; the key is there only then."""
    undecided: str | UnsetType = UNSET
    """Why there is no answer; the key is there only then."""
    notes: tuple[str, ...] | UnsetType = UNSET
    """What was not seen; the key is there only then."""


class BindManifest(Output):
    """What an image wants of a machine's fabric at run time."""

    printed_by = "/.lumiimg/bind-manifest.json in an image, a JSON object of the SIF too (build --manifest FILE)"
    made_of = CarriedManifest
    omits = True
