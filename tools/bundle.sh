#!/bin/sh
# bundle.sh BUILD_DIR NAME: installs the build into BUILD_DIR/NAME, adds every shared library that it needs, with its
# licence, and packs the folder as BUILD_DIR/NAME.tar.gz. Libraries that must be the machine's own
# are left out: those of the C library, the NVIDIA driver and CUDA. The programs find ../lib by
# their RPATH (cmake/RankdBundle.cmake).
set -eu
build=$1
name=$2
stage=$build/$name

rm -rf "$stage" "$stage.tar.gz"
# The units use the path of docs/gpu.md; for another path add a drop-in (docs/systemd.md).
RK_UNIT_PREFIX=/opt/$name cmake --install "$build" --prefix "$stage" --strip >/dev/null

# Names are as in "ldd"; the first pattern is the C library's, the others the driver's and CUDA's.
is_left_out() {
    case $1 in
    linux-vdso.so* | ld-linux* | */ld-linux* | libc.so.* | libm.so.* | libmvec.so.* | libpthread.so.* | libdl.so.* | \
        librt.so.* | libresolv.so.* | libutil.so.* | libanl.so.*) ;;
    libcuda.so* | libnv*.so* | libcudart.so* | libcublas*.so* | libnccl.so*) ;;
    *) return 1 ;;
    esac
}

# "ldd" prints NAME => PATH (ADDRESS), or NAME => not found; it also lists indirect dependencies.
find "$stage/bin" "$stage/lib" -type f \( -perm -u+x -o -name '*.so*' \) | while read -r file; do
    ldd "$file"
done | awk '$2 == "=>" { print $1, $3 }' | sort -u | while read -r library path; do
    if is_left_out "$library" || [ -e "$stage/lib/$library" ]; then
        continue
    fi
    if [ "$path" = not ]; then
        echo "bundle: $library was not found on this machine" >&2
        exit 1
    fi
    cp -L "$path" "$stage/lib/$library"
    chmod 644 "$stage/lib/$library"
    # Copies the licence of the library. Packages may list files of /usr/lib under /lib.
    real=$(readlink -f "$path")
    owner=$(dpkg-query -S "$real" "${real#/usr}" 2>/dev/null | sed 's/:.*//;q')
    if [ -n "$owner" ] && [ -e "/usr/share/doc/$owner/copyright" ]; then
        mkdir -p "$stage/share/doc/rankd/licenses"
        cp -L "/usr/share/doc/$owner/copyright" "$stage/share/doc/rankd/licenses/$owner"
    fi
done

tar -C "$build" --sort=name --owner=0 --group=0 --numeric-owner -czf "$stage.tar.gz" "$name"
rm -rf "$stage"
echo "bundle: $stage.tar.gz ($(du -h "$stage.tar.gz" | cut -f1))"
