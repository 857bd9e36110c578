// SPDX-License-Identifier: Apache-2.0
//
// Disaggregated serving: a prefill process computes the KV cache of a prompt layer by layer and
// puts each layer's pages straight into the cache of a decode process, while it computes the next.
//
//   decode                                         prefill
//   picks free pages: its block table    ──────▶   picks pages of its own, computes layer 0
//                                        ◀══════   puts them, page by page to where decode said
//   checks layer 0                       ◀──────   "request 7, layer 0 is there"; computes layer 1
//   ...                                            ...
//   has every layer: may begin to decode ──────▶   "request 7 is complete": frees its pages
//
// Both caches are one region each. The pages of a request lie anywhere in them, at other places for
// every request: that is what an indexed Plan is for. It is prepared once for each layer; a post
// names the pages by their numbers, as the block tables hold them.
//
//   example_02_kv_pages --requests 100 --device prefill=cuda:0 --device decode=cuda:1
#include <atomic>
#include <random>

#include "examples/roles.h"

using namespace example;
using peerlane::Peer;
using peerlane::Plan;
using peerlane::Region;
using peerlane::Transfer;

namespace {

constexpr uint32_t kLayers = 8;
constexpr uint64_t kPageBytes = 64 << 10;  // 16 tokens x 8 heads x 128 x 2 bytes, K and V
constexpr uint32_t kPages = 128;           // of each layer in each cache
constexpr uint64_t kLayerBytes = kPages * kPageBytes;
constexpr uint32_t kMaxRequestPages = 32;  // prompts of up to 512 tokens
constexpr size_t kRequestsAtOnce = 3;

// Which page of the cache holds page i of the request.
struct BlockTable {
  uint32_t count = 0;
  std::array<uint32_t, kMaxRequestPages> pages{};
  std::span<const uint32_t> span() const { return std::span(pages).first(count); }
};

// Notifications, by tag. Up to 4096 bytes each: room for the block table of a long prompt.
constexpr uint32_t kPrefillTag = 1;
constexpr uint32_t kLayerTag = 2;
constexpr uint32_t kCompleteTag = 3;
struct PrefillRequest {
  uint64_t request = 0;
  BlockTable table;  // of decode
};
struct LayerArrived {
  uint64_t request = 0;
  uint64_t layer = 0;
};
struct RequestComplete {
  uint64_t request = 0;
};

// The free pages of a cache. Random, as they are after a while of serving.
class PagePool {
 public:
  explicit PagePool(uint32_t seed) : random_(seed) {
    for (uint32_t page = 0; page < kPages; ++page) free_.push_back(page);
  }
  BlockTable take(uint32_t count) {
    BlockTable table;
    while (table.count < count) {
      std::swap(free_[random_() % free_.size()], free_.back());
      table.pages[table.count++] = free_.back();
      free_.pop_back();
    }
    return table;
  }
  void giveBack(const BlockTable& table) {
    free_.insert(free_.end(), table.pages.begin(), table.pages.begin() + table.count);
  }

 private:
  std::vector<uint32_t> free_;
  std::minstd_rand random_;
};
static_assert(kRequestsAtOnce * kMaxRequestPages <= kPages);

// What the model would have computed.
void computePage(uint64_t request, uint64_t layer, uint64_t i, std::span<std::byte> page) {
  makeBytes((request * kLayers + layer) * kMaxRequestPages + i, page);
}

template <typename Message>
Status tell(const Peer& peer, uint32_t tag, const Message& message) {
  PEERLANE_ASSIGN(const Transfer sent,
                  peerlane::notify(peer, {.message = bytesOf(message), .tag = tag}));
  return sent.wait(kPatience);
}

// ---- Prefill

class Prefill {
 public:
  Status start(const peerlane::Device& device, const std::string& ticket) {
    PEERLANE_ASSIGN(context_, contextOn(device));
    PEERLANE_ASSIGN(decode_, context_->connect(ticket, kPatience));
    // Nobody but this process touches the prefill cache.
    PEERLANE_ASSIGN(cache_,
                    allocateOn(*context_, device, kLayers * kLayerBytes, peerlane::Access::kLocal));
    PEERLANE_ASSIGN(const std::vector<std::byte> share, decode_.receiveMessage(0, kPatience));
    PEERLANE_ASSIGN(remote_, decode_.importRegion(share));
    for (uint64_t layer = 0; layer < kLayers; ++layer) {
      const peerlane::IndexedBlocks pages{.local = &cache_,
                                          .localOffset = layer * kLayerBytes,
                                          .localCount = kPages,
                                          .remote = &remote_,
                                          .remoteOffset = layer * kLayerBytes,
                                          .remoteCount = kPages,
                                          .blockBytes = kPageBytes,
                                          .maxBlocksPerPost = kMaxRequestPages};
      PEERLANE_ASSIGN(plans_[layer], Plan::create(decode_, peerlane::Direction::kPut, pages));
    }
    return Status::ok();
  }

