# The probes run, and say by their exit code what they met: no network is needed for that.
bin=/opt/lumiimg/netprobe/bin
expect() {
    local wanted=$1 got=0
    shift
    "$@" >/dev/null 2>&1 || got=$?
    [ "$got" -eq "$wanted" ] || { echo "netprobe: '$*' ended with $got, not $wanted"; exit 1; }
}
for program in handshake rcclprobe rcclsim; do
    expect 0 "$bin/$program" --help
    expect 2 "$bin/$program"
    expect 2 "$bin/$program" --timeout never /nowhere.so
    expect 10 "$bin/$program" /nowhere.so
    # The C library is a library, and neither a net plugin nor RCCL.
    expect 11 "$bin/$program" libc.so.6
    first=$("$bin/$program" /nowhere.so | sed -n '/./{p;q}') || true
    [ "$first" = "@probe start program=$program protocol=1" ] || { echo "netprobe: $program began with '$first'"; exit 1; }
done
expect 2 "$bin/handshake" --accept 3 /nowhere.so
expect 0 "$bin/allreduce" --help
expect 2 "$bin/allreduce" --folder /nowhere
expect 10 "$bin/allreduce" --devices /nowhere.so
expect 11 "$bin/allreduce" --devices libc.so.6
