# Build aws-ofi-nccl for RCCL. Its configure takes ROCm only as --with-rocm=PATH; --with-libfabric=/usr would break the order of
# the include folders (stdlib.h is not found); outside of git it reads its version from .release_version.
layer=aws-ofi-nccl
# shellcheck source=layers/lib/plugin.sh
. "$LAYER_FILES/plugin.sh"

ROCM=${ROCM:-$(find_rocm)}
choose_libfabric
enter_source "$SOURCE_AWS_OFI_NCCL"
add_build_packages "$libfabric"

flags=(--prefix="$PREFIX" --libdir="$PREFIX/lib" --with-rocm="$ROCM" --disable-tests)
[ "$libfabric" = /usr ] || flags+=(--with-libfabric="$libfabric")
[ -e .release_version ] || echo "$VERSION" >.release_version
[ -e configure ] || sh ./autogen.sh
sh ./configure "${flags[@]}"
forget_runpath
make
make install
install_names
check_plugin
remove_packages "$PREFIX/lib/librccl-net.so"
missing=$(loader_complaints "$PREFIX/lib/librccl-net.so")
[ -z "$missing" ] || fail "without the build's packages: $missing"
