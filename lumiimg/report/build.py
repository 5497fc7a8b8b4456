"""What a build says: the plan, the start, the result."""

from __future__ import annotations

import shlex
import sys
import textwrap
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TextIO

from lumiimg import __version__
from lumiimg.definition.writer import FLAT
from lumiimg.errors import one_line
from lumiimg.report.console import print_json
from lumiimg.report.image import print_differences
from lumiimg.resolve.rules import Outcome
from lumiimg.wording import duration, size

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from lumiimg.build.builder import Built
    from lumiimg.build.progress import Stage
    from lumiimg.definition.writer import Definition
    from lumiimg.engine.engine import Engine
    from lumiimg.image.compare import FileDifference
    from lumiimg.resolve.lock import Lock

SCHEMA = 1
_WIDTH = 100


def print_plan(lock: Lock, chain: Sequence[Definition], *, as_json: bool) -> None:
    """Print what would be built, without building it."""
    if as_json:
        print_json({"schema": SCHEMA, "plan": plan_data(lock), "definitions": _definitions_data(chain)})
        return
    print(f"would build {_stack(lock)}")
    bootstrap = lock.bootstrap
    if lock.site is not None:
        print(f"  for {one_line(lock.site)}, fabric {lock.fabric.value}")
    mark = "" if lock.base.layer.status == "proved" else " (unproved)"
    print(one_line(f"  1. {lock.base.layer.name}: {bootstrap.agent} {bootstrap.origin} ({bootstrap.because}){mark}"))
    for number, layer in enumerate(lock.layers, start=2):
        mark = "" if layer.layer.status == "proved" else " (unproved)"
        release = f" {layer.release.version}" if layer.release else ""
        print(one_line(f"  {number}. {layer.layer.name}{release}: {layer.layer.summary}{mark}"))
        for name, value in ((name, value) for name, value in layer.arguments.items() if value):
            print(one_line(f"       {name}={shlex.quote(value)}"))
        for source in layer.sources:
            print(f"       {one_line(source.location)}")
            digest = f"sha256 {source.sha256} " if source.sha256 else ""
            print(f"       {digest}{f'({source.note})' if source.note else ''}".rstrip())
        for pin in layer.release.wheels if layer.release else ():
            print(f"       {one_line(pin)}")
    if any(layer.layer.status != "proved" for layer in lock.stack):
        print("  unproved: documented, never built end to end by the project")
    print_doubts(lock, sys.stdout)
    print("nothing was built; --definitions DIR writes the definition files")


def print_doubts(lock: Lock, stream: TextIO) -> None:
    """Print what the compatibility rules warn of, or could not tell."""
    for rule in lock.doubts:
        kind = "warning" if rule.outcome is Outcome.WARNING else "not known"
        text = one_line(f"{kind}: {rule.because} ({rule.id})")
        lines = textwrap.wrap(text, _WIDTH - 4, break_long_words=False, break_on_hyphens=False)
        print("  " + "\n    ".join(lines), file=stream)


def print_definitions(definitions: Sequence[Definition], folder: Path, *, as_json: bool) -> None:
    """Print which files were written, and how to build from them."""
    if as_json:
        print_json({"schema": SCHEMA, "folder": str(folder), "definitions": _definitions_data(definitions)})
        return
    for definition in definitions:
        print(folder / f"{definition.name}.def")
    print(f"\nbuild them in that folder:  cd {one_line(shlex.quote(str(folder)))}")
    for definition in definitions:
        is_flat = definition.name == FLAT
        if is_flat:
            print("or all at once:")
        options = "--fakeroot --no-https" if definition.plain_http else "--fakeroot"
        print(f"  apptainer build {options} {'image' if is_flat else definition.name}.sif {definition.name}.def")


