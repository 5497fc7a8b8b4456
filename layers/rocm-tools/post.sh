# Add the two tools from ROCm's own packages, and the Python binding from where ROCm keeps its source: of another
# release it would not fit the library.
layer=rocm-tools
# shellcheck source=layers/lib/python.sh
. "$LAYER_FILES/python.sh"

missing=()
[ -x /opt/rocm/bin/rocm-smi ] || missing+=(rocm-smi-lib)
[ -d /opt/rocm/share/amd_smi ] || missing+=(amd-smi-lib)
if [ ${#missing[@]} -gt 0 ]; then
    # These stay: they are what the layer is for.
    apt_get update
    apt_get install -y --no-install-recommends "${missing[@]}" >/dev/null
fi
use_environment
install_wheels
# It writes into its own folder when it is built.
cp -r /opt/rocm/share/amd_smi amd_smi
build_wheel amd_smi
finish_python
apt-get clean
rm -rf /var/lib/apt/lists/*
