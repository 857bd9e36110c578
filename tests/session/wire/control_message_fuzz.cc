// SPDX-License-Identifier: Apache-2.0
//
// Control messages: nothing crashes, and a value that decodes says the same after encoding it
// again.

#include <cstdint>
#include <cstdlib>
#include <span>

#include "peerlane/session/wire/control_message.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  auto message = peerlane::decodeControl(std::as_bytes(std::span(bytes, size)));
  if (!message.isOk() || std::holds_alternative<peerlane::control::UnknownMessage>(*message))
    return 0;
  auto again = peerlane::encodeControl(*message);
  // Tables may share their bytes, so a small input can stand for a value that is too long when
  // written plainly.
  if (!again.isOk()) {
    if (!std::holds_alternative<peerlane::control::Offers>(*message)) std::abort();
    return 0;
  }
  auto back = peerlane::decodeControl(*again);
  if (!back.isOk() || *back != *message) std::abort();
  return 0;
}
