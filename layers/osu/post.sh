# Compile the OSU micro-benchmarks with the image's MPI, for buffers on the GPU.
layer=osu
# shellcheck source=layers/lib/build.sh
. "$LAYER_FILES/build.sh"

ROCM=$(find_rocm)
need_compilers
# The MPI of the image is where mpicc is; of a base's own environment not every engine lets a build know.
export PATH=$PATH:/opt/mpich/bin
command -v mpicc >/dev/null || fail "no mpicc: the MPI of this image has no compiler wrapper on PATH"
unpack "$SOURCE_OSU" osu
(
    cd osu || exit
    sh ./configure --prefix="$PREFIX" CC=mpicc CXX=mpicxx --enable-rocm --with-rocm="$ROCM"
    make
    make install
)
program=$PREFIX/libexec/osu-micro-benchmarks/mpi/pt2pt/osu_bw
[ -x "$program" ] || fail "the build made no $program"
remove_packages "$program"
check_libraries "$program"
