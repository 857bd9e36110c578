// SPDX-License-Identifier: Apache-2.0
//
// The functions that libibverbs exports, on the software HCA. What is not here (address handles,
// multicast, windows, raw packets) is refused in hca_driver_symbols.cc.
#include <infiniband/verbs.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "tests/fake/software_hca/hca_context.h"
#include "tests/fake/software_hca/hca_copy.h"
#include "tests/fake/software_hca/hca_queue_pair.h"

#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

using namespace peerlane::softhca;

namespace {

template <class Object>
Object* failed(int error) {
  errno = error;
  return nullptr;
}

// What a call that makes something meets first.
int refusal(Context& context, uint32_t have, uint32_t most) {
  if (context.isRemoved()) return EIO;
  if (have >= most) return ENOMEM;
  return context.faults.error(SOFTWARE_HCA_CREATE_FAILS);
}

bool hasPort(ibv_context* face, uint32_t port) {
  return port >= 1 && port <= Context::of(face).settings.limits.ports;
}

// ibv_fork_init() has to be called before.
std::atomic<bool> wasRegistered{false};

ibv_mr* registered(int error, Region* region) {
  wasRegistered = true;
  return error == 0 ? region : failed<ibv_mr>(error);
}

}  // namespace

// NOLINTBEGIN(readability-identifier-naming): names of libibverbs.
extern "C" {

// --- Devices ---

ibv_device** ibv_get_device_list(int* count) {
  const Settings settings = Settings::read();
  const std::vector<Device*> devices = Device::all(settings);
  auto** list = static_cast<ibv_device**>(calloc(devices.size() + 1, sizeof(ibv_device*)));
  if (list == nullptr) return nullptr;
  std::copy(devices.begin(), devices.end(), list);
  if (count != nullptr) *count = static_cast<int>(devices.size());
  return list;
}
void ibv_free_device_list(ibv_device** list) {
  free(list);
}
const char* ibv_get_device_name(ibv_device* device) {
  return device->name;
}
int ibv_get_device_index(ibv_device* device) {
  return Device::of(device).index();
}
__be64 ibv_get_device_guid(ibv_device* device) {
  return Device::of(device).guid();
}
ibv_context* ibv_open_device(ibv_device* device) {
  Context* context = Context::open(Device::of(device));
  return context == nullptr ? nullptr : context->face();
}
int ibv_close_device(ibv_context* face) {
  // What was not destroyed is lost, as with a driver.
  delete &Context::of(face);
  return 0;
}
int ibv_query_device(ibv_context* face, ibv_device_attr* attributes) {
  Context& context = Context::of(face);
  if (context.isRemoved()) return EIO;
  context.device.describe(context.settings, *attributes);
  return 0;
}
int ibv_query_port(ibv_context* face, uint8_t port, _compat_ibv_port_attr* attributes) {
  return verbs_get_ctx(face)->query_port(face, port, reinterpret_cast<ibv_port_attr*>(attributes),
                                         offsetof(ibv_port_attr, port_cap_flags2));
}
int ibv_query_gid(ibv_context* face, uint8_t port, int index, ibv_gid* gid) {
  const std::vector<Gid>& gids = Context::of(face).device.gids();
  if (!hasPort(face, port) || index < 0 || static_cast<size_t>(index) >= gids.size()) {
    errno = EINVAL;
    return -1;
  }
  *gid = gids[static_cast<size_t>(index)].gid;
  return 0;
}
int _ibv_query_gid_ex(ibv_context* face, uint32_t port, uint32_t index, ibv_gid_entry* entry,
                      uint32_t flags, size_t bytes) {
  const std::vector<Gid>& gids = Context::of(face).device.gids();
  if (flags != 0 || bytes < sizeof *entry) return EOPNOTSUPP;
  if (!hasPort(face, port) || index >= gids.size()) return EINVAL;
  const Gid& gid = gids[index];
  *entry = {gid.gid, index, port, gid.type, gid.interface};
  return 0;
}
ssize_t _ibv_query_gid_table(ibv_context* face, ibv_gid_entry* entries, size_t most, uint32_t flags,
                             size_t bytes) {
  const size_t ofPort = Context::of(face).device.gids().size();
  const size_t count = std::min(most, ofPort * Context::of(face).settings.limits.ports);
  for (size_t i = 0; i < count; ++i)
    if (const int error =
            _ibv_query_gid_ex(face, static_cast<uint32_t>(i / ofPort + 1),
                              static_cast<uint32_t>(i % ofPort), &entries[i], flags, bytes))
      return -error;
  return static_cast<ssize_t>(count);
}
// Of this file's own kind: 0 InfiniBand or RoCE version 1, 1 version 2.
int ibv_query_gid_type(ibv_context* face, uint8_t port, unsigned index, unsigned* type) {
  const std::vector<Gid>& gids = Context::of(face).device.gids();
  if (!hasPort(face, port) || index >= gids.size()) {
    errno = EINVAL;
    return -1;
  }
  *type = gids[index].type == IBV_GID_TYPE_ROCE_V2 ? 1 : 0;
  return 0;
}
int ibv_query_pkey(ibv_context* face, uint8_t port, int index, __be16* pkey) {
  if (!hasPort(face, port) || index != 0) {
    errno = EINVAL;
    return -1;
  }
  *pkey = kPkey;
  return 0;
}
int ibv_get_pkey_index(ibv_context* face, uint8_t port, __be16 pkey) {
  if (hasPort(face, port) && pkey == kPkey) return 0;
  errno = EINVAL;
  return -1;
}

// --- Domains and regions ---

ibv_pd* ibv_alloc_pd(ibv_context* face) {
  Context& context = Context::of(face);
  const Context::Locked lock(context);
  if (context.isRemoved()) return failed<ibv_pd>(EIO);
  if (context.domains >= context.settings.limits.maxDomains) return failed<ibv_pd>(ENOMEM);
  ++context.domains;
  return new Domain(face);
}
int ibv_dealloc_pd(ibv_pd* domain) {
  Context& context = Context::of(domain->context);
  const Context::Locked lock(context);
  if (Domain::of(domain).users > 0) return EBUSY;
  --context.domains;
  delete &Domain::of(domain);
  return 0;
}
ibv_mr* ibv_reg_mr_iova2(ibv_pd* domain, void* address, size_t length, uint64_t iova,
                         unsigned access) {
  Context& context = Context::of(domain->context);
  if (context.isRemoved()) return failed<ibv_mr>(EIO);
  if (const int error = context.faults.error(SOFTWARE_HCA_REGISTER_FAILS))
    return failed<ibv_mr>(error);
  const Context::Locked lock(context);
  Region* region = nullptr;
  const int error = context.regions.add(Domain::of(domain), address, length, iova, access, region);
  return registered(error, region);
}
ibv_mr* ibv_reg_mr_iova(ibv_pd* domain, void* address, size_t length, uint64_t iova, int access) {
  return ibv_reg_mr_iova2(domain, address, length, iova, static_cast<unsigned>(access));
}
ibv_mr* ibv_reg_mr(ibv_pd* domain, void* address, size_t length, int access) {
  return ibv_reg_mr_iova2(domain, address, length, reinterpret_cast<uintptr_t>(address),
                          static_cast<unsigned>(access));
}
ibv_mr* ibv_reg_dmabuf_mr(ibv_pd* domain, uint64_t offset, size_t length, uint64_t iova, int fd,
                          int access) {
  Context& context = Context::of(domain->context);
  if (context.isRemoved()) return failed<ibv_mr>(EIO);
  if (const int error = context.faults.error(SOFTWARE_HCA_REGISTER_FAILS))
    return failed<ibv_mr>(error);
  const Context::Locked lock(context);
  Region* region = nullptr;
  const int error = context.regions.addDmabuf(Domain::of(domain), offset, length, iova, fd,
                                              static_cast<unsigned>(access), region);
  return registered(error, region);
}
// Headers of this system know neither of the two.
struct ibv_mr_init_attr {
  size_t length;
  int access;
  uint32_t comp_mask;
  uint64_t iova;
  void* addr;
  int fd;
  uint64_t fd_offset;
};
ibv_mr* ibv_reg_mr_ex(ibv_pd* domain, ibv_mr_init_attr* wanted) {
  constexpr uint32_t kIova = 1, kAddress = 2, kFd = 4, kOffset = 8;
  const uint32_t given = wanted->comp_mask;
  if ((given & ~(kIova | kAddress | kFd | kOffset)) != 0) return failed<ibv_mr>(EOPNOTSUPP);
  if ((given & kFd) != 0 && (given & (kIova | kAddress | kOffset)) == (kIova | kOffset))
    return ibv_reg_dmabuf_mr(domain, wanted->fd_offset, wanted->length, wanted->iova, wanted->fd,
                             wanted->access);
  if ((given & (kAddress | kFd | kOffset)) != kAddress) return failed<ibv_mr>(EINVAL);
  const uint64_t iova =
      (given & kIova) != 0 ? wanted->iova : reinterpret_cast<uintptr_t>(wanted->addr);
  return ibv_reg_mr_iova2(domain, wanted->addr, wanted->length, iova,
                          static_cast<unsigned>(wanted->access));
}
// Nothing is left to do: kernels from 5.12 on copy pinned pages when a process forks.
int ibv_fork_init() {
  return wasRegistered ? EINVAL : 0;
}
int ibv_dereg_mr(ibv_mr* region) {
  Context& context = Context::of(region->context);
  const Context::Locked lock(context);
  context.regions.remove(&Region::of(region));
  return 0;
}

// --- Completions ---

ibv_comp_channel* ibv_create_comp_channel(ibv_context* face) {
  if (Context::of(face).isRemoved()) return failed<ibv_comp_channel>(EIO);
  auto* channel = new Channel(face);
  if (channel->fd >= 0) return channel;
  const int error = errno;
  delete channel;
  return failed<ibv_comp_channel>(error);
}
int ibv_destroy_comp_channel(ibv_comp_channel* channel) {
  if (channel->refcnt > 0) return EBUSY;
  delete &Channel::of(channel);
  return 0;
}
ibv_cq* ibv_create_cq(ibv_context* face, int entries, void* userContext, ibv_comp_channel* channel,
                      int vector) {
  Context& context = Context::of(face);
  const Limits& limits = context.settings.limits;
  const Context::Locked lock(context);
  if (const int error = refusal(context, context.completionQueues, limits.maxCompletionQueues))
    return failed<ibv_cq>(error);
  if (entries < 1 || static_cast<uint32_t>(entries) > limits.maxCompletions || vector < 0 ||
      vector >= face->num_comp_vectors)
    return failed<ibv_cq>(EINVAL);
  ++context.completionQueues;
  if (channel != nullptr) ++channel->refcnt;
  return new CompletionQueue(context, entries, userContext,
                             channel == nullptr ? nullptr : &Channel::of(channel));
}
int ibv_destroy_cq(ibv_cq* face) {
  CompletionQueue& queue = CompletionQueue::of(face);
  Context& context = queue.owner();
  {
    const Context::Locked lock(context);
    if (queue.users > 0) return EBUSY;
    --context.completionQueues;
    if (face->channel != nullptr) --face->channel->refcnt;
  }
  if (face->channel != nullptr)
    Channel::of(face->channel).events.remove([&](CompletionQueue* other) {
      return other == &queue;
    });
  context.events.remove([&](const ibv_async_event& event) {
    return event.event_type == IBV_EVENT_CQ_ERR && event.element.cq == face;
  });
  queue.completionEvents.waitFor(*face, face->comp_events_completed);
  queue.asyncEvents.waitFor(*face, face->async_events_completed);
  delete &queue;
  return 0;
}
int ibv_resize_cq(ibv_cq* face, int entries) {
  CompletionQueue& queue = CompletionQueue::of(face);
  Context& context = queue.owner();
  const Context::Locked lock(context);
  if (context.isRemoved()) return EIO;
  const uint32_t most = context.settings.limits.maxCompletions;
  if (entries < 1 || static_cast<uint32_t>(entries) > most) return EINVAL;
  return queue.resize(entries);
}
int ibv_get_cq_event(ibv_comp_channel* channel, ibv_cq** queue, void** userContext) {
  return Channel::of(channel).events.pop([&](CompletionQueue* of) {
    of->completionEvents.take();
    *queue = of;
    *userContext = of->cq_context;
  });
}
void ibv_ack_cq_events(ibv_cq* queue, unsigned count) {
  if (count > 0) EventDebt::acknowledge(*queue, queue->comp_events_completed, count);
}

// --- Shared receives ---

ibv_srq* ibv_create_srq(ibv_pd* domain, ibv_srq_init_attr* asked) {
  Context& context = Context::of(domain->context);
  const Limits& limits = context.settings.limits;
  const Context::Locked lock(context);
  if (const int error = refusal(context, context.sharedQueues, limits.maxShared))
    return failed<ibv_srq>(error);
  if (asked->attr.max_wr == 0 || asked->attr.max_wr > limits.maxWork ||
      asked->attr.max_sge > limits.maxSge)
    return failed<ibv_srq>(EINVAL);
  ++context.sharedQueues;
  ++Domain::of(domain).users;
  return new SharedReceiveQueue(context, Domain::of(domain), *asked);
}
int ibv_modify_srq(ibv_srq* queue, ibv_srq_attr* attributes, int mask) {
  Context& context = Context::of(queue->context);
  const Context::Locked lock(context);
  return context.isRemoved() ? EIO : SharedReceiveQueue::of(queue).modify(*attributes, mask);
}
int ibv_query_srq(ibv_srq* queue, ibv_srq_attr* attributes) {
  if (Context::of(queue->context).isRemoved()) return EIO;
  SharedReceiveQueue::of(queue).query(*attributes);
  return 0;
}
int ibv_destroy_srq(ibv_srq* face) {
  SharedReceiveQueue& queue = SharedReceiveQueue::of(face);
  Context& context = Context::of(face->context);
  {
    const Context::Locked lock(context);
    if (queue.users > 0) return EBUSY;
    --context.sharedQueues;
    --queue.domain.users;
  }
  context.events.remove([&](const ibv_async_event& event) {
    return event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && event.element.srq == face;
  });
  queue.asyncEvents.waitFor(*face, face->events_completed);
  delete &queue;
  return 0;
}

// --- Queue pairs ---

ibv_qp* ibv_create_qp(ibv_pd* domain, ibv_qp_init_attr* asked) {
  Context& context = Context::of(domain->context);
  const Context::Locked lock(context);
  if (const int error = refusal(context, static_cast<uint32_t>(context.pairs().size()),
                                context.settings.limits.maxQueuePairs))
    return failed<ibv_qp>(error);
  if (const int error = QueuePair::check(context, *asked)) return failed<ibv_qp>(error);
  const uint32_t number = context.fabric.addQueuePair(context.endpoint);
  if (number == 0) return failed<ibv_qp>(ENOMEM);
  auto* pair = new QueuePair(context, domain, *asked, number);
  context.add(pair);
  return &pair->qp_base;
}
int ibv_modify_qp(ibv_qp* pair, ibv_qp_attr* change, int mask) {
  Context& context = Context::of(pair->context);
  const Context::Locked lock(context);
  if (context.isRemoved()) return EIO;
  const int error = QueuePair::of(pair).modify(*change, mask);
  context.wakeEngine();
  return error;
}
int ibv_query_qp(ibv_qp* pair, ibv_qp_attr* attributes, int, ibv_qp_init_attr* made) {
  Context& context = Context::of(pair->context);
  const Context::Locked lock(context);
  if (context.isRemoved()) return EIO;
  QueuePair::of(pair).query(*attributes, *made);
  return 0;
}
int ibv_destroy_qp(ibv_qp* face) {
  QueuePair& pair = QueuePair::of(face);
  Context& context = pair.context;
  {
    const Context::Locked lock(context);
    context.remove(&pair);
  }
  context.events.remove([&](const ibv_async_event& event) {
    const bool isOfPair =
        event.event_type == IBV_EVENT_QP_FATAL || event.event_type == IBV_EVENT_QP_REQ_ERR ||
        event.event_type == IBV_EVENT_QP_ACCESS_ERR || event.event_type == IBV_EVENT_COMM_EST ||
        event.event_type == IBV_EVENT_SQ_DRAINED ||
        event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED;
    return isOfPair && event.element.qp == face;
  });
  pair.asyncEvents.waitFor(*face, face->events_completed);
  const Context::Locked lock(context);
  delete &pair;
  return 0;
}
ibv_qp_ex* ibv_qp_to_qp_ex(ibv_qp* pair) {
  return QueuePair::of(pair).isBuildable ? &QueuePair::of(pair) : nullptr;
}
int ibv_query_qp_data_in_order(ibv_qp*, ibv_wr_opcode, uint32_t) {
  return 0;  // as devices of which nothing better is known
}
int ibv_query_ece(ibv_qp*, ibv_ece* ece) {
  *ece = {};
  return 0;
}
int ibv_set_ece(ibv_qp*, ibv_ece* ece) {
  return ece->vendor_id == 0 ? 0 : EOPNOTSUPP;
}

// --- Events ---

int ibv_get_async_event(ibv_context* face, ibv_async_event* event) {
  return Context::of(face).events.pop([&](const ibv_async_event& first) {
    *event = first;
    switch (first.event_type) {
      case IBV_EVENT_CQ_ERR: return CompletionQueue::of(first.element.cq).asyncEvents.take();
      case IBV_EVENT_SRQ_ERR:
      case IBV_EVENT_SRQ_LIMIT_REACHED:
        return SharedReceiveQueue::of(first.element.srq).asyncEvents.take();
      case IBV_EVENT_QP_FATAL:
      case IBV_EVENT_QP_REQ_ERR:
      case IBV_EVENT_QP_ACCESS_ERR:
      case IBV_EVENT_COMM_EST:
      case IBV_EVENT_SQ_DRAINED:
      case IBV_EVENT_QP_LAST_WQE_REACHED: return QueuePair::of(first.element.qp).asyncEvents.take();
      default: return;
    }
  });
}
void ibv_ack_async_event(ibv_async_event* event) {
  switch (event->event_type) {
    case IBV_EVENT_CQ_ERR:
      return EventDebt::acknowledge(*event->element.cq, event->element.cq->async_events_completed,
                                    1);
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED:
      return EventDebt::acknowledge(*event->element.srq, event->element.srq->events_completed, 1);
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
      return EventDebt::acknowledge(*event->element.qp, event->element.qp->events_completed, 1);
    default: return;
  }
}

}  // extern "C"
// NOLINTEND(readability-identifier-naming)
