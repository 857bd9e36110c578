// SPDX-License-Identifier: Apache-2.0
#include "explore/explorer_script.h"

#include <algorithm>
#include <optional>

namespace peerlane::explorer {
namespace {

struct PlacedCopy {
  Range to;
  Range from;
  std::optional<Range> number{};  // of a packet, which comes with it
};

bool sameRange(const Range& a, const Range& b) {
  return a.area == b.area && a.offset == b.offset && a.bytes == b.bytes;
}

// The lines of Program::toString() without the name: one per op.
std::vector<std::string> opTexts(const Program& program) {
  std::vector<std::string> lines;
  const std::string text = program.toString();
  for (size_t begin = text.find('\n') + 1; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    lines.push_back(text.substr(begin + 2, end - begin - 2));
    begin = end + 1;
  }
  return lines;
}

class Compiler {
 public:
  explicit Compiler(const Scenario& scenario) : scenario_(scenario), cells_(scenario.areas) {}

  Scripts run() {
    for (const Actor& actor : scenario_.actors)
      for (const Execution& execution : actor.executions)
        if (!cutExecution(execution)) return failed(actor.name);
    for (const ExpectedWord& final : scenario_.finals)
      if (!cells_.cut(final.word)) return failed("the final words");
    cells_.close();
    scripts_.cellCount = cells_.count();
    scripts_.isWord.resize(cells_.count());
    scripts_.isCounter.resize(cells_.count());
    for (uint32_t cell = 0; cell < cells_.count(); ++cell)
      scripts_.cellNames.push_back(cells_.nameOf(cell));
    for (const Actor& actor : scenario_.actors) scripts_.actors.push_back(scriptOf(actor));
    for (const ExpectedWord& final : scenario_.finals)
      scripts_.finals.push_back({cells_.of(final.word).front(), static_cast<Value>(final.value)});
    if (scenario_.reduce) findPrivateCells();
    return std::move(scripts_);
  }

 private:
  Scripts failed(const std::string& who) {
    scripts_.defect = who + ": " + defect_;
    return std::move(scripts_);
  }

  // --- Places ---
  Range placed(const Execution& execution, const Place& place, uint64_t bytes) const {
    const Target& target = execution.program->targets[place.target];
    Range range = execution.targets[place.target];
    range.offset += place.offset;
    range.bytes = bytes;
    if (target.slots > 0) {
      const int64_t slots = target.slots;
      const int64_t at = static_cast<int64_t>(execution.cursors[target.cursor]) + place.slotDelta;
      range.offset += static_cast<uint64_t>(((at % slots) + slots) % slots) * target.strideBytes;
    }
    return range;
  }
  static int64_t operandOf(const Execution& execution, const Operand& operand) {
    if (operand.cursor == kNoCursor) return operand.delta;
    return static_cast<int64_t>(execution.cursors[operand.cursor]) + operand.delta;
  }
  Range wordOf(const Execution& execution, const Op& op) const {
    return placed(execution, op.to, static_cast<uint64_t>(op.width));
  }
  bool holdsPackets(const Execution& execution, const Place& place) const {
    return place.target != kNoTarget && execution.program->targets[place.target].packets;
  }
  // The bytes or the number of one packet.
  Range packetPart(const Execution& execution, Place place, uint64_t packet, uint64_t at,
                   uint64_t bytes) const {
    place.offset = (place.offset / kPacketPayloadBytes + packet) * kPacketBytes + at;
    return placed(execution, place, bytes);
  }
  Range numberOf(const Execution& execution, const Place& place, uint64_t packet) const {
    return packetPart(execution, place, packet, kPacketPayloadBytes, sizeof(uint64_t));
  }
  static uint64_t packetsOf(uint64_t bytes) {
    return (bytes + kPacketPayloadBytes - 1) / kPacketPayloadBytes;
  }
  // A packet is a piece.
  void addUnits(const Execution& execution, const Op& op, std::vector<PlacedCopy>& out) const {
    for (uint64_t packet = 0; packet < packetsOf(op.bytes); ++packet) {
      const uint64_t at = packet * kPacketPayloadBytes;
      const uint64_t bytes = std::min<uint64_t>(op.bytes - at, kPacketPayloadBytes);
      const auto plain = [&](Place place) {
        place.offset += at;
        return placed(execution, place, bytes);
      };
      if (holdsPackets(execution, op.to))
        out.push_back({packetPart(execution, op.to, packet, 0, bytes), plain(op.from),
                       numberOf(execution, op.to, packet)});
      else
        out.push_back({plain(op.to), packetPart(execution, op.from, packet, 0, bytes), {}});
    }
  }
  // In at least two pieces, because no device copies a message at once.
  static void addPieces(const Range& to, const Range& from, std::vector<PlacedCopy>& out) {
    const uint64_t half = to.bytes / 2;
    for (const auto& [offset, bytes] : {std::pair{uint64_t{0}, half}, {half, to.bytes - half}}) {
      if (bytes > 0)
        out.push_back(
            {{to.area, to.offset + offset, bytes}, {from.area, from.offset + offset, bytes}});
    }
  }
  std::vector<PlacedCopy> piecesOf(const Execution& execution, const Op& op) const {
    std::vector<PlacedCopy> pieces;
    if (op.code == OpCode::kCopy) {
      if (holdsPackets(execution, op.to) || holdsPackets(execution, op.from)) {
        addUnits(execution, op, pieces);
        return pieces;
      }
      addPieces(placed(execution, op.to, op.bytes), placed(execution, op.from, op.bytes), pieces);
      return pieces;
    }
    const CopyLayout& list = execution.program->lists[op.list];
    std::vector<Segment> segments = list.segments;
    if (list.kind != CopyLayout::Kind::kScattered) {
      for (uint64_t i = 0; i < list.count; ++i) {
        segments.push_back(list.first);
        segments.back().toOffset += i * list.toStride;
        segments.back().fromOffset += i * list.fromStride;
      }
    }
    for (const Segment& segment : segments) {
      const Place to{.target = segment.to, .offset = segment.toOffset};
      const Place from{.target = segment.from, .offset = segment.fromOffset};
      const PlacedCopy whole{placed(execution, to, segment.bytes),
                             placed(execution, from, segment.bytes)};
      // Several segments are pieces already.
      if (segments.size() > 1)
        pieces.push_back(whole);
      else
        addPieces(whole.to, whole.from, pieces);
    }
    return pieces;
  }

