// SPDX-License-Identifier: Apache-2.0
//
// What tests may do to the software HCA and see of it, beside verbs. The library that stands in for
// libibverbs.so.1 exports these functions; a test finds them with dlsym in whatever library it
// loaded, and where they are missing there is a real one. Any thread may call them.
//
// Numbers of queue pairs are qp_num. Functions that return int return 0 or an errno.
#pragma once

#include <infiniband/verbs.h>
#include <stdint.h>

// NOLINTBEGIN(readability-identifier-naming): a face of C, beside that of verbs.
extern "C" {

struct SoftwareHcaCounts {
  uint64_t posts;  // calls of ibv_post_send, and of ibv_wr_complete
  uint64_t requests;
  uint64_t signalled;  // requests that ask for a completion
  uint64_t inlined;
  uint64_t pieces;     // scatter/gather entries of all requests
  uint64_t doorbells;  // posts that had to wake the engine
  // Requests by operation, and their bytes.
  uint64_t writes, writeBytes;
  uint64_t immediateWrites, immediateWriteBytes;
  uint64_t reads, readBytes;
  uint64_t sends, sendBytes;  // with and without immediate
  uint64_t atomics;
  uint64_t receives;             // posted, shared queues excepted
  uint64_t completions;          // of requests, made
  uint64_t receiveCompletions;   // made
  uint64_t retries, rnrRetries;  // what was sent again
  // Time stamp counter's ticks inside of post_send, while that is measured.
  uint64_t postTicks;
};
// Of one pair; of a context: of all its pairs, also those that are gone.
int software_hca_counts(struct ibv_qp* pair, struct SoftwareHcaCounts* counts);
int software_hca_context_counts(struct ibv_context* context, struct SoftwareHcaCounts* counts);
// Counts begin again at zero.
int software_hca_reset_counts(struct ibv_context* context);
int software_hca_measure(struct ibv_context* context, int isMeasured);

// Domains, regions, completion queues, shared receive queues and pairs that were not destroyed.
int software_hca_objects(struct ibv_context* context);

// Nothing that was posted is begun while a context is held; posts need not wake its engine then.
// What peers ask of it is answered.
int software_hca_hold(struct ibv_context* context);
// Of a held one, so many requests more are begun.
int software_hca_step(struct ibv_context* context, uint64_t requests);
int software_hca_release(struct ibv_context* context);
// Returns when everything that was posted here and may be begun is done or has failed, and nothing
// waits to be placed. False promises: none about peers.
int software_hca_settle(struct ibv_context* context);

enum SoftwareHcaFault {
  SOFTWARE_HCA_LOSE_ANSWERS,    // requests are executed, the initiator hears nothing
  SOFTWARE_HCA_LOSE_REQUESTS,   // requests never arrive
  SOFTWARE_HCA_NOT_READY,       // at the target: as if no receive were posted
  SOFTWARE_HCA_POST_FAILS,      // ibv_post_send returns `error`
  SOFTWARE_HCA_REGISTER_FAILS,  // ibv_reg_mr* and ibv_reg_dmabuf_mr fail with `error`
  SOFTWARE_HCA_CREATE_FAILS,    // queue pairs, completion queues and shared receive queues
  SOFTWARE_HCA_FAULTS,
};
// Strikes `count` times (-1: until it is cleared by a count of 0) after `after` good ones. `pair`
// 0: any pair of the context.
int software_hca_inject(struct ibv_context* context, uint32_t pair, enum SoftwareHcaFault fault,
                        uint64_t after, int64_t count, int error);

// Port of the device, for all that have it open: events, and nothing travels while it is down.
int software_hca_set_port(struct ibv_context* context, int isUp);
int software_hca_change_gids(struct ibv_context* context);
int software_hca_change_pkeys(struct ibv_context* context);
// As when a device is taken out: IBV_EVENT_DEVICE_FATAL, all work is flushed, verbs fail with EIO.
int software_hca_remove_device(struct ibv_context* context);
// The key means nothing any more, for everybody; the region is still there to be deregistered.
int software_hca_revoke(struct ibv_mr* region);
// Goes to error by itself, with IBV_EVENT_QP_FATAL.
int software_hca_break_pair(struct ibv_qp* pair);
// As if one completion too many had come.
int software_hca_overrun(struct ibv_cq* queue);

}  // extern "C"
// NOLINTEND(readability-identifier-naming)
