// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/verbs/request/word_mail.h"

#include <array>
#include <cstring>

#include "peerlane/memory/region_table.h"
#include "peerlane/program/words/word.h"
#include "peerlane/transport/verbs/device/control_block.h"

namespace peerlane {

Status WordMail::apply(const News& news) {
  constexpr uint64_t kBytes = control_block::kMailBytes;
  if ((news.slot + uint64_t{1}) * kBytes > slots_.size())
    return Status(Code::kCorrupt, "the peer names mail " + std::to_string(news.slot) +
                                      "; there are " + std::to_string(slots_.size() / kBytes));
  std::array<uint64_t, 4> mail;
  static_assert(sizeof mail == kBytes);
  std::memcpy(mail.data(), slots_.data() + news.slot * kBytes, sizeof mail);
  const auto [allocation, generation, offset, value] = mail;
  const Width width = news.kind == News::Kind::kStore32 ? Width::k32 : Width::k64;
  const uint64_t bytes = width == Width::k32 ? 4 : 8;
  if (offset % bytes != 0)
    return Status(Code::kInvalidArgument, "a word of " + std::to_string(bytes) +
                                              " bytes at offset " + std::to_string(offset));
  PEERLANE_ASSIGN(const PinnedMemory pinned,
                  regions_.pin(allocation, generation, offset, bytes, Access::kRemoteWrite));
  std::byte* const word = pinned.at;
  const auto region = regions_.holding(word, bytes);
  const bool isHost = !region || region->memory.device.kind == DeviceKind::kHost;
  if (!isHost || reinterpret_cast<uintptr_t>(word) % bytes != 0) {
    regions_.unpin(allocation);
    return Status(Code::kInvalidArgument,
                  isHost ? "a word at an address that is not aligned"
                         : "a word in memory of a device, which this side's CPU does not reach");
  }
  if (!pinned.isOurs) {
    regions_.unpin(allocation);
    return Status(
        Code::kNotSupported,
        "a word in memory of the program, which may be gone when it is written; words lie "
        "in memory of Context::allocate");
  }
  if (news.kind == News::Kind::kAdd64)
    (void)addWord(word, value);
  else
    storeWord(word, width, value, std::memory_order_seq_cst);
  regions_.unpin(allocation);
  return Status::ok();
}

}  // namespace peerlane
