// SPDX-License-Identifier: Apache-2.0
//
// A doubly linked list whose links live in the elements, so that adding and removing allocate
// nothing and take constant time. Owns no element. External synchronization required.
#pragma once

#include <cstddef>
#include <iterator>
#include <utility>

#include "peerlane/core/status.h"

namespace peerlane {

template <typename T, typename Tag>
class IntrusiveList;

// Base of an element. An element that is in several lists at once has one base per list, told apart
// by Tag. Neither copied nor moved, since neighbours point at it; it must be out of every list when
// it dies.
template <typename Tag = void>
class ListNode {
 public:
  ListNode() = default;
  ListNode(const ListNode&) = delete;
  ListNode& operator=(const ListNode&) = delete;

  bool isLinked() const { return next_ != nullptr; }

 protected:
  ~ListNode() { PEERLANE_CHECK(!isLinked()); }

 private:
  template <typename, typename>
  friend class IntrusiveList;

  void insertBefore(ListNode& position) {
    PEERLANE_CHECK(!isLinked());
    previous_ = position.previous_;
    next_ = &position;
    previous_->next_ = this;
    next_->previous_ = this;
  }
  void unlink() {
    PEERLANE_CHECK(isLinked());
    previous_->next_ = next_;
    next_->previous_ = previous_;
    previous_ = next_ = nullptr;
  }

  ListNode* previous_ = nullptr;
  ListNode* next_ = nullptr;
};

// Requires: T derives from ListNode<Tag>. The list is empty when it dies.
template <typename T, typename Tag = void>
class IntrusiveList {
  using Node = ListNode<Tag>;

 public:
  // Stays valid while elements other than its own are added and removed; removal of its own goes by
  // erase().
  class Iterator {
   public:
    using iterator_category = std::bidirectional_iterator_tag;
    using value_type = T;
    using difference_type = std::ptrdiff_t;
    using pointer = T*;
    using reference = T&;

    Iterator() = default;
    T& operator*() const { return static_cast<T&>(*node_); }
    T* operator->() const { return &**this; }
    Iterator& operator++() { return node_ = node_->next_, *this; }
    Iterator& operator--() { return node_ = node_->previous_, *this; }
    Iterator operator++(int) { return std::exchange(*this, Iterator(node_->next_)); }
    Iterator operator--(int) { return std::exchange(*this, Iterator(node_->previous_)); }
    bool operator==(const Iterator&) const = default;

   private:
    friend class IntrusiveList;
    explicit Iterator(Node* node) : node_(node) {}
    Node* node_ = nullptr;
  };

  IntrusiveList() { ends_.previous_ = ends_.next_ = &ends_; }
  IntrusiveList(const IntrusiveList&) = delete;
  IntrusiveList& operator=(const IntrusiveList&) = delete;
  ~IntrusiveList() {
    PEERLANE_CHECK(empty());
    ends_.previous_ = ends_.next_ = nullptr;
  }

  bool empty() const { return ends_.next_ == &ends_; }
  // Requires for both: not empty.
  T& front() { return elementAt(ends_.next_); }
  T& back() { return elementAt(ends_.previous_); }

  // Requires: the element is in no list of this Tag.
  void pushBack(T& element) { node(element).insertBefore(ends_); }
  void pushFront(T& element) { node(element).insertBefore(*ends_.next_); }
  // Null when empty.
  T* popFront() {
    if (empty()) return nullptr;
    T& element = front();
    remove(element);
    return &element;
  }
  // Requires: the element is in this list.
  void remove(T& element) { node(element).unlink(); }
  // Removes the element and returns the place of the next one.
  Iterator erase(Iterator position) {
    Iterator next(position.node_->next_);
    position.node_->unlink();
    return next;
  }
  // Appends all elements of `other` to this list, in their order, and leaves `other` empty.
  // Constant time.
  void takeAll(IntrusiveList& other) {
    PEERLANE_CHECK(this != &other);
    if (other.empty()) return;
    Node* first = other.ends_.next_;
    Node* last = other.ends_.previous_;
    other.ends_.previous_ = other.ends_.next_ = &other.ends_;
    first->previous_ = ends_.previous_;
    first->previous_->next_ = first;
    last->next_ = &ends_;
    ends_.previous_ = last;
  }

  Iterator begin() { return Iterator(ends_.next_); }
  Iterator end() { return Iterator(&ends_); }

 private:
  // The ring's fixed point: before the first and after the last element. Not an element.
  struct Ends : Node {};

  static Node& node(T& element) { return element; }
  T& elementAt(Node* at) {
    PEERLANE_CHECK(at != &ends_);
    return static_cast<T&>(*at);
  }

  Ends ends_;
};

}  // namespace peerlane
