"""What a host adds to the check of an image's files: the process with its libraries bound, or why none loads."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from lumiimg.check.registry import Findings
from lumiimg.check.static.plugin import judge_plugin
from lumiimg.check.static.process_faults import judge_process
from lumiimg.check.static.result import StaticResult, files_of
from lumiimg.fabric.names import LIBCXI, LIBFABRIC
from lumiimg.fabric.path import Fabric
from lumiimg.findings import Code, Family, Level, Remedy, Severity
from lumiimg.toml import own_table
from lumiimg.wording import count

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lumiimg.host.manifest import BindManifest, Refusal

_GLIBC = re.compile(r"GLIBC_2\.(\d+)\b")
_LIBRARY = re.compile(r"[^ /]+\.so(\.[0-9.]+)?")
# about the process of the plugin with the image's files alone: another one takes its place
_OF_THE_PROCESS = frozenset({Family.PLUGIN, Family.PROVIDER, Family.FABRIC, Family.LIBRARY})


def with_host(static: StaticResult, manifest: BindManifest, *, host: str) -> StaticResult:
    """Return what the files say when a host's are there too; the result without them stays as it is."""
    if manifest.fabric is Fabric.NONE:
        return _refused(static, manifest, host) if manifest.host_has_fabric else static
    trial = manifest.trial
    plugin = next((item for item in manifest.loaded if item.object.name in static.path.plugin_files), None)
    if trial is None or plugin is None or trial.outcome.root is None:
        return static  # no plugin on either side: the finding that says so stands
    kept = [f for f in static.findings if f.id is Code.PROVIDER_EXCLUDED or f.id.family not in _OF_THE_PROCESS]
    found = Findings(Level.STATIC, kept)
    result = judge_plugin(trial.root, trial.outcome, trial.process, static, found)
    judge_process(trial.root, trial.process, found)
    libraries = [bind for bind in manifest.binds if bind.chain]
    if libraries:
        what = f"with {count(len(libraries), 'library')} of {host} bound, the plugin and all that it needs load"
        lines = tuple(f"{bind.source} at {bind.target}" for bind in libraries)
        found.add(Code.BIND_LOADS, Severity.OK, what, evidence=lines)
    for note in manifest.notes:
        found.add(Code.BIND_NOTE, Severity.INFO, note)
    opened, later = files_of(trial.root, trial.process)
    return replace(result, opened=opened, opened_by_libfabric=later, findings=tuple(found.found))


def _refused(static: StaticResult, manifest: BindManifest, host: str) -> StaticResult:
    # of several attempts, the one that the C library ends is the one that no bind can mend
    telling = next((r for r in manifest.refusals if r.need.startswith("GLIBC_")), manifest.refusals[-1])
    kept = [f for f in static.findings if f.id not in {Code.PLUGIN_NEEDS_HOST, Code.PROVIDER_NO_CXI}]
    found = Findings(Level.STATIC, kept)
    found.add(
        Code.BIND_REFUSED,
        Severity.PROBLEM,
        f"no set of binds of {host} loads: {telling.need} is needed, {telling.have}",
        evidence=tuple(refusal.words for refusal in manifest.refusals),
        chain=telling.chain,
        remedy=tuple(remedies(manifest.refusals)),
    )
    return replace(static, findings=tuple(found.found))


def remedies(refusals: Sequence[Refusal]) -> Iterator[Remedy]:
    """Yield sentences, nearest way first, for attempts that do not load."""
    for name in sorted({refusal.need for refusal in refusals if _LIBRARY.fullmatch(refusal.need)}):
        if name not in {LIBFABRIC, LIBCXI}:
            yield Remedy(f"install {name} in the image, or record the host's: `lumiimg host scan --include …`")
    if any(refusal.of_host for refusal in refusals):
        yield Remedy(
            "bundle the fabric: build libcxi, and libfabric with its cxi provider, in the image, in the versions of "
            "the machine's Slingshot release; then nothing of the host's libraries is bound",
            "lumiimg adapt {image} --site {site} --fabric bundled -o adapted.sif",
        )
    minors = [int(found[1]) for refusal in refusals if (found := _GLIBC.match(refusal.need))]
    if minors:
        enough = [
            f"{name} (glibc {version})"
            for name, version in own_table(__package__, "distributions.toml")["glibc"].items()
            if int(version.split(".")[1]) >= max(minors)
        ]
        named = ", ".join(enough) or "none is known here"
        yield Remedy(f"start from a base with glibc 2.{max(minors)} or newer: {named}")
    if any(refusal.need.startswith("FABRIC_") for refusal in refusals):
        yield Remedy(
            "build the plugin against the headers of the host's libfabric, as newer headers make it need a newer one: "
            "pack it with `tar` on the node (docs/tutorials/build-vllm.md), then lumiimg adapt {image} --site {site} "
            "--source host-libfabric=host-libfabric.tar -o adapted.sif"
        )
