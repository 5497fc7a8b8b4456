"""What `show image.sif` prints: what an image says about how it was made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lumiimg.build.provenance import SBOM, read_document, read_plan
from lumiimg.build.sbom import INCOMPLETE
from lumiimg.catalog.settings import user_cache
from lumiimg.errors import BadInputError
from lumiimg.fabric.path import Fabric
from lumiimg.host.carried_manifest import Basis, CarriedManifest, SettledBy, read_manifest
from lumiimg.image import open_image
from lumiimg.image.compare import COMPARED, DETAILS, FileDifference
from lumiimg.report.console import Console, console, detail, fact, heading, headline, print_json, proposal, say
from lumiimg.resolve.image_base import LOCAL_AGENTS
from lumiimg.wording import count

_SHOWN = 20
_MAX_LAYERS = 100
_MAX_LETTERS = 500
_MAX_LINES = 100
_SETTLED = {
    SettledBy.HOST: "settled with the snapshot of {}",
    SettledBy.SITE: "settled with what is published of {}",
    SettledBy.NOTHING: "no machine's fabric was known",
}
_BASIS = {Basis.IMAGE: "read from the files of the image", Basis.PLAN: "planned before it was built"}


def print_image(image: Path, *, as_json: bool) -> None:
    """Print an image's plan, what is in it, and its bind manifest. Raises BadInputError for one that says nothing."""
    with open_image(image, user_cache) as opened:
        manifest = read_manifest(opened.root)
    plan, bill = read_plan(image), read_document(image, SBOM)
    if plan is None and manifest is None:
        raise BadInputError(
            "does not say how it was built",
            where=str(image),
            hint="what it would use: lumiimg check; its files: lumiimg explain",
        )
    if as_json:
        print_json("show-image", image=image, plan=plan, sbom=bill, bind_manifest=manifest)
        return
    out = console()
    if plan is None:
        headline(out, f"{image}: built by an engine from definition files of lumiimg")
    else:
        _print_plan(out, image, plan, bill)
    if manifest is not None:
        print_manifest(out, manifest)
    if plan is not None:
        given = " --base FILE" if _base(plan, image).get("agent") in list(LOCAL_AGENTS) else ""
        proposal(out, f"lumiimg rebuild {image} -o new.sif{given}", word="again")


def _base(plan: Mapping[str, Any], image: Path) -> Mapping[str, Any]:
    return (_objects(plan, "base", image) or [{}])[0]


def _print_plan(out: Console, image: Path, plan: Mapping[str, Any], bill: Mapping[str, Any] | None) -> None:
    base = _base(plan, image)
    made_for = f"fabric {_word(plan.get('fabric'))}, site {_word(plan.get('site') or 'none')}"
    headline(out, f"{image}: built by lumiimg {_word(plan.get('lumiimg'))}, {made_for}")
    digest = f" (sha256 {_word(base['sha256'])})" if base.get("sha256") else ""
    fact(out, "from", f"{_word(base.get('agent'))} {_word(base.get('from'))}{digest}")
    layers = _objects(plan, "layers", image)
    for layer in layers[:_MAX_LAYERS]:
        version = f" {_word(layer['version'])}" if layer.get("version") else ""
        sources = len(_objects(layer, "sources", image))
        told = f", {count(sources, 'source')}" if sources else ""
        if isinstance(asked := layer.get("requirements"), list) and asked:
            told += f", for {', '.join(map(_word, asked[:_SHOWN]))}{' …' if len(asked) > _SHOWN else ''}"
        fact(out, "layer", f"{_word(layer.get('name'))}{version}{told}")
    if len(layers) > _MAX_LAYERS:
        detail(out, f"and {count(len(layers) - _MAX_LAYERS, 'layer')} more; --json has all")
    kinds: dict[str, int] = {}
    for component in _objects(bill or {}, "components", image):
        kind = _word(component.get("purl", "")).partition("/")[0].removeprefix("pkg:")
        kinds[kind] = kinds.get(kind, 0) + 1
    if kinds:
        names = (("deb", "Debian package"), ("pypi", "Python distribution"), ("generic", "source"))
        told = ", ".join(count(kinds[kind], name) for kind, name in names if kind in kinds) or "nothing that is known"
        fact(out, "holds", f"{told} (CycloneDX: --json, or /.lumiimg/{SBOM} in it)")
    for metadata in _objects(bill or {}, "metadata", image):
        unknown = [one.get("value") for one in _objects(metadata, "properties", image) if one.get("name") == INCOMPLETE]
        for what in unknown[:_MAX_LAYERS]:
            fact(out, "not known", _word(what))


