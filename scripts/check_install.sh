#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the release build into a folder of its own and uses it as a stranger would: once through
# find_package and once through pkg-config, also with --static, which is what people type for a static library. The
# program must print the version that the build has, and what is installed names no folder of this machine. The first
# C++ example of README.md and the program of docs/event_loop.md have to compile and link the same way. Then the sources as
# a folder of a C++23 project: the library and one program. And a compiler that is too old is told so.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly prefix=$PWD/build/installed consumer=$PWD/build/consumer
version=$(sed -n 's/^project(peerlane VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)

expect_version() {
  local said
  said=$("$1")
  if [ "$said" != "$version" ]; then
    echo "$1 printed '$said', expected '$version'" >&2
    exit 1
  fi
}

rm -rf "$prefix" "$consumer"
cmake --install build --prefix "$prefix"
cmake -G Ninja -S tests/consumer -B "$consumer" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_BUILD_TYPE=Debug
cmake --build "$consumer"
expect_version "$consumer/consumer"
expect_version "$consumer/consumer_p2p"
# The C API by itself, where nothing of what the rest is built on can be found.
cmake -G Ninja -S tests/consumer/in_c -B "$consumer/in_c" -DCMAKE_PREFIX_PATH="$prefix"
cmake --build "$consumer/in_c"
expect_version "$consumer/in_c/consumer_in_c"

pc=$(dirname "$(find "$prefix" -name peerlane.pc)")
flags=$(PKG_CONFIG_PATH=$pc pkg-config --cflags --libs peerlane)
# shellcheck disable=SC2086  # a list of flags
g++ tests/consumer/consumer.cc -o "$consumer/by_pkg_config" $flags
expect_version "$consumer/by_pkg_config"
flags_static=$(PKG_CONFIG_PATH=$pc pkg-config --static --cflags --libs peerlane)
# shellcheck disable=SC2086
g++ tests/consumer/consumer.cc -o "$consumer/by_pkg_config_static" $flags_static
expect_version "$consumer/by_pkg_config_static"
# The C API needs nothing but itself: no C++, none of the other libraries' headers.
flags_p2p=$(PKG_CONFIG_PATH=$pc pkg-config --cflags --libs peerlane_p2p)
# shellcheck disable=SC2086
gcc -std=c11 -Wall -Wextra -Werror -pedantic tests/consumer/consumer_p2p.c -o "$consumer/p2p_by_pkg_config" $flags_p2p \
  -pthread -Wl,-rpath,"$(dirname "$pc")"
expect_version "$consumer/p2p_by_pkg_config"
flags_p2p_static=$(PKG_CONFIG_PATH=$pc pkg-config --static --cflags --libs peerlane_p2p)
# shellcheck disable=SC2086
gcc -std=c11 tests/consumer/consumer_p2p.c -o "$consumer/p2p_by_pkg_config_static" $flags_p2p_static \
  -pthread -Wl,-rpath,"$(dirname "$pc")"
expect_version "$consumer/p2p_by_pkg_config_static"
# Everything is found from where the file itself lies, or by a name; only cudadir has a default.
package=$(dirname "$(find "$prefix" -name peerlaneConfig.cmake)")
foreign=$(grep -nE '(^|[^}[:alnum:]_.])/[[:alnum:]_.-]+/' "$pc"/peerlane.pc "$pc"/peerlane_p2p.pc | grep -v ':cudadir=' || true)
foreign+=$(grep -nE "$PWD|(^|[\";= ])/[^\"; ]*\.(a|so)([^[:alnum:]_]|$)" "$package"/*.cmake || true)
if [ -n "$foreign" ]; then
  echo "what is installed names folders of the machine that built it: $foreign" >&2
  exit 1
fi
visible=$(nm -D --defined-only "$(dirname "$pc")"/libpeerlane_p2p.so | awk '{ print $3 }' | grep -vE '^(P2P|PrewarmHccp|UnwarmHccp|_init|_fini)' || true)
if [ -n "$visible" ]; then
  echo "libpeerlane_p2p.so shows more than the C API: $visible" >&2
  exit 1
fi
# The first program of README.md, and the one of docs/event_loop.md.
for page in README.md docs/event_loop.md; do
  [ -e "$page" ] || continue
  program=$consumer/$(basename "$page" .md)
  awk '/^```cpp/ { inside = 1; next } /^```/ && inside { exit } inside' "$page" >"$program.cc"
  if [ ! -s "$program.cc" ]; then
    echo "$page has no example that begins with \`\`\`cpp" >&2
    exit 1
  fi
  # shellcheck disable=SC2086
  g++ -Wall -Wextra "$program.cc" -o "$program" $flags
done
cmake -G Ninja -S tests/consumer/in_tree -B "$consumer/in_tree" -DCMAKE_BUILD_TYPE=Debug
cmake --build "$consumer/in_tree" --target consumer
expect_version "$consumer/in_tree/consumer"
# shellcheck disable=SC2086
said=$(g++ $flags -std=c++17 -fsyntax-only tests/consumer/consumer.cc 2>&1) || true
if ! grep -q 'error: #error "Peerlane needs C++20' <<<"$said"; then
  echo "peerlane.h does not say what it needs to a compiler of C++17, but: $said" >&2
  exit 1
fi
echo "installed, found by find_package and by pkg-config, version $version"
