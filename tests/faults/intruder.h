// SPDX-License-Identifier: Apache-2.0
//
// Intruder: somebody at a context's door who is not this library: a raw socket, and, for one who
// knows the secret, the handshake, records and a tcp link made by hand. Nothing waits for long.
// External synchronization required.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "peerlane/os/fd.h"
#include "peerlane/session/wire/control_message.h"
#include "peerlane/session/wire/secure_channel.h"

namespace peerlane {

class Intruder {
 public:
  using Bytes = std::vector<std::byte>;

  // `address`: as in Context::addresses().
  explicit Intruder(const std::string& address);

  // --- Without a secret ---
  // What the other side closed already is no error.
  void send(std::span<const std::byte> bytes) const;
  void sendWithFiles(std::span<const std::byte> bytes, std::span<const int> fds) const;
  // Nothing more will be sent.
  void finish() const;
  // Everything that comes until the other side ends the connection; false when it does not.
  bool seesTheEnd();
  // What an honest initiator is told who says this hello and is turned away.
  Status refusal(const Secret& secret);
  // The first message of an honest initiator, which a `secret` belongs to.
  Bytes hello(const Secret& secret, uint64_t features = feature::kAll);

  // --- With the secret ---
  // `features`: those that it says it knows.
  void enter(const Secret& secret, uint64_t features = feature::kAll);
  Bytes sealed(const ControlMessage& message);
  Bytes sealed(std::span<const std::byte> plain);
  void say(const ControlMessage& message) { send(sealed(message)); }
  // The next message of this kind; others are dropped. Ends the test program when none comes.
  template <typename Message>
  Message hear() {
    for (;;) {
      ControlMessage message = hearAny();
      if (auto* wanted = std::get_if<Message>(&message)) return std::move(*wanted);
    }
  }
  // Nothing but heartbeats comes, as far as the other side has come when it answers one more word.
  bool isQuiet();
  // Becomes a peer over tcp, which offers `besides`, too. data(): the socket of its link.
  void becomePeer(const std::vector<control::LinkOffer>& besides = {});
  int data() const { return data_.get(); }

 private:
  ControlMessage hearAny();
  // At least one byte, none at the end.
  std::span<std::byte> receive();

  Fd socket_;
  Fd data_;
  std::unique_ptr<Handshake> handshake_;
  std::unique_ptr<SecureChannel> channel_;
  std::array<std::byte, 4096> space_;
  std::span<std::byte> rest_;  // received, not yet fed
};

}  // namespace peerlane