def _objects(document: Mapping[str, Any], key: str, image: Path) -> list[Mapping[str, Any]]:
    """Return the objects of a list, or the one that is not a list; nothing where there is none.

    Raises BadInputError for anything else: what an image says may be anybody's.
    """
    value = document.get(key)
    found = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(one, dict) for one in found):
        raise BadInputError(f"what it says of how it was built is damaged, at {key!r}", where=str(image))
    return found


def _word(value: object) -> str:
    return str(value)[:_MAX_LETTERS]


def print_differences(
    differences: Sequence[FileDifference],
    compared: Sequence[str] = (*COMPARED, *DETAILS),
    *,
    as_json: bool = False,
    quiet: bool = False,
) -> None:
    """Print in which files two images differ, and where they do not, what was `compared`."""
    if as_json:
        print_json("diff-images", files=differences, compared=compared)
        return
    out = console(quiet=quiet)
    if differences:
        headline(out, f"{count(len(differences), 'file')} differ" + ("s" if len(differences) == 1 else ""))
    else:
        headline(out, f"no difference: the same files, {', '.join(compared[:-1])} and {compared[-1]}")
    for difference in differences[:_SHOWN]:
        detail(out, f"{difference.path}: {difference.what}")
    if len(differences) > _SHOWN:
        detail(out, f"and {count(len(differences) - _SHOWN, 'file')} more; --json has all")
    if not differences and (missing := [name for name in DETAILS if name not in compared]):
        detail(out, f"not compared: {' and '.join(missing)}, which are read of SIF, squashfs and folders only")


def print_manifest(out: Console, manifest: CarriedManifest) -> None:
    """Print which libraries of the host the image wants, where, why, and what else it needs there."""
    number = len(manifest.libraries)
    wanted = f"{number or 'no'} {'library' if number == 1 else 'libraries'} of the host"
    refused = ", which do not load in it" if number and manifest.fabric is Fabric.NONE else ""
    heading(out, f"bind manifest: {wanted}{refused}, {_BASIS[manifest.basis]}")
    detail(out, manifest.because)
    detail(out, _SETTLED[manifest.settled_by].format(manifest.machine))
    for library in manifest.libraries[:_MAX_LINES]:
        fact(out, "library", f"{library.soname} at {library.target}: {library.reason}")
        if library.host_path:
            detail(out, f"    from {library.host_path}")
        if len(library.chain) > 1:
            detail(out, f"    {' -> '.join(library.chain)}")
    for margin in manifest.versions[:_MAX_LINES]:
        have = f"it has up to {margin.family}_{margin.have}" if margin.have else "not seen"
        need = f"{margin.family}_{margin.need} of {margin.provider_side}"
        fact(out, "version", f"{margin.library_side} needs {need}: {have}")
    for device in manifest.devices[:_MAX_LINES]:
        fact(out, "device", f"{device.path}: {device.reason}")
    for variable in manifest.variables[:_MAX_LINES]:
        value = f"={variable.value}" if variable.value is not None else ""
        fact(out, "variable", f"{variable.name}{value}: {variable.reason}")
    for doubt in manifest.doubts[:_MAX_LINES]:
        fact(out, "open", doubt)
    parts = (manifest.libraries, manifest.versions, manifest.devices, manifest.variables, manifest.doubts)
    if any(len(part) > _MAX_LINES for part in parts):
        say(out, "more than is shown here; --json has all", first="  ")