  // --- First pass: cells ---
  bool cut(const Range& range, const std::string& what) {
    if (cells_.cut(range)) return true;
    defect_ = what + ": bytes " + std::to_string(range.offset) + " to " +
              std::to_string(range.offset + range.bytes) + " do not lie in area " +
              std::to_string(range.area);
    return false;
  }
  bool cutExecution(const Execution& execution) {
    const Program& program = *execution.program;
    if (const Status status = program.check(); !status.isOk()) {
      defect_ = status.toString();
      return false;
    }
    if (execution.cursors.size() < program.cursorAdvance.size() ||
        execution.targets.size() < program.targets.size()) {
      defect_ = "program '" + std::string(program.name) + "' misses a cursor or a target";
      return false;
    }
    for (const Op& op : program.ops)
      if (!cutOp(execution, op)) return false;
    for (const Tagged& fill : execution.fills)
      if (!cut(fill.range, "fill")) return false;
    for (const Tagged& expect : execution.expects)
      if (!cut(expect.range, "expect")) return false;
    for (const LateSource& late : execution.lates)
      if (!cut(late.read.range, "late source")) return false;
    return true;
  }
  bool cutOp(const Execution& execution, const Op& op) {
    const std::string name = execution.program->name;
    if (op.code == OpCode::kCopy || op.code == OpCode::kCopyList) {
      for (const PlacedCopy& piece : piecesOf(execution, op)) {
        if (!cut(piece.to, name) || !cut(piece.from, name)) return false;
        if (piece.number && !cut(*piece.number, name)) return false;
        cells_.link(piece.to, piece.from);
      }
    } else if (op.code == OpCode::kWait && holdsPackets(execution, op.to)) {
      for (uint64_t packet = 0; packet < packetsOf(op.bytes); ++packet)
        if (!cut(numberOf(execution, op.to, packet), name)) return false;
    } else if (op.code != OpCode::kFence && op.code != OpCode::kFlush) {
      return cut(wordOf(execution, op), name);
    }
    return true;
  }

