// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/verbs/verbs_transport.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "peerlane/os/verbs/wanted_devices.h"
#include "peerlane/transport/verbs/device/verbs_offer.h"
#include "peerlane/transport/verbs/request/news.h"
#include "peerlane/transport/verbs/verbs_link.h"

namespace peerlane {
namespace {

using verbs::Gid;
using verbs::VerbsDevice;

// One side of a link under construction. Until complete() it gives back what it has taken.
class PendingVerbsLink final : public PendingLink {
 public:
  PendingVerbsLink(std::shared_ptr<VerbsNic> nic, VerbsRail rail,
                   const LinkSurroundings& surroundings, bool isDialler)
      : nic_(std::move(nic)),
        rail_(std::move(rail)),
        surroundings_(surroundings),
        isDialler_(isDialler) {}
  ~PendingVerbsLink() override {
    if (pair_) nic_->queues().giveBack(pair_->limits().requests, offer_.receives);
  }

  Status begin() {
    const VerbsDevice& device = nic_->device();
    PEERLANE_ASSIGN(offer_.gids, verbs::usableGids(device, surroundings_.config));
    offer_.gids.resize(std::min(offer_.gids.size(), VerbsOffer::kMostGids));
    PEERLANE_ASSIGN(auto pair, QueuePair::create(nic_->domain(), nic_->queues().completions(),
                                                 nic_->queues().receives()));
    PEERLANE_RETURN_IF_ERROR(checkLimits(*pair));
    PEERLANE_ASSIGN(control_, takeControl());
    PEERLANE_ASSIGN(offer_.receives, nic_->queues().reserve(pair->limits().requests));
    pair_ = std::move(pair);
    offer_.device = verbs::nameOf(device);
    offer_.isEthernet = device.isEthernet();
    offer_.adds = device.limits().atomic_cap != IBV_ATOMIC_NONE;
    offer_.mailsWords = true;
    // InfiniBand may send the packets of a pair by several ways. RoCE does so only where a switch
    // is told to.
    offer_.ordersWrites = !surroundings_.config.ibAdaptive.value_or(!device.isEthernet());
    offer_.mtu = static_cast<uint8_t>(device.portState().active_mtu);
    offer_.mostReads = pair_->mostReads();
    offer_.lid = device.portState().lid;
    offer_.pair = pair_->number();
    offer_.firstPacket = pair_->firstPacket();
    offer_.control = control_->address();
    offer_.controlKey = control_->remote();
    offer_.pairs = surroundings_.config.ibPairs;
    return Status::ok();
  }

  Offer takeOffer() override {
    Offer offer;
    offer.blob = encodeVerbsOffer(offer_);
    return offer;
  }

  Result<std::unique_ptr<Link>> complete(Offer peerOffer) override {
    PEERLANE_ASSIGN(const VerbsOffer theirs, parseVerbsOffer(peerOffer.blob));
    if (theirs.receives < NewsCredits::kLeastWindow || theirs.receives > control_block::kMostMails)
      return Status(Code::kCorrupt, "verbs offer: " + std::to_string(theirs.receives) +
                                        " receives; accepted are " +
                                        std::to_string(NewsCredits::kLeastWindow) + " to " +
                                        std::to_string(control_block::kMostMails));
    PEERLANE_ASSIGN(const GidPair gids,
                    isDialler_ ? agreeOnGids(offer_, theirs) : agreeOnGids(theirs, offer_));
    PEERLANE_ASSIGN(const Gid own, ownOf(isDialler_ ? gids.dialler : gids.listener));
    const Gid& other = isDialler_ ? gids.listener : gids.dialler;
    PEERLANE_RETURN_IF_ERROR(pair_->connect(theirs, own, other, surroundings_.config));
    const VerbsAgreement agreed{.ordersWrites = offer_.ordersWrites && theirs.ordersWrites,
                                .adds = offer_.adds && theirs.adds,
                                .mailsWords = theirs.mailsWords,
                                .newsToPeer = theirs.receives,
                                .packetBytes = 128u << std::min(offer_.mtu, theirs.mtu),
                                .control = theirs.control,
                                .controlKey = theirs.controlKey};
    const std::string name =
        rail_.name + " link over " + offer_.device + " to " + theirs.device + " at " + other.text();
    VerbsAgent::Surroundings around{nic_->queues(), nic_->keys(), nic_->bounces(),
                                    surroundings_.regions, surroundings_.workArrived};
    auto rounds = roundsWith(name, {theirs, own, other}, around);
    auto agent = std::make_unique<VerbsAgent>(name, around, std::move(pair_), std::move(*control_),
                                              offer_.receives, agreed);
    const std::string path = offer_.device + " at " + own.text() + " to " + theirs.device + " at " +
                             other.text() +
                             (agreed.ordersWrites ? ", writes in order" : ", writes in any order");
    auto link = std::make_unique<VerbsLink>(nic_, std::move(rounds), std::move(agent), path,
                                            agreed.mailsWords, rail_);
    // As the data connection of tcp: the reason is known before the time to connect is over.
    link->awaitFirstAnswer(surroundings_, surroundings_.config.connectTimeout * 3 / 4);
    return std::unique_ptr<Link>(std::move(link));
  }

