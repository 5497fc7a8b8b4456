# "complete" images have no autotools, and not always RCCL's headers.
# shellcheck source=layers/lib/packages.sh
. "$LAYER_FILES/packages.sh"
packages=(autoconf automake libtool make pkg-config)
[ -e /opt/rocm/include/rccl/rccl.h ] || packages+=(rccl-dev)
add_packages "${packages[@]}"
