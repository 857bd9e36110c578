// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/stream/copy/engine_choice.h"

#include <array>
#include <utility>

#include "peerlane/core/text.h"

namespace peerlane::stream {
namespace {

using Field = std::pair<const char*, uint64_t EngineChoice::*>;
constexpr std::array<Field, 5> kFields{{{"inline", &EngineChoice::inlineBytes},
                                        {"ce_put", &EngineChoice::cePutBytes},
                                        {"ce_put_queued", &EngineChoice::ceQueuedPutBytes},
                                        {"ce_get", &EngineChoice::ceGetBytes},
                                        {"ce_block", &EngineChoice::ceBlockBytes}}};

}  // namespace

EngineChoice::EngineChoice(const TuneFile& file) : source(file.source()) {
  for (const auto& [name, field] : kFields) this->*field = file.get(name, this->*field);
}

std::string EngineChoice::toString() const {
  std::string text = source + ":";
  for (const auto& [name, field] : kFields)
    text += std::string(" ") + name + " " + formatByteSize(this->*field);
  return text;
}

}  // namespace peerlane::stream
