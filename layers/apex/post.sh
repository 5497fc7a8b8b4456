# Compile Apex with its extensions for the site's GPU.
layer=apex
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
unpack "$SOURCE_APEX" apex
build_wheel apex --config-settings=--build-option=--cpp_ext --config-settings=--build-option=--cuda_ext
restore_tools
# Where pip does not hand the options on, the install succeeds, and has no extension (CSC's recipe met that).
if [ -z "$(extension_files apex)" ]; then
    rm -rf "$KEPT/apex" # else the next build would take this wheel again
    fail "Apex was built without its extensions"
fi
finish_python apex
"$python" /opt/lumiimg/check_torch.py apex
