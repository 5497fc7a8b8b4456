# Build aws-ofi-rccl. Its configure wants a path for each of HIP, RCCL and libfabric; its tests would need MPI.
layer=aws-ofi-rccl
# shellcheck source=layers/lib/plugin.sh
. "$LAYER_FILES/plugin.sh"

ROCM=${ROCM:-$(find_rocm)}
choose_libfabric
enter_source "$SOURCE_AWS_OFI_RCCL"
add_build_packages "$libfabric"

# libfabric 2.0 took container_of out of its public header.
if ! grep -q container_of "$libfabric/include/rdma/fabric.h"; then
    export CPPFLAGS="${CPPFLAGS:-} -include $LAYER_FILES/container_of.h"
fi
[ -e configure ] || sh ./autogen.sh
sh ./configure --prefix="$PREFIX" --libdir="$PREFIX/lib" --disable-tests \
    --with-hip="$ROCM" --with-rccl="$ROCM" --with-libfabric="$libfabric"
forget_runpath
make
make install
install_names
check_plugin
remove_packages "$PREFIX/lib/librccl-net.so"
missing=$(loader_complaints "$PREFIX/lib/librccl-net.so")
[ -z "$missing" ] || fail "without the build's packages: $missing"
