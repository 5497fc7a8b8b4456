"""Resolve what is asked for, and write the lock."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace

from lumiimg.catalog.catalogue import Catalogue, open_catalogue
from lumiimg.cli.choices import mirrors_of
from lumiimg.cli.output import Output
from lumiimg.cli.request import context_with_servers, decide_request, open_sources, options_of, read_request
from lumiimg.errors import BadInputError, LumiimgError, write_note
from lumiimg.files import refuse_places
from lumiimg.report.views.build import lock_document
from lumiimg.resolve.context import Preferences, preferences_of
from lumiimg.resolve.lock import Lock
from lumiimg.resolve.lock_diff import write_lock
from lumiimg.resolve.lockfile import read_lock, refuse_other_file
from lumiimg.resolve.pin import settle
from lumiimg.resolve.request import Request
from lumiimg.resolve.request_options import request_again


def execute(arguments: argparse.Namespace) -> int:
    refuse_places({"-o": arguments.output}, ())
    catalogue = open_catalogue(os.environ, arguments.layers)
    request = None
    if arguments.base or arguments.recipe:
        refuse_other_file(arguments.output)
        request = read_request(arguments, catalogue)
    before = _before(arguments, catalogue, must=request is None)
    if arguments.upgrade and before is None:
        raise BadInputError(f"nothing to upgrade: there is no {arguments.output} that can be read")
    request = request or request_again(options_of(arguments), before[1] if before else None, arguments.output)
    preferred = preferences_of(before[0], arguments.upgrade) if before else Preferences({}, {}, None)
    context = replace(context_with_servers(arguments, request, catalogue), preferred=preferred.layers)
    lock = decide_request(request, context).require_lock("lock")
    sources = open_sources(arguments)
    lock = settle(lock, sources, pin_base=True, held=preferred.wheels, before=preferred.lock, until=request.until)
    written = write_lock(lock, request, arguments.output, sources.mirrors, replaces=before is not None)
    return Output.of(arguments).deliver(lock_document(written), "lock", written)


def _before(arguments: argparse.Namespace, catalogue: Catalogue, *, must: bool) -> tuple[Lock, Request] | None:
    """Return the lock that is there. One that cannot be read is passed over, and that is said, unless it is needed."""
    mirrors = mirrors_of(arguments)
    if not arguments.output.exists():
        return None
    try:
        return read_lock(arguments.output, catalogue, mirrors, os.environ.get("PATH"), check_layers=False)
    except LumiimgError as error:
        if must:
            raise
        write_note(f"what {arguments.output} holds is not kept: {error}")
        return None