def print_start(lock: Lock, engine: Engine, output: Path, way: str) -> None:
    """Say what is about to be built, and with what."""
    print(f"building {_stack(lock)} → {one_line(str(output))}  ({engine.name})", file=sys.stderr)
    print(f"  {one_line(way)}", file=sys.stderr)
    print(f"  {lock.base.layer.name} by {lock.bootstrap.agent}: {one_line(lock.bootstrap.because)}", file=sys.stderr)
    for layer in lock.stack:
        for source in layer.sources:
            if source.note:
                print(f"  {one_line(source.location)}: {source.note} (sha256 {source.sha256})", file=sys.stderr)
    print_doubts(lock, sys.stderr)


def print_built(
    built: Built,
    lock: Lock | None,
    engine: Engine,
    *,
    as_json: bool,
    quiet: bool,
    differences: Sequence[FileDifference] | None = None,
) -> None:
    """Say what was built, and what to do next; of a rebuild, in which files it differs (None: the same bytes)."""
    if as_json:
        print_json(
            {
                "schema": SCHEMA,
                "image": str(built.image),
                "key": built.key,
                "size_bytes": built.size_bytes,
                "seconds": round(built.seconds, 3),
                "steps": built.steps,
                "reused_steps": built.reused_steps,
                "strategy": built.way,
                "format": built.form,
                "is_new": built.is_new,
                "stages": [asdict(stage) for stage in built.stages],
                "engine": {"kind": engine.kind, "version": engine.version, "path": str(engine.path)},
                "plan": lock and plan_data(lock),
                **({} if lock else {"differences": differences and [asdict(one) for one in differences]}),
            }
        )
    elif not quiet:
        name = one_line(str(built.image))
        if built.is_new:
            print_stages(built.stages)
        if built.is_new:
            print(f"{name}: {size(built.size_bytes)} in {duration(built.seconds)} (log: {name}.log)")
        else:
            print(f"{name}: is this image already, by its number, {size(built.size_bytes)}; nothing was built")
        if lock is None:
            print_rebuilt(differences)
        if name == str(built.image):  # else the line could not be copied
            print(f"next: lumiimg check {'-- ' if name.startswith('-') else ''}{shlex.quote(name)}")


def print_rebuilt(differences: Sequence[FileDifference] | None) -> None:
    """Say whether the same came out again."""
    if differences is None:
        print("the same bytes as the image that it was built from")
    else:
        print("beside the image that it was built from:")
        print_differences(differences, as_json=False)


def print_stages(stages: Sequence[Stage]) -> None:
    """Print what a build took, part by part."""
    width = max((len(stage.name) for stage in stages), default=0)
    for stage in stages:
        took = "kept" if stage.reused else duration(stage.seconds)
        cpu = "" if stage.reused else f"cpu {duration(stage.cpu_seconds)}"
        print(one_line(f"  {stage.name:<{width}}  {took:>9}  {cpu:>14}  {size(stage.size_bytes):>9}"))


def plan_data(lock: Lock) -> dict[str, Any]:
    """Return a lock as JSON data."""
    return {
        "lumiimg": __version__,
        "bootstrap": {
            "agent": lock.bootstrap.agent,
            "from": lock.bootstrap.origin,
            "mirror": lock.bootstrap.mirror_url,
            "because": lock.bootstrap.because,
        },
        "layers": [
            {
                "name": layer.layer.name,
                "status": layer.layer.status,
                "arguments": dict(layer.arguments),
                "sources": [
                    {"file": source.file, "sha256": source.sha256, "location": source.location}
                    for source in layer.sources
                ],
            }
            for layer in lock.stack
        ],
        "doubts": [{"id": r.id, "outcome": r.outcome.value, "because": r.because} for r in lock.doubts],
    }


def _definitions_data(definitions: Sequence[Definition]) -> list[dict[str, Any]]:
    return [
        {"name": definition.name, "layers": list(definition.layers), "text": definition.text}
        for definition in definitions
    ]


def _stack(lock: Lock) -> str:
    return " + ".join(layer.layer.name for layer in lock.stack)
