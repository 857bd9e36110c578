// SPDX-License-Identifier: Apache-2.0
//
// TcpTransport: links over a TCP connection of their own, for peers that share nothing but a
// network. The side that dialled the control connection dials this one, too. Confined to the
// progress thread.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "peerlane/transport/tcp/tcp_listener.h"
#include "peerlane/transport/transport.h"

namespace peerlane {

class TcpTransport final : public Transport {
 public:
  std::string_view name() const override { return "tcp"; }
  Result<std::unique_ptr<PendingLink>> prepare(const PeerFacts& facts,
                                               const LinkSurroundings& surroundings) override;

 private:
  // By the local IP of control connections: data comes in where control does, and nowhere else.
  std::map<std::string, std::shared_ptr<TcpListener>> listeners_;
};

}  // namespace peerlane
