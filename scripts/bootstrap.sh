#!/bin/sh
# Installs the distribution packages that rankd needs (scripts/packages.txt), and prints their
# names; with --build only those that build and run rankd and rankctl. No-op when all are installed. Uses
# sudo when not root.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)

if ! command -v apt-get >/dev/null 2>&1; then
    echo "bootstrap: apt-get not found; install what scripts/packages.txt lists with your package manager" >&2
    exit 2
fi

case ${1-} in
--build) last='/^# tests/q' ;;
'') last= ;;
*)
    echo "bootstrap: '$1': expected nothing or --build" >&2
    exit 2
    ;;
esac

missing=
for package in $(sed "$last" "$root/scripts/packages.txt" | grep -v '^#'); do
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
