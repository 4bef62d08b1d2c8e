#!/usr/bin/env bash
# ./run demo and ./run test in a minimal system of each Debian release that is supported, as on a new
# machine: tests/distributions.sh [RELEASE...] (bookworm and trixie). Needs root and debootstrap, half a
# minute and 2 GB for each; the systems lie in build-distributions/ and are used again. The tree is
# that of the last commit.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."

place=$PWD/build-distributions
tree=etch # where the project lies in each system; its home as well
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
mounted=()
leave() { for point in "${mounted[@]}"; do umount "$point" || true; done; }
trap leave EXIT

# prepare ROOT RELEASE: the system, the tree in it, and the two file systems that programs count on.
prepare() {
    local root=$1 release=$2
    mkdir -p "$root"
    [ -e "$root/etc/debian_version" ] || debootstrap --variant=minbase "$release" "$root" "$mirror"
    mount -t proc proc "$root/proc" && mounted+=("$root/proc")
    mount --bind /dev "$root/dev" && mounted+=("$root/dev")
    mkdir -p "$root/$tree"
    find "$root/$tree" -mindepth 1 -maxdepth 1 -not -name 'build*' -exec rm -rf {} +
    git archive HEAD | tar -x -C "$root/$tree"
}

# in_system ROOT COMMAND: ./run COMMAND there, in a login's environment.
in_system() {
    chroot "$1" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/$tree bash -c "cd /$tree && ./run $2"
}

status=0
[ $# -gt 0 ] || set -- bookworm trixie
for release in "$@"; do
    prepare "$place/$release" "$release"
    for command in demo test; do
        result=ok
        in_system "$place/$release" $command || result=FAILED status=1
        echo "distributions: $release: ./run $command: $result"
    done
done
exit $status
