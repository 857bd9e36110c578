# SPDX-License-Identifier: Apache-2.0
# The headers that users may include; everything else is private to the library. A public header includes
# only the standard library and other public headers (scripts/check_layers.py holds that).

set(PEERLANE_PUBLIC_HEADERS
  peerlane/core/status.h)
# Made at configure time, installed beside the others.
set(PEERLANE_GENERATED_PUBLIC_HEADERS
  peerlane/core/version.h)
