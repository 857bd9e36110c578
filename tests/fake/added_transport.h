// SPDX-License-Identifier: Apache-2.0
//
// AddedTransport: a fake transport that every context made while it lives has, in addition to those
// of the library. External synchronization required.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "peerlane/transport/transport_list.h"
#include "tests/fake/fake_transport.h"

namespace peerlane {

class AddedTransport {
 public:
  // `place`: see TransportEntry. `network` outlives the contexts.
  AddedTransport(FakeNetwork& network, const FakeLinkOptions& options, int place)
      : name_(options.name) {
    addTransport({.name = options.name,
                  .place = place,
                  .scope = options.scope,
                  .make = [&network, options](const Config&, const cuda::Gpus&) {
                    Transports made;
                    made.push_back(std::make_unique<FakeTransport>(network, options));
                    return made;
                  }});
  }
  ~AddedTransport() { removeTransport(name_); }
  AddedTransport(const AddedTransport&) = delete;
  AddedTransport& operator=(const AddedTransport&) = delete;

 private:
  const std::string name_;
};

}  // namespace peerlane
