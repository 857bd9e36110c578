#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing from scripts/packages.txt. Usage: install_packages.sh [build] [test].
# Says what it installs, is instant when nothing is missing, and never touches what is there.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
groups=("$@")
[ ${#groups[@]} -gt 0 ] || groups=(build test)

wanted=()
for group in "${groups[@]}"; do
  mapfile -t names < <(awk -v group="$group" '$1 == group { print $2 }' "$here/packages.txt")
  if [ ${#names[@]} -eq 0 ]; then
    echo "install_packages.sh: no group '$group' in packages.txt; there are build and test" >&2
    exit 2
  fi
  wanted+=("${names[@]}")
done

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  cat >&2 <<END
This is not a Debian system, so nothing can be installed here. Peerlane needs what these Debian 12 packages
hold; install your distribution's equivalents, then repeat the command with PACKAGES=skip:
  ${wanted[*]}
END
  exit 1
fi

# One query for all; a package that was never seen is not listed at all.
installed=$(dpkg-query -W -f='${db:Status-Status} ${Package}\n' "${wanted[@]}" 2>/dev/null || true)
missing=()
for name in "${wanted[@]}"; do
  grep -qx "installed $name" <<<"$installed" || missing+=("$name")
done
[ ${#missing[@]} -gt 0 ] || exit 0

echo "Installing ${#missing[@]} Debian packages: ${missing[*]}"
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "Not root, and there is no sudo. Run as root: apt-get install ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
  [ -t 0 ] || as_root=(sudo -n)  # nobody is there to type a password
fi
as_root+=(env DEBIAN_FRONTEND=noninteractive)
"${as_root[@]}" apt-get -qq update
"${as_root[@]}" apt-get -qq -y install --no-install-recommends "${missing[@]}" >/dev/null
echo "Installed."
