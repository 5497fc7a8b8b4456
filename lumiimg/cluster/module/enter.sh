#!/bin/bash
# Starts a program in the container; called by the scripts in bin/.
@ORIGIN@
#
# usage: enter NAME pip|program PATH [ARGUMENT...]

image=@IMAGE@
@PYTHON@

name=$1 kind=$2 program=$3
shift 3

fail() {
    printf '%s: %s\n' "$name" "$1" >&2
    exit "${2:-127}"
}
@PREPEND@

enter=()
if [ -d /.singularity.d ]; then
    # already in a container: run the program itself, without a nested container
    [ -x "$program" ] || fail "this container has no $program; call the wrapper outside of it" 126
else
    [ -e "$image" ] || fail "the image is missing: $image (moved or removed? lumiimg module makes the module again)"
    engine=$(command -v @FIRST@ || command -v @SECOND@) || fail "neither singularity nor apptainer is on PATH here"
@OUTSIDE@
fi
@PIP@

exec "${enter[@]}" "$program" "$@"
