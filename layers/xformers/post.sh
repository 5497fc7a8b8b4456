# Compile xFormers' back end of composable kernel for the site's GPU.
layer=xformers
# shellcheck source=layers/lib/build.sh
. "$LAYER_FILES/build.sh"
# shellcheck source=layers/lib/python.sh
. "$LAYER_FILES/python.sh"
# shellcheck source=layers/lib/gpu.sh
. "$LAYER_FILES/gpu.sh"

use_torch
install_wheels
need_compilers
need_python_headers
use_arch
unpack "$SOURCE_XFORMERS" xformers
unpack "$SOURCE_COMPOSABLE_KERNEL" xformers/third_party/composable_kernel_tiled
# setup.py ends where NVIDIA's submodule is not there, though a build for ROCm takes nothing from it.
mkdir -p xformers/third_party/cutlass/include
XFORMERS_CK_FLASH_ATTN=1 BUILD_VERSION=$VERSION build_wheel xformers
restore_tools
finish_python xformers
"$python" /opt/lumiimg/check_torch.py xformers