  Status run(uint64_t requests) {
    for (uint64_t complete = 0; complete < requests;) {
      PEERLANE_ASSIGN(const auto told, peerlane::waitNotification(decode_, kPatience));
      if (told.tag == kCompleteTag) {
        PEERLANE_ASSIGN(const auto which, messageAs<RequestComplete>(told.message));
        pool_.giveBack(tables_[which.request]);
        tables_.erase(which.request);
        ++complete;
      } else {
        PEERLANE_ASSIGN(const auto request, messageAs<PrefillRequest>(told.message));
        PEERLANE_RETURN_IF_ERROR(serve(request));
      }
    }
    std::printf("prefill: %llu requests, %.1f MB in pages of %llu KiB, %.2f GB/s over %s (%s)\n",
                static_cast<unsigned long long>(requests), static_cast<double>(bytes_) / 1e6,
                static_cast<unsigned long long>(kPageBytes >> 10),
                static_cast<double>(bytes_) / static_cast<double>(std::max<int64_t>(*spent_, 1)),
                decode_.route().link.c_str(), remote_.engine().c_str());
    return Status::ok();
  }

 private:
  // Layer n is under way while layer n + 1 is computed.
  Status serve(const PrefillRequest& asked) {
    if (asked.table.count == 0 || asked.table.count > kMaxRequestPages)
      return Status(Code::kCorrupt, "a request of " + std::to_string(asked.table.count) + " pages");
    const BlockTable& mine = tables_[asked.request] = pool_.take(asked.table.count);
    Transfer moving;
    for (uint64_t layer = 0; layer < kLayers; ++layer) {
      PEERLANE_RETURN_IF_ERROR(compute(asked.request, layer, mine));
      if (layer > 0) PEERLANE_RETURN_IF_ERROR(announce(moving, {asked.request, layer - 1}));
      const Clock::time_point start = Clock::now();
      PEERLANE_ASSIGN(moving, plans_[layer].post(mine.span(), asked.table.span()));
      moving.onEnd([spent = spent_, start](const Status&) {
        *spent += std::chrono::nanoseconds(Clock::now() - start).count();
      });
      bytes_ += mine.count * kPageBytes;
    }
    return announce(moving, {asked.request, kLayers - 1});
  }

  Status compute(uint64_t request, uint64_t layer, const BlockTable& table) {
    for (uint32_t i = 0; i < table.count; ++i) {
      computePage(request, layer, i, page_);
      PEERLANE_RETURN_IF_ERROR(
          fill(cache_, layer * kLayerBytes + table.pages[i] * kPageBytes, page_));
    }
    return Status::ok();
  }

  // A notification speaks of what had ended before it was posted.
  Status announce(const Transfer& moved, const LayerArrived& layer) {
    PEERLANE_RETURN_IF_ERROR(moved.wait(kPatience));
    return tell(decode_, kLayerTag, layer);
  }

  std::unique_ptr<peerlane::Context> context_;
  Peer decode_;
  Region cache_;
  peerlane::RemoteRegion remote_;
  std::array<Plan, kLayers> plans_;
  PagePool pool_{1};
  std::map<uint64_t, BlockTable> tables_;  // by request
  std::vector<std::byte> page_ = std::vector<std::byte>(kPageBytes);
  uint64_t bytes_ = 0;
  // Nanoseconds that layers were under way. Shared: the library's own thread may see their end.
  std::shared_ptr<std::atomic<int64_t>> spent_ = std::make_shared<std::atomic<int64_t>>(0);
};

// ---- Decode

class Decode {
 public:
  Status start(const peerlane::Device& device, TicketPipes& tickets) {
    PEERLANE_ASSIGN(context_, contextOn(device));
    PEERLANE_ASSIGN(cache_, allocateOn(*context_, device, kLayers * kLayerBytes,
                                       peerlane::Access::kRemoteWrite));
    PEERLANE_RETURN_IF_ERROR(tickets.give(context_->ticket()));
    PEERLANE_ASSIGN(prefill_, context_->accept(kPatience));
    return prefill_.sendMessage(0, cache_.share());
  }

