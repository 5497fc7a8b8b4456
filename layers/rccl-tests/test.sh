# The loader finds all that the tests need; to run them takes a GPU.
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}/opt/rocm/lib
for program in all_reduce_perf all_gather_perf sendrecv_perf; do
    [ -x "$PREFIX/bin/$program" ] || { echo "$PREFIX/bin/$program is missing"; exit 1; }
    if ldd "$PREFIX/bin/$program" | grep 'not found'; then exit 1; fi
done
