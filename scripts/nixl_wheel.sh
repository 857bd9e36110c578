#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Gets the wheel of NIXL and numpy from Python's index into build/nixl/VERSION, once, and prints that folder.
# Usage: nixl_wheel.sh [VERSION]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly version=${1:-1.5.1}
readonly folder=$PWD/build/nixl/$version

if [ ! -d "$folder" ]; then
  mkdir -p build/nixl
  rm -rf "$folder.part"
  if ! python3 -m pip install --quiet --no-deps --disable-pip-version-check --root-user-action=ignore \
    --target "$folder.part" "nixl-cu12==$version" numpy >&2; then
    echo "nixl_wheel.sh: nixl-cu12 $version and numpy could not be installed from Python's index; the tests of" \
      "integrations/nixl run inside of them" >&2
    exit 1
  fi
  mv "$folder.part" "$folder"
fi
echo "$folder"
