// SPDX-License-Identifier: Apache-2.0
//
// TicketFile: the file in which a ticket waits for its reader, readable by this user alone. It goes
// with the context whose ticket it holds: when this object does, and when the process is ended by
// SIGINT, SIGTERM or SIGHUP (tools/report/ending_signals.h).
#pragma once

#include <memory>
#include <string>

#include "peerlane/core/status.h"
#include "tools/report/ending_signals.h"

namespace peerlane {

class TicketFile {
 public:
  // Replaces a file of that name at once: nobody sees half a ticket. A pipe or a device is written
  // to as it is, and stays. Errors: kSystem.
  static Result<std::unique_ptr<TicketFile>> create(const std::string& path,
                                                    const std::string& ticket);
  // Removes the file, unless another file has taken its name since.
  ~TicketFile();
  TicketFile(const TicketFile&) = delete;
  TicketFile& operator=(const TicketFile&) = delete;

 private:
  TicketFile() = default;

  RemovedAtSignals written_;
};

}  // namespace peerlane