  // --- Second pass: instructions ---
  void issue(Script& script, std::vector<Effect> effects, std::string text) {
    Instruction instruction{.kind = Instruction::Kind::kIssue, .text = std::move(text)};
    instruction.first = static_cast<uint32_t>(script.effects.size());
    instruction.count = static_cast<uint32_t>(effects.size());
    for (Effect& effect : effects) script.effects.push_back(std::move(effect));
    if (instruction.count > 0) script.instructions.push_back(std::move(instruction));
  }
  Effect fillOf(const Tagged& fill) const {
    Effect effect;
    effect.to = cells_.of(fill.range);
    for (const uint32_t cell : effect.to)
      effect.values.push_back(pieceOf(fill.message, cells_.offsetOf(cell) - fill.range.offset));
    effect.text = "user writes " + cells_.nameOf(effect.to.front()) + " of message " +
                  std::to_string(fill.message);
    return effect;
  }
  void look(Script& script, const std::vector<Tagged>& tagged, const std::string& text) {
    Instruction instruction{.kind = Instruction::Kind::kLook, .text = text};
    for (const Tagged& expect : tagged)
      for (const uint32_t cell : cells_.of(expect.range))
        instruction.expected.push_back(
            {cell, pieceOf(expect.message, cells_.offsetOf(cell) - expect.range.offset)});
    if (!instruction.expected.empty()) script.instructions.push_back(std::move(instruction));
  }

  Script scriptOf(const Actor& actor) {
    Script script;
    for (size_t i = 0; i < actor.executions.size(); ++i) {
      const Execution& execution = actor.executions[i];
      std::vector<Effect> fills;
      for (const Tagged& fill : execution.fills) fills.push_back(fillOf(fill));
      issue(script, std::move(fills), "user fills");
      runOps(script, execution);
      look(script, execution.expects, "user reads the result");
      const Execution* next = i + 1 < actor.executions.size() ? &actor.executions[i + 1] : nullptr;
      issue(script, reuse(execution, next), "user writes its buffers again");
      look(script, execution.expects, "user reads the result once more");
    }
    script.instructions.push_back({.kind = Instruction::Kind::kDone, .text = "ended"});
    return script;
  }
  // Sources that the next execution does not fill itself are written with something else.
  std::vector<Effect> reuse(const Execution& execution, const Execution* next) const {
    std::vector<Effect> effects;
    for (Tagged fill : execution.fills) {
      const bool refilled =
          next != nullptr &&
          std::any_of(next->fills.begin(), next->fills.end(),
                      [&](const Tagged& other) { return sameRange(other.range, fill.range); });
      if (fill.message == 0 || refilled || execution.keepsBuffers) continue;
      fill.message = kLastMessage;
      effects.push_back(fillOf(fill));
    }
    return effects;
  }
  void runOps(Script& script, const Execution& execution) {
    const Program& program = *execution.program;
    const std::vector<std::string> texts = opTexts(program);
    std::vector<bool> bound(program.targets.size());
    std::string place = std::string(program.name);
    if (!execution.cursors.empty()) place += "(" + std::to_string(execution.cursors[0]) + ")";
    place += " ";
    for (size_t i = 0; i < program.ops.size(); ++i) {
      const Op& op = program.ops[i];
      for (const TargetId id : targetsOf(program, op)) bindLate(script, execution, id, bound);
      runOp(script, execution, op, place + texts[i]);
    }
  }
  static std::vector<TargetId> targetsOf(const Program& program, const Op& op) {
    if (op.code != OpCode::kCopyList) return {op.to.target, op.from.target};
    const CopyLayout& list = program.lists[op.list];
    std::vector<TargetId> ids{list.first.to, list.first.from};
    for (const Segment& segment : list.segments) ids.insert(ids.end(), {segment.to, segment.from});
    return ids;
  }
  void bindLate(Script& script, const Execution& execution, TargetId id, std::vector<bool>& bound) {
    if (id == kNoTarget || bound[id]) return;
    bound[id] = true;
    for (const LateSource& late : execution.lates)
      if (late.target == id)
        look(script, {late.read},
             std::string("binds ") + execution.program->targets[id].name + " by what it reads");
  }
  void runOp(Script& script, const Execution& execution, const Op& op, const std::string& text) {
    switch (op.code) {
      case OpCode::kCopy:
      case OpCode::kCopyList: {
        std::vector<Effect> effects;
        for (const PlacedCopy& piece : piecesOf(execution, op)) {
          Effect effect{.kind = Effect::Kind::kCopy};
          if (piece.number) number(effect, *piece.number, operandOf(execution, op.operand));
          const std::vector<uint32_t> to = cells_.of(piece.to);
          effect.to.insert(effect.to.end(), to.begin(), to.end());
          effect.from = cells_.of(piece.from);
          effect.text = text + ", piece " + std::to_string(effects.size());
          effects.push_back(std::move(effect));
        }
        issue(script, std::move(effects), text);
        if (holdsPackets(execution, op.to)) lookWhoSleeps(script, execution.targets[op.to.target]);
        return;
      }
      case OpCode::kStore:
      case OpCode::kAdd64: return runWord(script, execution, op, text);
      case OpCode::kWait:
        // Numbers only grow, so waiting for one packet after another is waiting for all.
        if (holdsPackets(execution, op.to))
          for (uint64_t packet = 0; packet < packetsOf(op.bytes); ++packet)
            waitFor(script, execution, op, numberOf(execution, op.to, packet), text);
        else
          waitFor(script, execution, op, wordOf(execution, op), text);
        return;
      case OpCode::kFence:
        if (op.scope == Scope::kDevice) return;  // orders nothing between sides
        [[fallthrough]];
      case OpCode::kFlush:
        script.instructions.push_back({.kind = Instruction::Kind::kFence, .text = text});
        return;
    }
  }
  void waitFor(Script& script, const Execution& execution, const Op& op, const Range& word,
               const std::string& text) {
    const uint32_t cell = cells_.of(word).front();
    markWord(cell, word);
    script.instructions.push_back({.kind = Instruction::Kind::kWait,
                                   .compare = op.compare,
                                   .width = op.width,
                                   .cell = cell,
                                   .operand = operandOf(execution, op.operand),
                                   .text = text});
  }
  void number(Effect& effect, const Range& word, int64_t value) {
    effect.isCounter = true;
    effect.to = cells_.of(word);
    effect.values = {static_cast<Value>(value)};
    markWord(effect.to.front(), word);
  }
  void markWord(uint32_t cell, const Range& word) {
    if (cells_.of(word).size() != 1)
      scripts_.defect = "the word " + cells_.nameOf(cell) + " of " + std::to_string(word.bytes) +
                        " bytes is cut by another access";
    scripts_.isWord[cell] = true;
    if (word.bytes == sizeof(uint64_t)) scripts_.isCounter[cell] = true;
  }
  // Words of one's own side as well: others of that side may sleep on them.
  void lookWhoSleeps(Script& script, const Range& where) {
    if (!scenario_.sleeping) return;
    script.instructions.push_back({.kind = Instruction::Kind::kWake,
                                   .first = static_cast<uint32_t>(scenario_.areas[where.area].side),
                                   .text = "looks who sleeps"});
  }
  void runWord(Script& script, const Execution& execution, const Op& op, const std::string& text) {
    Effect effect{.kind = op.code == OpCode::kStore ? Effect::Kind::kSet : Effect::Kind::kAdd};
    const Range word = wordOf(execution, op);
    effect.release = op.order == Order::kRelease;
    effect.isCounter = op.width == Width::k64;
    effect.to = cells_.of(word);
    effect.values.assign(effect.to.size(), static_cast<Value>(operandOf(execution, op.operand)));
    effect.text = text;
    markWord(effect.to.front(), word);
    issue(script, {std::move(effect)}, text);
    lookWhoSleeps(script, word);
  }

