# To be sourced: functions that boot Debian's kernels in virtual machines (QEMU's software
# emulation). The caller sets `cache`, a directory, and `architecture` (amd64, arm64 or armhf), and
# defines `fail`, a function that prints an error and exits.
packages=$cache/$architecture
mkdir -p "$packages"/{debs,lists/partial,archives/partial}
# This apt has a package status of its own, in which nothing is installed, so that it fetches all
# dependencies of a package.
[ -e "$packages/status" ] || touch "$packages/status"

mirror=http://deb.debian.org
{
    for suite in bullseye bookworm bookworm-backports trixie trixie-backports; do echo "$mirror/debian $suite main"; done
    for suite in bookworm trixie; do echo "$mirror/debian-security $suite-security main"; done
} | sed "s|^|deb [arch=$architecture signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] |" > "$packages/sources.list"
# It neither reads nor changes the packages of this machine.
apt=(-qq -oDir::Etc::SourceList="$packages/sources.list" -oDir::Etc::SourceParts=- -oDir::State::Lists="$packages/lists"
    -oDir::State::status="$packages/status" -oDir::Cache="$packages" -oDir::Cache::archives="$packages/archives"
    -oAPT::Architecture="$architecture" -oAPT::Architectures::="$architecture" -oAPT::Sandbox::User=root -oDebug::NoLocking=true)
# Package lists are updated if they are older than a day.
[ -n "$(find "$packages/lists" -maxdepth 1 -name '*Packages*' -mmin -1440 -print -quit)" ] || apt-get "${apt[@]}" update

# version_of KERNEL FLAVOUR: prints the version of the newest matching kernel. FLAVOUR is cloud or
# rt (real time); 32-bit ARM has a single flavour.
version_of() {
    local fits="${1//./\\.}[-.+]" kind="$2-$architecture"
    [ "$architecture" != armhf ] || kind=armmp
    [ "$1" != newest ] || fits='[0-9]'
    apt-cache "${apt[@]}" pkgnames linux-image- | sed -n "s/^linux-image-\($fits.*-$kind\)$/\1/p" \
        | { [ "$2" = rt ] && cat || grep -v -e '-rt-'; } | sort -V | tail -n 1
}

# unpack_kernel VERSION: writes the kernel and an archive of its modules to $packages/VERSION.
unpack_kernel() {
    local version=$1 directory=$packages/$1 name names=()
    [ ! -e "$directory/modules.cpio" ] || return 0
    rm -rf "$directory"
    mkdir -p "$directory/packages" "$directory/modules/usr/lib"
    # Up to 6.19 one package has both; from 7.0 on kernel and modules are separate packages.
    for name in image binary modules; do
        ! apt-cache "${apt[@]}" show "linux-$name-$version" > /dev/null 2>&1 || names+=("linux-$name-$version")
    done
    (cd "$packages/debs" && apt-get "${apt[@]}" download "${names[@]}") || fail "cannot fetch ${names[*]}"
    for name in "${names[@]}"; do dpkg-deb -x "$packages/debs/${name}_"*.deb "$directory/packages"; done
    find "$directory/packages" -name 'vmlinuz*' -exec cp {} "$directory/vmlinuz" \;
    # Only modules that networking may need. kmod looks for them below /lib.
    ln -s usr/lib "$directory/modules/lib"
    (cd "$directory/packages" && [ -d lib/modules ] || cd usr
        find lib/modules -path '*/kernel/*' -name '*.ko*' | grep -E '/(net|lib|crypto|arch)/' | grep -vE '/drivers/net/(ethernet|wireless)/' | cat - <(find lib/modules -name 'modules.*') \
            | cpio --quiet -pdm "$directory/modules/usr")
    depmod -b "$directory/modules" "$version"
    (cd "$directory/modules" && find usr | cpio --quiet -o -H newc) > "$directory/modules.part"
    mv "$directory/modules.part" "$directory/modules.cpio"
    rm -rf "$directory/packages" "$directory/modules"
}

# unpack_programs DIRECTORY PACKAGE…: unpacks packages and their dependencies below DIRECTORY/usr.
# Packages from before the usr merge have files in /bin, /sbin and /lib, which go there as well.
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

# make_root_of_programs DIRECTORY TANDEM NAME…: makes a root file system of the program TANDEM, of
# programs of this machine, and of BusyBox for what is missing, with their libraries.
make_root_of_programs() {
    local directory=$1 tandem=$2 name file
    shift 2
    rm -rf "$directory"
    mkdir -p "$directory"/{usr/bin,usr/sbin,usr/lib,usr/lib64,proc,sys,dev,tmp,run,root,etc}
    for name in bin sbin lib lib64; do ln -s "usr/$name" "$directory/$name"; done
    for name in "$@"; do
        for file in $(command -v "$name") $(ldd "$(command -v "$name")" 2> /dev/null | grep -o '/[^ ]*'); do
            [ -e "$directory$file" ] || install -D "$file" "$directory$file"
        done
    done
    for file in $(ldd "$tandem" | grep -o '/[^ ]*'); do [ -e "$directory$file" ] || install -D "$file" "$directory$file"; done
    install "$tandem" "$directory/usr/bin/tandem"
    for name in $(busybox --list); do
        [ -e "$directory/usr/sbin/$name" ] || [ -e "$directory/usr/bin/$name" ] || ln -s "$(command -v busybox)" "$directory/usr/bin/$name"
    done
}

# archive DIRECTORY: prints its contents as a cpio archive for the kernel's initramfs.
archive() { (cd "$1" && find . | cpio --quiet -o -H newc); }

# How a machine's clock runs: with the host's, or by the instructions that it has executed, 2 ns
# each, so that a busy host does not delay anything in it. Idle time passes at once.
real_clock=(-accel tcg,thread=multi)
virtual_clock=(-accel tcg,thread=single -icount shift=1,sleep=off -rtc clock=vm)
clock=("${real_clock[@]}")
# The machine's memory and network interfaces.
memory=3G
network=(-nic none)

# boot VERSION SECONDS LOG RESULTS ARGUMENTS ARCHIVE…: runs a machine whose root file system
# consists of the archives, until it powers off, for at most SECONDS. Its console is written to LOG,
# its second serial port to RESULTS. ARGUMENTS are kernel parameters.
boot() {
    local version=$1 seconds=$2 log=$3 results=$4 arguments=$5 machine
    shift 5
    case $architecture in
    amd64) machine=(qemu-system-x86_64 -cpu max -append "console=ttyS0 quiet panic=5 mitigations=off $arguments") ;;
    # On ARM the second serial port is a PCI device.
    arm64) machine=(qemu-system-aarch64 -M virt -cpu max,pauth-impdef=on -append "console=ttyAMA0 quiet panic=5 mitigations=off $arguments") ;;
    armhf) machine=(qemu-system-arm -M virt -cpu max -append "console=ttyAMA0 quiet panic=5 mitigations=off $arguments") ;;
    esac
    cat "$@" > "$log.initrd"
    if [ "$architecture" = amd64 ]; then
        machine+=(-serial "file:$log" -serial "file:$results")
    else
        machine+=(-serial "file:$log" -device pci-serial,chardev=results -chardev "file,id=results,path=$results")
    fi
    timeout "$seconds" "${machine[@]}" "${clock[@]}" -smp 1 -m "$memory" -display none -monitor none "${network[@]}" -no-reboot \
        -kernel "$packages/$version/vmlinuz" -initrd "$log.initrd" < /dev/null || true
    rm -f "$log.initrd"
}
