// SPDX-License-Identifier: Apache-2.0
//
// Metadata of other agents: what parses is written again to the same bytes.
#include <cstdint>
#include <string>

#include "integrations/nixl/agent_blobs.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace peerlane;
  const std::string blob(reinterpret_cast<const char*>(bytes), size);
  if (const auto info = nixl::ConnectionInfo::decode(blob); info.isOk())
    PEERLANE_CHECK(info->encode() == blob);
  if (const auto data = nixl::PublicData::decode(blob); data.isOk())
    PEERLANE_CHECK(data->encode() == blob);
  return 0;
}
