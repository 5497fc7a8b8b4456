#!/bin/bash
# Are the libraries and NICs of this node's fast network still those of the list?
# For Prolog or HealthCheckProgram of slurm.conf(5). docs/support/index.md says how to make the list. It was never a
# prolog on a real machine yet: run it by hand on a few nodes first.
#
# It reports by logger(1), tag lumiimg, and ends with 0 whatever it finds: a prolog that ends otherwise drains the node
# and puts the job back into the queue. With drain=yes it ends with 1 where a file or a NIC differs, and still with 0
# where that could not be seen or took too long.
drain=no
seconds=5
list=/etc/lumiimg-fabric.sha256 # as sha256sum writes it, on a local disk of the node
nics=0                          # how many /dev/cxi* a node has; 0: they are not counted
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
export LC_ALL=C

differs=()
unknown='no answer in time'
unreadable=
# by the names under which the loader looks the files up: a link that leads elsewhere now counts
exec 3< <(
    timeout -s KILL "$seconds" sha256sum --check --quiet "$list" 2>/dev/null
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
if [ ! -s "$list" ]; then
    unknown="$list is missing or empty"
elif [ -z "$unknown" ] && [ -n "$unreadable" ]; then
    unknown="$unreadable cannot be read"
fi

shopt -s nullglob
found=(/dev/cxi[0-9]*)
if [ "$nics" -gt 0 ] && [ "${#found[@]}" -lt "$nics" ]; then
    differs+=("${#found[@]} of $nics NICs are there (/dev/cxi*)")
fi

report() {
    printf 'lumiimg: %s\n' "$1"
    logger -t lumiimg -p daemon.warning -- "$1" 2>/dev/null
}

if [ "${#differs[@]}" -gt 0 ]; then
    more=
    [ "${#differs[@]}" -le 3 ] || more=" and $((${#differs[@]} - 3)) more"
    printf -v first '%s, ' "${differs[@]:0:3}"
    report "the fast network is not that of $list: ${first%, }$more (lumiimg host scan, then lumiimg check --host)"
    [ "$drain" != yes ] || exit 1
elif [ -n "$unknown" ]; then
    report "the fast network was not compared: $unknown"
fi
exit 0
