// SPDX-License-Identifier: Apache-2.0
//
// The programs that run inside a user's Python, as texts for `python -c`. They answer in lines of
// cells, separated by tabs, of which the first two are kRowMark and a key.
#pragma once

#include <chrono>

namespace peerlane {

inline constexpr const char* kRowMark = "peerlane-nixl";

struct PythonScript {
  const char* name;  // its first argument
  const char* text;
  std::chrono::seconds timeout;
};

// The beginning of each of them.
extern const char* const kScriptBegin;

// No arguments. Rows: python VERSION; wheel MODULE VERSION FOLDER for each NIXL of this Python,
// where FOLDER holds the module. Imports nothing of NIXL.
extern const PythonScript kFindWheels;
// Arguments: paths of plug-ins. Rows: api NUMBER of the first that can be loaded; failed REASON for
// each before it.
extern const PythonScript kReadApiVersion;
// Argument: the module. Writes pieces of memory from one agent to one in another process. Rows:
// step NAME before each step; failed REASON; in the end wrong BYTES, backend NAME, peerlane
// VERSION, route TEXT.
extern const PythonScript kTryTransfer;

}  // namespace peerlane
