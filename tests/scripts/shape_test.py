#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each limit of scripts/shape.py is broken once in a small tree; and what it takes for a class or a function."""

import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SCRIPT = os.path.join(ROOT, "scripts", "shape.py")
sys.path.insert(0, os.path.dirname(SCRIPT))
import shape  # noqa: E402  (its folder is known only now)


def tree_of(files):
    with tempfile.TemporaryDirectory() as root:
        for path, text in files.items():
            os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
            with open(os.path.join(root, path), "w", encoding="utf-8") as stream:
                stream.write(text)
        return shape.Tree(root)


def problems_of(files, exceptions=None):
    return shape.violations(tree_of(files).measured(), exceptions or {})


def classes_of(text):
    return {c.name: (c.lines, c.functions, c.pure) for c in tree_of({"peerlane/core/a.h": text}).classes.values()}


def functions_of(text, path="peerlane/core/a.cc"):
    return {name: lines for name, _, _, lines in tree_of({path: text}).functions}


def inside(text):
    return f"namespace peerlane {{\n{text}\n}}  // namespace peerlane\n"


LONG = "void Box::fill() {\n" + "  step();\n" * 59 + "}\n"  # 61 lines


class Limits(unittest.TestCase):
    def expect(self, files, begin, limit):
        problems = problems_of(files)
        self.assertEqual(len(problems), 1, problems)
        self.assertTrue(problems[0].startswith(f"{begin}: [{limit}] "), problems[0])

    def test_folder(self):
        files = {f"tools/part/row{n}.h": "" for n in range(25)}
        files["tools/part/row1.cc"] = ""  # the same stem
        self.assertEqual(problems_of(files), [])
        self.expect(files | {"tools/part/row25.cu": ""}, "tools/part/:1", "folder")
        self.assertEqual(problems_of({f"bench/row{n}.h": "" for n in range(30)}), [])

    def test_class_with_the_functions_of_all_files(self):
        definition = inside("class Box {\n  void fill();\n" + "  int x;\n" * 97 + "};")  # 100 lines
        source = inside("".join(f"void Box::f{n}() {{\n" + "  step();\n" * 48 + "}\n" for n in range(3)))  # 150
        files = {"peerlane/core/box.h": definition, "peerlane/core/box.cc": source,
                 "peerlane/core/box_more.cc": source}
        self.assertEqual(problems_of(files), [])
        files["peerlane/core/box.cc"] += inside("bool Box::isOpen() const { return true; }")
        self.expect(files, "peerlane/core/box.h:2", "class")

    def test_comments_and_empty_lines_of_a_class_cost_nothing(self):
        self.assertEqual(classes_of("class Box {\n  // one\n\n  /* two\n   three */\n  int x;  // four\n};\n"),
                         {"Box": (3, 0, 0)})

    def test_contract(self):
        text = "struct Wire {\n  virtual ~Wire() = default;\n" + "".join(
            f"  virtual void f{n}(int x = 0) = 0;\n" for n in range(8)) + "  virtual int g() { return 0; }\nMORE};\n"
        self.assertEqual(problems_of({"peerlane/os/wire.h": text.replace("MORE", "")}), [])
        self.expect({"peerlane/os/wire.h": text.replace("MORE", "  [[nodiscard]] virtual int\n  h() const = 0;\n")},
                    "peerlane/os/wire.h:1", "contract")

    def test_function(self):
        self.assertEqual(problems_of({"tools/box.cc": LONG.replace("  step();\n", "", 1)}), [])
        self.expect({"tools/box.cc": "\n" + LONG}, "tools/box.cc:2", "function")

    def test_function_of_a_script(self):
        self.expect({"scripts/run.py": "\ndef run():\n" + "    step()\n" * 60}, "scripts/run.py:2", "function")
        self.expect({"scripts/run.sh": "#!/bin/sh\nrun() {\n" + "  step\n" * 59 + "}\n"}, "scripts/run.sh:2", "function")

    def test_tests_are_free(self):
        self.assertEqual(problems_of({"tests/core/box_test.cc": LONG}), [])


