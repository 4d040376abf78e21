#!/bin/sh
# generate.sh RANKCTL [FOLDER]: generates the package's parts from the protocol, the method table and the table of
# dispatch modes into FOLDER/rankd (default: src, for pip): the stubs rankd/v1, rankd/methods.py, rankd/modes.py. Needs
# protoc and grpc_python_plugin (Debian and Ubuntu: protobuf-compiler, protobuf-compiler-grpc). With FOLDER the sources
# of the package are copied there first.
set -eu
rankctl=$1
here=$(cd "$(dirname "$0")" && pwd)
to=${2:-$here/src}
python=${PYTHON:-python3}
protos=$here/../../proto

mkdir -p "$to/rankd"
if [ $# -gt 1 ]; then
    cp "$here"/src/rankd/*.py "$here/src/rankd/py.typed" "$to/rankd"
fi
protoc -I "$protos" --python_out="$to" --pyi_out="$to" --grpc_out="$to" \
    --plugin=protoc-gen-grpc="$(command -v grpc_python_plugin)" \
    rankd/v1/common.proto rankd/v1/worker.proto rankd/v1/admin.proto
echo '"""Stubs of the protocol, generated."""' >"$to/rankd/v1/__init__.py"
"$python" "$here/tools/generate_modes.py" <"$here/../../dispatch/modes.def" >"$to/rankd/modes.py"
"$rankctl" methods --output json >"$to/rankd/methods.json"
"$python" "$here/tools/generate_methods.py" <"$to/rankd/methods.json" >"$to/rankd/methods.py.new"
rm "$to/rankd/methods.json"
mv "$to/rankd/methods.py.new" "$to/rankd/methods.py"
