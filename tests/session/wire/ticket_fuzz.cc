// SPDX-License-Identifier: Apache-2.0
//
// Ticket and secret texts: nothing crashes, and whatever is taken for a ticket says the same when
// written again.

#include <cstdint>
#include <cstdlib>
#include <sstream>
#include <string>

#include "peerlane/session/wire/ticket.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  const std::string text(reinterpret_cast<const char*>(bytes), size);
  if (auto ticket = peerlane::Ticket::decode(text); ticket.isOk()) {
    auto again = ticket->encode();
    if (!again.isOk() || text.find(*again) == std::string::npos) std::abort();
  }
  if (auto secret = peerlane::Secret::fromText(text); secret.isOk() && secret->isEmpty())
    std::abort();
  std::istringstream input(text);
  (void)peerlane::readTicket("-", input).isOk();
  return 0;
}
