"""The GPU code of an image on a page: a box for each component, with what the GPU of the machine makes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.gpu.rule import GpuFit
from lumiimg.report.gpu_code import mark_of
from lumiimg.report.html.page import element, left_out
from lumiimg.wording import count

if TYPE_CHECKING:
    from xml.etree import ElementTree as ET

    from lumiimg.check.static.gpu_code import GpuAccount
    from lumiimg.resolve.gpu_verdict import GpuVerdict

GPU_CODE = "GPU code"
_BOXES = 40
_KINDS = {GpuFit.RUNS: "ok", GpuFit.PART: "ok", GpuFit.UNKNOWN: "unknown"}


def gpu_boxes(account: GpuAccount | None) -> list[ET.Element]:
    """Return the boxes; nothing where there is no account."""
    if account is None:
        return []
    which = f"Whether {account.gpu}, the GPU of {account.machine}, takes the code of each component."
    boxes = [_box(part, account.processor) for part in account.parts[:_BOXES]]
    shown = element("ul", *boxes, class_="gpus") if boxes else element("p", "No GPU code of AMD's was found.")
    return [
        element("figure", shown, element("figcaption", which, class_="quiet")),
        *left_out(len(account.parts), _BOXES, "components"),
    ]


def _box(part: GpuVerdict, processor: str) -> ET.Element:
    kind = "problem" if part.stands_against else _KINDS.get(part.fit, "beside")
    words = f"{processor} {mark_of(part)}" if part.fit in _KINDS else mark_of(part)
    lines = [element("p", part.component, class_="component"), element("p", words, class_="mark")]
    if part.fit not in {GpuFit.RUNS, GpuFit.PART}:
        lines.append(element("p", part.why or part.without, class_="quiet"))
    if not part.needed:
        lines.append(element("p", "beside the path: not every job calls it", class_="quiet"))
    where = (
        part.paths[0] if len(part.paths) == 1 else f"{part.paths[0]}, and {count(len(part.paths) - 1, 'place')} more"
    )
    return element("li", *lines, class_=f"gpu {kind}", title=where)
