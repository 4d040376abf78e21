#!/bin/sh
# Installs the distribution packages that rankd needs (scripts/packages.txt), and prints their
# names. No-op when all are installed. Uses sudo when not root.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)

if ! command -v apt-get >/dev/null 2>&1; then
    echo "bootstrap: apt-get not found; install what scripts/packages.txt lists with your package manager" >&2
    exit 2
fi

missing=
for package in $(grep -v '^#' "$root/scripts/packages.txt"); do
    if ! dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed'; then
        missing="$missing $package"
    fi
done
if [ -z "$missing" ]; then
    echo "bootstrap: all packages are installed"
    exit 0
fi

as_root=
if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null 2>&1; then
        echo "bootstrap: not root and no sudo; as root run: apt-get install$missing" >&2
        exit 2
    fi
    as_root=sudo
fi
echo "bootstrap: installing$missing"
export DEBIAN_FRONTEND=noninteractive
$as_root apt-get update -qq
# shellcheck disable=SC2086 # one word a package
$as_root apt-get install -y -qq --no-install-recommends $missing >/dev/null
echo "bootstrap: done"
