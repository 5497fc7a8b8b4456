"""What `show image.sif` prints: what an image says about how it was made."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from lumiimg.build.provenance import PLAN, SBOM, read_document
from lumiimg.errors import BadInputError, one_line
from lumiimg.image import open_image
from lumiimg.image.compare import COMPARED, DETAILS
from lumiimg.report.console import print_json
from lumiimg.wording import count

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from lumiimg.image.compare import FileDifference

SCHEMA = 1
_SHOWN = 20


def print_image(image: Path, *, as_json: bool) -> None:
    """Print an image's plan and what is in it. Raises BadInputError for an image that says nothing."""
    open_image(image).close()
    plan, bill = read_document(image, PLAN), read_document(image, SBOM)
    if plan is None:
        raise BadInputError(
            "does not say how it was built",
            where=str(image),
            hint="what it would use: lumiimg check; its files: lumiimg explain",
        )
    if as_json:
        print_json({"schema": SCHEMA, "image": str(image), "plan": plan, "sbom": bill})
        return
    base = plan.get("base") or {}
    made_for = f"fabric {plan.get('fabric')}, site {plan.get('site') or 'none'}"
    print(one_line(f"{image}: built by lumiimg {plan.get('lumiimg')}, {made_for}"))
    print(one_line(f"  from     {base.get('agent')} {base.get('from')}"))
    for layer in plan.get("layers") or []:
        version = f" {layer['version']}" if layer.get("version") else ""
        sources = len(layer.get("sources") or [])
        told = f", {count(sources, 'source')}" if sources else ""
        print(one_line(f"  layer    {layer.get('name')}{version}{told}"))
    kinds: dict[str, int] = {}
    for component in (bill or {}).get("components", []):
        kind = str(component.get("purl", "")).partition("/")[0].removeprefix("pkg:")
        kinds[kind] = kinds.get(kind, 0) + 1
    if kinds:
        names = (("deb", "Debian package"), ("pypi", "Python distribution"), ("generic", "source"))
        told = ", ".join(count(kinds[kind], name) for kind, name in names if kind in kinds)
        print(f"  holds    {told} (CycloneDX: --json, or /.lumiimg/{SBOM} in it)")
    print(one_line(f"  again    lumiimg rebuild {image} -o new.sif"))


def print_differences(
    differences: Sequence[FileDifference], compared: Sequence[str] = (*COMPARED, *DETAILS), *, as_json: bool
) -> None:
    """Print in which files two images differ, and where they do not, what was `compared`."""
    if as_json:
        files = [asdict(difference) for difference in differences]
        print_json({"schema": SCHEMA, "files": files, "compared": list(compared)})
        return
    for difference in differences[:_SHOWN]:
        print(one_line(f"  {difference.path}: {difference.what}"))
    if len(differences) > _SHOWN:
        print(f"  and {count(len(differences) - _SHOWN, 'file')} more; --json has all")
    if not differences:
        print(f"no difference: the same files, {', '.join(compared[:-1])} and {compared[-1]}")
        if missing := [name for name in DETAILS if name not in compared]:
            print(f"  not compared: {' and '.join(missing)}, which are read of SIF, squashfs and folders only")