  Status run(uint64_t requests) {
    for (uint64_t asked = 0, complete = 0; complete < requests;) {
      while (asked < requests && running_.size() < kRequestsAtOnce)
        PEERLANE_RETURN_IF_ERROR(ask(asked++));
      PEERLANE_ASSIGN(const auto told, peerlane::waitNotification(prefill_, kPatience));
      PEERLANE_ASSIGN(const auto arrived, messageAs<LayerArrived>(told.message));
      PEERLANE_RETURN_IF_ERROR(check(arrived));
      if (arrived.layer + 1 < kLayers) continue;
      // Here decoding would begin.
      pool_.giveBack(running_[arrived.request].table);
      running_.erase(arrived.request);
      PEERLANE_RETURN_IF_ERROR(tell(prefill_, kCompleteTag, RequestComplete{arrived.request}));
      ++complete;
    }
    std::printf("decode: %llu requests complete, every byte of %llu pages is right\n",
                static_cast<unsigned long long>(requests),
                static_cast<unsigned long long>(checked_));
    return Status::ok();
  }

 private:
  struct Running {
    BlockTable table;
    uint64_t layers = 0;  // that arrived
  };

  Status ask(uint64_t request) {
    const auto pages = static_cast<uint32_t>(1 + random_() % kMaxRequestPages);
    Running& running = running_[request];
    running.table = pool_.take(pages);
    return tell(prefill_, kPrefillTag, PrefillRequest{request, running.table});
  }

  Status check(const LayerArrived& arrived) {
    const auto running = running_.find(arrived.request);
    const std::string where =
        "request " + std::to_string(arrived.request) + ", layer " + std::to_string(arrived.layer);
    if (running == running_.end() || running->second.layers++ != arrived.layer)
      return Status(Code::kCorrupt, where + " was not expected now");
    const BlockTable& table = running->second.table;
    for (uint32_t i = 0; i < table.count; ++i) {
      computePage(arrived.request, arrived.layer, i, expected_);
      PEERLANE_RETURN_IF_ERROR(
          look(cache_, arrived.layer * kLayerBytes + table.pages[i] * kPageBytes, page_));
      if (std::memcmp(page_.data(), expected_.data(), kPageBytes) != 0)
        return Status(Code::kCorrupt, where + ", page " + std::to_string(table.pages[i]) +
                                          " is not what prefill computed");
    }
    checked_ += table.count;
    return Status::ok();
  }

  std::unique_ptr<peerlane::Context> context_;
  Peer prefill_;
  Region cache_;
  PagePool pool_{2};
  std::minstd_rand random_{3};
  std::map<uint64_t, Running> running_;  // by request
  std::vector<std::byte> page_ = std::vector<std::byte>(kPageBytes);
  std::vector<std::byte> expected_ = std::vector<std::byte>(kPageBytes);
  uint64_t checked_ = 0;
};

Status runPrefill(const Options& options, TicketPipes& tickets) {
  PEERLANE_ASSIGN(const std::string ticket, tickets.take(0));
  Prefill prefill;
  PEERLANE_RETURN_IF_ERROR(prefill.start(options.devices.at("prefill"), ticket));
  return prefill.run(options.count);
}

Status runDecode(const Options& options, TicketPipes& tickets) {
  Decode decode;
  PEERLANE_RETURN_IF_ERROR(decode.start(options.devices.at("decode"), tickets));
  return decode.run(options.count);
}

}  // namespace

int main(int argc, char** argv) {
  const auto options = parse(argc, argv, "--requests", 16, {"prefill", "decode"});
  if (!options) {
    std::fprintf(stderr, "%s\n", options.status().toString().c_str());
    return 2;
  }
  TicketPipes tickets(1);
  return runRoles({{"decode", [&] { return runDecode(*options, tickets); }},
                   {"prefill", [&] { return runPrefill(*options, tickets); }}},
                  tickets);
}
