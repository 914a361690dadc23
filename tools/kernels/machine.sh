# Sourced: virtual machines with Debian's kernels, by QEMU's software emulation. Wants `cache`, a
# directory; `architecture`, amd64, arm64 or armhf; and `fail`, a function that says what is wrong
# and ends.
packages=$cache/$architecture
mkdir -p "$packages"/{debs,lists/partial,archives/partial}
# No package is installed in the eyes of this apt, so that it fetches all that one needs.
[ -e "$packages/status" ] || touch "$packages/status"

mirror=http://deb.debian.org
{
    for suite in bullseye bookworm bookworm-backports trixie trixie-backports; do echo "$mirror/debian $suite main"; done
    for suite in bookworm trixie; do echo "$mirror/debian-security $suite-security main"; done
} | sed "s|^|deb [arch=$architecture signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] |" > "$packages/sources.list"
# It knows nothing of this machine's own packages, and changes nothing of them.
apt=(-qq -oDir::Etc::SourceList="$packages/sources.list" -oDir::Etc::SourceParts=- -oDir::State::Lists="$packages/lists"
    -oDir::State::status="$packages/status" -oDir::Cache="$packages" -oDir::Cache::archives="$packages/archives"
    -oAPT::Architecture="$architecture" -oAPT::Architectures::="$architecture" -oAPT::Sandbox::User=root -oDebug::NoLocking=true)
# Package lists serve for a day.
[ -n "$(find "$packages/lists" -maxdepth 1 -name '*Packages*' -mmin -1440 -print -quit)" ] || apt-get "${apt[@]}" update

# version_of KERNEL FLAVOUR: the newest kernel that fits, of those for the cloud or for real time
# (rt). ARM of 32 bits has one alone.
version_of() {
    local fits="${1//./\\.}[-.+]" kind="$2-$architecture"
    [ "$architecture" != armhf ] || kind=armmp
    [ "$1" != newest ] || fits='[0-9]'
    apt-cache "${apt[@]}" pkgnames linux-image- | sed -n "s/^linux-image-\($fits.*-$kind\)$/\1/p" \
        | { [ "$2" = rt ] && cat || grep -v -e '-rt-'; } | sort -V | tail -n 1
}

# unpack_kernel VERSION: makes its kernel and an archive of its modules, in $packages/VERSION.
unpack_kernel() {
    local version=$1 directory=$packages/$1 name names=()
    [ ! -e "$directory/modules.cpio" ] || return 0
    rm -rf "$directory"
    mkdir -p "$directory/packages" "$directory/modules/usr/lib"
    # One package up to 6.19; from 7.0 on the kernel and its modules are apart.
    for name in image binary modules; do
        ! apt-cache "${apt[@]}" show "linux-$name-$version" > /dev/null 2>&1 || names+=("linux-$name-$version")
    done
    (cd "$packages/debs" && apt-get "${apt[@]}" download "${names[@]}") || fail "cannot fetch ${names[*]}"
    for name in "${names[@]}"; do dpkg-deb -x "$packages/debs/${name}_"*.deb "$directory/packages"; done
    find "$directory/packages" -name 'vmlinuz*' -exec cp {} "$directory/vmlinuz" \;
    # The modules that a network may need; kmod looks for them below lib.
    ln -s usr/lib "$directory/modules/lib"
    (cd "$directory/packages" && [ -d lib/modules ] || cd usr
        find lib/modules -path '*/kernel/*' -name '*.ko*' | grep -E '/(net|lib|crypto|arch)/' | grep -vE '/drivers/net/(ethernet|wireless)/' | cat - <(find lib/modules -name 'modules.*') \
            | cpio --quiet -pdm "$directory/modules/usr")
    depmod -b "$directory/modules" "$version"
    (cd "$directory/modules" && find usr | cpio --quiet -o -H newc) > "$directory/modules.part"
    mv "$directory/modules.part" "$directory/modules.cpio"
    rm -rf "$directory/packages" "$directory/modules"
}

# unpack_programs DIRECTORY PACKAGE…: the packages and all that they need, below a directory's usr:
# some are of the time before bin, sbin and lib became links into that.
unpack_programs() {
    local directory=$1 unpacked=$packages/unpacked file
    shift
    rm -rf "$unpacked"
    mkdir -p "$unpacked"/{usr,bin,sbin,lib,lib64}
    rm -f "$packages"/archives/*.deb
    apt-get "${apt[@]}" install -y --no-install-recommends --download-only "$@" || fail "cannot fetch $*"
    for file in "$packages"/archives/*.deb; do dpkg-deb -x "$file" "$unpacked"; done
    cp -a "$unpacked/usr/." "$directory/usr/"
    for file in bin sbin lib lib64; do cp -a "$unpacked/$file" "$directory/usr/"; done
    rm -rf "$unpacked"
}

# archive DIRECTORY: its contents as the kernel unpacks them.
archive() { (cd "$1" && find . | cpio --quiet -o -H newc); }

# boot VERSION SECONDS LOG RESULTS ARGUMENTS ARCHIVE…: a machine whose root file system is these
# archives. Its console goes to LOG, its second serial port to RESULTS; one that has not ended after
# that many seconds is ended. ARGUMENTS are the kernel's.
boot() {
    local version=$1 seconds=$2 log=$3 results=$4 arguments=$5 machine
    shift 5
    case $architecture in
    amd64) machine=(qemu-system-x86_64 -cpu max -append "console=ttyS0 quiet panic=5 mitigations=off $arguments") ;;
    # Their second port is a PCI device.
    arm64) machine=(qemu-system-aarch64 -M virt -cpu max,pauth-impdef=on -append "console=ttyAMA0 quiet panic=5 mitigations=off $arguments") ;;
    armhf) machine=(qemu-system-arm -M virt -cpu max -append "console=ttyAMA0 quiet panic=5 mitigations=off $arguments") ;;
    esac
    cat "$@" > "$log.initrd"
    if [ "$architecture" = amd64 ]; then
        machine+=(-serial "file:$log" -serial "file:$results")
    else
        machine+=(-serial "file:$log" -device pci-serial,chardev=results -chardev "file,id=results,path=$results")
    fi
    timeout "$seconds" "${machine[@]}" -accel tcg,thread=multi -smp 1 -m 3G -display none -monitor none -nic none -no-reboot \
        -kernel "$packages/$version/vmlinuz" -initrd "$log.initrd" < /dev/null || true
    rm -f "$log.initrd"
}
