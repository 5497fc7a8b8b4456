# Install DeepSpeed from its source, and have it take the host's name where it takes the first network interface.
layer=deepspeed
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
unpack "$SOURCE_DEEPSPEED" deepspeed
# On LUMI the first address of a node is not one of the fast network; its name is (CSC's recipe).
comm=deepspeed/deepspeed/comm/comm.py
grep -q 'hostname -I' "$comm" || fail "$comm no longer asks for hostname -I: look at what it does instead"
sed -i 's/hostname -I/hostname -s/' "$comm"
# Without it the version would end in the commit of whatever git finds around it.
: >deepspeed/build.txt
# ROCm's GPUs are the accelerator `cuda`; on a build node there is none to be found.
DS_ACCELERATOR=cuda DS_BUILD_OPS=$BUILD_OPS build_wheel deepspeed
restore_tools
finish_python deepspeed
"$python" /opt/lumiimg/check_torch.py
