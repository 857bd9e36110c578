// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/verbs/request/pair_lanes.h"

#include <algorithm>
#include <utility>

namespace peerlane {

Status PairLane::post(RequestChain& chain) {
  if (chain.isEmpty()) return Status::ok();
  ibv_send_wr* refused = nullptr;
  const int error = pair->post(chain.first(), &refused);
  chain.clear();
  return error == 0 ? Status::ok() : Status::system(error, pair->name() + " takes no request");
}

PairLane* PairLanes::of(uint64_t request) const {
  for (const auto& lane : lanes_)
    if (lane->ledger.find(request) != nullptr) return lane.get();
  return nullptr;
}

bool PairLanes::isIdle() const {
  return std::all_of(lanes_.begin(), lanes_.end(),
                     [](const auto& lane) { return lane->ledger.isIdle(); });
}

std::vector<uint32_t> PairLanes::numbers() const {
  std::vector<uint32_t> numbers;
  numbers.reserve(lanes_.size());
  for (const auto& lane : lanes_) numbers.push_back(lane->pair->number());
  return numbers;
}

void PairLanes::stopAll() {
  for (const auto& lane : lanes_) lane->pair->stop();
}

void PairLanes::endAll() {
  for (const auto& lane : lanes_) lane->pair->end();
}

std::vector<std::unique_ptr<PairLane>> PairLanes::replace(std::unique_ptr<QueuePair> pair) {
  std::vector<std::unique_ptr<PairLane>> old = std::exchange(lanes_, {});
  add(std::move(pair));
  return old;
}

std::vector<AgentWork*> PairLanes::failedWorks() {
  std::vector<AgentWork*> works;
  for (const auto& lane : lanes_)
    for (uint32_t i = 0; i < lane->ledger.underWay(); ++i) {
      AgentWork* const work = lane->ledger.at(i).work;
      if (work != nullptr && WorkState(*work).isWhole() &&
          work->code.load(std::memory_order_relaxed) != Code::kOk &&
          std::find(works.begin(), works.end(), work) == works.end())
        works.push_back(work);
    }
  return works;
}

void PairLanes::forget(const AgentWork& work) {
  for (const auto& lane : lanes_)
    for (uint32_t i = 0; i < lane->ledger.underWay(); ++i) {
      RequestLedger::Request& request = lane->ledger.at(i);
      if (request.work != &work) continue;
      request.work = nullptr;
      request.to = nullptr;
    }
}

}  // namespace peerlane
