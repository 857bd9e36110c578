// SPDX-License-Identifier: Apache-2.0
//
// The intrusive list against std::list under random operations, and what misuse does.
#include "peerlane/core/intrusive_list.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <iterator>
#include <random>
#include <vector>

namespace peerlane {
namespace {

struct ByAge;
struct Item : ListNode<>, ListNode<ByAge> {
  explicit Item(int n) : number(n) {}
  int number;
};
using List = IntrusiveList<Item>;

static_assert(std::bidirectional_iterator<List::Iterator>);

std::vector<int> numbers(List& list) {
  std::vector<int> forward;
  for (Item& item : list) forward.push_back(item.number);
  std::vector<int> backward;
  for (auto at = list.end(); at != list.begin();) backward.push_back((--at)->number);
  std::reverse(backward.begin(), backward.end());
  EXPECT_EQ(forward, backward) << "the two directions disagree";
  return forward;
}

void clear(List& list) {
  while (list.popFront() != nullptr) {
  }
}

TEST(IntrusiveList, PushPopAndRemove) {
  List list;
  EXPECT_TRUE(list.empty());
  EXPECT_EQ(list.popFront(), nullptr);
  Item a(1), b(2), c(3);
  list.pushBack(b);
  list.pushBack(c);
  list.pushFront(a);
  EXPECT_EQ(numbers(list), (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(list.front().number, 1);
  EXPECT_EQ(list.back().number, 3);
  list.remove(b);
  EXPECT_FALSE(static_cast<ListNode<>&>(b).isLinked());
  EXPECT_EQ(numbers(list), (std::vector<int>{1, 3}));
  list.pushBack(b);
  EXPECT_EQ(list.popFront(), &a);
  EXPECT_EQ(numbers(list), (std::vector<int>{3, 2}));
  clear(list);
  EXPECT_TRUE(list.empty());
}

TEST(IntrusiveList, OneElementInTwoLists) {
  List one;
  IntrusiveList<Item, ByAge> two;
  Item a(1), b(2);
  one.pushBack(a);
  one.pushBack(b);
  two.pushBack(b);
  two.pushBack(a);
  one.remove(a);
  EXPECT_EQ(two.popFront(), &b);
  EXPECT_EQ(two.popFront(), &a);
  EXPECT_EQ(one.popFront(), &b);
}

TEST(IntrusiveList, EraseWhileWalking) {
  List list;
  std::deque<Item> items;
  for (int i = 0; i < 6; ++i) list.pushBack(items.emplace_back(i));
  for (auto at = list.begin(); at != list.end();) at = at->number % 2 == 0 ? list.erase(at) : ++at;
  EXPECT_EQ(numbers(list), (std::vector<int>{1, 3, 5}));
  clear(list);
}

TEST(IntrusiveList, TakeAllKeepsOrder) {
  List list, other;
  Item a(1), b(2), c(3), d(4);
  list.takeAll(other);
  EXPECT_TRUE(list.empty());
  other.pushBack(a);
  list.takeAll(other);
  EXPECT_TRUE(other.empty());
  EXPECT_EQ(numbers(list), std::vector<int>{1});
  other.pushBack(b);
  other.pushBack(c);
  list.takeAll(other);
  list.takeAll(other);
  other.pushBack(d);
  EXPECT_EQ(numbers(list), (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(numbers(other), std::vector<int>{4});
  clear(list);
  clear(other);
}

TEST(IntrusiveList, AgreesWithAVectorUnderRandomOperations) {
  std::mt19937 random(7);
  std::deque<Item> items;
  for (int i = 0; i < 16; ++i) items.emplace_back(i);
  List list;
  std::vector<int> model;
  for (int step = 0; step < 5000; ++step) {
    Item& item = items[random() % items.size()];
    auto at = std::find(model.begin(), model.end(), item.number);
    ASSERT_EQ(static_cast<ListNode<>&>(item).isLinked(), at != model.end());
    if (at != model.end()) {
      list.remove(item);
      model.erase(at);
    } else if (random() % 2 == 0) {
      list.pushBack(item);
      model.push_back(item.number);
    } else {
      list.pushFront(item);
      model.insert(model.begin(), item.number);
    }
    ASSERT_EQ(numbers(list), model) << step;
  }
  clear(list);
}

TEST(IntrusiveListDeathTest, MisuseAborts) {
  List list, other;
  Item a(1);
  EXPECT_DEATH(list.front(), "check failed");
  EXPECT_DEATH(list.remove(a), "check failed: isLinked");
  list.pushBack(a);
  EXPECT_DEATH(other.pushBack(a), "check failed: !isLinked");
  EXPECT_DEATH(
      {
        List early;
        Item b(2);
        early.pushBack(b);
      },
      "check failed: !isLinked");
  EXPECT_DEATH(
      {
        Item b(2);
        List early;
        early.pushBack(b);
      },
      "check failed: empty");
  clear(list);
}

}  // namespace
}  // namespace peerlane
