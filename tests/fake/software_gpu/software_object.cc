// SPDX-License-Identifier: Apache-2.0
//
// User objects: what a graph keeps alive. They are destroyed by a thread of the driver's, later,
// which must not call CUDA.
#include <deque>
#include <thread>

#include "peerlane/core/mutex.h"
#include "tests/fake/software_gpu/software_device.h"
#include "tests/fake/software_gpu/software_error.h"
#include "tests/fake/software_gpu/software_graph.h"

namespace peerlane::softgpu {
namespace {

struct UserObject {
  void* argument;
  cudaHostFn_t destroy;
  unsigned references;  // under the destroyer's mutex
};

class Destroyer {
 public:
  static Destroyer& instance() {
    static auto* const only = new Destroyer;
    return *only;
  }
  void retain(UserObject& object, unsigned count) {
    const MutexLock lock(mutex_);
    object.references += count;
  }
  void release(UserObject* object, unsigned count) {
    const MutexLock lock(mutex_);
    object->references -= count;
    if (object->references > 0) return;
    dead_.push_back(object);
    changed_.notifyOne();
  }

 private:
  Destroyer() {
    std::thread([this] { run(); }).detach();
  }
  void run() {
    enterCallback();
    ReleasableLock lock(mutex_);
    for (;;) {
      while (dead_.empty()) changed_.wait(mutex_);
      const std::unique_ptr<UserObject> object(dead_.front());
      dead_.pop_front();
      lock.unlock();
      object->destroy(object->argument);
      lock.lock();
    }
  }

  Mutex mutex_;
  Condition changed_;
  std::deque<UserObject*> dead_ PEERLANE_GUARDED_BY(mutex_);
};

UserObject* objectOf(cudaUserObject_t handle) {
  return reinterpret_cast<UserObject*>(handle);
}

}  // namespace

class KeptObject {
 public:
  KeptObject(UserObject* object, unsigned count) : object_(object), count_(count) {}
  ~KeptObject() { Destroyer::instance().release(object_, count_); }
  KeptObject(const KeptObject&) = delete;

 private:
  UserObject* const object_;
  const unsigned count_;
};

}  // namespace peerlane::softgpu

using namespace peerlane::softgpu;

extern "C" {

cudaError_t cudaUserObjectCreate(cudaUserObject_t* handle, void* argument, cudaHostFn_t destroy,
                                 unsigned references, unsigned flags) {
  if (destroy == nullptr || references == 0 || flags != cudaUserObjectNoDestructorSync)
    return note(cudaErrorInvalidValue);
  *handle = reinterpret_cast<cudaUserObject_t>(new UserObject{argument, destroy, references});
  return cudaSuccess;
}

cudaError_t cudaUserObjectRetain(cudaUserObject_t handle, unsigned count) {
  Destroyer::instance().retain(*objectOf(handle), count);
  return cudaSuccess;
}

cudaError_t cudaUserObjectRelease(cudaUserObject_t handle, unsigned count) {
  Destroyer::instance().release(objectOf(handle), count);
  return cudaSuccess;
}

cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t handle, unsigned count,
                                      unsigned flags) {
  if (graph == nullptr || count == 0) return note(cudaErrorInvalidValue);
  if ((flags & cudaGraphUserObjectMove) == 0)
    Destroyer::instance().retain(*objectOf(handle), count);
  reinterpret_cast<Graph*>(graph)->kept.push_back(
      std::make_shared<KeptObject>(objectOf(handle), count));
  return cudaSuccess;
}

}  // extern "C"