 private:
  Status checkLimits(const QueuePair& pair) const {
    if (pair.limits().inlineBytes >= control_block::kMailBytes && pair.limits().requests >= 16)
      return Status::ok();
    return Status(
        Code::kNotSupported,
        nic_->device().name() + ": its pairs take " + std::to_string(pair.limits().requests) +
            " requests that carry " + std::to_string(pair.limits().inlineBytes) +
            " bytes themselves; need 16 and " + std::to_string(control_block::kMailBytes));
  }
  Result<std::unique_ptr<ControlBlock>> takeControl() {
    PEERLANE_ASSIGN(ControlBlock block, nic_->controls().take());
    return std::make_unique<ControlBlock>(std::move(block));
  }
  // Null: the peer does not speak of further pairs.
  std::unique_ptr<PairRounds> roundsWith(const std::string& name, PairWay way,
                                         VerbsAgent::Surroundings& around) const {
    if (!surroundings_.line || way.peer.pairs == 0) return nullptr;
    const uint32_t most = std::min<uint32_t>(offer_.pairs, way.peer.pairs);
    auto rounds = std::make_unique<PairRounds>(name, nic_, surroundings_.line, surroundings_.config,
                                               surroundings_.loop, std::move(way), most);
    if (most > 1) around.wantPairs = [known = rounds.get()] { known->wantMore(); };
    around.pairFailed = [known = rounds.get()] { known->failed(); };
    return rounds;
  }
  // With its place in the table.
  Result<Gid> ownOf(const Gid& agreed) const {
    for (const Gid& gid : offer_.gids)
      if (gid.bytes == agreed.bytes && gid.kind == agreed.kind) return gid;
    return Status(Code::kInternal, "the address that was agreed on is not of this side");
  }

  const std::shared_ptr<VerbsNic> nic_;
  const VerbsRail rail_;
  const LinkSurroundings surroundings_;
  const bool isDialler_;
  VerbsOffer offer_;
  std::unique_ptr<ControlBlock> control_;
  std::unique_ptr<QueuePair> pair_;
};

class VerbsTransport final : public Transport {
 public:
  VerbsTransport(std::shared_ptr<VerbsRails> rails, uint32_t number)
      : name_(number == 0 ? std::string(kFamily)
                          : std::string(kFamily) + "." + std::to_string(number + 1)),
        rails_(std::move(rails)),
        number_(number) {}

  std::string_view name() const override { return name_; }
  std::string_view family() const override { return kFamily; }
  LinkScope scope() const override { return LinkScope::kNetwork; }
  LinkAbilities abilities() const override { return VerbsLink::abilities(nullptr); }

  Result<std::unique_ptr<PendingLink>> prepare(const PeerFacts& facts,
                                               const LinkSurroundings& surroundings) override {
    PEERLANE_ASSIGN(const std::shared_ptr<VerbsNic> nic, nicFor(surroundings));
    auto pending = std::make_unique<PendingVerbsLink>(
        nic, VerbsRail{name_, rails_->table(), number_}, surroundings, facts.initiator);
    PEERLANE_RETURN_IF_ERROR(pending->begin());
    return std::unique_ptr<PendingLink>(std::move(pending));
  }
  // Links may end on any thread; the descriptors of their NIC are the progress thread's.
  void sweep() override {
    if (isOfPeers_) std::erase_if(nics_, [](const auto& nic) { return nic.use_count() == 1; });
  }

 private:
  // One for the context, opened for the first peer on another host; or one for each peer, opened
  // anew, because events and domains are those of an opened device.
  Result<std::shared_ptr<VerbsNic>> nicFor(const LinkSurroundings& surroundings) {
    const Config& config = surroundings.config;
    isOfPeers_ = config.ibDomain == IbDomain::kPeer;
    if (!isOfPeers_ && !nics_.empty()) return nics_.front();
    PEERLANE_ASSIGN(auto device, rails_->open(number_, config));
    PEERLANE_ASSIGN(auto nic, VerbsNic::create(std::move(device), surroundings, rails_->gpus()));
    nics_.push_back(nic);
    return nic;
  }

  static constexpr std::string_view kFamily = "verbs";
  const std::string name_;
  const std::shared_ptr<VerbsRails> rails_;  // of all transports of the context
  const uint32_t number_;
  std::vector<std::shared_ptr<VerbsNic>> nics_;
  bool isOfPeers_ = false;
};

}  // namespace

std::vector<std::unique_ptr<Transport>> makeVerbsTransports(const Config& config,
                                                            const cuda::Gpus& gpus, RankRdma rank) {
  const auto rails = std::make_shared<VerbsRails>(gpus, std::move(rank));
  std::vector<std::unique_ptr<Transport>> transports;
  for (uint32_t i = 0; i < VerbsRails::most(config, gpus); ++i)
    transports.push_back(std::make_unique<VerbsTransport>(rails, i));
  return transports;
}

}  // namespace peerlane
