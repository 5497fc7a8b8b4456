# The library loads, and it is of the release and device that were asked for.
export LD_LIBRARY_PATH=$PREFIX/lib:${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}/opt/rocm/lib
if ldd "$PREFIX/lib/libmpi.so.12" | grep 'not found'; then exit 1; fi
answer=$("$PREFIX/bin/mpichversion")
grep -q "Version:.*$VERSION" <<<"$answer" || { echo "this is not MPICH $VERSION: $answer"; exit 1; }
grep -q 'ch4:ofi' <<<"$answer" || { echo "MPICH was not built for libfabric: $answer"; exit 1; }
