#!/bin/sh
# test_install.sh BUILD_DIR CC [FLAG]: goal: an installation is consistent. Method: install into a
# directory; the units start the installed program, and systemd-analyze (if available) reports no
# errors; the .proto files compile, and so does a program with the driver library; links of pages
# refer to installed pages.
set -eu
build=$1
cc=$2
flag=${3:-}
prefix=$(mktemp -d)
trap 'rm -rf "$prefix"' EXIT

cmake --install "$build" --prefix "$prefix" >/dev/null

program=$(sed -n 's/^ExecStart=\([^ ]*\) .*/\1/p' "$prefix/lib/systemd/system/rankd@.service")
if [ "$program" != "$prefix/bin/rankd" ] || [ ! -x "$program" ]; then
    echo "the unit starts '$program', the program is $prefix/bin/rankd"
    exit 1
fi
if command -v systemd-analyze >/dev/null; then
    # An instance: a template has no value for %i. Misspelled keys and missing programs fail here.
    cp "$prefix/lib/systemd/system/rankd@.service" "$prefix/rankd@0.service"
    systemd-analyze verify --recursive-errors=no "$prefix/rankd@0.service"
fi
for field in 'u rankd' 'm rankd video' 'm rankd render'; do
    grep -q "^$field" "$prefix/lib/sysusers.d/rankd.conf"
done

# The installed part of the protocol compiles alone, and declares only rankd.v1.
protoc -I "$prefix/share/rankd/proto" --descriptor_set_out="$prefix/set" \
    rankd/v1/common.proto rankd/v1/worker.proto rankd/v1/admin.proto
if grep -rn '^package' "$prefix/share/rankd/proto" | grep -v 'package rankd.v1;'; then
    echo "the packages of others are installed"
    exit 1
fi

# The installed converter of Parquet files runs.
python3 "$prefix/share/rankd/python/rankd_parquet_to_jsonl.py" --help >/dev/null

# A C program with only the installed files.
for header in driver/rk_driver rl/rk_algo rl/rk_dataset rl/rk_examples rl/rk_reward text/rk_chat text/rk_tokenizer; do
    echo "#include \"$header.h\""
done >"$prefix/all.c"
echo '#include "dispatch/rk_dispatch.h"' >>"$prefix/all.c"
"$cc" -std=c11 -fsyntax-only -I"$prefix/include/rankd" "$prefix/all.c"
# shellcheck disable=SC2086 # no word where there is no flag
"$cc" -std=c11 $flag -I"$prefix/include/rankd" -o "$prefix/user" "$(dirname "$0")/../unit/driver/library_user.c" \
    -L"$prefix/lib" -lrankd_driver
LD_LIBRARY_PATH=$prefix/lib "$prefix/user"

docs=$prefix/share/doc/rankd
[ -e "$docs/README.md" ]
for page in $(sed -n 's/^Documentation=file://p' "$prefix"/lib/systemd/system/rankd*); do
    [ -e "$page" ] || { echo "the units name '$page', which is not installed"; exit 1; }
done
sh "$(dirname "$0")/../../tools/check_docs.sh" "$docs"
