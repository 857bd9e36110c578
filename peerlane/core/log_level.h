// SPDX-License-Identifier: Apache-2.0
//
// How urgent a log line is. Apart from log.h so that public headers can name a level without the
// formatter.
#pragma once

#include <functional>
#include <string_view>

namespace peerlane {

// Most urgent first; a level shows itself and all before it.
enum class LogLevel : int { kError = 0, kWarn = 1, kInfo = 2, kDebug = 3, kTrace = 4 };

// "error", "warn", "info", "debug", "trace". Never null.
const char* logLevelName(LogLevel level);

// Sets the level of the process: every context shares it, because they share standard error.
void setLogLevel(LogLevel level);

// Receives level, place ("file.cc:12") and text.
using LogSink = std::function<void(LogLevel, std::string_view where, std::string_view text)>;

// Replaces standard error by `sink`; an empty function brings standard error back. Thread: the sink
// is called from any thread, possibly from several at once, under no lock of ours; a call that
// began before this function may still be running when it returns. The library drops exceptions of
// the sink.
void setLogSink(LogSink sink);

}  // namespace peerlane
