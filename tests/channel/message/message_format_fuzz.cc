// SPDX-License-Identifier: Apache-2.0
//
// Notes of a communicator: nothing crashes, and what decodes says the same after encoding it again.
#include <cstdint>
#include <cstdlib>
#include <span>

#include "peerlane/channel/message/host/message_format.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  const auto note = peerlane::LaneNote::decode(std::as_bytes(std::span(bytes, size)));
  if (!note.isOk()) return 0;
  const auto again = peerlane::LaneNote::decode(note->encode());
  if (!again.isOk() || again->encode() != note->encode()) std::abort();
  return 0;
}
