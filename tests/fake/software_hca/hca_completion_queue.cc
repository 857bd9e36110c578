// SPDX-License-Identifier: Apache-2.0
#include "tests/fake/software_hca/hca_completion_queue.h"

#include <bit>
#include <cerrno>
#include <utility>

#include "tests/fake/software_hca/hca_context.h"
#include "tests/fake/software_hca/hca_queue_pair.h"

namespace peerlane::softhca {

CompletionQueue::CompletionQueue(Context& owner, int entries, void* userContext, Channel* to)
    : ibv_cq{}, owner_(owner) {
  context = owner.face();
  channel = to;
  cq_context = userContext;
  // Drivers round up, and keep one entry for themselves.
  cqe = static_cast<int>(std::bit_ceil(static_cast<uint32_t>(entries) + 1) - 1);
  ring_.resize(static_cast<size_t>(cqe));
  pthread_mutex_init(&mutex, nullptr);
  pthread_cond_init(&cond, nullptr);
}

CompletionQueue::~CompletionQueue() {
  pthread_cond_destroy(&cond);
  pthread_mutex_destroy(&mutex);
}

bool CompletionQueue::push(const ibv_wc& completion, QueuePair* pair, bool isSolicited,
                           uint64_t sent) {
  const uint64_t tail = tail_.load(std::memory_order_relaxed);
  if (isOverrun_ || tail - head_.load(std::memory_order_acquire) == ring_.size()) {
    overrun();
    return false;
  }
  ring_[tail % ring_.size()] = {completion, pair, sent};
  // Partner: arm() stores and its caller polls once more; one of the two sees the other.
  tail_.store(tail + 1, std::memory_order_seq_cst);
  if (armed_.load(std::memory_order_seq_cst) != kNot)
    raise(isSolicited || (completion.status != IBV_WC_SUCCESS && !owner_.isLikeRxe()));
  return true;
}

void CompletionQueue::raise(bool isSolicited) {
  if (armed_.load() == kSolicited && !isSolicited) return;
  if (armed_.exchange(kNot) == kNot || channel == nullptr) return;
  Channel::of(channel).events.push(this);
}

int CompletionQueue::pollMany(int most, ibv_wc* out) {
  const SpinHeld held(polling_);
  uint64_t head = head_.load(std::memory_order_relaxed);
  const uint64_t tail = tail_.load(std::memory_order_acquire);
  int count = 0;
  for (; count < most && head != tail; ++count, ++head) {
    const Entry& entry = ring_[head % ring_.size()];
    out[count] = entry.completion;
    if (entry.sent != 0) entry.pair->requests.free(entry.sent);
  }
  if (count > 0) head_.store(head, std::memory_order_release);
  return count;
}

int CompletionQueue::arm(bool solicitedOnly) {
  // Who asked for any completion is not content with solicited ones.
  uint32_t wish = solicitedOnly ? kSolicited : kAny;
  if (armed_.load() == kAny) wish = kAny;
  armed_.store(wish, std::memory_order_seq_cst);
  return 0;
}

int CompletionQueue::resize(int entries) {
  const SpinHeld held(polling_);
  const uint64_t head = head_.load(), tail = tail_.load();
  const auto wanted = static_cast<size_t>(entries);
  if (tail - head > wanted) return EINVAL;
  std::vector<Entry> ring(wanted);
  for (uint64_t at = head; at != tail; ++at) ring[at % wanted] = ring_[at % ring_.size()];
  ring_ = std::move(ring);
  cqe = entries;
  return 0;
}

void CompletionQueue::forget(const QueuePair* pair) {
  const SpinHeld held(polling_);
  const uint64_t tail = tail_.load();
  uint64_t kept = head_.load();
  for (uint64_t at = kept; at != tail; ++at) {
    const Entry entry = ring_[at % ring_.size()];
    if (entry.pair != pair) ring_[kept++ % ring_.size()] = entry;
  }
  tail_.store(kept);
}

void CompletionQueue::overrun() {
  if (isOverrun_) return;
  isOverrun_ = true;
  owner_.raise({{.cq = this}, IBV_EVENT_CQ_ERR});
  owner_.failUsersOf(*this);
}

}  // namespace peerlane::softhca
