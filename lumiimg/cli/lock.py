"""Resolve a request and write the lock."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace

from lumiimg.catalog.catalogue import open_catalogue
from lumiimg.cli.output import Output
from lumiimg.cli.request import context_with_servers, open_sources, options_of, read_request
from lumiimg.core.errors import BadInputError, LumiimgError, write_note
from lumiimg.core.files import refuse_places
from lumiimg.definition.writer import write_chain
from lumiimg.report.views.build import lock_document
from lumiimg.resolve.complete_lock import NO_PREFERENCES, complete_lock, preferences_of
from lumiimg.resolve.lock_file import LockFile, read_document, refuse_other_file, request_of
from lumiimg.resolve.planner import decide
from lumiimg.resolve.request import request_again
from lumiimg.resolve.written_lock import write_lock


def execute(arguments: argparse.Namespace) -> int:
    refuse_places({"-o": arguments.output}, ())
    catalogue = open_catalogue(os.environ, arguments.layers)
    request = None
    if arguments.base or arguments.recipe:
        refuse_other_file(arguments.output)
        request = read_request(arguments, catalogue)
    before = _before(arguments, must=request is None)
    if arguments.upgrade and before is None:
        raise BadInputError(f"nothing to upgrade: {arguments.output} is missing or cannot be read")
    if request is None:
        request = request_again(options_of(arguments), request_of(before) if before else None, arguments.output)
    preferred = preferences_of(before, arguments.upgrade) if before else NO_PREFERENCES
    context = replace(context_with_servers(arguments, request, catalogue), preferred=preferred.layers)
    lock = decide(request, context).require_lock("lock")
    write_chain(lock)  # only for its refusals, before any server is contacted
    sources = open_sources(arguments)
    lock = complete_lock(lock, sources, base="asked", preferred=preferred, until=request.until)
    written = write_lock(lock, arguments.output, sources.mirrors, before, arguments.host)
    return Output.from_arguments(arguments).deliver(lock_document(written), "lock", written)


def _before(arguments: argparse.Namespace, *, must: bool) -> LockFile | None:
    """Return the existing lock. One that cannot be read is ignored with a note, unless it is needed."""
    if not arguments.output.exists():
        return None
    try:
        return read_document(arguments.output)
    except LumiimgError as error:
        if must:
            raise
        write_note(f"the entries of {arguments.output} are ignored: {error}")
        return None
