// A placement rule beside the operator that it is about, in a C++ extension:
//
//     #include <koila/rule.h>
//
//     TORCH_LIBRARY(mylib, m) { m.def("scale_rows(Tensor x, Tensor weight) -> Tensor"); }
//     KOILA_RULE("mylib::scale_rows(x: Shard(0), weight: Replicate) -> Shard(0)")
//
// The language is that of the file KOILA_RULES, and docs/rules.md says what a rule promises. C++17, and nothing to link (libdl where dlsym is
// not part of libc). Where koila is not preloaded the rule does nothing, so the same extension runs with it and without.
#ifndef KOILA_RULE_H_
#define KOILA_RULE_H_

#include <dlfcn.h>

namespace koila {

// `where` is named in messages: "file:line". 0: the rule is taken, or there is no koila in this process. 1: it is not well formed, and a warning says why.
inline int add_rule(const char* rule, const char* where) {
  using AddRule = int (*)(const char*, const char*);
  const auto add = reinterpret_cast<AddRule>(dlsym(RTLD_DEFAULT, "koila_add_rule"));
  return add != nullptr ? add(rule, where) : 0;
}

}  // namespace koila

#define KOILA_RULE_TEXT_OF(x) #x
#define KOILA_RULE_TEXT(x) KOILA_RULE_TEXT_OF(x)
#define KOILA_RULE_JOIN_OF(a, b) a##b
#define KOILA_RULE_JOIN(a, b) KOILA_RULE_JOIN_OF(a, b)

// At namespace scope; takes effect when the library is loaded.
#define KOILA_RULE(text)                                                               \
  [[maybe_unused]] static const int KOILA_RULE_JOIN(koila_rule_, __COUNTER__) = \
      ::koila::add_rule(text, __FILE__ ":" KOILA_RULE_TEXT(__LINE__));

#endif  // KOILA_RULE_H_
