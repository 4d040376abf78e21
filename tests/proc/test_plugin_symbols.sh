#!/bin/sh
# test_plugin_symbols.sh PROGRAM FILE...: goal: a program that loads a plug-in exports all of
# rankd's functions that it uses: a function declared without RK_BEGIN_DECLS, or removed by the
# linker, would otherwise only be missed on machines with the device. Method: each undefined symbol
# of FILEs (a plug-in, or its objects) is in PROGRAM's dynamic symbols, except rk_nccl_*, which are
# in other objects of the plug-in.
set -eu

# symbols_of(awk's condition on the section, readelf's arguments ...): the names of rankd's functions and tables.
symbols_of() {
    condition=$1
    shift
    readelf --wide "$@" |
        awk '$5 == "GLOBAL" && $7 '"$condition"' "UND" && $8 ~ /^rk_/ { print $8 }' | sort -u
}

program=$1
given=$(symbols_of != --dyn-syms "$program")
shift
count=0
missing=
for name in $(symbols_of == --dyn-syms --symbols "$@" | grep -v '^rk_nccl_'); do
    count=$((count + 1))
    printf '%s\n' "$given" | grep -qx "$name" || missing="$missing $name"
done
echo "$count names taken from $program; missing:${missing:- none}"
[ $count -gt 0 ] && [ -z "$missing" ]
