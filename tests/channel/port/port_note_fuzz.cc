// SPDX-License-Identifier: Apache-2.0
//
// Notes about semaphores: nothing crashes, and what decodes says the same after encoding it again.
#include <cstdint>
#include <cstdlib>
#include <span>

#include "peerlane/channel/port/port_note.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  const auto note = peerlane::PortNote::decode(std::as_bytes(std::span(bytes, size)));
  if (!note.isOk()) return 0;
  const auto again = peerlane::PortNote::decode(note->encode());
  if (!again.isOk() || again->encode() != note->encode()) std::abort();
  return 0;
}
