#!/bin/bash
# Are the libraries and NICs of this node's fast network those of @HOST@ on @TAKEN@? (fabric libraries @MARK@)
# For Prolog or HealthCheckProgram of slurm.conf(5). Made by lumiimg @VERSION@; it was never a prolog on a real machine
# yet: run it by hand on a few nodes first.
#
# It reports by logger(1), tag lumiimg, and ends with 0 whatever it finds: a prolog that ends otherwise drains the node
# and puts the job back into the queue. With drain=yes it ends with 1 where a file or a NIC differs, and still with 0
# where that could not be seen or took too long.
drain=no
seconds=5
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
export LC_ALL=C

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
@DEVICES@

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