  // --- Third pass: what only one actor touches ---
  void findPrivateCells() {
    constexpr int kNobody = -1;
    constexpr int kSeveral = -2;
    std::vector<int> owner(scripts_.cellCount, kNobody);
    const auto touch = [&](uint32_t cell, int actor) {
      if (owner[cell] == kNobody) owner[cell] = actor;
      if (owner[cell] != actor || scripts_.isWord[cell]) owner[cell] = kSeveral;
    };
    const auto isOwned = [&](const std::vector<uint32_t>& cells) {
      return std::none_of(cells.begin(), cells.end(),
                          [&](uint32_t cell) { return owner[cell] == kSeveral; });
    };
    for (size_t i = 0; i < scripts_.actors.size(); ++i) {
      const int actor = static_cast<int>(i);
      for (const Effect& effect : scripts_.actors[i].effects) {
        for (const uint32_t cell : effect.to) touch(cell, actor);
        for (const uint32_t cell : effect.from) touch(cell, actor);
      }
      for (const Instruction& instruction : scripts_.actors[i].instructions)
        for (const Expected& expected : instruction.expected) touch(expected.cell, actor);
    }
    for (Script& script : scripts_.actors) {
      for (Effect& effect : script.effects)
        effect.isPrivate = isOwned(effect.to) && isOwned(effect.from);
      for (Instruction& instruction : script.instructions) {
        std::vector<uint32_t> cells;
        for (const Expected& expected : instruction.expected) cells.push_back(expected.cell);
        instruction.isPrivate = isOwned(cells);
      }
    }
  }

  const Scenario& scenario_;
  Cells cells_;
  Scripts scripts_;
  std::string defect_;
};

}  // namespace

Scripts compile(const Scenario& scenario) {
  return Compiler(scenario).run();
}

}  // namespace peerlane::explorer
