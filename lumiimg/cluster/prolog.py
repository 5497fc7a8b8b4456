"""A script that compares a node's fabric with a snapshot, for Slurm's Prolog or HealthCheckProgram.

It must never hurt: it ends with 0 unless its owner says otherwise, and waits for nothing longer than a few seconds, not
even for a file system that hangs (a process that cannot be killed is left behind, not waited for).
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from lumiimg import __version__
from lumiimg.cluster.binds import is_path
from lumiimg.errors import BadInputError, one_line
from lumiimg.host.digests import fabric_digests, fingerprint

if TYPE_CHECKING:
    from lumiimg.host.snapshot import Snapshot

_HEAD = """\
#!/bin/bash
# Are the libraries and NICs of this node's fast network those of {host} on {taken}? (fabric libraries {mark})
# For Prolog or HealthCheckProgram of slurm.conf(5). Made by lumiimg {version}; it was never a prolog on a real machine
# yet: run it by hand on a few nodes first.
#
# It tells by logger(1), tag lumiimg, and ends with 0 whatever it finds: a prolog that ends otherwise drains the node
# and puts the job back into the queue. With drain=yes it ends with 1 where a file or a NIC differs, and still with 0
# where that could not be seen or took too long.
drain=no
seconds=5
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
export LC_ALL=C

"""

_CHECK = r"""
differs=()
unknown='no answer in time'
# by the names under which the loader looks the files up: a link that leads elsewhere now counts
exec 3< <(
    timeout -s KILL "$seconds" sha256sum --check --quiet 2>/dev/null <<'LIBRARIES'
@LIBRARIES@
LIBRARIES
    echo "ended with $?"
)
while IFS= read -r -t "$((seconds + 1))" line <&3; do
    case $line in
        'ended with 0' | 'ended with 1') unknown= ;;
        'ended with 137') unknown="more than $seconds seconds" ;;
        'ended '*) unknown="sha256sum $line" ;;
        *': FAILED open or read')
            file=${line%: FAILED open or read}
            if [ -e "$file" ]; then unreadable=$file; else differs+=("$file is not there"); fi
            ;;
        *': FAILED') differs+=("${line%: FAILED} is another file") ;;
    esac
done
[ -z "$unknown" ] && [ -n "${unreadable-}" ] && unknown="$unreadable cannot be read"
"""

_DEVICES = r"""
for device in @DEVICES@; do
    [ -c "$device" ] || differs+=("$device is not there")
done
"""

_END = r"""
tell() {
    printf 'lumiimg: %s\n' "$1"
    logger -t lumiimg -p daemon.warning -- "$1" 2>/dev/null
}

if [ "${#differs[@]}" -gt 0 ]; then
    more=
    [ "${#differs[@]}" -le 3 ] || more=" and $((${#differs[@]} - 3)) more"
    printf -v first '%s, ' "${differs[@]:0:3}"
    tell "the fast network is not as it was on @TAKEN@: ${first%, }$more (lumiimg host scan, then lumiimg check --host)"
    [ "$drain" != yes ] || exit 1
elif [ -n "$unknown" ]; then
    tell "the fast network was not looked at: $unknown"
fi
exit 0
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
    taken = one_line(snapshot.taken[:10])
    head = _HEAD.format(host=one_line(snapshot.host), taken=taken, mark=fingerprint(snapshot), version=__version__)
    libraries = "\n".join(f"{digest}  {path}" for path, digest in digests.items())
    parts = [head.rstrip("\n") + "\n", _CHECK.replace("@LIBRARIES@", libraries)]
    if devices:
        parts.append(_DEVICES.replace("@DEVICES@", shlex.join(devices)))
    return "".join([*parts, _END.replace("@TAKEN@", taken.replace('"', ""))])
