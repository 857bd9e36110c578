// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/context/quarantine_lines.h"

#include <chrono>
#include <string>

#include "peerlane/core/log.h"

namespace peerlane {
namespace {

constexpr std::chrono::seconds kPause{1};

const char* inWords(bool isAbsent) {
  return isAbsent ? "left without a goodbye" : "is silent";
}

}  // namespace

void QuarantineLines::add(EventLoop& loop, Number peer, bool isAbsent, uint64_t allocation) {
  const auto [known, isNew] = peers_.try_emplace(peer);
  known->second.isAbsent = isAbsent;
  if (!isNew) {
    ++known->second.more;
    return;
  }
  PEERLANE_LOG_WARN("region {} is quarantined: peer {} {} and may still write to it", allocation,
                    peer, inWords(isAbsent));
  if (!next_.pending()) next_ = loop.after(kPause, [this, &loop] { write(loop); });
}

void QuarantineLines::writeCount(Number peer, const Known& known) {
  PEERLANE_LOG_WARN(
      "{} quarantined: peer {} {} and may still write to {}",
      known.more == 1 ? "1 more region is" : std::to_string(known.more) + " more regions are", peer,
      inWords(known.isAbsent), known.more == 1 ? "it" : "them");
}

// A peer of which nothing more came begins anew.
void QuarantineLines::write(EventLoop& loop) {
  std::erase_if(peers_, [](const auto& each) { return each.second.more == 0; });
  for (auto& [peer, known] : peers_) {
    writeCount(peer, known);
    known.more = 0;
  }
  if (!peers_.empty()) next_ = loop.after(kPause, [this, &loop] { write(loop); });
}

void QuarantineLines::stop() {
  next_.cancel();
  for (const auto& [peer, known] : peers_)
    if (known.more != 0) writeCount(peer, known);
  peers_.clear();
}

}  // namespace peerlane
