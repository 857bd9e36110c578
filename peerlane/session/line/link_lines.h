// SPDX-License-Identifier: Apache-2.0
//
// LinkLines: the lines between the two ends of each link to one peer (transport/link_line.h): it
// sends what this side's ends say, and hands them what the peer's ends say. A line begins when its
// transport prepares a link, and ends with that link or with the peer. Owned by PeerCore; confined
// to the progress thread, but for end() of all and for the lines themselves.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "peerlane/core/status.h"
#include "peerlane/progress/progress.h"
#include "peerlane/session/wire/control_message.h"
#include "peerlane/transport/link_line.h"

namespace peerlane {

class ControlLine;

class LinkLines {
 public:
  // Sends one message; on the progress thread, while the peer lives.
  using Send = std::function<void(const control::LinkMessage&)>;

  // `owner`: the peer, which owns this object; set before the first line is made.
  LinkLines(Progress& progress, const std::weak_ptr<void>& owner, Send send)
      : progress_(progress), owner_(owner), send_(std::move(send)) {}

  // The line of the link that `transport` is about to prepare. The caller asks once for each.
  std::shared_ptr<LinkLine> make(const std::string& transport);
  // kCorrupt: a transport that has no line here and never had, or more than an end that does not
  // listen has to keep.
  Status handle(control::LinkMessage& message);
  // There will be no link of `transport`, or there is none any more: its line says and hears
  // nothing from now on.
  void end(const std::string& transport);
  // The same for all but those.
  void endAllBut(const std::vector<std::string>& transports);
  // The same for all. By any thread that is the last to use the peer, or by the progress thread.
  void end();

 private:
  Progress& progress_;
  const std::weak_ptr<void>& owner_;
  const Send send_;
  // By transport; null: it has ended.
  std::map<std::string, std::shared_ptr<ControlLine>> lines_;
};

}  // namespace peerlane
