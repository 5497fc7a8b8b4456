"""A script that compares a node's fabric with a snapshot, for Slurm's Prolog or HealthCheckProgram.

It must never hurt: it ends with 0 unless its owner says otherwise, and waits for nothing longer than a few seconds, not
even for a file system that hangs (a process that cannot be killed is left behind, not waited for).
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from lumiimg import __version__
from lumiimg.cluster.binds import is_path
from lumiimg.cluster.template import filled
from lumiimg.errors import BadInputError, one_line
from lumiimg.host.digests import fabric_digests, fingerprint

if TYPE_CHECKING:
    from lumiimg.host.snapshot import Snapshot

_DEVICES = """
for device in {}; do
    [ -c "$device" ] || differs+=("$device is not there")
done
"""


def prolog_text(snapshot: Snapshot) -> str:
    """Return the script.

    Raises BadInputError for a snapshot without a fabric, or with a path that cannot be written.
    """
    digests = fabric_digests(snapshot)
    if not digests:
        hint = "take it on a compute node: `lumiimg host scan -o host.json`"
        raise BadInputError("the snapshot has no libraries of a fast network", where=snapshot.host, hint=hint)
    devices = [device for device in snapshot.devices if device.startswith("/dev/cxi")]
    for path in (*digests, *devices):
        if not is_path(path) or "\\" in path:
            raise BadInputError("a path with such characters cannot be compared", where=path)
    return filled(
        "prolog.sh",
        HOST=one_line(snapshot.host),
        # it is put between double quotes of a script that root runs
        TAKEN=re.sub(r"[^0-9A-Za-z:-]", "", snapshot.taken[:10]),
        MARK=fingerprint(snapshot) or "",
        VERSION=__version__,
        LIBRARIES="\n".join(f"{digest}  {path}" for path, digest in digests.items()),
        DEVICES=_DEVICES.format(shlex.join(devices)) if devices else "",
    )
