"""`build --html`: what each part of a build took, and what came from the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.report.html.bars import Bar, bars_figure
from lumiimg.report.html.page import Node, Section, element, page, table
from lumiimg.report.reach import LEGEND
from lumiimg.wording import count, duration, size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lumiimg.build.builder import BuiltImage
    from lumiimg.engine.engine import Engine
    from lumiimg.resolve.lock import Lock


def build_page(built: BuiltImage, lock: Lock | None, engine: Engine) -> str:
    """Return the account of a build as a page; `lock` is what it was built from, where that is known."""
    what = f"built in {duration(built.seconds)}" if built.is_new else "is this image already; nothing was built"
    kept = f"{built.reused_steps} of {count(built.steps, 'layer')} from the cache"
    parts = [
        Section("What each part took", list(_timeline(built))),
        Section("What is in it", list(_layers(lock)) if lock is not None else []),
        Section("What it is", [_facts(built, engine)]),
    ]
    facts = [size(built.size_bytes), kept, built.way, engine.name]
    return page("build", str(built.image), "ok", what, facts, parts)


def _timeline(built: BuiltImage) -> Iterator[Node]:
    whole = sum(stage.seconds for stage in built.stages) or 1.0
    start = 0.0
    bars: list[Bar] = []
    for stage in built.stages:
        if stage.reused:
            words = f"kept from an earlier build, {size(stage.size_bytes)}"
        else:
            cpu = f"cpu {duration(stage.cpu_seconds)}"
            words = f"took {duration(stage.seconds)} from {duration(start)} on, {cpu}, {size(stage.size_bytes)}"
        share = stage.seconds / whole
        bars.append(
            Bar(stage.name, words, start / whole, 0.0 if stage.reused else share, share if stage.reused else 0.0)
        )
        start += stage.seconds
    if bars:
        yield bars_figure(
            bars, "One part after the other, from the left. Filled: it was done; outlined: it was in the cache."
        )


def _layers(lock: Lock) -> Iterator[Node]:
    rows: list[Sequence[Node]] = []
    for layer in lock.stack:
        sources = element(
            "ul",
            *(
                element("li", element("code", s.location), f" sha256 {s.sha256}" if s.sha256 else "")
                for s in layer.sources
            ),
        )
        release = layer.release.version if layer.release else ""
        rows.append((layer.layer.name, release, layer.status, sources))
    yield table("Base and layers, in their order", ("layer", "release", "status", "sources"), rows)
    yield element("p", f"The status is that of the catalogue when it was built. {LEGEND}.")
    doubts = [f"{rule.because} ({rule.id}, {rule.outcome.value})" for rule in lock.doubts]
    if doubts:
        yield element("p", "In doubt:")
        yield element("ul", *(element("li", doubt) for doubt in doubts))


def _facts(built: BuiltImage, engine: Engine) -> Node:
    rows = (
        ("image", element("code", str(built.image))),
        ("key", element("code", built.key)),
        ("engine", element("code", f"{engine.name}, {engine.path}")),
        ("log", element("code", f"{built.image}.log")),
    )
    return table("For whoever asks later", ("what", "which"), rows)
