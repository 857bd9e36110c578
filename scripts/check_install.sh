#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the release build into a folder of its own and uses it as a stranger would: once through
# find_package and once through pkg-config. The program must print the version that the build has. The first
# C++ example of README.md has to compile and link the same way.
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

pc=$(dirname "$(find "$prefix" -name peerlane.pc)")
flags=$(PKG_CONFIG_PATH=$pc pkg-config --cflags --libs peerlane)
# shellcheck disable=SC2086  # a list of flags
g++ tests/consumer/consumer.cc -o "$consumer/by_pkg_config" $flags
expect_version "$consumer/by_pkg_config"
if [ -e README.md ]; then
  awk '/^```cpp/ { inside = 1; next } /^```/ && inside { exit } inside' README.md >"$consumer/readme.cc"
  if [ ! -s "$consumer/readme.cc" ]; then
    echo "README.md has no example that begins with \`\`\`cpp" >&2
    exit 1
  fi
  # shellcheck disable=SC2086
  g++ -Wall -Wextra "$consumer/readme.cc" -o "$consumer/readme" $flags
fi
echo "installed, found by find_package and by pkg-config, version $version"
