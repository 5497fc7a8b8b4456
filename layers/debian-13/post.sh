# debootstrap brings the packages along; an image from a registry gets them here. INCLUDE and MIRROR come from the plan.
missing=()
for package in $INCLUDE; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
    options=(-qq -o APT::Sandbox::User=root -o Dpkg::Use-Pty=0)
    if [ -n "$MIRROR" ]; then
        # The same archive from nearby, for this build and for whoever adds packages later.
        rm -f /etc/apt/sources.list
        printf 'Types: deb\nURIs: %s\nSuites: trixie\nComponents: main\nSigned-By: %s\n' "$MIRROR" \
            /usr/share/keyrings/debian-archive-keyring.gpg >/etc/apt/sources.list.d/debian.sources
        # An image from a registry has no certificates yet, to know an https mirror by. The packages are signed, by the key
        # in the image, so a false mirror could serve nothing of its own.
        [ -e /etc/ssl/certs/ca-certificates.crt ] || options+=(-o Acquire::https::Verify-Peer=false)
    fi
    apt-get "${options[@]}" update
    DEBIAN_FRONTEND=noninteractive apt-get "${options[@]}" install -y --no-install-recommends "${missing[@]}"
fi
apt-get clean
rm -rf /var/lib/apt/lists/*
