#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The formatter over every source: format.sh checks and names what differs, format.sh --fix rewrites.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
mapfile -d '' -t sources < <(
  find . \( -name '.?*' -o -path './build*' \) -prune -o \
    \( -name '*.h' -o -name '*.c' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' \) -print0)
[ ${#sources[@]} -gt 0 ] || { echo "no source found" >&2; exit 1; }
all() { printf '%s\0' "${sources[@]}" | xargs -0 -n 16 -P "$(nproc)" clang-format "$@"; }

if [ "${1:-}" = --fix ]; then
  all -i
elif ! said=$(all --dry-run -Werror --ferror-limit=1 2>&1); then
  grep 'error:' <<<"$said" || echo "$said"
  echo "not in the house format; make format rewrites them" >&2
  exit 1
fi
echo "${#sources[@]} sources in format"
