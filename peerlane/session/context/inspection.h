// SPDX-License-Identifier: Apache-2.0
//
// Inspection: a Unix socket per context on which its dump can be read by the same user or an
// administrator (inspect_process.h is the reading side). One text per connection, then end of
// stream. Confined to the progress thread.
// Owner: the context's state.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "peerlane/os/acceptor.h"
#include "peerlane/os/event_loop.h"
#include "peerlane/os/fd.h"
#include "peerlane/os/socket_address.h"
#include "peerlane/session/context/inspect_process.h"  // IWYU pragma: export
#include "peerlane/session/context/socket_files.h"

namespace peerlane {

class Inspection {
 public:
  // `text` is called for each reader.
  static Result<std::unique_ptr<Inspection>> create(EventLoop& loop,
                                                    const std::string& socketDirectory,
                                                    const std::string& contextId,
                                                    std::function<std::string()> text);

 private:
  // Somebody who takes more than one write.
  struct Reader {
    Fd socket;
    std::string text;
    size_t sent = 0;
    Watch watch;
  };
  static constexpr size_t kMaxReaders = 8;

  Inspection(EventLoop& loop, SocketAddress address, std::function<std::string()> text)
      : loop_(loop), address_(std::move(address)), file_(address_), text_(std::move(text)) {}
  void serve(Fd socket);
  void write(Reader& reader);

  EventLoop& loop_;
  SocketAddress address_;
  SocketFile file_;
  std::function<std::string()> text_;
  LogLimit strangers_;
  std::unique_ptr<Acceptor> acceptor_;
  std::list<Reader> readers_;
};

}  // namespace peerlane
