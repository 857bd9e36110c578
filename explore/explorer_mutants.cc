// SPDX-License-Identifier: Apache-2.0
#include "explore/explorer_mutants.h"

#include <functional>

namespace peerlane::explorer {
namespace {

class Maker {
 public:
  explicit Maker(const Program& program) : program_(program) {}

  std::vector<Mutant> run() {
    for (index_ = 0; index_ < program_.ops.size(); ++index_) {
      leaveOut();
      const Op& op = program_.ops[index_];
      if (op.order == Order::kRelease)
        change("relaxed", [](Op& changed) { changed.order = Order::kRelaxed; });
      if (op.operand.cursor != kNoCursor) changeOperand(op);
      if (isRing(op.to)) change("slot of `to` + 1", [](Op& changed) { ++changed.to.slotDelta; });
      if (isRing(op.from))
        change("slot of `from` + 1", [](Op& changed) { ++changed.from.slotDelta; });
    }
    return std::move(mutants_);
  }

 private:
  bool isRing(const Place& place) const {
    return place.target < program_.targets.size() && program_.targets[place.target].slots > 1;
  }
  void leaveOut() {
    Program mutant = program_;
    mutant.ops.erase(mutant.ops.begin() + static_cast<std::ptrdiff_t>(index_));
    add("left out", std::move(mutant));
  }
  void change(const char* what, const std::function<void(Op&)>& edit) {
    Program mutant = program_;
    edit(mutant.ops[index_]);
    add(what, std::move(mutant));
  }
  void changeOperand(const Op& op) {
    change("cursor made constant", [](Op& changed) { changed.operand.cursor = kNoCursor; });
    change("operand - 1", [](Op& changed) { --changed.operand.delta; });
    if (op.code == OpCode::kStore || op.code == OpCode::kCopy)
      change("operand + 1", [](Op& changed) { ++changed.operand.delta; });
  }
  void add(const char* what, Program mutant) {
    mutants_.push_back({std::string(program_.name) + " op " + std::to_string(index_) + " " + what,
                        std::move(mutant)});
  }

  const Program& program_;
  size_t index_ = 0;
  std::vector<Mutant> mutants_;
};

}  // namespace

std::vector<Mutant> mutantsOf(const Program& program) {
  return Maker(program).run();
}

}  // namespace peerlane::explorer
