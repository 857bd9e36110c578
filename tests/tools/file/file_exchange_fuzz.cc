// SPDX-License-Identifier: Apache-2.0
//
// Messages about files, from a peer that may send anything.
#include <cstddef>
#include <cstdint>

#include "tools/file/file_exchange.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto message = std::as_bytes(std::span(data, size));
  (void)peerlane::FileOffer::decode(message).isOk();
  (void)peerlane::FileAnswer::decode(message).isOk();
  (void)peerlane::FilePiece::decode(message).isOk();
  if (const auto outcome = peerlane::FileOutcome::decode(message); outcome.isOk()) {
    // What was understood once is understood again.
    if (!peerlane::FileOutcome::decode(outcome->encode()).isOk()) __builtin_trap();
  }
  return 0;
}
