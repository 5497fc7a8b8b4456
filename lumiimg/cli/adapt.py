"""Build an image on one that someone else made, with the layers that it lacks."""

from __future__ import annotations

import argparse
from pathlib import Path

from lumiimg.catalog.site_choice import site_to_make_for
from lumiimg.check.adaptation import nothing_added, objections_of
from lumiimg.check.static.commands import concluded
from lumiimg.cli import build
from lumiimg.cli.inputs import Inputs
from lumiimg.cli.request import image_fetcher, resolve_request
from lumiimg.fabric.path import Fabric
from lumiimg.findings import Finding
from lumiimg.report.console import Console, console, marked, print_json, remedies, say
from lumiimg.report.document import Document
from lumiimg.report.json_builds import NothingToAdapt
from lumiimg.report.text import show
from lumiimg.report.views.build import doubts_section
from lumiimg.resolve.decide import locked
from lumiimg.resolve.image_base import read_foreign

_SHOWN = ("os", "glibc", "python", "rocm", "rccl", "torch", "vllm", "sglang", "net-api")
"""Of what the image has."""


def execute(arguments: argparse.Namespace) -> int:
    inputs = Inputs.of(arguments, site_to_make_for)
    site = inputs.target
    read: list[Path] = []
    fetch = image_fetcher(arguments)

    def fetch_once(name: str) -> Path:
        read.append(fetch(name))
        return read[-1]

    base = read_foreign(arguments.base, fetch_once, site)
    request, plan = resolve_request(arguments, images={arguments.base: base})
    out = console(stderr=True, quiet=arguments.quiet)
    has = ", ".join(f"{name} {base.has[name]}" for name in _SHOWN if name in base.has)
    say(out, f"{arguments.base} has {has or 'nothing that is known here'}")
    objections = objections_of(read[-1] if read else Path(arguments.base), inputs.snapshot)
    for finding in objections.settings:
        _show(out, finding, arguments.base, site.name, "; an image built on it sets that, too")
    lock = locked(plan)
    left = objections.left_by(lock, base)
    for finding in left.files:
        _show(out, finding, arguments.base, site.name)
    if lock.layers and not left.binds_refused:
        build.check_options(arguments)
        return build.make(arguments, lock, request)
    result = nothing_added(lock, left, wants_fabric=arguments.fabric != Fabric.NONE.value)
    if arguments.json:
        print_json("adapt", NothingToAdapt(result.sentence, tuple(result.doubts)))
    sentence, sections = f"{result.sentence}: nothing was built", (doubts_section(lock),)
    document = Document("adapt", arguments.base, result.answer.severity, sentence, sections=sections)
    show(document, quiet=arguments.quiet, verbose=True, stderr=True)
    return result.answer.exit_code


def _show(out: Console, finding: Finding, image: str, site: str, note: str = "") -> None:
    marked(out, finding.severity.value, f"{finding.summary}{note}  [{finding.id}]")
    remedies(out, concluded(finding.remedy, image, site))
