# Build MPICH against the libfabric that the image has, or that is bound over it: never with the one in its own archive.
layer=mpich
# shellcheck source=layers/lib/build.sh
. "$LAYER_FILES/build.sh"

ROCM=$(find_rocm)
need_compilers
need pkg-config=pkg-config
# Its configure ends where HIP was asked for and has no headers; AMD's images have them in /opt/rocm.
[ "$ROCM" != /usr ] || need /usr/include/hip/hip_runtime_api.h=libamdhip64-dev
libfabric=/opt/libfabric
[ -e "$libfabric/include/rdma/fabric.h" ] || libfabric=/usr
[ "$libfabric" != /usr ] || need /usr/include/rdma/fabric.h=libfabric-dev

unpack "$SOURCE_MPICH" mpich
(
    cd mpich || exit
    # With the PMI client in MPICH's own archive, which srun --mpi=pmi2 serves: no library of Slurm is needed.
    sh ./configure --prefix="$PREFIX" --libdir="$PREFIX/lib" --disable-static --disable-fortran --enable-fast=O3 \
        --enable-threads=multiple --with-device=ch4:ofi --with-libfabric="$libfabric" \
        --with-hip="$ROCM" --without-cuda --without-ze --without-ucx
    forget_runpath
    make
    make install
)
rm -f "$PREFIX"/lib/*.la
search_in "$PREFIX/lib"
install -D -m 644 mpich/COPYRIGHT "$PREFIX/share/doc/mpich/COPYRIGHT"
library=$PREFIX/lib/libmpi.so.12
readelf -d "$library" | grep 'NEEDED.*libfabric\.so\.1' >/dev/null || fail "$library has a libfabric of its own in it"
remove_packages "$library" "$PREFIX/bin/mpichversion"
check_libraries "$library"