class Exceptions(unittest.TestCase):
    def test_holds(self):
        self.assertEqual(problems_of({"tools/box.cc": LONG}, {("function", "Box::fill"): (61, "a table")}), [])

    def test_is_of_one_limit(self):
        self.assertEqual(len(problems_of({"tools/box.cc": LONG}, {("class", "Box::fill"): (61, "a table")})), 2)

    def test_may_not_grow(self):
        longer = LONG.replace("{\n", "{\n  step();\n", 1)
        problems = problems_of({"tools/box.cc": longer}, {("function", "Box::fill"): (61, "a table")})
        self.assertEqual(problems, ["tools/box.cc:1: [function] Box::fill has 62 lines; accepted are 61"])

    def test_follows_what_shrinks(self):
        problems = problems_of({"tools/box.cc": LONG}, {("function", "Box::fill"): (62, "a table")})
        self.assertEqual(len(problems), 1)
        self.assertIn("shrank from 62 lines to 61; write 61", problems[0])

    def test_that_nothing_needs(self):
        for files in ({}, {"tools/box.cc": LONG.replace("  step();\n", "", 1)}):
            problems = problems_of(files, {("function", "Box::fill"): (61, "a table")})
            self.assertEqual(len(problems), 1)
            self.assertIn("take it off the list", problems[0])

    def test_of_the_script_are_for_this_tree(self):
        with tempfile.TemporaryDirectory() as root:
            done = subprocess.run([sys.executable, SCRIPT, root], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stdout.count("take it off the list"), len(shape.EXCEPTIONS))


class Reading(unittest.TestCase):
    def test_scopes(self):
        found = classes_of("namespace a::b {\nclass Out : public Base<int> {\n public:\n  struct In {\n    int x = 0;\n"
                           "    void f() {}\n  };\n  class Later;\n};\nclass Out::Later final {\n};\n}\n"
                           "void a::b::Out::In::g() {\n}\nenum class Kind : int { kOne };\n")
        self.assertEqual(found, {"Out": (8, 0, 0), "Out::In": (6, 2, 0), "Out::Later": (2, 0, 0)})

    def test_classes_of_unnamed_namespaces_are_of_their_file(self):
        text = "namespace peerlane {\nnamespace {\nstruct Seen {\n  Seen();\n};\n}\nSeen::Seen() {\n}\n}\n"
        tree = tree_of({"peerlane/core/a.cc": text, "peerlane/core/b.cc": text})
        self.assertEqual([(c.name, c.path, c.lines) for c in tree.classes.values()],
                         [("Seen", "peerlane/core/a.cc", 5), ("Seen", "peerlane/core/b.cc", 5)])

    def test_functions(self):
        self.assertEqual(functions_of("""
Box::Box(std::function<void(int)> f, Size s = {1, 2})
    : f_{std::move(f)}, bits_(1 << 12), size_{s} {
}
template <typename T, int N = (1 + 2)>
std::map<T, int> Box<T>::find(T) const noexcept(sizeof(T) == 8) {
  auto inner = [](int x) {
    return x;
  };
  if (inner(1)) {
  }
}
bool operator<(Box, Box) { return false; }
Box::operator bool() const { return true; }
void Box::operator()(int) {
}
Box& Box::operator=(Box&&) noexcept { return *this; }
__global__ void __launch_bounds__(kThreads)
    kernel(const Job job) {
}
void Box::run() REQUIRES(mutex_) try {
} catch (...) {
}
extern "C" int plain() { return 0; }
"""), {"Box::Box": 3, "Box::find": 8, "operator<": 1, "Box::operator bool": 1, "Box::operator()": 2,
       "Box::operator=": 1, "kernel": 3, "Box::run": 3, "plain": 1})

    def test_what_is_no_function(self):
        self.assertEqual(functions_of("""
int values[] = {1, 2}, more{3};
constexpr auto kCall = [](int x) { return x; };
const std::function<int(int)> kOther{kCall};
static const Box kBox(Size{1}, 2);
enum Kind { kOne = int(1) };
// void f() {
const char* text = "void g() {" R"x(}{ " )x" "\\"{";
const char brace = '{'; const int many = 1'000;
#define OPEN(x) void x() { \\
  {
"""), {})

    def test_a_brace_too_many_is_an_error(self):
        for text in ("void f() {\n", "}\n", "namespace a {\n"):
            with self.assertRaisesRegex(ValueError, "peerlane/core/a.cc"):
                functions_of(text)


if __name__ == "__main__":
    unittest.main()
