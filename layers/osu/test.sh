# The loader finds all that the benchmarks need, HIP among it: built without ROCm they would refuse buffers on the GPU.
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}/opt/rocm/lib
program=$PREFIX/libexec/osu-micro-benchmarks/mpi/pt2pt/osu_bw
libraries=$(ldd "$program")
if grep 'not found' <<<"$libraries"; then exit 1; fi
grep -q libamdhip64 <<<"$libraries" || { echo "$program was built without ROCm"; exit 1; }
