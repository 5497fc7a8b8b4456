# Compile FlashAttention's back end of composable kernel for the site's GPU.
layer=flash-attn
# shellcheck source=layers/lib/build.sh
. "$LAYER_FILES/build.sh"
# shellcheck source=layers/lib/python.sh
. "$LAYER_FILES/python.sh"
# shellcheck source=layers/lib/gpu.sh
. "$LAYER_FILES/gpu.sh"

use_torch
install_wheels
# setup.py runs git for its submodules, and goes on where git finds no repository, but not where there is no git.
need_compilers
need git=git
need_python_headers
use_arch
unpack "$SOURCE_FLASH_ATTENTION" flash-attention
unpack "$SOURCE_COMPOSABLE_KERNEL" flash-attention/csrc/composable_kernel
# FORCE_BUILD: else it looks for a wheel of its own on the web, by name, with no digest.
BUILD_TARGET=rocm FLASH_ATTENTION_FORCE_BUILD=TRUE build_wheel flash-attention
restore_tools
finish_python flash-attn
"$python" /opt/lumiimg/check_torch.py flash_attn
