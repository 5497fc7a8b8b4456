# Compile the tests of RCCL with hipcc, for MPI.
layer=rccl-tests
# shellcheck source=layers/lib/build.sh
. "$LAYER_FILES/build.sh"
# shellcheck source=layers/lib/gpu.sh
. "$LAYER_FILES/gpu.sh"

need_compilers

need git=git
use_arch
# The MPI of the image is where mpicc is; of a base's own environment not every engine lets a build know.
export PATH=$PATH:/opt/mpich/bin
mpicc=$(command -v mpicc || true)
mpi=${mpicc%/bin/mpicc}
[ -e "$mpi/include/mpi.h" ] || mpi=/usr
[ -e "$mpi/include/mpi.h" ] || fail "no mpi.h beside ${mpicc:-mpicc, which is not on PATH,} or in /usr"
unpack "$SOURCE_RCCL_TESTS" rccl-tests
# Its Makefile notes the commit, which an archive does not have; without one git only complains.
make -C rccl-tests MAKEFLAGS="-j$MAX_JOBS" MPI=1 MPI_HOME="$mpi" \
    ROCM_PATH="$ROCM_PATH" NCCL_HOME="$ROCM_PATH" GPU_TARGETS="$ARCH"
mkdir -p "$PREFIX/bin"
find rccl-tests/build -maxdepth 1 -name '*_perf' -type f -exec install -m 755 {} "$PREFIX/bin/" ';'
install -D -m 644 rccl-tests/LICENSE.txt "$PREFIX/share/doc/rccl-tests/LICENSE.txt"
[ -x "$PREFIX/bin/all_reduce_perf" ] || fail "the build made no all_reduce_perf"
remove_packages "$PREFIX/bin/all_reduce_perf"
check_libraries "$PREFIX/bin/all_reduce_perf"
