# Compile the library of bitsandbytes with HIP, then install the Python around it: its wheel would bring CUDA's.
layer=bitsandbytes
# shellcheck source=layers/lib/build.sh
. "$LAYER_FILES/build.sh"
# shellcheck source=layers/lib/python.sh
. "$LAYER_FILES/python.sh"
# shellcheck source=layers/lib/gpu.sh
. "$LAYER_FILES/gpu.sh"

use_torch
install_wheels
need_compilers
need cmake=cmake
use_arch
unpack "$SOURCE_BITSANDBYTES" bitsandbytes
cmake -DCOMPUTE_BACKEND=hip -DBNB_ROCM_ARCH="$ARCH" -DCMAKE_BUILD_TYPE=Release -S bitsandbytes -B bitsandbytes
make -C bitsandbytes MAKEFLAGS="-j$MAX_JOBS"
library=$(find bitsandbytes/bitsandbytes -name 'libbitsandbytes_rocm*.so' -print -quit)
[ -n "$library" ] || fail "the build made no libbitsandbytes_rocm*.so"
# The Python project runs CMake once more, for the CPU's library; HIP's lies in the package already, and is packed with
# it.
build_wheel bitsandbytes
restore_tools
extension_files bitsandbytes | grep rocm >/dev/null || fail "the wheel has no library for HIP"
finish_python bitsandbytes
"$python" /opt/lumiimg/check_torch.py bitsandbytes
