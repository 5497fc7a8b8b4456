# debootstrap brings sid along, an image from a registry does so too; ROCm comes from experimental, held to one release.
# INCLUDE and MIRROR come from the plan.
release=7.2.4
sources=/etc/apt/sources.list.d/debian.sources
key=/usr/share/keyrings/debian-archive-keyring.gpg
if [ -z "$MIRROR" ]; then
    MIRROR=$(cat /etc/apt/sources.list "$sources" 2>/dev/null | sed -n 's/^URIs: *//p; s/^deb \([^ ]*\) .*/\1/p' | head -n 1)
fi
rm -f /etc/apt/sources.list
# A mirror that stands still, as one of snapshots does, has lists that are past their date. They are signed all the same,
# and an old list brings in no other release of ROCm than the one below.
printf 'Types: deb\nURIs: %s\nSuites: sid experimental\nComponents: main\nSigned-By: %s\nCheck-Valid-Until: no\n' \
    "$MIRROR" "$key" >"$sources"
# Also for layers above: headers of another ROCm than the image's must not come in from sid.
printf 'Package: lib* rocm* hip*\nPin: version %s*\nPin-Priority: 1001\n' "$release" >/etc/apt/preferences.d/rocm
options=(-qq -o APT::Sandbox::User=root -o Dpkg::Use-Pty=0)
# An image from a registry has no certificates yet, to know an https mirror by. The packages are signed, by the key in the
# image, so a false mirror could serve nothing of its own.
[ -e /etc/ssl/certs/ca-certificates.crt ] || options+=(-o Acquire::https::Verify-Peer=false)
apt-get "${options[@]}" update
# shellcheck disable=SC2086 # INCLUDE is a list
DEBIAN_FRONTEND=noninteractive apt-get "${options[@]}" install -y --no-install-recommends $INCLUDE \
    libamdhip64-7 libhsa-runtime64-1 librccl1 librocm-core1
apt-get clean
rm -rf /var/lib/apt/lists/*
