#!/usr/bin/env bash
# Builds and runs the native tests under the sanitizers. usage: tests/native/run.sh PATCHED_GGML_DIR [BUILD_DIR]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
ggml=${1:?usage: run.sh PATCHED_GGML_DIR [BUILD_DIR]}
build=${2:-$(mktemp -d)}
mkdir -p "$build"
export ASAN_OPTIONS="detect_leaks=1" TSAN_OPTIONS="halt_on_error=1 second_deadlock_stack=1"
export LSAN_OPTIONS="suppressions=$here/leaks.txt:print_suppressions=0"
export UBSAN_OPTIONS="halt_on_error=1 print_stacktrace=1"
for sanitize in address,undefined thread; do
    dir=$build/${sanitize%%,*}
    cmake -G Ninja -S "$here" -B "$dir" -DGGML_DIR="$ggml" -DSPAC_SANITIZE=$sanitize >"$build/configure.log" 2>&1 || { cat "$build/configure.log"; exit 1; }
    cmake --build "$dir" --target stress >"$build/build.log" 2>&1 || { tail -n 50 "$build/build.log"; exit 1; }
    echo "== -fsanitize=$sanitize"
    "$dir/stress"
done
cmake --build "$build/address" --target kernels >"$build/build.log" 2>&1 || { tail -n 50 "$build/build.log"; exit 1; }
"$build/address/kernels"
